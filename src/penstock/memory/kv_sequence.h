// The KV pages of one sequence. It shares pages with sequences that begin with the same tokens, and copies the
// beginning of a page that it shares only in part.
//
// A prompt's full pages are shared up to the first row that the sequence must compute itself for its logits: usually
// the prompt's last one. Whichever sequence reaches a shared page first computes it; the others wait and then skip what
// is computed. All other pages become shared when they are full.
//
// Behind an encoder, the entries of the prompt's first `num_encoded` positions depend on all of them. A new sequence
// takes over all of them, or none. In the second case it computes them in pages of its own.
//
// With a window, the pages behind the sinks form a ring (KvWindow). A sequence then keeps a page in reserve for each
// page that it shares, because it may need one of its own when the ring turns.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/memory/kv_cache.h"
#include "penstock/memory/kv_window.h"
#include "penstock/memory/prefixes/prefix_file.h"

namespace penstock {

class KvSequence {
 public:
  struct Args {
    KvCache& cache;  // must outlive the sequence
    KvWindow window = {};
    std::span<const TokenId> prompt;
    int64_t first_needed_row = 0;  // in the prompt: from here on, the sequence computes its rows itself
    int64_t max_positions = 0;     // at least the prompt's
    bool shares_pages = true;
    int64_t num_encoded = 0;  // at most first_needed_row; 0: there is no encoder. Not with a window
  };
  // Takes all pages that the sequence can ever need; nothing if there are not enough.
  static std::optional<KvSequence> Create(const Args& args);
  // Returns the number of first tokens of the prompt whose pages the sequence would share.
  static int64_t NumShared(const Args& args);

  KvSequence(KvSequence&& other) noexcept;
  KvSequence& operator=(KvSequence&& other) = delete;
  ~KvSequence();

  // Returns the pages as RowBatch::AddRow() takes them. Valid until Open().
  std::span<std::byte* const> pages() const { return addresses_; }
  // Returns the pages of the sequence's recurrent state. They are zeros at the start.
  std::span<std::byte* const> state_pages() const { return state_addresses_; }
  // Returns the page of an opened position that is still in the window.
  KvPageId page_at(int64_t pos) const { return pages_[SlotOf(pos / KvCache::kPageTokens)]; }

  // In all of these, `tokens` are all tokens of the sequence so far, and positions increase from call to call.

  // Returns the page of the first position from `pos` on whose KV entries do not exist. Sequences that share it wait
  // for the one that computes it.
  KvPageId NextToCompute(int64_t pos) const;
  // Returns whether the KV entries of an opened position exist. With a recurrent state, a row may be computed again to
  // advance the state.
  bool has_entries(int64_t pos) const {
    return pos % KvCache::kPageTokens < cache_->prefixes().num_computed(page_at(pos));
  }
  // Makes room for the positions before `end`.
  void Open(std::span<const TokenId> tokens, int64_t end);
  // Returns the first position from `pos` on that must be computed, at most first_needed_row. REQUIRES: the
  // positions before `pos` are computed. Copies the beginning of a page where a page of others begins alike. With a
  // recurrent state, it skips to the last place where others have kept theirs, and copies that.
  absl::StatusOr<int64_t> SkipComputed(std::span<const TokenId> tokens, int64_t pos);
  // Returns the pages into which the recurrent state behind row `pos` is to be copied for other sequences. Returns
  // nothing if that is not worth it.
  std::vector<std::byte*> KeepState(int64_t pos);
  // Returns where the recurrent state is to be copied before rows of drafts advance it: pages that the sequence keeps
  // from the first call on. Returns nothing if there is no state, or not enough pages.
  std::span<std::byte* const> StateToTakeBack();
  // Makes that copy the sequence's state again.
  void TakeBackState();
  // Says that the positions [begin, end) have been computed, and states behind them copied.
  void SetComputed(std::span<const TokenId> tokens, int64_t begin, int64_t end);
  // Gives full pages of the first `num_computed` tokens to the cache's PrefixStore, and states kept at their ends, as
  // far as it takes them.
  void Save(std::span<const TokenId> tokens, int64_t num_computed);
  // Lets others copy from the last page, although it is not full. Nothing may be computed any more.
  void Finish(std::span<const TokenId> tokens, int64_t num_computed);

 private:
  // REQUIRES: there are enough pages, and with `finds_pages` those that others have.
  KvSequence(const Args& args, bool finds_pages);
  // Copies what is left of an encoder's entries: those that end within a page. Returns whether all could be taken over.
  bool CopyEncoded(const Args& args);

  // With a PrefixStore: loads the shared pages of the prompt that nobody has computed. With a recurrent state, loads
  // pages only up to the last one behind which a state is kept.
  void Load(std::span<const TokenId> prompt);
  bool uses_store() const {
    return cache_->store() != nullptr && shares_pages_ && finds_pages_ && !window_.on() && num_encoded_ == 0;
  }

  absl::StatusOr<int64_t> SkipToState(int64_t pos);
  int64_t SlotOf(int64_t page_idx) const;
  KvPageId ParentOf(int64_t page_idx) const { return page_idx == 0 ? kNoKvPage : pages_[SlotOf(page_idx - 1)]; }
  // Whether a page leaves the window when the sequence goes on.
  bool may_leave(int64_t page_idx) const { return window_.on() && page_idx >= window_.sink_pages(); }
  // Puts a page with this index in its slot: one that others have, or a new one.
  void AddPage(std::span<const TokenId> tokens, int64_t page_idx);
  void ReleasePage(int64_t page_idx);

  KvCache* cache_;
  KvWindow window_;
  int64_t num_prompt_;
  int64_t first_needed_row_;
  int64_t num_encoded_;
  bool shares_pages_;
  bool finds_pages_;                   // may hold pages of others, and copy from them
  uint64_t root_ = 0;                  // of the first page (PrefixCache)
  int64_t num_found_ = 0;              // pages that others had when the sequence was created
  int64_t num_pages_ = 0;              // also those that have left the ring
  std::vector<KvPageId> pages_;        // [num_slots]
  std::vector<std::byte*> addresses_;  // [num_slots]
  struct KeptState {
    int64_t pos;
    std::vector<KvPageId> pages;
  };
  std::vector<KeptState> kept_states_;  // their rows are not yet computed
  struct Saved {
    int64_t num_pages = 0;
    PrefixName name;       // of these pages
    uint64_t used_ns = 0;  // when the sequence began
  };
  Saved saved_;
  std::vector<KvPageId> state_pages_;
  std::vector<std::byte*> state_addresses_;  // [state_pages_.size()]
  std::vector<KvPageId> earlier_pages_;      // of the state before drafts; empty: drafts were never asked for
  std::vector<std::byte*> earlier_addresses_;
};

}  // namespace penstock
