// Proves that a Hardware comes back from its JSON, that what is not one is refused by the name of the field, and that a
// measured roofline is read between its points and beyond them.
#include "penstock/hardware/hardware.h"

#include <gmock/gmock.h>

#include "penstock/base/status.h"

namespace penstock {
namespace {

Hardware Example() {
  Hardware hardware;
  Processor cpu{.name = "cpu", .model = "Example 9000", .num_cpus = 4};
  cpu.features.avx2 = true;
  cpu.peaks = {{Arithmetic::kF32, "fma", {{1, 1e11}, {2, 2e11}}},
               {Arithmetic::kBf16, "", {}},
               {Arithmetic::kInt8, "dot", {{1, 4e11}}}};
  cpu.kernels = {
      {.num_threads = 2, .weights = "int8", .gemm = {{2, 4e-11}, {64, 8e-11}}, .kv = "f32", .kv_bytes_per_s = 1e10}};
  hardware.processors = {cpu};
  hardware.tiers = {{"dram", 1ull << 34, {{1, 1e10, 8e9, 5e9}}}};
  hardware.links = {{"disk_to_dram", 2e9}};
  return hardware;
}

TEST(Hardware, ComesBackFromItsJson) {
  const json::object written = ToJson(Example());
  const absl::StatusOr<Hardware> read = ParseHardware(written);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(json::serialize(ToJson(*read)), json::serialize(written));
}

TEST(Hardware, RefusesByTheNameOfTheField) {
  const auto refusal = [](std::string_view pointer, const json::value& value) {
    json::value hardware = ToJson(Example());
    hardware.at_pointer(pointer) = value;
    const absl::Status status = ParseHardware(hardware).status();
    EXPECT_EQ(FaultOf(status), Fault::kInput) << pointer;
    return std::string(status.message());
  };
  EXPECT_THAT(refusal("/links/0/bytes_per_second", -1), testing::HasSubstr("bytes_per_second"));
  EXPECT_THAT(refusal("/links/0/bytes_per_second", "2"), testing::HasSubstr("bytes_per_second"));
  EXPECT_THAT(refusal("/processors/0/kernels/0/gemm/1/ops_per_byte", 2), testing::HasSubstr("ops_per_byte"));
  EXPECT_THAT(refusal("/processors/0/kernels", 2), testing::HasSubstr("kernels"));
  EXPECT_THAT(refusal("/processors/0/cpus", 1e9), testing::HasSubstr("cpus"));
  EXPECT_THAT(refusal("/tiers/0", nullptr), testing::HasSubstr("tiers"));
  EXPECT_EQ(FaultOf(ParseHardware(json::array()).status()), Fault::kInput);
}

TEST(KernelRates, AreReadBetweenTheirPointsAndBeyond) {
  const KernelRates rates = Example().processors[0].kernels[0];
  EXPECT_DOUBLE_EQ(rates.GemmSeconds(0, 100), 100 * 4e-11);
  EXPECT_DOUBLE_EQ(rates.GemmSeconds(200, 100), 100 * 4e-11);
  EXPECT_DOUBLE_EQ(rates.GemmSeconds(3300, 100), 100 * 6e-11);
  EXPECT_DOUBLE_EQ(rates.GemmSeconds(6400, 100), 100 * 8e-11);
  EXPECT_DOUBLE_EQ(rates.GemmSeconds(12800, 100), 2 * 100 * 8e-11);
  EXPECT_EQ(rates.GemmSeconds(100, 0), 0);
}

}  // namespace
}  // namespace penstock
