// Proves that Belady's hits are the most that a cache can have. They equal the best over all possible choices, and are
// never fewer than those of an eviction policy that does not know the future.
#include "penstock/memory/belady.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include <gtest/gtest.h>
#include "penstock/memory/eviction.h"

namespace penstock {
namespace {

// Tries every set of keys that could be held after each use.
int64_t MostHits(const std::vector<ExpertKey>& wanted, size_t num_slots) {
  std::map<std::set<ExpertKey>, int64_t> best = {{{}, 0}};
  for (const ExpertKey key : wanted) {
    std::map<std::set<ExpertKey>, int64_t> after;
    const auto reach = [&](const std::set<ExpertKey>& held, int64_t hits) {
      int64_t& known = after.try_emplace(held, -1).first->second;
      known = std::max(known, hits);
    };
    for (const auto& [held, hits] : best) {
      const int64_t now = hits + (held.contains(key) ? 1 : 0);
      reach(held, now);
      if (held.contains(key)) continue;
      std::set<ExpertKey> with = held;
      with.insert(key);
      if (with.size() <= num_slots) reach(with, now);
      for (const ExpertKey leaves : held) {
        std::set<ExpertKey> replaced = with;
        replaced.erase(leaves);
        reach(replaced, now);
      }
    }
    best = std::move(after);
  }
  int64_t max = 0;
  for (const auto& [held, hits] : best) max = std::max(max, hits);
  return max;
}

int64_t HitsOf(Eviction eviction, const std::vector<ExpertKey>& wanted, int64_t num_slots, int64_t num_keys) {
  const auto policy = TraitsOf(eviction).make(
      {.num_slots = num_slots, .pinned = {}, .layer_of = IdVector<ExpertKey, int64_t>(num_keys)});
  std::vector<ExpertKey> held;
  int64_t num_hits = 0;
  for (const ExpertKey key : wanted) {
    auto found = std::find(held.begin(), held.end(), key);
    const auto slot = [&] { return SlotId{static_cast<int32_t>(found - held.begin())}; };
    if (found != held.end()) {
      ++num_hits;
    } else if (std::ssize(held) < num_slots) {
      found = held.insert(held.end(), key);
      policy->OnLoad(slot(), key);
    } else {
      found = held.begin() + IndexOf(policy->Victim(key, [](SlotId) { return true; }));
      *found = key;
      policy->OnLoad(slot(), key);
    }
    policy->OnUse(slot());
  }
  return num_hits;
}

TEST(Belady, HitsAsOftenAsTheBestOfAllChoices) {
  std::mt19937 random(3);
  for (int i = 0; i < 300; ++i) {
    const size_t num_slots = random() % 4;
    std::vector<ExpertKey> wanted(random() % 14);
    for (ExpertKey& key : wanted) key = ExpertKey{static_cast<int64_t>(random() % 6)};
    ASSERT_EQ(BeladyHits(wanted, static_cast<int64_t>(num_slots)), MostHits(wanted, num_slots)) << "case " << i;
  }
}

TEST(Belady, IsNeverWorseThanAnEvictionThatDoesNotKnowTheFuture) {
  std::mt19937 random(4);
  for (int i = 0; i < 50; ++i) {
    const auto num_slots = 1 + static_cast<int64_t>(random() % 20);
    std::vector<ExpertKey> wanted(500);
    for (ExpertKey& key : wanted) {
      key = ExpertKey{static_cast<int64_t>(std::min(random() % 40, random() % 40))};
    }
    const int64_t max = BeladyHits(wanted, num_slots);
    for (const Eviction eviction : {Eviction::kLru, Eviction::kLfu, Eviction::kFifo}) {
      EXPECT_GE(max, HitsOf(eviction, wanted, num_slots, 40)) << TraitsOf(eviction).name;
    }
  }
}

}  // namespace
}  // namespace penstock
