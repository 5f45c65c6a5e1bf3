// Covers the policies where expert_store_test does not. MRS evicts the expert that routers have rated lowest lately;
// among equals, the least recently used. With mrs-layer every layer keeps its share.
#include "penstock/memory/eviction.h"

#include <gmock/gmock.h>

namespace penstock {
namespace {

// Returns a policy of two layers with four experts each; `keys` lists the experts by slot.
std::unique_ptr<EvictionPolicy> Loaded(Eviction eviction, const std::vector<int64_t>& keys) {
  auto policy = TraitsOf(eviction).make(
      {.num_slots = std::ssize(keys), .pinned = std::vector<bool>(8), .layer_of = {0, 0, 0, 0, 1, 1, 1, 1}});
  for (int slot_idx = 0; slot_idx < std::ssize(keys); ++slot_idx) {
    policy->OnLoad(slot_idx, keys[static_cast<size_t>(slot_idx)]);
  }
  return policy;
}

const auto kAnyone = [](int) { return true; };

TEST(EvictionTest, MrsLetsTheLowestRatedGo) {
  const auto policy = Loaded(Eviction::kMrs, {0, 1, 4});
  const float first[] = {0.5f, 0.4f, 0.1f, 0}, second[] = {0.2f, 0.3f, 0.3f, 0.2f};
  policy->OnScores(0, first);   // S = 0.25, 0.2
  policy->OnScores(4, second);  // S = 0.1
  EXPECT_EQ(policy->Victim(2, kAnyone), 2);
  EXPECT_EQ(policy->Victim(2, [](int slot_idx) { return slot_idx != 2; }), 1);
  EXPECT_EQ(policy->Victim(2, [](int) { return false; }), -1);
  // Old high scores lose their weight.
  for (int step = 0; step < 4; ++step) policy->OnScores(0, second);
  policy->OnScores(4, first);
  EXPECT_EQ(policy->Victim(2, kAnyone), 0);  // S of expert 0 is nearly 0.2, of 1 nearly 0.3, of 4 is 0.3
}

TEST(EvictionTest, MrsWithoutScoresIsLru) {
  const auto policy = Loaded(Eviction::kMrs, {0, 1, 4});
  policy->OnUse(0);
  EXPECT_EQ(policy->Victim(2, kAnyone), 1);
}

TEST(EvictionTest, MrsByLayersKeepsEachLayersShare) {
  const auto policy = Loaded(Eviction::kMrsLayer, {0, 1, 4, 5});
  const float high[] = {0.4f, 0.3f, 0.2f, 0.1f}, low[] = {0.02f, 0.01f, 0, 0};
  policy->OnScores(0, high);
  policy->OnScores(4, low);
  EXPECT_EQ(policy->Victim(2, kAnyone), 1);  // a slot of its own layer, although the other one is rated lower
  EXPECT_EQ(policy->Victim(6, kAnyone), 3);
  // A layer with more than its share gives a slot back.
  const auto uneven = Loaded(Eviction::kMrsLayer, {0, 1, 2, 4});
  uneven->OnScores(0, high);
  uneven->OnScores(4, low);
  EXPECT_EQ(uneven->Victim(5, kAnyone), 2);
  // Layers without experts have no share.
  auto sparse = TraitsOf(Eviction::kMrsLayer)
                    .make({.num_slots = 4, .pinned = std::vector<bool>(8), .layer_of = {1, 1, 1, 1, 9, 9, 9, 9}});
  for (int slot_idx = 0; slot_idx < 4; ++slot_idx) sparse->OnLoad(slot_idx, slot_idx < 1 ? 0 : 3 + slot_idx);
  EXPECT_EQ(sparse->Victim(1, kAnyone), 1);  // the second layer has three of four
  // Another layer's slot is better than none.
  EXPECT_EQ(uneven->Victim(3, [](int slot_idx) { return slot_idx == 3; }), 3);
}

}  // namespace
}  // namespace penstock
