#include "penstock/memory/kv_cache.h"

#include <algorithm>

#include "penstock/base/status.h"

namespace penstock {

std::string_view KvFormatName(KvFormat format) {
  switch (format) {
    case KvFormat::kF32: return "f32";
    case KvFormat::kBF16: return "bf16";
    case KvFormat::kInt8: return "int8";
  }
  return "unknown";
}

namespace {

// Returns the blocks of a layer with these heads, without a place in the page.
KvLayer LayerOf(const ModelConfig& config, KvFormat format, const LayerHeads& heads) {
  const Indexer& indexer = config.indexer;
  return {
      .format = format,
      .block_bytes = KvBlock{format, heads.head_dim, config.values_in_key(), indexer.is_on(), heads.value_dim}.bytes(),
      .num_heads = heads.num_kv_heads,
      .head_dim = heads.head_dim,
      .value_dim = heads.value_dim,
      .is_by_token = indexer.is_on(),
      .index_block_bytes = indexer.is_on() ? KvBlock{format, indexer.head_dim, indexer.head_dim}.bytes() : 0};
}

}  // namespace

KvLayer KvLayer::Of(const ModelConfig& config, KvFormat format, int64_t layer_idx) {
  KvLayer layer = LayerOf(config, format, config.heads_of(layer_idx));
  if (config.layer_heads.empty()) {
    layer.first_block_bytes = config.kv_layer_of(layer_idx) * layer.bytes();
    if (config.has_indexer(layer_idx)) {
      layer.first_index_bytes =
          config.num_kv_layers() * layer.bytes() + config.index_layer_of(layer_idx) * layer.index_block_bytes;
    }
    return layer;
  }
  for (int64_t other = 0; other < layer_idx; ++other) {
    if (config.is_recurrent(other)) continue;
    layer.first_block_bytes += LayerOf(config, format, config.heads_of(other)).bytes();
  }
  return layer;
}

int64_t KvLayer::MaxBytes(const ModelConfig& config, KvFormat format) {
  if (config.layer_heads.empty()) return LayerOf(config, format, config.heads_of(0)).bytes();
  int64_t max = 0;
  for (const LayerHeads& heads : config.layer_heads) max = std::max(max, LayerOf(config, format, heads).bytes());
  return max;
}

uint64_t KvCache::PageBytes(const ModelConfig& config, KvFormat format) {
  int64_t kv_bytes = config.layer_heads.empty() ? config.num_kv_layers() * KvLayer::MaxBytes(config, format) : 0;
  for (size_t layer_idx = 0; layer_idx < config.layer_heads.size(); ++layer_idx) {
    if (config.is_recurrent(static_cast<int64_t>(layer_idx))) continue;
    kv_bytes += LayerOf(config, format, config.layer_heads[layer_idx]).bytes();
  }
  kv_bytes += config.num_index_layers() * LayerOf(config, format, config.heads_of(0)).index_block_bytes;
  return std::max(static_cast<uint64_t>(kv_bytes), RecurrentState::MinPageBytes(config));
}

absl::StatusOr<KvCache> KvCache::Create(Memory& memory, const ModelConfig& config, KvFormat format, int64_t num_pages,
                                        const RankSplit& ranks) {
  KvCache cache;
  cache.format_ = format;
  cache.num_pages_ = num_pages;
  cache.page_bytes_ = PageBytes(config, format);
  cache.states_ = RecurrentState(config, cache.page_bytes_);
  cache.memory_ = &memory;
  cache.by_heads_ = ranks.by_heads;
  cache.rank_ = ranks.by_heads ? ranks.rank : 0;
  const int64_t num_held = ranks.by_heads ? num_pages * ranks.num_ranks : num_pages;
  PENSTOCK_ASSIGN_OR_RETURN(cache.arena_, memory.Map(cache.page_bytes_ * static_cast<uint64_t>(num_held)));
  cache.prefixes_ = std::make_unique<PrefixCache>(num_pages);
  return cache;
}

absl::Status KvCache::Clear(std::span<std::byte* const> pages) {
  for (std::byte* page : pages) PENSTOCK_RETURN_IF_ERROR(memory_->Clear(page, page_bytes_));
  return absl::OkStatus();
}

absl::Status KvCache::Copy(KvPageId from, KvPageId to) {
  if (by_heads_) copies_.push_back({from, to});
  return memory_->Copy(address(to), {address(from), page_bytes_});
}

}  // namespace penstock
