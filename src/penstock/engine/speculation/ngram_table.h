// Predicts which token follows the last ones of a text: the one that followed the same tokens before, in any text.
//
// A table of fixed size maps hashes of the last 1, 2, 3, 4, 8 and 16 tokens to the token behind them. New texts
// overwrite old ones. Hashes that collide only give wrong predictions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "penstock/engine.h"

namespace penstock {

class NgramTable {
 public:
  // The longest contexts come first.
  static constexpr int kOrders[] = {16, 8, 4, 3, 2, 1};
  static constexpr int kNumOrders = 6, kMaxOrder = 16;
  static constexpr int kNumCounts = 4;
  static constexpr int kNumKinds = kNumOrders * kNumCounts;
  struct Guess {
    TokenId token_id = -1;  // -1: no context is known
    int kind = 0;           // how long the known context is, and how often it was right: below kNumKinds
  };

  // A table of `num_bytes`, a power of two.
  explicit NgramTable(uint64_t num_bytes) : entries_(num_bytes / sizeof(Entry)) {}
  // Learns that the last of `tokens` follows those before it.
  void Learn(std::span<const TokenId> tokens);
  // Returns what follows `tokens`, by the longest end of theirs that is known.
  Guess Next(std::span<const TokenId> tokens) const;

 private:
  struct Entry {
    uint32_t tag = 0;  // of the hash; its lowest two bits count how often the token was right, up to 3
    TokenId token_id = -1;
  };
  static uint64_t Hash(std::span<const TokenId> context);

  std::vector<Entry> entries_;
};

}  // namespace penstock
