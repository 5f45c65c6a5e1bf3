// Proves that a Hardware survives its JSON, that errors name the wrong field, and that a measured roofline is
// interpolated between its points and continued beyond them.
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
  cpu.gemm = {
      {.num_threads = 2, .weights = "int8", .arithmetic = Arithmetic::kInt8, .points = {{2, 4e-11}, {64, 8e-11}}}};
  cpu.gemm[0].pack_s = 2e-10;
  cpu.attention = {{2, "f32", 1e10, 1e11}};
  cpu.rows = {{2, 1e-9, {{1, 1e-6, 2e-6, 3e-6}, {5, 5e-6, 4e-6, 3e-6}}}};
  hardware.processors = {cpu};
  hardware.tiers = {{"dram", 1ull << 34, {{1, 1e10, 8e9, 5e9}}, 8e8}};
  hardware.links = {{"disk_to_dram", 2e9, 0, 3e-5, {{1000, 1, 5e8}, {1000, 4, 1e9}, {3000, 1, 3e9}, {3000, 4, 1e9}}}};
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
  EXPECT_THAT(refusal("/links/0/rates/2/transfer_bytes", 10), testing::HasSubstr("transfer_bytes"));
  EXPECT_THAT(refusal("/links/0/rates/1/under_way", 1), testing::HasSubstr("under_way"));
  EXPECT_THAT(refusal("/processors/0/gemm/0/points/1/ops_per_byte", 2), testing::HasSubstr("ops_per_byte"));
  EXPECT_THAT(refusal("/processors/0/gemm/0/points", json::array()), testing::HasSubstr("points"));
  EXPECT_THAT(refusal("/processors/0/gemm/0/arithmetic", "f64"), testing::HasSubstr("arithmetic"));
  EXPECT_THAT(refusal("/processors/0/gemm", 2), testing::HasSubstr("gemm"));
  EXPECT_THAT(refusal("/processors/0/attention/0/kv", 2), testing::HasSubstr("kv"));
  EXPECT_THAT(refusal("/processors/0/gemm/0/pack_seconds_per_byte", -1), testing::HasSubstr("pack_seconds_per_byte"));
  EXPECT_THAT(refusal("/processors/0/rows/0/points", json::array()), testing::HasSubstr("points"));
  EXPECT_THAT(refusal("/processors/0/rows/0/points/1/rows", 1), testing::HasSubstr("rows"));
  EXPECT_THAT(refusal("/processors/0/rows/0/points/1/routed_seconds", "3"), testing::HasSubstr("routed_seconds"));
  EXPECT_THAT(refusal("/processors/0/cpus", 1e9), testing::HasSubstr("cpus"));
  EXPECT_THAT(refusal("/tiers/0", nullptr), testing::HasSubstr("tiers"));
  EXPECT_EQ(FaultOf(ParseHardware(json::array()).status()), Fault::kInput);
}

TEST(RowRates, AreReadBetweenTheirPointsAndBeyond) {
  const Hardware hardware = Example();
  const RowRates* const rates = hardware.processors[0].FindRows(2);
  ASSERT_NE(rates, nullptr);
  EXPECT_EQ(hardware.processors[0].FindRows(1), nullptr);
  EXPECT_EQ(rates->EmbedSeconds(0), 0);
  EXPECT_DOUBLE_EQ(rates->EmbedSeconds(0.5), 1e-6);
  EXPECT_DOUBLE_EQ(rates->EmbedSeconds(3), 3e-6);
  EXPECT_DOUBLE_EQ(rates->AttentionSeconds(3), 3e-6);
  EXPECT_DOUBLE_EQ(rates->RoutedSeconds(3), 3e-6);
  EXPECT_DOUBLE_EQ(rates->AttentionSeconds(10), 8e-6);
}

TEST(Link, IsReadBetweenItsSizesAndBeyond) {
  Link link = Example().links[0];
  EXPECT_DOUBLE_EQ(link.Seconds(1), 1e-6);
  EXPECT_DOUBLE_EQ(link.Seconds(1000), 1e-6);
  EXPECT_DOUBLE_EQ(link.Seconds(2000), 1e-6);
  EXPECT_DOUBLE_EQ(link.Seconds(6000), 3e-6);
  EXPECT_DOUBLE_EQ(link.Seconds(500, 1), 2e-6);
  EXPECT_DOUBLE_EQ(link.Seconds(500, 0), 2e-6);
  EXPECT_DOUBLE_EQ(link.Seconds(500, 2), 1000 / 7.5e8);  // half the way from 1 to 4
  EXPECT_DOUBLE_EQ(link.Seconds(500, 4), 1e-6);
  EXPECT_DOUBLE_EQ(link.Seconds(2000, 1), 1.5e-6);
  EXPECT_DOUBLE_EQ(link.Seconds(6000, 1), 3e-6);
  link.SetRate(1e9);
  EXPECT_DOUBLE_EQ(link.Seconds(6000), 6e-6);
  EXPECT_DOUBLE_EQ(link.Seconds(1000), 2e-6);
  link.rates.clear();
  EXPECT_DOUBLE_EQ(link.Seconds(1), 1e-9);
}

TEST(GemmRates, AreReadBetweenTheirPointsAndBeyond) {
  const GemmRates rates = Example().processors[0].gemm[0];
  EXPECT_DOUBLE_EQ(rates.Seconds(0, 100), 100 * 4e-11);
  EXPECT_DOUBLE_EQ(rates.Seconds(200, 100), 100 * 4e-11);
  EXPECT_DOUBLE_EQ(rates.Seconds(3300, 100), 100 * 6e-11);
  EXPECT_DOUBLE_EQ(rates.Seconds(6400, 100), 100 * 8e-11);
  EXPECT_DOUBLE_EQ(rates.Seconds(12800, 100), 2 * 100 * 8e-11);
  EXPECT_EQ(rates.Seconds(100, 0), 0);
}

TEST(Hardware, WhatNobodyMeasuredOfAMemoryStaysUnknown) {
  Hardware hardware;
  hardware.tiers.push_back(
      {.name = "device", .capacity_bytes = 1 << 30, .rates = {{.num_threads = 1, .read_bytes_per_s = 2e12}}});
  const json::object json = ToJson(hardware);
  const Hardware again = ParseHardware(json).value();
  EXPECT_EQ(again.FindTier("device")->ReadRate(), 2e12);
  EXPECT_EQ(again.FindTier("device")->rates[0].copy_bytes_per_s, 0);
  EXPECT_EQ(ToJson(again), json);
}

}  // namespace
}  // namespace penstock
