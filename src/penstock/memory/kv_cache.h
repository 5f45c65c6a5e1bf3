// The KV cache of one tier: pages of kPageTokens positions in one arena. prefix_cache.h gives them out.
//
// A KV page holds all layers of its positions, one after another: for each layer [num_kv_heads] blocks
// (tensor/kv_block.h). Then comes a block of index keys for each layer that has an indexer. Other pages hold recurrent
// states (recurrent_state.h).
//
// If several ranks share the heads, each holds the entries of its heads for the sequences of all ranks. All ranks have
// equally many pages. Each gives out its own, and tells the others their numbers.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/memory/arena.h"
#include "penstock/memory/prefix_cache.h"
#include "penstock/model/model_config.h"
#include "penstock/model/recurrent_state.h"
#include "penstock/parallel/rank_split.h"
#include "penstock/tensor/kv_block.h"

namespace penstock {

std::string_view KvFormatName(KvFormat format);  // "f32", "bf16", "int8"

// The blocks of one layer in a page, one for each KV head, and of its index keys.
struct KvLayer {
  KvFormat format = KvFormat::kF32;
  int64_t first_block_bytes = 0;  // from the start of the page
  int64_t block_bytes = 0;
  int64_t num_heads = 0;
  int64_t head_dim = 0;
  int64_t value_dim = 0;  // of V; 0: head_dim, or that of MLA
  bool is_by_token = false;
  int64_t index_block_bytes = 0;  // of index keys; 0: no layer has an indexer
  int64_t first_index_bytes = 0;  // from the start of the page; 0: this layer has none

  // Returns where a layer's blocks lie in every page. REQUIRES: the layer is not recurrent.
  static KvLayer Of(const ModelConfig& config, KvFormat format, int64_t layer_idx);
  // Returns the bytes of the widest layer, without index keys.
  static int64_t MaxBytes(const ModelConfig& config, KvFormat format);

  int64_t bytes() const { return num_heads * block_bytes; }
  int64_t head_offset_bytes(int64_t head_idx) const { return first_block_bytes + head_idx * block_bytes; }
};

class PrefixStore;

class KvCache {
 public:
  static constexpr int64_t kPageTokens = kKvPageTokens;

  static uint64_t PageBytes(const ModelConfig& config, KvFormat format);
  static int64_t PagesFor(int64_t num_positions) { return (num_positions + kPageTokens - 1) / kPageTokens; }

  // `num_pages` are those of each rank. `config` has the heads of this one.
  static absl::StatusOr<KvCache> Create(Memory& memory, const ModelConfig& config, KvFormat format, int64_t num_pages,
                                        const RankSplit& ranks = {});

  PrefixCache& prefixes() { return *prefixes_; }
  const PrefixCache& prefixes() const { return *prefixes_; }
  std::byte* address(KvPageId page) const { return AddressOf(rank_, page); }
  std::span<std::byte> bytes() const { return {arena_.data(), static_cast<size_t>(arena_.size_bytes())}; }
  // Returns the place of another rank's page here. REQUIRES: the ranks share the heads.
  std::byte* AddressOf(int rank, KvPageId page) const {
    return arena_.data() + static_cast<uint64_t>(rank * num_pages_ + IndexOf(page)) * page_bytes_;
  }
  // Returns which of this rank's pages lies at an address.
  KvPageId PageAt(const std::byte* address) const {
    const int64_t idx = (address - arena_.data()) / static_cast<int64_t>(page_bytes_);
    return KvPageId{static_cast<int32_t>(idx - rank_ * num_pages_)};
  }
  // Returns where the recurrent state of a sequence lies in pages of its own.
  const RecurrentState& states() const { return states_; }
  // Keeps entries in files; null: nothing does. The sequences of this cache then load and save there.
  PrefixStore* store() const { return store_; }
  void SetStore(PrefixStore* store) { store_ = store; }
  Memory& memory() const { return *memory_; }
  uint64_t page_bytes() const { return page_bytes_; }
  // Fills the pages with zeros.
  absl::Status Clear(std::span<std::byte* const> pages);
  // Copies a whole page. REQUIRES: no task uses `to`, or writes to `from`.
  absl::Status Copy(KvPageId from, KvPageId to);
  // If several ranks share the heads: returns the copies since the last call, which the other ranks must repeat before
  // the next pass.
  struct PageCopy {
    KvPageId from, to;
  };
  std::vector<PageCopy> TakeCopies() { return std::exchange(copies_, {}); }
  absl::Status RepeatCopy(int rank, const PageCopy& copy) {
    return memory_->Copy(AddressOf(rank, copy.to), {AddressOf(rank, copy.from), page_bytes_});
  }

  int64_t num_pages() const { return num_pages_; }  // of this rank
  KvFormat format() const { return format_; }

 private:
  KvFormat format_ = KvFormat::kF32;
  int64_t num_pages_ = 0;
  int rank_ = 0;  // 0 if the ranks do not share the heads
  bool by_heads_ = false;
  std::vector<PageCopy> copies_;
  uint64_t page_bytes_ = 0;
  RecurrentState states_;
  Memory* memory_ = nullptr;
  PrefixStore* store_ = nullptr;
  Arena arena_;
  std::unique_ptr<PrefixCache> prefixes_;
};

}  // namespace penstock
