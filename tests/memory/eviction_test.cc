// Each eviction policy by itself. expert_store_test covers lru and static in a store.
#include "penstock/memory/eviction.h"

#include <gmock/gmock.h>

namespace penstock {
namespace {

constexpr ExpertKey Expert(int64_t idx) { return ExpertKey{idx}; }
constexpr SlotId Slot(int32_t idx) { return SlotId{idx}; }

// Returns a policy of two layers with four experts each; `keys` lists the experts by slot.
std::unique_ptr<EvictionPolicy> Loaded(Eviction eviction, const std::vector<int64_t>& keys) {
  auto policy = TraitsOf(eviction).make(
      {.num_slots = std::ssize(keys), .pinned = ExpertSet(8), .layer_of = {0, 0, 0, 0, 1, 1, 1, 1}});
  for (int32_t i = 0; i < std::ssize(keys); ++i) policy->OnLoad(Slot(i), Expert(keys[i]));
  return policy;
}

const auto kAnyone = [](SlotId) { return true; };

TEST(EvictionTest, LruLetsTheLeastRecentlyUsedGo) {
  const auto policy = Loaded(Eviction::kLru, {0, 1, 4});
  policy->OnUse(Slot(0));
  EXPECT_EQ(policy->Victim(Expert(2), kAnyone), Slot(1));
}

TEST(EvictionTest, FifoLetsTheOldestGoHoweverOftenItIsUsed) {
  const auto policy = Loaded(Eviction::kFifo, {0, 1, 4});
  for (int i = 0; i < 3; ++i) policy->OnUse(Slot(0));
  EXPECT_EQ(policy->Victim(Expert(2), kAnyone), Slot(0));
}

TEST(EvictionTest, LfuLetsTheExpertWithTheFewestUsesGo) {
  const auto policy = Loaded(Eviction::kLfu, {0, 1, 4});
  for (int i = 0; i < 3; ++i) policy->OnUse(Slot(0));
  policy->OnUse(Slot(1));
  policy->OnUse(Slot(2));
  policy->OnUse(Slot(2));
  EXPECT_EQ(policy->Victim(Expert(2), kAnyone), Slot(1));
}

// MRS evicts the expert that routers have rated lowest lately; among equals, the least recently used.
TEST(EvictionTest, MrsLetsTheLowestRatedGo) {
  const auto policy = Loaded(Eviction::kMrs, {0, 1, 4});
  const float first[] = {0.5f, 0.4f, 0.1f, 0}, second[] = {0.2f, 0.3f, 0.3f, 0.2f};
  policy->OnScores(Expert(0), first);   // S = 0.25, 0.2
  policy->OnScores(Expert(4), second);  // S = 0.1
  EXPECT_EQ(policy->Victim(Expert(2), kAnyone), Slot(2));
  EXPECT_EQ(policy->Victim(Expert(2), [](SlotId slot_id) { return slot_id != Slot(2); }), Slot(1));
  EXPECT_EQ(policy->Victim(Expert(2), [](SlotId) { return false; }), kNoSlot);
  // Old high scores lose their weight.
  for (int step = 0; step < 4; ++step) policy->OnScores(Expert(0), second);
  policy->OnScores(Expert(4), first);
  EXPECT_EQ(policy->Victim(Expert(2), kAnyone), Slot(0));  // S of expert 0 is nearly 0.2, of 1 nearly 0.3, of 4 is 0.3
}

TEST(EvictionTest, MrsWithoutScoresIsLru) {
  const auto policy = Loaded(Eviction::kMrs, {0, 1, 4});
  policy->OnUse(Slot(0));
  EXPECT_EQ(policy->Victim(Expert(2), kAnyone), Slot(1));
}

// With mrs-layer every layer keeps its share.
TEST(EvictionTest, MrsByLayersKeepsEachLayersShare) {
  const auto policy = Loaded(Eviction::kMrsLayer, {0, 1, 4, 5});
  const float high[] = {0.4f, 0.3f, 0.2f, 0.1f}, low[] = {0.02f, 0.01f, 0, 0};
  policy->OnScores(Expert(0), high);
  policy->OnScores(Expert(4), low);
  EXPECT_EQ(policy->Victim(Expert(2), kAnyone),
            Slot(1));  // a slot of its own layer, although the other one is rated lower
  EXPECT_EQ(policy->Victim(Expert(6), kAnyone), Slot(3));
  // A layer with more than its share gives a slot back.
  const auto uneven = Loaded(Eviction::kMrsLayer, {0, 1, 2, 4});
  uneven->OnScores(Expert(0), high);
  uneven->OnScores(Expert(4), low);
  EXPECT_EQ(uneven->Victim(Expert(5), kAnyone), Slot(2));
  // Layers without experts have no share.
  auto sparse = TraitsOf(Eviction::kMrsLayer)
                    .make({.num_slots = 4, .pinned = ExpertSet(8), .layer_of = {1, 1, 1, 1, 9, 9, 9, 9}});
  for (int32_t i = 0; i < 4; ++i) sparse->OnLoad(Slot(i), Expert(i < 1 ? 0 : 3 + i));
  EXPECT_EQ(sparse->Victim(Expert(1), kAnyone), Slot(1));  // the second layer has three of four
  // Another layer's slot is better than none.
  EXPECT_EQ(uneven->Victim(Expert(3), [](SlotId slot_id) { return slot_id == Slot(3); }), Slot(3));
}

}  // namespace
}  // namespace penstock
