#include "penstock/memory/kv_cache.h"

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
  return static_cast<uint64_t>(config.num_layers * config.num_kv_heads *
                               KvBlock{format, config.head_dim, config.values_in_key()}.bytes());
}

absl::StatusOr<KvCache> KvCache::Create(Memory& memory, const ModelConfig& config, KvFormat format, int64_t num_pages) {
  KvCache cache;
  cache.format_ = format;
  cache.num_kv_heads_ = config.num_kv_heads;
  cache.block_bytes_ = KvBlock{format, config.head_dim, config.values_in_key()}.bytes();
  cache.num_pages_ = num_pages;
  cache.page_bytes_ = PageBytes(config, format);
  cache.memory_ = &memory;
  PENSTOCK_ASSIGN_OR_RETURN(cache.arena_, memory.Map(cache.page_bytes_ * static_cast<uint64_t>(num_pages)));
  cache.free_.reserve(num_pages);
  // The lowest free page is taken first, so that memory that no sequence ever needs is never touched.
  for (int64_t page_idx = num_pages - 1; page_idx >= 0; --page_idx) {
    cache.free_.push_back(cache.arena_.data() + static_cast<uint64_t>(page_idx) * cache.page_bytes_);
  }
  return cache;
}

std::vector<std::byte*> KvCache::Reserve(int64_t num_positions) {
  const int64_t num_needed = PagesFor(num_positions);
  if (num_needed > num_free_pages()) return {};
  std::vector<std::byte*> pages(free_.rbegin(), free_.rbegin() + num_needed);
  free_.resize(free_.size() - static_cast<size_t>(num_needed));
  return pages;
}

void KvCache::Free(std::span<std::byte* const> pages) { free_.insert(free_.end(), pages.rbegin(), pages.rend()); }

absl::Status KvCache::Clear(std::span<std::byte* const> pages) {
  for (std::byte* page : pages) PENSTOCK_RETURN_IF_ERROR(memory_->Clear(page, page_bytes_));
  return absl::OkStatus();
}

}  // namespace penstock
