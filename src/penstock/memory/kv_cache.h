// The KV cache of one tier: pages of kPageTokens positions, given to sequences from one arena.
//
// A KV page holds all layers of its positions: [num_layers, num_kv_heads] blocks (tensor/kv_block.h). A sequence
// reserves all pages that it can ever need when it is admitted, so it never runs out of pages.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/memory/arena.h"
#include "penstock/model/model_config.h"
#include "penstock/tensor/kv_block.h"

namespace penstock {

std::string_view KvFormatName(KvFormat format);  // "f32", "bf16", "int8"

// The blocks of one layer in a page, one for each KV head.
struct KvLayer {
  KvFormat format = KvFormat::kF32;
  int64_t first_block_bytes = 0;  // from the start of the page
  int64_t block_bytes = 0;
  int64_t num_heads = 0;

  // Returns the first layer of a page.
  static KvLayer Of(const ModelConfig& config, KvFormat format) {
    return {.format = format,
            .first_block_bytes = 0,
            .block_bytes = KvBlock{format, config.head_dim, config.values_in_key()}.bytes(),
            .num_heads = config.num_kv_heads};
  }

  int64_t bytes() const { return num_heads * block_bytes; }
  int64_t head_offset_bytes(int64_t head_idx) const { return first_block_bytes + head_idx * block_bytes; }
};

class KvCache {
 public:
  static constexpr int64_t kPageTokens = kKvPageTokens;

  static uint64_t PageBytes(const ModelConfig& config, KvFormat format);
  static int64_t PagesFor(int64_t num_positions) { return (num_positions + kPageTokens - 1) / kPageTokens; }

  static absl::StatusOr<KvCache> Create(Memory& memory, const ModelConfig& config, KvFormat format, int64_t num_pages);

  // Returns pages for `num_positions`, or an empty list when there are not enough.
  std::vector<std::byte*> Reserve(int64_t num_positions);
  void Free(std::span<std::byte* const> pages);
  // Fills the pages with zeros.
  absl::Status Clear(std::span<std::byte* const> pages);

  int64_t num_pages() const { return num_pages_; }
  int64_t num_free_pages() const { return static_cast<int64_t>(free_.size()); }
  KvFormat format() const { return format_; }
  // Returns where the blocks of a layer lie in every page.
  KvLayer layer(int64_t layer_idx) const {
    return {.format = format_,
            .first_block_bytes = layer_idx * num_kv_heads_ * block_bytes_,
            .block_bytes = block_bytes_,
            .num_heads = num_kv_heads_};
  }

 private:
  KvFormat format_ = KvFormat::kF32;
  int64_t num_kv_heads_ = 0;
  int64_t block_bytes_ = 0;
  int64_t num_pages_ = 0;
  uint64_t page_bytes_ = 0;
  Memory* memory_ = nullptr;
  Arena arena_;
  std::vector<std::byte*> free_;
};

}  // namespace penstock
