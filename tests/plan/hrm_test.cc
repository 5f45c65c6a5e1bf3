// Proves the Hierarchical Roofline Model on MoE-Lightning's case study (Mixtral 8x7B on an L4, Figures 4 and 5). Its
// turning points match the formulas. Attention should be computed where its KV cache lies, and experts on the device
// once the batch is large enough. On random levels, a roof is never above any of its parts, and one roof takes over
// from another at a turning point.
#include "penstock/plan/hrm.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

#include "penstock/base/status.h"
#include "penstock/hardware/presets.h"
#include "penstock/plan/hrm_plot.h"

namespace penstock {
namespace {

constexpr size_t kDevice = 0, kDram = 1;

// The L4's data sheet, and a host as in the paper's Figure 3.
Hrm L4() {
  return Hrm({{.name = "device", .ops_per_s = 121e12, .bytes_per_s = 300e9},
              {.name = "dram", .ops_per_s = 1.6e12, .bytes_per_s = 100e9, .link_bytes_per_s = 32e9}});
}

TEST(Hrm, Figure4AttentionIsComputedWhereItsCacheLies) {
  const Hrm hrm = L4();
  const double p1 = hrm.FirstTurningPoint(kDevice, kDram);
  EXPECT_DOUBLE_EQ(p1, 50);  // 1.6e12 / 32e9
  // Grouped-query attention with 32 query heads on 8 KV heads: 4 * 32 * head_dim operations and 2 * 8 * head_dim
  // numbers for each position, for every batch and context.
  const double f16 = 4.0 * 32 / (2 * 8 * 2), int4 = 4.0 * 32 / (2 * 8 * 0.5);
  EXPECT_DOUBLE_EQ(f16, 4);
  EXPECT_DOUBLE_EQ(int4, 16);
  for (const double intensity : {f16, int4}) {
    EXPECT_LT(intensity, p1);
    EXPECT_GE(hrm.LocalRoof(kDram, intensity), hrm.Roof(kDevice, intensity, kDram, intensity));
  }
}

TEST(Hrm, Figure5ExpertsMoveOnceTheBatchIsLarge) {
  const Hrm hrm = L4();
  // f16 experts: 2 operations for each row and each weight of 2 bytes. A row chooses 2 of 8 experts.
  const auto intensity = [](double rows) { return rows * 2 / 8; };
  const double at_device = intensity(128);  // micro-batches of 128
  EXPECT_DOUBLE_EQ(at_device, 32);
  const double p1 = hrm.FirstTurningPoint(kDevice, kDram);
  const double p2 = hrm.SecondTurningPoint(kDevice, at_device, kDram);
  EXPECT_DOUBLE_EQ(p2, 300);  // 300e9 * 32 / 32e9
  EXPECT_LT(p1, p2);
  EXPECT_DOUBLE_EQ(hrm.BalancePoint(kDevice, at_device, kDram), p2);  // at this point the device is bound by its memory
  // A batch of 100 lies below P1, 400 between the points, 2000 above P2.
  EXPECT_GT(hrm.LocalRoof(kDram, intensity(100)), hrm.Roof(kDevice, at_device, kDram, intensity(100)));
  EXPECT_LT(hrm.LocalRoof(kDram, intensity(400)), hrm.Roof(kDevice, at_device, kDram, intensity(400)));
  EXPECT_DOUBLE_EQ(hrm.Roof(kDevice, at_device, kDram, intensity(400)), 32e9 * 100);
  EXPECT_DOUBLE_EQ(hrm.Roof(kDevice, at_device, kDram, intensity(2000)), 300e9 * 32);
}

TEST(Hrm, IsDrawnWithItsPoints) {
  const HrmPoint points[] = {{"attention <f16>", kDram, 4, kDram, 4}, {"experts", kDevice, 32, kDram, 500}};
  EXPECT_DOUBLE_EQ(RoofOf(L4(), points[0]), 100e9 * 4);
  EXPECT_DOUBLE_EQ(RoofOf(L4(), points[1]), 300e9 * 32);
  const std::string svg = PlotHrm(L4(), points, "L4 & host");
  EXPECT_THAT(svg, testing::StartsWith("<svg "));
  EXPECT_THAT(svg, testing::EndsWith("</svg>\n"));
  EXPECT_THAT(svg, testing::HasSubstr("attention &lt;f16&gt;"));
  EXPECT_THAT(svg, testing::HasSubstr("L4 &amp; host"));
  EXPECT_THAT(svg, testing::HasSubstr("P1 50, P2 300 op/byte"));
  EXPECT_THAT(svg, testing::Not(testing::HasSubstr("nan")));
  EXPECT_THAT(svg, testing::Not(testing::HasSubstr("inf")));
}

TEST(Hrm, TakesItsLevelsFromHardware) {
  const Hrm hrm = Hrm::Of(HardwarePreset("l4").value(), Arithmetic::kBf16).value();
  ASSERT_EQ(hrm.levels().size(), 3u);
  EXPECT_EQ(hrm.levels()[0].name, "device");
  EXPECT_EQ(hrm.levels()[1].name, "dram");
  EXPECT_EQ(hrm.levels()[2].name, "disk");
  EXPECT_GT(hrm.LinkRate(1, 0), hrm.LinkRate(2, 0));
  EXPECT_DOUBLE_EQ(hrm.LinkRate(2, 0), hrm.LinkRate(2, 1));
  EXPECT_DOUBLE_EQ(hrm.FirstTurningPoint(0, 2), 0);  // a disk computes nothing
  EXPECT_EQ(Hrm::Of(HardwarePreset("none").value(), Arithmetic::kInt8).value().levels().size(), 2u);
  EXPECT_EQ(FaultOf(Hrm::Of({}, Arithmetic::kF32).status()), Fault::kUsage);
  Hardware probed = HardwarePreset("none").value();
  probed.processors[0].peaks.clear();
  EXPECT_EQ(FaultOf(Hrm::Of(probed, Arithmetic::kF32).status()), Fault::kUsage);
}

RC_GTEST_PROP(Hrm, RoofsTakeOverAtTheTurningPoints, ()) {
  const auto rate = [] { return static_cast<double>(*rc::gen::inRange(1, 1'000'000)); };
  const Hrm hrm({{.name = "a", .ops_per_s = rate(), .bytes_per_s = rate()},
                 {.name = "b", .ops_per_s = rate(), .bytes_per_s = rate(), .link_bytes_per_s = rate()},
                 {.name = "c", .ops_per_s = rate(), .bytes_per_s = rate(), .link_bytes_per_s = rate()}});
  const size_t from = *rc::gen::inRange<size_t>(1, 3);
  const size_t to = *rc::gen::inRange<size_t>(0, from);
  const double at = rate() / rate();
  const double link = hrm.LinkRate(from, to);
  for (const double scale : {0.01, 0.5, 0.999, 1.001, 2.0, 100.0}) {
    const double p1 = hrm.FirstTurningPoint(to, from);
    RC_ASSERT((hrm.LocalRoof(from, p1 * scale) >= link * p1 * scale) == (p1 == 0 || scale < 1));
    const double p2 = hrm.SecondTurningPoint(to, at, from);
    const double roof = hrm.Roof(to, at, from, p2 * scale);
    RC_ASSERT(roof <= hrm.LocalRoof(to, at) && roof <= link * p2 * scale * (1 + 1e-12));
    RC_ASSERT((roof < hrm.LocalRoof(to, at)) == (scale < 1));
    RC_ASSERT(p2 <= hrm.BalancePoint(to, at, from) * (1 + 1e-12));
  }
}

}  // namespace
}  // namespace penstock
