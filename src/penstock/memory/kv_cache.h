// The KV cache in DRAM: pages of kPageTokens positions, handed to sequences from one arena.
//
// A KV page holds all layers of its positions: [num_layers][K, V][num_kv_heads, kPageTokens, head_dim]. A sequence
// reserves all pages that it can ever need when it is admitted, so that nothing runs out in the middle.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/memory/arena.h"
#include "penstock/model/model_config.h"
#include "penstock/tensor/dtype.h"

namespace penstock {

class KvCache {
 public:
  static constexpr int64_t kPageTokens = 16;

  static uint64_t PageBytes(const ModelConfig& config, Dtype dtype);
  static int64_t PagesFor(int64_t num_positions) { return (num_positions + kPageTokens - 1) / kPageTokens; }

  // REQUIRES: dtype is kF32 or kBF16.
  static absl::StatusOr<KvCache> Create(const ModelConfig& config, Dtype dtype, int64_t num_pages);

  // Pages for `num_positions`, or an empty list when there are not enough.
  std::vector<std::byte*> Reserve(int64_t num_positions);
  void Free(std::span<std::byte* const> pages);

  int64_t num_pages() const { return num_pages_; }
  int64_t num_free_pages() const { return static_cast<int64_t>(free_.size()); }
  Dtype dtype() const { return dtype_; }
  // Bytes from the start of a page to the K part of `layer_idx`; its V part follows half_bytes() later.
  uint64_t layer_offset_bytes(int64_t layer_idx) const { return 2 * half_bytes_ * static_cast<uint64_t>(layer_idx); }
  uint64_t half_bytes() const { return half_bytes_; }

 private:
  Dtype dtype_ = Dtype::kF32;
  uint64_t half_bytes_ = 0;
  int64_t num_pages_ = 0;
  Arena arena_;
  std::vector<std::byte*> free_;
};

}  // namespace penstock
