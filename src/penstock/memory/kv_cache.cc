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

uint64_t KvCache::PageBytes(const ModelConfig& config, KvFormat format) {
  const int64_t kv_bytes =
      config.num_kv_layers() * config.num_kv_heads * KvBlock{format, config.head_dim, config.values_in_key()}.bytes();
  return std::max(static_cast<uint64_t>(kv_bytes), RecurrentState::MinPageBytes(config));
}

absl::StatusOr<KvCache> KvCache::Create(Memory& memory, const ModelConfig& config, KvFormat format, int64_t num_pages,
                                        const RankSplit& ranks) {
  KvCache cache;
  cache.format_ = format;
  cache.num_kv_heads_ = config.num_kv_heads;
  cache.block_bytes_ = KvBlock{format, config.head_dim, config.values_in_key()}.bytes();
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
