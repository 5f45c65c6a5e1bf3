// Device memory for the KV entries of one layer and one micro-batch, while the cache itself lies in DRAM. There are two
// buffers: the next micro-batch's entries arrive in one while the other is read.
#pragma once

#include <array>
#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "penstock/base/status.h"
#include "penstock/memory/arena.h"
#include "penstock/memory/kv_cache.h"
#include "penstock/runtime/task.h"

namespace penstock {

class KvStaging {
 public:
  static constexpr int kNumBuffers = 2;

  // Returns the bytes of both buffers. REQUIRES: micro-batches have at most `num_pages` KV pages.
  static uint64_t Bytes(const ModelConfig& config, KvFormat format, int64_t num_pages) {
    return kNumBuffers * static_cast<uint64_t>(num_pages * PageBytes(config, format));
  }
  static absl::StatusOr<KvStaging> Create(Memory& memory, const ModelConfig& config, KvFormat format,
                                          int64_t num_pages) {
    KvStaging staging;
    staging.page_bytes_ = PageBytes(config, format);
    staging.num_pages_ = num_pages;
    PENSTOCK_ASSIGN_OR_RETURN(staging.arena_, memory.Map(Bytes(config, format, num_pages)));
    return staging;
  }

  int64_t num_pages() const { return num_pages_; }
  // Returns where one layer's blocks of a page lie together, its index keys behind them.
  std::byte* page(int buffer_idx, int64_t page_idx) const {
    return arena_.data() + static_cast<uint64_t>((buffer_idx * num_pages_ + page_idx) * page_bytes_);
  }

  // Buffers are taken in turn. A buffer may be written when the event of its last use has happened.
  int Take() { return std::exchange(next_, (next_ + 1) % kNumBuffers); }
  Event& last_use(int buffer_idx) { return last_uses_[buffer_idx]; }

 private:
  static int64_t PageBytes(const ModelConfig& config, KvFormat format) {
    return KvLayer::MaxBytes(config, format) + KvLayer::Of(config, format, config.num_layers - 1).index_block_bytes;
  }

  int64_t page_bytes_ = 0;  // room for the widest layer and its index keys
  int64_t num_pages_ = 0;
  Arena arena_;
  int next_ = 0;
  std::array<Event, kNumBuffers> last_uses_;
};

}  // namespace penstock
