// Proves that kernels are measured for models of every kind: with recurrent layers, layers without attention or FFN,
// layers with heads of their own, an indexer, and an encoder.
#include <gmock/gmock.h>

#include "penstock/measure/kernel_probe.h"
#include "penstock/measure/probe.h"

namespace penstock {
namespace {

absl::StatusOr<Hardware> ProbeQuickly(const DescribedModel* model, double seconds) {
  return Probe({.options = {.device = "cpu", .threads = 1},
                .model = model,
                .disk_dir = "",
                .seconds = seconds,
                .max_bytes = 256 << 20});
}

class KernelProbeTest : public testing::TestWithParam<const char*> {};

TEST_P(KernelProbeTest, MeasuresAttentionAndExperts) {
  const std::string config = std::string(PENSTOCK_GOLDEN_DIR) + "/" + GetParam() + "/config.json";
  const auto model = DescribedModel::FromConfig(config, "int8");
  ASSERT_TRUE(model.ok()) << model.status();
  const auto hardware = ProbeQuickly(&*model, 0.2);
  ASSERT_TRUE(hardware.ok()) << hardware.status();
  const Processor& cpu = hardware->processors.front();
  ASSERT_FALSE(cpu.attention.empty());
  EXPECT_GT(cpu.attention.front().bytes_per_s, 0);
  EXPECT_GT(cpu.attention.front().ops_per_s, 0);
  ASSERT_EQ(cpu.rows.size(), 1u);
  EXPECT_GT(cpu.rows[0].draw_s, 0);
  EXPECT_GT(cpu.rows[0].points.back().embed_s, 0);
}

TEST(ProbeTest, MeasuresPackingWhereWeightsArriveAsRows) {
  const auto model = DescribedModel::FromFolder(std::string(PENSTOCK_GOLDEN_DIR) + "/mixtral-tiny");
  ASSERT_TRUE(model.ok()) << model.status();
  const auto hardware = ProbeQuickly(&*model, 0.2);
  ASSERT_TRUE(hardware.ok()) << hardware.status();
  EXPECT_GT(hardware->processors.front().gemm.front().pack_s, 0);
}

TEST(ProbeTest, MeasuresAUsualShapeWithoutAModel) {
  const auto hardware = ProbeQuickly(nullptr, 0.01);
  ASSERT_TRUE(hardware.ok()) << hardware.status();
  ASSERT_EQ(hardware->processors.front().rows.size(), 1u);
  EXPECT_GT(hardware->processors.front().rows[0].draw_s, 0);
}

TEST(HostPaceTest, IsNearIfBothRatesAre) {
  const HostPace pace{.call_s = 1e-6, .byte_s = 2e-11};
  EXPECT_TRUE(pace.IsNear({.call_s = 1.2e-6, .byte_s = 1.6e-11}));
  EXPECT_FALSE(pace.IsNear({.call_s = 2e-6, .byte_s = 2e-11}));
  EXPECT_FALSE(pace.IsNear({.call_s = 1e-6, .byte_s = 1e-11}));
  EXPECT_FALSE(pace.IsNear({}));
}

INSTANTIATE_TEST_SUITE_P(Models, KernelProbeTest,
                         testing::Values("mixtral-tiny", "qwen35moe-tiny", "nemotronh-tiny", "gemma4-tiny",
                                         "deepseek32-tiny", "switch-tiny", "mimo-odd", "laguna-odd", "ling3-tiny"),
                         [](const auto& model) {
                           std::string name = model.param;
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace penstock
