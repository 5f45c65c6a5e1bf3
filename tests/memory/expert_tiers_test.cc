// Proves, in virtual time, that an expert on its way to a device can be abandoned between two pages. Pages already
// issued are still written before the slot is used again, and no other page is issued. DRAM's copy is free again, and
// the expert can be fetched later. Also checks each way to preload a device before the first step.
#include "penstock/memory/expert_tiers.h"

#include <gmock/gmock.h>

#include "penstock/base/bytes.h"
#include "penstock/runtime/simulated_runtime.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;

constexpr uint64_t kExpertBytes = 64 * kMiB;  // eight pages

class ExpertTiersTest : public testing::Test {
 protected:
  void Create(int64_t num_slots, ExpertTiers::Device::Preload preload = ExpertTiers::Device::Preload::kNone) {
    const auto lane = [&](const char* name, double bytes_per_s) {
      return runtime_.AddLane(name,
                              [=](const TaskCost& cost) { return static_cast<double>(cost.link_bytes) / bytes_per_s; });
    };
    const LaneIdx disk = lane("disk", 2e9), finish = lane("finish", 1e9), pinned = lane("pinned", 10e9);
    link_ = lane("link", 1e9);
    tiers_ = ExpertTiers::Create({.layouts = layouts_,
                                  .runtime = runtime_,
                                  .disk_lane = disk,
                                  .dram = {.num_slots = 8},
                                  .device = ExpertTiers::Device{.room = {.num_slots = num_slots},
                                                                .finish_lane = finish,
                                                                .dram_to_pinned_lane = pinned,
                                                                .dram_to_device_lane = link_,
                                                                .preload = preload},
                                  .eviction = Eviction::kLru})
                 .value();
  }
  std::vector<int64_t> Present() const {
    std::vector<int64_t> keys;
    for (ExpertKey key{0}; key < layouts_.end_key(); ++key) {
      if (tiers_.device->IsPresent(key)) keys.push_back(IndexOf(key));
    }
    return keys;
  }

  ExpertLayouts layouts_{{true, true}, /*num_experts=*/4, kExpertBytes};
  SimulatedRuntime runtime_;
  LaneIdx link_ = 0;
  ExpertTiers tiers_;
};

TEST_F(ExpertTiersTest, AnExpertIsGivenUpBetweenPages) {
  Create(/*num_slots=*/1);
  ExpertStore& device = *tiers_.device;
  auto lease = device.AcquireByPages(ExpertKey{3}, FetchReason::kPredicted);
  EXPECT_FALSE(device.AcquireByPages(ExpertKey{5}, FetchReason::kPredicted).has_value());
  const int64_t num_pages = device.num_waiting_pages();
  ASSERT_GE(num_pages, 4);
  ASSERT_TRUE(device.IssuePage().has_value() && device.IssuePage().has_value());
  const Event second_page = lease->arrived();
  device.Abandon(std::move(*lease));
  EXPECT_EQ(device.num_waiting_pages(), 0);
  EXPECT_FALSE(device.IsPresent(ExpertKey{3}));
  EXPECT_EQ(device.counters().bytes_read, kExpertBytes / static_cast<uint64_t>(num_pages) * 2);
  // The next expert gets the slot; its pages follow those under way on the link.
  auto next = device.Acquire(ExpertKey{5}, FetchReason::kWanted);
  ASSERT_TRUE(next.has_value());
  EXPECT_FALSE(runtime_.Done(second_page));
  ASSERT_TRUE(runtime_.Wait(next->arrived()).ok());
  EXPECT_TRUE(runtime_.Done(second_page));
  next->Release({});
  // This time the whole expert comes.
  next = device.Acquire(ExpertKey{3}, FetchReason::kWanted);
  ASSERT_TRUE(runtime_.Wait(next->arrived()).ok());
  EXPECT_EQ(device.counters().misses, 2);
  EXPECT_EQ(device.counters().prefetch_used, 0);
}

TEST_F(ExpertTiersTest, ADeviceIsFilledEvenlyOrLayerByLayer) {
  Create(/*num_slots=*/4, ExpertTiers::Device::Preload::kEvenly);
  EXPECT_THAT(Present(), ElementsAre(1, 3, 5, 7));
  Create(/*num_slots=*/5, ExpertTiers::Device::Preload::kFirstLayers);
  EXPECT_THAT(Present(), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_EQ(tiers_.device->counters().misses, 0);
}

}  // namespace
}  // namespace penstock
