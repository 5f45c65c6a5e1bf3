// Proves how long a task takes in a simulation: from measured rates where there are some, otherwise from the roofline
// of peaks and efficiencies, and over each link from its own rate.
#include "penstock/simulate/hardware_rates.h"

#include <gmock/gmock.h>

#include "penstock/base/status.h"

namespace penstock {
namespace {

constexpr TaskCost kExperts{.flops = 4e9, .memory_bytes = 100'000'000};
constexpr TaskCost kAttention{.flops = 3e9, .memory_bytes = 300'000'000, .kv_bytes = 200'000'000, .kv_flops = 1e9};
constexpr TaskCost kTransfer{.link_bytes = 6'000'000};

// A CPU of 1e11 operations and 1e10 bytes per second, of which its kernels reach a half and four fifths.
Hardware Described() {
  Hardware hardware;
  hardware.processors = {{.name = "cpu",
                          .tier = "dram",
                          .num_cpus = 2,
                          .peaks = {{Arithmetic::kF32, "fma", {{2, 1e11}}}},
                          .compute_efficiency = 0.5,
                          .memory_efficiency = 0.8,
                          .call_s = 1e-3}};
  hardware.tiers = {{"dram", 1ull << 34, {{2, 1e10, 8e9, 5e9}}}};
  hardware.links = {{"disk_to_dram", 2e9, 1e-4, {}}};
  return hardware;
}

EnginePlan PlanOf(int64_t num_expert_slots) {
  EnginePlan plan;
  plan.policy.plan.num_experts_total = 8;
  plan.policy.plan.num_expert_slots = num_expert_slots;
  return plan;
}

TEST(HardwareRates, MemoryBeyondWhatIsAtHandIsTouchedAtTheRateOfItsFirstUse) {
  Hardware hardware = Described();
  EnginePlan plan = PlanOf(4);
  plan.policy.plan.expert_bytes = 3ull << 30;
  plan.policy.plan.kv_bytes = 1ull << 30;
  EXPECT_EQ(FirstUseSeconds(hardware, plan), 0);  // nobody measured it
  hardware.tiers[0].first_use_bytes_per_s = 1ull << 29;
  EXPECT_DOUBLE_EQ(FirstUseSeconds(hardware, plan), 7.5);
  plan.policy.plan.device.holds_kv_cache = true;
  EXPECT_DOUBLE_EQ(FirstUseSeconds(hardware, plan), 5.5);
  plan.policy.plan.device.holds_kv_cache = false;
  plan.policy.plan.num_expert_slots = 8;  // all experts, which are read before the first step
  EXPECT_DOUBLE_EQ(FirstUseSeconds(hardware, plan), 1.5);
  plan.policy.plan.kv_bytes = 100 << 20;
  EXPECT_EQ(FirstUseSeconds(hardware, plan), 0);
}

TEST(HardwareRates, WithoutMeasurementsTheSlowerOfArithmeticAndMemoryCounts) {
  const LaneRates rates = LaneRatesOf(Described(), PlanOf(4), 2).value();
  EXPECT_DOUBLE_EQ(rates.host_compute(kExperts), 1e-3 + 4e9 / 5e10);
  EXPECT_DOUBLE_EQ(rates.host_compute(kAttention), 1e-3 + 6e-2);
  constexpr TaskCost kReads{.flops = 1e6, .memory_bytes = 80'000'000};
  EXPECT_DOUBLE_EQ(rates.host_compute(kReads), 1e-3 + 80e6 / 8e9);
}

constexpr double kTask = 2.012e-4;  // two calls of 1e-4 seconds and 1.2 us
constexpr double kLate = 150e-6;    // after which further threads join in

TEST(HardwareRates, MeasuredRatesTakeTheirPlaceAndCountKvByItself) {
  Hardware hardware = Described();
  hardware.processors[0].gemm = {
      {.num_threads = 2, .weights = "f32", .arithmetic = Arithmetic::kF32, .points = {{2, 2e-10}, {100, 1e-9}}}};
  hardware.processors[0].attention = {
      {.num_threads = 2, .kv = "f32", .bytes_per_s = 4e9, .ops_per_s = 1e11, .call_s = 1e-4}};
  const LaneRates rates = LaneRatesOf(hardware, PlanOf(4), 2).value();
  const GemmRates& gemm = hardware.processors[0].gemm[0];
  EXPECT_DOUBLE_EQ(rates.host_compute(kExperts), kTask + gemm.Seconds(4e9, 1e8));
  EXPECT_DOUBLE_EQ(rates.host_compute(kAttention), kTask + 0.05 + gemm.Seconds(2e9, 1e8));
}

TEST(HardwareRates, EachFormatOfAMixedModelHasItsOwnRate) {
  Hardware hardware = Described();
  hardware.processors[0].gemm = {
      {.num_threads = 2, .weights = "hqq3", .arithmetic = Arithmetic::kF32, .points = {{2, 2e-10}, {100, 1e-9}}},
      {.num_threads = 2, .weights = "ternary", .arithmetic = Arithmetic::kF32, .points = {{2, 9e-10}, {100, 3e-9}}}};
  hardware.processors[0].attention = {
      {.num_threads = 2, .kv = "f32", .bytes_per_s = 4e9, .ops_per_s = 1e11, .call_s = 1e-4}};
  EnginePlan plan = PlanOf(4);
  plan.model_formats.ffn = WeightFormat::kHqq3;
  plan.model_formats.ffn_shares = {{WeightFormat::kHqq3, 0.5, 0.7}, {WeightFormat::kTernary, 0.5, 0.3}};
  const GemmRates &hqq3 = hardware.processors[0].gemm[0], &ternary = hardware.processors[0].gemm[1];
  EXPECT_DOUBLE_EQ(LaneRatesOf(hardware, plan, 2)->host_compute(kExperts),
                   kTask + hqq3.Seconds(2e9, 0.7e8) + ternary.Seconds(2e9, 0.3e8));
  // A format that was not measured has the rates of the main one.
  const GemmRates main = hqq3;
  hardware.processors[0].gemm.pop_back();
  EXPECT_DOUBLE_EQ(LaneRatesOf(hardware, plan, 2)->host_compute(kExperts),
                   kTask + main.Seconds(2e9, 0.7e8) + main.Seconds(2e9, 0.3e8));
}

// The machine above, with kernels that were measured.
Hardware Measured() {
  Hardware hardware = Described();
  hardware.processors[0].gemm = {{.num_threads = 2,
                                  .weights = "f32",
                                  .arithmetic = Arithmetic::kF32,
                                  .points = {{2, 2e-10}, {100, 1e-9}},
                                  .pack_s = 1e-9}};
  hardware.processors[0].attention = {
      {.num_threads = 2, .kv = "f32", .bytes_per_s = 4e9, .ops_per_s = 1e11, .call_s = 1e-4}};
  return hardware;
}

TEST(HardwareRates, RowsCountAsMeasured) {
  Hardware hardware = Measured();
  hardware.processors[0].rows = {{.num_threads = 2, .draw_s = 1e-6, .points = {{1, 1, 2, 4}}}};
  const LaneRates rates = LaneRatesOf(hardware, PlanOf(4), 2).value();
  EXPECT_DOUBLE_EQ(rates.host_compute({.attention_rows = 1}), kTask + 2);
  EXPECT_DOUBLE_EQ(rates.host_compute({.routed_rows = 2}), kTask + 8);
  EXPECT_DOUBLE_EQ(rates.host_compute({.embedded_rows = 1}), kTask + 1);
  EXPECT_DOUBLE_EQ(rates.host_compute({.begins_pass = true, .embedded_rows = 1}), kTask + 20e-6 + 1);
}

// The measured seconds of a draw are those of sixteen rows on two threads.
TEST(HardwareRates, AThreadDrawsFromAWholeRow) {
  Hardware hardware = Measured();
  hardware.processors[0].rows = {{.num_threads = 2, .draw_s = 1e-6, .points = {{1, 1, 2, 4}}}};
  const LaneRates rates = LaneRatesOf(hardware, PlanOf(4), 2).value();
  const auto draw_s = [&](uint16_t num_rows) {
    return rates.host_compute({.drawn_rows = num_rows, .drawn_entries = 1000.0 * num_rows}) - rates.host_compute({});
  };
  EXPECT_NEAR(draw_s(1), 2e-3, 1e-9);
  EXPECT_NEAR(draw_s(2), 2e-3, 1e-9);
  EXPECT_NEAR(draw_s(3), 4e-3, 1e-9);
  EXPECT_NEAR(draw_s(16), 16e-3, 1e-9);
  // Without measurements, too.
  const LaneRates of_peaks = LaneRatesOf(Described(), PlanOf(4), 2).value();
  const double lone_s = of_peaks.host_compute({.drawn_rows = 1, .drawn_entries = 1e6}) - of_peaks.host_compute({});
  EXPECT_GT(lone_s, 0);
  EXPECT_NEAR(of_peaks.host_compute({.drawn_rows = 2, .drawn_entries = 2e6}) - of_peaks.host_compute({}), lone_s, 1e-9);
}

TEST(HardwareRates, AThreadPacksAWholeExpert) {
  const LaneRates rates = LaneRatesOf(Measured(), PlanOf(4), 2).value();
  const auto packing_s = [&](int32_t num_experts, uint64_t expert_bytes) {
    const auto bytes = static_cast<uint64_t>(num_experts) * expert_bytes;
    return rates.host_compute({.packed_bytes = bytes, .ready_experts = num_experts}) - rates.host_compute({});
  };
  EXPECT_NEAR(packing_s(1, 1'000'000), 1e-3, 1e-9);
  EXPECT_NEAR(packing_s(2, 1'000'000), 1e-3 + kLate, 1e-9);
  EXPECT_NEAR(packing_s(5, 1'000'000), 3e-3, 1e-9);
  EXPECT_NEAR(packing_s(6, 1'000'000), 3e-3 + kLate, 1e-9);
  // Two small experts are packed before the second thread comes, and the third one when it comes.
  EXPECT_NEAR(packing_s(2, 70'000), 140e-6, 1e-9);
  EXPECT_NEAR(packing_s(3, 70'000), 210e-6, 1e-9);
  EXPECT_NEAR(packing_s(4, 70'000), kLate + 70e-6, 1e-9);
}

TEST(HardwareRates, AThreadDecodesAWholeMatrix) {
  const auto decoding_s = [&](int num_threads, int32_t num_experts) {
    TaskCost decoded = kExperts;
    decoded.decoded_bytes = decoded.memory_bytes;
    decoded.ready_experts = num_experts;
    const LaneRates rates = LaneRatesOf(Described(), PlanOf(4), num_threads).value();
    return rates.host_compute(decoded) - rates.host_compute(kExperts);
  };
  EXPECT_GT(decoding_s(1, 1), 0.005);
  EXPECT_LT(decoding_s(1, 1), 0.05);
  EXPECT_NEAR(decoding_s(2, 1), decoding_s(1, 1) * 2 / 3, 1e-9);
  EXPECT_NEAR(decoding_s(3, 1), decoding_s(1, 1) / 3 + kLate, 1e-9);
  EXPECT_NEAR(decoding_s(64, 1), decoding_s(1, 1) / 3 + kLate, 1e-9);
  EXPECT_NEAR(decoding_s(4, 4), decoding_s(1, 4) / 4 + kLate, 1e-9);
  EXPECT_NEAR(decoding_s(64, 4), decoding_s(1, 4) / 12 + kLate, 1e-9);
}

// A GPU that was measured has kernels for rows of codes. One that is only described computes weights of fewer bits at
// its bf16 rate.
TEST(HardwareRates, AGpuThatWasMeasuredComputesAtTheRatesOfItsKernels) {
  Hardware hardware = Described();
  hardware.processors.push_back({.name = "gpu",
                                 .tier = "device",
                                 .num_cpus = 1,
                                 .peaks = {{Arithmetic::kBf16, "mma", {{1, 8e12}}}},
                                 .gemm = {{.num_threads = 1,
                                           .weights = "int8",
                                           .arithmetic = Arithmetic::kInt8,
                                           .points = {{2, 2e-12}, {100, 1e-11}}}},
                                 .attention = {{1, "f32", 4e11, 1e13, 0}}});
  hardware.tiers.push_back({"device", 1ull << 34, {{1, 1e12}}});
  hardware.links.push_back({"dram_to_device", 1e10, 0, {}});
  hardware.links.push_back({"device_to_dram", 1e10, 0, {}});
  EnginePlan plan = PlanOf(4);
  plan.policy.device = DeviceSpec{.kind = DeviceKind::kDescribed, .name = "gpu"};
  plan.model_formats.ffn = WeightFormat::kInt8;
  plan.formats.rows.ffn = kernels::RowFormat::kInt8;
  hardware.processors[0].peaks.push_back({Arithmetic::kInt8, "dot", {{2, 4e11}}});
  EXPECT_DOUBLE_EQ(LaneRatesOf(hardware, plan, 2)->device_compute(kExperts),
                   hardware.processors[1].gemm[0].Seconds(4e9, 1e8));
  hardware.processors[1].gemm.clear();
  EXPECT_DOUBLE_EQ(LaneRatesOf(hardware, plan, 2)->device_compute(kExperts), 4e9 / 8e12);
}

TEST(HardwareRates, TransfersTakeTheirLinksTime) {
  EXPECT_DOUBLE_EQ(LaneRatesOf(Described(), PlanOf(4), 2)->disk_to_dram(kTransfer), 1e-4 + 6e6 / 2e9);
  EnginePlan plan = PlanOf(4);
  plan.policy.device = DeviceSpec{.link_bytes_per_s = 3e9, .num_threads = 1};
  const LaneRates rates = LaneRatesOf(Described(), plan, 2).value();
  EXPECT_DOUBLE_EQ(rates.dram_to_device(kTransfer), 2e-3);
  EXPECT_DOUBLE_EQ(rates.device_to_dram(kTransfer), 2e-3);
  EXPECT_DOUBLE_EQ(rates.device_compute(kExperts), 1e-3 + 4e9 / 2.5e10);  // one thread of two
}

TEST(HardwareRates, WithoutADiskAllExpertsMustFit) {
  Hardware hardware = Described();
  hardware.links.clear();
  EXPECT_EQ(LaneRatesOf(hardware, PlanOf(8), 2)->disk_to_dram(kTransfer), 0);
  EXPECT_THAT(std::string(LaneRatesOf(hardware, PlanOf(7), 2).status().message()), testing::HasSubstr("disk_to_dram"));
}

TEST(HardwareRates, MissingRatesAreNamed) {
  Hardware hardware = Described();
  hardware.processors[0].peaks.clear();
  const absl::Status status = LaneRatesOf(hardware, PlanOf(4), 2).status();
  EXPECT_EQ(FaultOf(status), Fault::kUsage);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("penstock probe --model"));
}

}  // namespace
}  // namespace penstock
