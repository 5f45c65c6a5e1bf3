// Gives out the pages of a KV cache, and finds pages by the tokens that they hold. So sequences with a common beginning
// compute it once and keep it once (RadixAttention, Zheng et al. 2024; vLLM's automatic prefix caching).
//
// The KV entries of a position depend only on its token and on all tokens before it, bit for bit. So a page is named by
// its own tokens and by the page before it, its parent. Named pages form a tree; kNoKvPage is the parent of first
// pages.
//
// Behind an encoder, the entries of a prompt depend on all of its tokens. First pages then have a root, which stands
// for the prompt: pages of different roots have different names. A root is only a hash. So a sequence that takes over
// such pages must compare all tokens of the prompt.
//
// The recurrent state of a sequence (recurrent_state.h) is known where its rows end. It can be kept at the end of a
// shared page, in pages of its own. Other sequences begin there. Kept states go when nothing else is left to take, or
// with the page.
//
// A page is free, held by sequences, cached, or part of a kept state. A cached page is complete and held by nobody.
// When no page is free, the cached page that was released first is taken. Sequences release their last pages first, so
// children go before their parents.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "penstock/memory/expert_key.h"
#include "penstock/tensor/kv_block.h"
#include "penstock/token_id.h"

namespace penstock {

// A page of a KV cache, counted from 0.
enum class KvPageId : int32_t {};
inline constexpr KvPageId kNoKvPage{-1};
constexpr int64_t IndexOf(KvPageId page) { return static_cast<int64_t>(page); }

// Returns the root of sequences that begin with this prompt as a whole (PrefixCache).
uint64_t RootOf(std::span<const TokenId> prompt);

// Returns for each page that a prompt can share a hash of its tokens up to the page's end. The page with the prompt's
// last token is none of them. It serves to guess what is shared; PrefixCache compares the tokens themselves.
std::vector<uint64_t> PageHashes(std::span<const TokenId> prompt);

class PrefixCache {
 public:
  explicit PrefixCache(int64_t num_pages);
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // Maximum bytes of the tables for each page.
  static constexpr uint64_t kBytesPerPage = 160;

  int64_t num_pages() const { return std::ssize(pages_); }
  // Returns the number of pages that nobody holds.
  int64_t num_available() const { return std::ssize(free_) + num_cached_ + num_kept_; }
  int64_t num_holders(KvPageId page) const { return pages_[page].num_holders; }
  // Pages that holders keep in reserve: they may have to Take() as many. Only counted here.
  int64_t num_reserved() const { return num_reserved_; }
  void AddReserved(int64_t num_pages) { num_reserved_ += num_pages; }

  // Returns a page for one holder: a free one, otherwise the cached page that was released first. REQUIRES:
  // num_available() > 0.
  KvPageId Take();
  // Adds a holder to a shared page.
  void Hold(KvPageId page);
  // Removes a holder. The page of the last holder is cached if it is named and complete; otherwise it is free.
  void Release(KvPageId page);

  // Says that a state is worth keeping at the end of this shared page.
  void WantState(KvPageId page) { pages_[page].wants_state = pages_[page].is_shared; }
  // Returns whether a state should be kept there: it is wanted, and `num_pages` can be taken without dropping another.
  bool ShouldKeepState(KvPageId page, int64_t num_pages) const {
    return pages_[page].wants_state && !states_.contains(page) &&
           std::ssize(free_) + num_cached_ - num_reserved_ >= num_pages;
  }
  // Keeps a state in these pages, each of which has one holder, at the end of a held page. Releases them if there is
  // one already.
  void KeepState(KvPageId page, std::vector<KvPageId> pages);
  // Returns the pages of the state at the end of a page; empty if there is none.
  std::span<const KvPageId> KeptState(KvPageId page) const;

  // The positions from the page's beginning whose KV entries exist.
  int64_t num_computed(KvPageId page) const { return pages_[page].num_computed; }
  // Raises num_computed(). A page is complete when all tokens of its name are computed.
  void SetComputed(KvPageId page, int64_t num_positions);

