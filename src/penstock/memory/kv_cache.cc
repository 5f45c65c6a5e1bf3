#include "penstock/memory/kv_cache.h"

#include "penstock/base/check.h"
#include "penstock/base/status.h"

namespace penstock {
namespace {

uint64_t HalfBytes(const ModelConfig& config, Dtype dtype) {
  return static_cast<uint64_t>(config.kv_dim()) * KvCache::kPageTokens * SizeOf(dtype);
}

}  // namespace

uint64_t KvCache::PageBytes(const ModelConfig& config, Dtype dtype) {
  return 2 * HalfBytes(config, dtype) * static_cast<uint64_t>(config.num_layers);
}

absl::StatusOr<KvCache> KvCache::Create(const ModelConfig& config, Dtype dtype, int64_t num_pages) {
  PENSTOCK_CHECK(dtype == Dtype::kF32 || dtype == Dtype::kBF16);
  KvCache cache;
  cache.dtype_ = dtype;
  cache.half_bytes_ = HalfBytes(config, dtype);
  cache.num_pages_ = num_pages;
  const uint64_t page_bytes = PageBytes(config, dtype);
  PENSTOCK_ASSIGN_OR_RETURN(cache.arena_, Arena::Map(page_bytes * static_cast<uint64_t>(num_pages)));
  cache.free_.reserve(num_pages);
  // Low pages are taken first, so that memory which no sequence ever needs is never touched.
  for (int64_t page_idx = num_pages - 1; page_idx >= 0; --page_idx) {
    cache.free_.push_back(cache.arena_.data() + static_cast<uint64_t>(page_idx) * page_bytes);
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

}  // namespace penstock
