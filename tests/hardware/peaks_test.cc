// Proves that every rate is measured and positive, that exactly the unsupported rates are null, that threads add up,
// and that the JSON has the fields that its readers expect. No test can know how fast a machine is.
#include "penstock/hardware/peaks.h"

#include <gmock/gmock.h>

#include "penstock/base/bytes.h"
#include "penstock/base/status.h"

namespace penstock {
namespace {

constexpr double kShort = 2e-3;

MemoryProbe SmallProbe(ThreadPool& pool) { return MemoryProbe::Create(pool, 16 * kMiB).value(); }

Hardware ProbeShortly(int max_threads) {
  return ProbeMachine({.max_threads = max_threads, .total_seconds = 12 * kShort, .buffer_bytes = 8 * kMiB}).value();
}

TEST(MemoryProbe, EveryTransferHasARate) {
  for (const int num_threads : {1, 2, 3}) {
    ThreadPool pool(num_threads);
    MemoryProbe memory = SmallProbe(pool);
    for (const Transfer transfer : {Transfer::kRead, Transfer::kWrite, Transfer::kCopy, Transfer::kRead}) {
      EXPECT_GT(memory.BytesPerSecond(transfer, pool, kShort), 1e6) << "transfer " << static_cast<int>(transfer);
    }
    EXPECT_GT(memory.BytesPerSecond(Transfer::kRead, pool, 0), 1e6);
  }
}

TEST(MemoryProbe, ASmallBufferSuffices) {
  ThreadPool pool(2);
  MemoryProbe memory = MemoryProbe::Create(pool, 1).value();
  EXPECT_GT(memory.BytesPerSecond(Transfer::kCopy, pool, 0), 1e6);
}

TEST(MemoryProbe, AnImpossibleBufferIsAnError) {
  ThreadPool pool(1);
  const absl::StatusOr<MemoryProbe> memory = MemoryProbe::Create(pool, uint64_t{1} << 60);
  ASSERT_FALSE(memory.ok());
  EXPECT_EQ(FaultOf(memory.status()), Fault::kResources);
}

TEST(OpsPerSecond, IsThereWhenTheInstructionsAre) {
  ThreadPool pool(2);
  const CpuFeatures& cpu = MachineCpuFeatures();
  const std::optional<double> f32 = OpsPerSecond(Arithmetic::kF32, pool, kShort);
  const std::optional<double> bf16 = OpsPerSecond(Arithmetic::kBf16, pool, kShort);
  const std::optional<double> int8 = OpsPerSecond(Arithmetic::kInt8, pool, kShort);
  ASSERT_TRUE(f32.has_value());
  EXPECT_GT(*f32, 1e6);
  EXPECT_EQ(bf16.has_value(), cpu.avx512_bf16);
  EXPECT_EQ(int8.has_value(), cpu.avx2);
  EXPECT_GT(bf16.value_or(1e9), 1e6);
  EXPECT_GT(int8.value_or(1e9), 1e6);
}

// Another process may take a processor away for a while, but not during each of many runs.
TEST(OpsPerSecond, TwoThreadsAreNoSlowerThanHalfOfOne) {
  ThreadPool one(1), two(2);
  double best_share = 0;
  for (int attempt = 0; attempt < 100 && best_share < 0.5; ++attempt) {
    const double single = OpsPerSecond(Arithmetic::kF32, one, kShort).value();
    best_share = std::max(best_share, OpsPerSecond(Arithmetic::kF32, two, kShort).value() / single);
  }
  EXPECT_GE(best_share, 0.5);
}

TEST(ProbeMachine, MeasuresEachNumberOfThreads) {
  const Hardware hardware = ProbeShortly(3);
  ASSERT_EQ(hardware.processors.size(), 1);
  ASSERT_EQ(hardware.tiers.size(), 1);
  std::vector<int> num_threads;
  for (const MemoryRates& rates : hardware.tiers[0].rates) num_threads.push_back(rates.num_threads);
  EXPECT_THAT(num_threads, ::testing::ElementsAre(1, 2, 3));
  ASSERT_EQ(hardware.processors[0].peaks.size(), 3);
  for (const ComputePeak& peak : hardware.processors[0].peaks) {
    EXPECT_EQ(peak.instructions.empty(), peak.rates.empty());
    std::vector<int> peak_threads;
    for (const ComputeRate& rate : peak.rates) peak_threads.push_back(rate.num_threads);
    EXPECT_EQ(peak_threads, peak.rates.empty() ? std::vector<int>() : num_threads) << ArithmeticName(peak.arithmetic);
  }
}

TEST(ProbeMachine, JsonHasEveryField) {
  const Hardware hardware = ProbeShortly(2);
  const json::value value = ParseJson(json::serialize(ToJson(hardware)), Fault::kInternal).value();
  const json::object& cpu = value.at("processors").as_array().at(0).as_object();
  EXPECT_EQ(cpu.at("name").as_string(), "cpu");
  EXPECT_EQ(cpu.at("cpus").to_number<int>(), NumUsableCpus());
  EXPECT_EQ(cpu.at("features").at("avx512_bf16").as_bool(), MachineCpuFeatures().avx512_bf16);
  const auto peaks = cpu.at("peaks").as_object();
  ASSERT_EQ(peaks.size(), 3);
  EXPECT_EQ(peaks.at("bf16").is_null(), !MachineCpuFeatures().avx512_bf16);
  EXPECT_EQ(peaks.at("int8").is_null(), !MachineCpuFeatures().avx2);
  EXPECT_FALSE(peaks.at("f32").at("instructions").as_string().empty());
  const json::array& rates = peaks.at("f32").at("rates").as_array();
  ASSERT_EQ(rates.size(), 2);
  EXPECT_EQ(rates.at(1).at("threads").to_number<int>(), 2);
  EXPECT_GT(rates.at(1).at("ops_per_second").to_number<double>(), 1e6);
  const json::object& dram = value.at("tiers").as_array().at(0).as_object();
  EXPECT_EQ(dram.at("name").as_string(), "dram");
  EXPECT_GT(dram.at("capacity_bytes").to_number<uint64_t>(), 8 * kMiB);
  ASSERT_EQ(dram.at("rates").as_array().size(), 2);
  for (const char* field : {"read_bytes_per_second", "write_bytes_per_second", "copy_bytes_per_second"}) {
    EXPECT_GT(dram.at("rates").at(0).at(field).to_number<double>(), 1e6) << field;
  }
}

TEST(ToJson, WhatIsUnknownIsNull) {
  Hardware hardware;
  hardware.processors.push_back({.name = "cpu"});
  for (const Arithmetic arithmetic : kAllArithmetics)
    hardware.processors[0].peaks.push_back({.arithmetic = arithmetic});
  const json::value cpu = ToJson(hardware).at("processors").at(0);
  EXPECT_TRUE(cpu.at("model").is_null());
  for (const char* name : {"f32", "bf16", "int8"}) EXPECT_TRUE(cpu.at("peaks").at(name).is_null()) << name;
  EXPECT_FALSE(cpu.at("features").at("avx2").as_bool());
}

TEST(FeatureNames, AreThoseThatAreThere) {
  EXPECT_TRUE(FeatureNames({}).empty());
  EXPECT_THAT(FeatureNames({.avx2 = true, .avx512_vnni = true}), ::testing::ElementsAre("avx2", "avx512_vnni"));
}

}  // namespace
}  // namespace penstock