  // Names a held page: it holds `tokens` behind `parent`. If it `is_shared`, `tokens` must fill it; other sequences may
  // then hold it, and it can be a parent. Pages that are not shared are only copied. The page gets no name if the
  // parent is not shared, or if a shared page has this name. Here and below, `root` is that of first pages.
  void Name(KvPageId page, KvPageId parent, std::span<const TokenId> tokens, bool is_shared, uint64_t root = 0);
  bool is_shared(KvPageId page) const { return pages_[page].is_shared; }

  // Returns the shared page with this name, complete or not; kNoKvPage if there is none.
  KvPageId Find(KvPageId parent, std::span<const TokenId> tokens, uint64_t root = 0) const;
  // A complete page, and how many of its first tokens are those that were looked for.
  struct Beginning {
    KvPageId page = kNoKvPage;
    int64_t num_tokens = 0;
  };
  // Returns the complete page behind `parent` that begins with the most of `tokens`.
  Beginning FindBeginning(KvPageId parent, std::span<const TokenId> tokens, uint64_t root = 0) const;

 private:
  // A page's name. Parents are told apart by serial numbers, which never return: what lies behind a page that is gone
  // is not found any more.
  struct PageName {
    uint64_t parent_serial = 0;
    int32_t num_tokens = 0;  // 0: the page has no name
    std::array<TokenId, kKvPageTokens> tokens = {};

    PageName() = default;
    PageName(uint64_t serial, std::span<const TokenId> of_page);
    std::span<const TokenId> span() const { return std::span(tokens).first(static_cast<size_t>(num_tokens)); }
    bool operator==(const PageName&) const = default;
    // Orders by parent, then by tokens, so that names with a long common beginning are neighbours.
    bool operator<(const PageName& other) const;
    template <typename H>
    friend H AbslHashValue(H hash, const PageName& name) {
      return H::combine(H::combine_contiguous(std::move(hash), name.tokens.data(), name.tokens.size()),
                        name.parent_serial, name.num_tokens);
    }
  };
  struct Page {
    PageName name;
    uint64_t serial = 0;  // of a shared page; children name it
    int32_t num_holders = 0;
    int32_t num_computed = 0;
    bool is_shared = false;
    bool can_be_copied = false;  // in complete_
    bool wants_state = false;
    KvPageId before = kNoKvPage;  // neighbours in the list of cached pages
    KvPageId behind = kNoKvPage;
  };
  // Pages are looked up by their names, which lie in pages_.
  struct NameOf {
    const IdVector<KvPageId, Page>* pages;
    const PageName& operator()(KvPageId page) const { return (*pages)[page].name; }
    const PageName& operator()(const PageName& name) const { return name; }
  };
  struct NameHash : NameOf {
    using is_transparent = void;
    size_t operator()(const auto& key) const { return absl::Hash<PageName>()(NameOf::operator()(key)); }
  };
  struct SameName : NameOf {
    using is_transparent = void;
    bool operator()(const auto& a, const auto& b) const { return NameOf::operator()(a) == NameOf::operator()(b); }
  };
  struct NameLess : NameOf {
    using is_transparent = void;
    bool operator()(const auto& a, const auto& b) const { return NameOf::operator()(a) < NameOf::operator()(b); }
  };

  // Returns false if pages cannot lie behind `parent`.
  bool FindSerial(KvPageId parent, uint64_t root, uint64_t& serial) const;
  void AddComplete(KvPageId page);
  void RemoveName(KvPageId page);
  void AddCached(KvPageId page);
  void RemoveCached(KvPageId page);
  void DropState(KvPageId page);

  IdVector<KvPageId, Page> pages_;
  std::vector<KvPageId> free_;
  int64_t num_cached_ = 0;
  KvPageId first_cached_ = kNoKvPage;  // released first
  KvPageId last_cached_ = kNoKvPage;
  int64_t num_reserved_ = 0;
  absl::flat_hash_map<KvPageId, std::vector<KvPageId>> states_;  // kept at the ends of pages
  std::deque<KvPageId> state_order_;                             // those pages, in the order in which states were kept
  int64_t num_kept_ = 0;                                         // pages of states_
  uint64_t last_serial_ = 0;
  absl::flat_hash_set<KvPageId, NameHash, SameName> shared_;
  absl::btree_set<KvPageId, NameLess> complete_;  // one for each name
};

}  // namespace penstock
