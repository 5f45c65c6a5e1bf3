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

KvLayer KvLayer::Of(const ModelConfig& config, KvFormat format) {
  const Indexer& indexer = config.indexer;
  return {.format = format,
          .first_block_bytes = 0,
          .block_bytes = KvBlock{format, config.head_dim, config.values_in_key(), indexer.is_on()}.bytes(),
          .num_heads = config.num_kv_heads,
          .is_by_token = indexer.is_on(),
          .index_block_bytes = indexer.is_on() ? KvBlock{format, indexer.head_dim, indexer.head_dim}.bytes() : 0};
}

KvLayer KvLayer::At(const ModelConfig& config, int64_t layer_idx) const {
  KvLayer layer = *this;
  layer.first_block_bytes = config.kv_layer_of(layer_idx) * bytes();
  if (config.has_indexer(layer_idx)) {
    layer.first_index_bytes = config.num_kv_layers() * bytes() + config.index_layer_of(layer_idx) * index_block_bytes;
  }
  return layer;
}

uint64_t KvCache::PageBytes(const ModelConfig& config, KvFormat format) {
  const KvLayer layer = KvLayer::Of(config, format);
  const int64_t kv_bytes = config.num_kv_layers() * layer.bytes() + config.num_index_layers() * layer.index_block_bytes;
  return std::max(static_cast<uint64_t>(kv_bytes), RecurrentState::MinPageBytes(config));
}

absl::StatusOr<KvCache> KvCache::Create(Memory& memory, const ModelConfig& config, KvFormat format, int64_t num_pages,
                                        const RankSplit& ranks) {
  KvCache cache;
  cache.format_ = format;
  cache.first_layer_ = KvLayer::Of(config, format);
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
