#include "penstock/memory/prefix_cache.h"

#include <algorithm>

#include <xxhash.h>

#include "penstock/base/check.h"

namespace penstock {

uint64_t RootOf(std::span<const TokenId> prompt) {
  constexpr uint64_t kNoSerial = uint64_t{1} << 63;  // pages' serial numbers stay below
  return XXH3_64bits(prompt.data(), prompt.size_bytes()) | kNoSerial;
}

std::vector<uint64_t> PageHashes(std::span<const TokenId> prompt) {
  constexpr auto kPage = static_cast<size_t>(kKvPageTokens);
  std::vector<uint64_t> hashes;
  uint64_t hash = 0;
  for (size_t begin = 0; begin + kPage < prompt.size(); begin += kPage) {
    hash = XXH3_64bits_withSeed(&prompt[begin], kPage * sizeof(TokenId), hash);
    hashes.push_back(hash);
  }
  return hashes;
}

PrefixCache::PageName::PageName(uint64_t serial, std::span<const TokenId> of_page)
    : parent_serial(serial), num_tokens(static_cast<int32_t>(of_page.size())) {
  std::ranges::copy(of_page, tokens.begin());
}

bool PrefixCache::PageName::operator<(const PageName& other) const {
  if (parent_serial != other.parent_serial) return parent_serial < other.parent_serial;
  return std::ranges::lexicographical_compare(span(), other.span());
}

PrefixCache::PrefixCache(int64_t num_pages)
    : pages_(static_cast<size_t>(num_pages)),
      shared_(0, NameHash{{&pages_}}, SameName{{&pages_}}),
      complete_(NameLess{{&pages_}}) {
  free_.reserve(static_cast<size_t>(num_pages));
  // The lowest free page is taken first, so that memory that no sequence ever needs is never touched.
  for (int64_t page = num_pages - 1; page >= 0; --page) free_.push_back(KvPageId{static_cast<int32_t>(page)});
}

KvPageId PrefixCache::Take() {
  PENSTOCK_CHECK(num_available() > 0);
  KvPageId page = first_cached_;
  if (free_.empty() && num_cached_ == 0) DropState(state_order_.front());
  if (free_.empty()) {
    RemoveCached(page);
    RemoveName(page);
  } else {
    page = free_.back();
    free_.pop_back();
  }
  pages_[page].num_holders = 1;
  pages_[page].num_computed = 0;
  return page;
}

void PrefixCache::Hold(KvPageId page) {
  Page& held = pages_[page];
  PENSTOCK_CHECK(held.is_shared);
  if (held.num_holders++ == 0) RemoveCached(page);
}

void PrefixCache::Release(KvPageId page) {
  Page& held = pages_[page];
  PENSTOCK_CHECK(held.num_holders > 0);
  if (--held.num_holders > 0) return;
  if (held.can_be_copied) {
    AddCached(page);
  } else {
    RemoveName(page);
    free_.push_back(page);
  }
}

void PrefixCache::SetComputed(KvPageId page, int64_t num_positions) {
  Page& held = pages_[page];
  held.num_computed = std::max(held.num_computed, static_cast<int32_t>(num_positions));
  AddComplete(page);
}

bool PrefixCache::FindSerial(KvPageId parent, uint64_t root, uint64_t& serial) const {
  serial = parent == kNoKvPage ? root : pages_[parent].serial;
  return parent == kNoKvPage || pages_[parent].is_shared;
}

void PrefixCache::Name(KvPageId page, KvPageId parent, std::span<const TokenId> tokens, bool is_shared, uint64_t root) {
  PENSTOCK_CHECK(!is_shared || std::ssize(tokens) == kKvPageTokens);
  RemoveName(page);
  uint64_t serial = 0;
  if (!FindSerial(parent, root, serial)) return;
  const PageName name(serial, tokens);
  if (shared_.contains(name)) return;
  Page& named = pages_[page];
  named.name = name;
  named.is_shared = is_shared;
  if (is_shared) {
    named.serial = ++last_serial_;
    shared_.insert(page);
  }
  AddComplete(page);
}

// One complete page is kept for each name: a shared one, otherwise the first one.
void PrefixCache::AddComplete(KvPageId page) {
  Page& complete = pages_[page];
  if (complete.name.num_tokens == 0 || complete.can_be_copied || complete.num_computed < complete.name.num_tokens) {
    return;
  }
  const auto found = complete_.find(complete.name);
  if (found != complete_.end()) {
    if (!complete.is_shared) return;
    pages_[*found].can_be_copied = false;
    complete_.erase(found);
  }
  complete_.insert(page);
  complete.can_be_copied = true;
}

void PrefixCache::RemoveName(KvPageId page) {
  Page& named = pages_[page];
  if (named.can_be_copied) complete_.erase(page);
  if (named.is_shared) shared_.erase(page);
  DropState(page);
  named.can_be_copied = named.is_shared = named.wants_state = false;
  named.name = {};
}

void PrefixCache::KeepState(KvPageId page, std::vector<KvPageId> pages) {
  if (!pages_[page].is_shared || states_.contains(page)) {
    for (const KvPageId of_state : pages) Release(of_state);
    return;
  }
  for (const KvPageId of_state : pages) pages_[of_state].num_holders = 0;
  num_kept_ += std::ssize(pages);
  states_.emplace(page, std::move(pages));
  state_order_.push_back(page);
}

std::span<const KvPageId> PrefixCache::KeptState(KvPageId page) const {
  const auto found = states_.find(page);
  return found == states_.end() ? std::span<const KvPageId>() : found->second;
}

void PrefixCache::DropState(KvPageId page) {
  const auto found = states_.find(page);
  if (found == states_.end()) return;
  num_kept_ -= std::ssize(found->second);
  free_.insert(free_.end(), found->second.begin(), found->second.end());
  states_.erase(found);
  std::erase(state_order_, page);
}

KvPageId PrefixCache::Find(KvPageId parent, std::span<const TokenId> tokens, uint64_t root) const {
  uint64_t serial = 0;
  if (!FindSerial(parent, root, serial)) return kNoKvPage;
  const auto found = shared_.find(PageName(serial, tokens));
  return found == shared_.end() ? kNoKvPage : *found;
}

PrefixCache::Beginning PrefixCache::FindBeginning(KvPageId parent, std::span<const TokenId> tokens,
                                                  uint64_t root) const {
  Beginning best;
  uint64_t serial = 0;
  if (!FindSerial(parent, root, serial)) return best;
  const PageName name(serial, tokens);
  const auto consider = [&](KvPageId page) {
    const PageName& candidate = pages_[page].name;
    if (candidate.parent_serial != serial) return;
    const int64_t num_tokens = std::ranges::mismatch(tokens, candidate.span()).in1 - tokens.begin();
    if (num_tokens > best.num_tokens) best = {page, num_tokens};
  };
  // The longest common beginning is that of a neighbour in the order of names.
  const auto next = complete_.lower_bound(name);
  if (next != complete_.end()) consider(*next);
  if (next != complete_.begin()) consider(*std::prev(next));
  return best;
}

void PrefixCache::AddCached(KvPageId page) {
  pages_[page].before = last_cached_;
  pages_[page].behind = kNoKvPage;
  (last_cached_ == kNoKvPage ? first_cached_ : pages_[last_cached_].behind) = page;
  last_cached_ = page;
  ++num_cached_;
}

void PrefixCache::RemoveCached(KvPageId page) {
  const Page& cached = pages_[page];
  (cached.before == kNoKvPage ? first_cached_ : pages_[cached.before].behind) = cached.behind;
  (cached.behind == kNoKvPage ? last_cached_ : pages_[cached.behind].before) = cached.before;
  --num_cached_;
}

}  // namespace penstock
