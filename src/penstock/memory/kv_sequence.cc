#include "penstock/memory/kv_sequence.h"

#include <algorithm>
#include <utility>

#include "penstock/base/status.h"
#include "penstock/memory/prefixes/prefix_store.h"

namespace penstock {
namespace {

constexpr int64_t kPageTokens = KvCache::kPageTokens;

// Returns the tokens of a page, as far as they are before `end`.
std::span<const TokenId> TokensOf(std::span<const TokenId> tokens, int64_t page_idx, int64_t end) {
  const int64_t begin = page_idx * kPageTokens;
  return tokens.subspan(static_cast<size_t>(begin), static_cast<size_t>(std::min(kPageTokens, end - begin)));
}

// Returns whether sequences share the page of a prompt: it has no rows that each must compute.
bool IsShareable(int64_t page_idx, int64_t first_needed_row) {
  return (page_idx + 1) * kPageTokens <= first_needed_row;
}

// Loads the state behind a page into pages that the cache keeps. Returns whether it has one then.
bool LoadState(KvCache& cache, const PrefixStore::Place& place, KvPageId page) {
  PrefixCache& prefixes = cache.prefixes();
  if (!prefixes.KeptState(page).empty()) return true;
  prefixes.WantState(page);
  if (!prefixes.ShouldKeepState(page, cache.states().num_pages())) return false;
  std::vector<KvPageId> pages;
  while (std::ssize(pages) < cache.states().num_pages()) pages.push_back(prefixes.Take());
  if (cache.store()->Load(place, PrefixPart::kState, pages)) {
    prefixes.KeepState(page, std::move(pages));
    return true;
  }
  for (const KvPageId of_state : pages) prefixes.Release(of_state);
  return false;
}

uint64_t RootOfPrompt(const KvSequence::Args& args) {
  return args.num_encoded == 0 ? 0 : RootOf(args.prompt.first(static_cast<size_t>(args.num_encoded)));
}

// Returns the shared pages with which the prompt begins. Behind an encoder, these are the full pages of its entries.
std::vector<KvPageId> SharedPages(const KvSequence::Args& args) {
  const int64_t num_prompt = std::ssize(args.prompt);
  int64_t max_pages = args.shares_pages ? args.window.NumPages(args.max_positions) : 0;
  if (args.num_encoded > 0) max_pages = std::min(max_pages, args.num_encoded / kPageTokens);
  const uint64_t root = RootOfPrompt(args);
  std::vector<KvPageId> pages;
  KvPageId page = kNoKvPage;
  for (int64_t i = 0; i < max_pages && IsShareable(i, args.first_needed_row); ++i) {
    page = args.cache.prefixes().Find(page, TokensOf(args.prompt, i, num_prompt), root);
    if (page == kNoKvPage) break;
    pages.push_back(page);
  }
  const auto is_complete = [&](KvPageId found) { return args.cache.prefixes().num_computed(found) == kPageTokens; };
  if (args.num_encoded > 0 && (std::ssize(pages) < max_pages || !std::ranges::all_of(pages, is_complete))) return {};
  return pages;
}

}  // namespace

int64_t KvSequence::NumShared(const Args& args) { return std::ssize(SharedPages(args)) * kPageTokens; }

std::optional<KvSequence> KvSequence::Create(const Args& args) {
  const PrefixCache& prefixes = args.cache.prefixes();
  const int64_t num_needed = args.window.NumPages(args.max_positions);
  const int64_t num_of_state = args.cache.states().num_pages();
  int64_t num_taken = num_needed + num_of_state;  // of the pages that nobody holds
  int64_t num_reserved = prefixes.num_reserved();
  const std::vector<KvPageId> shared = SharedPages(args);
  for (int64_t i = 0; i < std::ssize(shared); ++i) {
    if (prefixes.num_holders(shared[static_cast<size_t>(i)]) == 0) continue;
    --num_taken;
    if (args.window.on() && i >= args.window.sink_pages()) ++num_reserved;
  }
  if (num_taken + num_reserved > prefixes.num_available()) return std::nullopt;
  if (args.num_encoded == 0 || !args.shares_pages) {
    KvSequence sequence(args, /*finds_pages=*/args.shares_pages);
    sequence.Load(args.prompt);
    return sequence;
  }
  if (std::ssize(shared) == args.num_encoded / kPageTokens) {
    KvSequence sequence(args, /*finds_pages=*/true);
    if (sequence.CopyEncoded(args)) return sequence;
  }
  if (num_needed + num_of_state + num_reserved > prefixes.num_available()) return std::nullopt;
  return KvSequence(args, /*finds_pages=*/false);
}

bool KvSequence::CopyEncoded(const Args& args) {
  const int64_t page_idx = args.num_encoded / kPageTokens, num_tail = args.num_encoded % kPageTokens;
  if (num_tail == 0) return true;
  PrefixCache& prefixes = cache_->prefixes();
  const auto [source, num_tokens] = prefixes.FindBeginning(
      ParentOf(page_idx), TokensOf(args.prompt, page_idx, std::max(args.num_encoded, first_needed_row_)), root_);
  if (num_tokens < num_tail || !cache_->Copy(source, pages_[page_idx]).ok()) return false;
  prefixes.SetComputed(pages_[page_idx], num_tokens);
  return true;
}

KvSequence::KvSequence(const Args& args, bool finds_pages)
    : cache_(&args.cache),
      window_(args.window),
      num_prompt_(std::ssize(args.prompt)),
      first_needed_row_(args.first_needed_row),
      num_encoded_(args.num_encoded),
      shares_pages_(args.shares_pages),
      finds_pages_(finds_pages),
      root_(RootOfPrompt(args)),
      pages_(static_cast<size_t>(args.window.NumPages(args.max_positions)), kNoKvPage),
      addresses_(pages_.size()) {
  while (num_pages_ < std::ssize(pages_)) AddPage(args.prompt, num_pages_++);
  for (int64_t i = 0; i < cache_->states().num_pages(); ++i) {
    state_pages_.push_back(cache_->prefixes().Take());
    state_addresses_.push_back(cache_->address(state_pages_.back()));
  }
  // The prompts that come later may go on from here, or from where this one leaves what others have.
  if (state_pages_.empty() || !shares_pages_) return;
  for (const int64_t num_full : {first_needed_row_ / kPageTokens, num_found_}) {
    if (num_full > 0) cache_->prefixes().WantState(pages_[num_full - 1]);
  }
}

KvSequence::KvSequence(KvSequence&& other) noexcept
    : cache_(std::exchange(other.cache_, nullptr)),
      window_(other.window_),
      num_prompt_(other.num_prompt_),
      first_needed_row_(other.first_needed_row_),
      num_encoded_(other.num_encoded_),
      shares_pages_(other.shares_pages_),
      finds_pages_(other.finds_pages_),
      root_(other.root_),
      num_found_(other.num_found_),
      num_pages_(other.num_pages_),
      pages_(std::move(other.pages_)),
      addresses_(std::move(other.addresses_)),
      kept_states_(std::move(other.kept_states_)),
      saved_(other.saved_),
      state_pages_(std::move(other.state_pages_)),
      state_addresses_(std::move(other.state_addresses_)),
      earlier_pages_(std::move(other.earlier_pages_)),
      earlier_addresses_(std::move(other.earlier_addresses_)) {}

KvSequence::~KvSequence() {
  if (cache_ == nullptr) return;
  for (const auto* pages : {&state_pages_, &earlier_pages_}) {
    for (const KvPageId page : *pages) cache_->prefixes().Release(page);
  }
  for (const KeptState& kept : kept_states_) {
    for (const KvPageId page : kept.pages) cache_->prefixes().Release(page);
  }
  const int64_t num_sinks = std::min(window_.on() ? window_.sink_pages() : 0, std::ssize(pages_));
  const int64_t num_others = std::ssize(pages_) - num_sinks;
  for (int64_t i = 1; i <= num_others; ++i) ReleasePage(num_pages_ - i);
  for (int64_t i = num_sinks - 1; i >= 0; --i) ReleasePage(i);
}

int64_t KvSequence::SlotOf(int64_t page_idx) const {
  const int64_t num_slots = std::ssize(pages_);
  if (page_idx < num_slots) return page_idx;
  const int64_t num_sinks = window_.sink_pages();
  return num_sinks + (page_idx - num_sinks) % (num_slots - num_sinks);
}

void KvSequence::AddPage(std::span<const TokenId> tokens, int64_t page_idx) {
  PrefixCache& prefixes = cache_->prefixes();
  const bool is_shareable = IsShareable(page_idx, first_needed_row_);
  const bool is_named = shares_pages_ && page_idx * kPageTokens < num_prompt_;
  const KvPageId parent = ParentOf(page_idx);
  KvPageId page = kNoKvPage;
  const bool is_of_others = finds_pages_ && (num_encoded_ == 0 || page_idx < num_encoded_ / kPageTokens);
  if (is_named && is_shareable && is_of_others) {
    page = prefixes.Find(parent, TokensOf(tokens, page_idx, num_prompt_), root_);
  }
  if (page != kNoKvPage) {
    if (may_leave(page_idx) && prefixes.num_holders(page) > 0) prefixes.AddReserved(1);
    prefixes.Hold(page);
    num_found_ = page_idx + 1;
  } else {
    page = prefixes.Take();
    if (is_named) prefixes.Name(page, parent, TokensOf(tokens, page_idx, num_prompt_), is_shareable, root_);
  }
  const int64_t slot = SlotOf(page_idx);
  pages_[slot] = page;
  addresses_[slot] = cache_->address(page);
}

void KvSequence::ReleasePage(int64_t page_idx) {
  PrefixCache& prefixes = cache_->prefixes();
  const KvPageId page = pages_[SlotOf(page_idx)];
  prefixes.Release(page);
  if (may_leave(page_idx) && prefixes.num_holders(page) > 0) prefixes.AddReserved(-1);
}

void KvSequence::Open(std::span<const TokenId> tokens, int64_t end) {
  for (; num_pages_ * kPageTokens < end; ++num_pages_) {
    ReleasePage(num_pages_ - (std::ssize(pages_) - window_.sink_pages()));
    AddPage(tokens, num_pages_);
  }
}

absl::StatusOr<int64_t> KvSequence::SkipComputed(std::span<const TokenId> tokens, int64_t pos) {
  if (!state_pages_.empty()) return SkipToState(pos);
  PrefixCache& prefixes = cache_->prefixes();
  while (finds_pages_ && pos < first_needed_row_) {
    Open(tokens, pos + 1);
    const int64_t page_idx = pos / kPageTokens, begin = page_idx * kPageTokens;
    const KvPageId page = page_at(pos);
    if (begin + prefixes.num_computed(page) <= pos) {
      const auto [source, num_tokens] =
          prefixes.FindBeginning(ParentOf(page_idx), TokensOf(tokens, page_idx, first_needed_row_), root_);
      if (begin + num_tokens <= pos) break;
      PENSTOCK_RETURN_IF_ERROR(cache_->Copy(source, page));
      prefixes.SetComputed(page, num_tokens);
    }
    pos = std::min(first_needed_row_, begin + prefixes.num_computed(page));
  }
  return pos;
}

void KvSequence::Load(std::span<const TokenId> prompt) {
  if (!uses_store()) return;
  PrefixStore& store = *cache_->store();
  PrefixCache& prefixes = cache_->prefixes();
  saved_.used_ns = PrefixFolder::Now();
  std::vector<PrefixName> names;  // of the pages that there are, here or in files
  int64_t num_wanted = 0;
  for (PrefixName name; std::ssize(names) < first_needed_row_ / kPageTokens; names.push_back(name)) {
    const int64_t page_idx = std::ssize(names);
    const KvPageId page = pages_[page_idx];
    name = name.Then(TokensOf(prompt, page_idx, num_prompt_));
    if (prefixes.num_computed(page) < kPageTokens && !store.Has(name, PrefixPart::kEntries)) break;
    if (state_pages_.empty() || !prefixes.KeptState(page).empty() || store.Has(name, PrefixPart::kState)) {
      num_wanted = page_idx + 1;
    }
  }
  const auto place_of = [&](int64_t page_idx) {
    return PrefixStore::Place{.name = names[static_cast<size_t>(page_idx)],
                              .tokens = prompt.first(static_cast<size_t>((page_idx + 1) * kPageTokens)),
                              .used_ns = saved_.used_ns};
  };
  if (!state_pages_.empty() && !names.empty()) {
    // This prompt leaves here what others had, so the prompts that come later may do the same.
    prefixes.WantState(pages_[std::ssize(names) - 1]);
    if (num_wanted == 0 || !LoadState(*cache_, place_of(num_wanted - 1), pages_[num_wanted - 1])) return;
  }
  for (int64_t i = 0; i < num_wanted; ++i) {
    const KvPageId page = pages_[i];
    if (prefixes.num_computed(page) == kPageTokens) continue;
    // Another sequence may be computing the page.
    if (prefixes.num_computed(page) > 0 || !store.Load(place_of(i), PrefixPart::kEntries, {&page, 1})) return;
    prefixes.SetComputed(page, kPageTokens);
  }
}

absl::StatusOr<int64_t> KvSequence::SkipToState(int64_t pos) {
  if (!finds_pages_) return pos;
  const PrefixCache& prefixes = cache_->prefixes();
  std::span<const KvPageId> state;
  for (int64_t end = (pos / kPageTokens + 1) * kPageTokens; end <= first_needed_row_; end += kPageTokens) {
    const KvPageId page = page_at(end - 1);
    if (prefixes.num_computed(page) < kPageTokens) break;
    if (const auto kept = prefixes.KeptState(page); !kept.empty()) {
      state = kept;
      pos = end;
    }
  }
  for (size_t i = 0; i < state.size(); ++i) PENSTOCK_RETURN_IF_ERROR(cache_->Copy(state[i], state_pages_[i]));
  return pos;
}

std::vector<std::byte*> KvSequence::KeepState(int64_t pos) {
  std::vector<std::byte*> addresses;
  if (state_pages_.empty() || (pos + 1) % kPageTokens != 0) return addresses;
  PrefixCache& prefixes = cache_->prefixes();
  if (!prefixes.ShouldKeepState(page_at(pos), std::ssize(state_pages_))) return addresses;
  std::vector<KvPageId>& pages = kept_states_.emplace_back(KeptState{pos, {}}).pages;
  while (pages.size() < state_pages_.size()) {
    pages.push_back(prefixes.Take());
    addresses.push_back(cache_->address(pages.back()));
  }
  return addresses;
}

std::span<std::byte* const> KvSequence::StateToTakeBack() {
  PrefixCache& prefixes = cache_->prefixes();
  const int64_t num_pages = std::ssize(state_pages_);
  if (earlier_pages_.empty() && prefixes.num_available() - prefixes.num_reserved() >= num_pages) {
    for (int64_t i = 0; i < num_pages; ++i) {
      earlier_pages_.push_back(prefixes.Take());
      earlier_addresses_.push_back(cache_->address(earlier_pages_.back()));
    }
  }
  return earlier_addresses_;
}

void KvSequence::TakeBackState() {
  std::swap(state_pages_, earlier_pages_);
  std::swap(state_addresses_, earlier_addresses_);
}

void KvSequence::Save(std::span<const TokenId> tokens, int64_t num_computed) {
  if (!uses_store()) return;
  PrefixStore& store = *cache_->store();
  const PrefixCache& prefixes = cache_->prefixes();
  // Behind its last state, a recurrent model cannot use entries.
  const int64_t end = state_pages_.empty() ? num_computed : std::min(num_computed, first_needed_row_);
  while ((saved_.num_pages + 1) * kPageTokens <= end) {
    const int64_t page_idx = saved_.num_pages;
    const KvPageId page = pages_[page_idx];
    if (prefixes.num_computed(page) < kPageTokens) return;
    const PrefixStore::Place place{.name = saved_.name.Then(TokensOf(tokens, page_idx, end)),
                                   .tokens = tokens.first(static_cast<size_t>((page_idx + 1) * kPageTokens)),
                                   .used_ns = saved_.used_ns};
    if (!store.Save(place, PrefixPart::kEntries, {&page, 1})) return;
    const std::span<const KvPageId> state = prefixes.KeptState(page);
    if (!state.empty() && !store.Save(place, PrefixPart::kState, state)) return;
    saved_.name = place.name;
    ++saved_.num_pages;
  }
}

KvPageId KvSequence::NextToCompute(int64_t pos) const {
  while (pos + 1 < first_needed_row_ && has_entries(pos)) ++pos;
  return page_at(pos);
}

void KvSequence::SetComputed(std::span<const TokenId> tokens, int64_t begin, int64_t end) {
  if (!shares_pages_) return;
  PrefixCache& prefixes = cache_->prefixes();
  for (int64_t page_idx = begin / kPageTokens; page_idx * kPageTokens < end; ++page_idx) {
    const KvPageId page = pages_[SlotOf(page_idx)];
    prefixes.SetComputed(page, std::min(kPageTokens, end - page_idx * kPageTokens));
    if ((page_idx + 1) * kPageTokens <= end && !prefixes.is_shared(page)) {
      prefixes.Name(page, ParentOf(page_idx), TokensOf(tokens, page_idx, end), /*is_shared=*/true, root_);
    }
  }
  std::erase_if(kept_states_, [&](KeptState& kept) {
    if (kept.pos >= end) return false;
    prefixes.KeepState(page_at(kept.pos), std::move(kept.pages));
    return true;
  });
}

void KvSequence::Finish(std::span<const TokenId> tokens, int64_t num_computed) {
  const int64_t page_idx = num_computed / kPageTokens;
  if (!shares_pages_ || !state_pages_.empty() || num_computed % kPageTokens == 0) return;
  cache_->prefixes().Name(pages_[SlotOf(page_idx)], ParentOf(page_idx), TokensOf(tokens, page_idx, num_computed),
                          /*is_shared=*/false, root_);
}

}  // namespace penstock
