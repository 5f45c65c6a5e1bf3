#include "penstock/tokenizer/bpe.h"

#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "penstock/base/text.h"

namespace penstock {
namespace {

// Words of up to this many symbols merge by scanning for the lowest rank, which is faster than a heap at that size.
constexpr size_t kMaxScanSymbols = 32;

// Frozen symbols are stored as negative numbers, which occur in no merge.
TokenId Freeze(TokenId id) { return -id - 2; }
TokenId Thaw(TokenId id) { return -(id + 2); }

struct LaterCandidate {
  bool operator()(const BpeModel::Scratch::Candidate& a, const BpeModel::Scratch::Candidate& b) const {
    return a.key > b.key;
  }
};

}  // namespace

BpeModel::BpeModel(Vocabulary vocabulary, MergeTable merges, const BpeOptions& options)
    : vocabulary_(std::move(vocabulary)), merges_(std::move(merges)), options_(options) {
  for (int byte = 0; byte < 256; ++byte) {
    byte_ids_[byte] = vocabulary_.Find(fmt::format("<0x{:02X}>", byte));
  }
  for (char32_t c = 0; c < small_ids_.size(); ++c) {
    std::string character;
    AppendUtf8(c, character);
    small_ids_[c] = vocabulary_.Find(character);
  }
}

void BpeModel::Forbid(absl::flat_hash_set<TokenId> tokens) {
  forbidden_ = std::move(tokens);
  merges_.RemoveMergesInto(forbidden_);
  for (TokenId& id : small_ids_) {
    if (forbidden_.contains(id)) id = -1;
  }
  for (const TokenId id : forbidden_) {
    const std::string_view text = vocabulary_.Text(id);
    if (!text.empty() && DecodeUtf8(text, 0).num_bytes == static_cast<int>(text.size())) forbids_characters_ = true;
  }
}

void BpeModel::Encode(std::string_view word, Scratch& scratch, std::vector<TokenId>& out) const {
  if (word.empty()) return;
  if (options_.ignore_merges) {
    const TokenId whole = vocabulary_.Find(word);
    if (whole >= 0 && !forbidden_.contains(whole)) {
      out.push_back(whole);
      return;
    }
  }
  scratch.ids.clear();
  SplitToSymbols(word, scratch.ids);
  if (scratch.ids.size() <= kMaxScanSymbols) {
    MergeShort(scratch);
  } else {
    MergeLong(scratch);
  }
  Emit(scratch.ids, out);
}

TokenId BpeModel::FindCharacter(std::string_view character, char32_t code_point) const {
  if (code_point < small_ids_.size() && small_ids_[code_point] >= 0) return small_ids_[code_point];
  const TokenId id = vocabulary_.Find(character);
  if (id >= 0 && forbids_characters_ && forbidden_.contains(id)) return -1;
  if (id >= 0 || hidden_.empty()) return id;
  const auto hidden = hidden_.find(code_point);
  return hidden == hidden_.end() ? -1 : hidden->second;
}

bool BpeModel::AppendByteIds(std::string_view bytes, std::vector<TokenId>& ids) const {
  for (const char byte : bytes) {
    if (byte_ids_[static_cast<uint8_t>(byte)] < 0) return false;
  }
  for (const char byte : bytes) ids.push_back(byte_ids_[static_cast<uint8_t>(byte)]);
  return true;
}

void BpeModel::SplitToSymbols(std::string_view word, std::vector<TokenId>& ids) const {
  bool unk_pending = false;
  const auto flush_unk = [&] {
    if (unk_pending) ids.push_back(options_.unk_id);
    unk_pending = false;
  };
  for (size_t pos = 0; pos < word.size();) {
    if (!frozen_.empty()) {
      const PatternMatcher::Match match =
          frozen_.LongestAt(word, pos, [&](int id, size_t) { return !forbidden_.contains(id); });
      if (match.pattern >= 0) {
        flush_unk();
        ids.push_back(Freeze(match.pattern));
        pos += match.num_bytes;
        continue;
      }
    }
    const DecodedRune rune = DecodeUtf8(word, pos);
    const std::string_view character = word.substr(pos, rune.num_bytes);
    pos += character.size();
    const TokenId id = FindCharacter(character, rune.code_point);
    if (id >= 0) {
      flush_unk();
      ids.push_back(id);
    } else if (options_.byte_fallback && AppendByteIds(character, ids)) {
      continue;
    } else if (options_.unk_id >= 0) {
      // An unk is held back so that the following ones can be fused with it.
      if (!options_.fuse_unk) flush_unk();
      unk_pending = true;
    }
  }
  flush_unk();
}

void BpeModel::MergeShort(Scratch& scratch) const {
  std::vector<TokenId>& ids = scratch.ids;
  if (ids.size() < 2) return;
  MergeTable::Merge merges[kMaxScanSymbols];  // merges[i] is the merge of ids[i] and ids[i + 1]
  size_t num_pairs = ids.size() - 1;
  for (size_t i = 0; i < num_pairs; ++i) merges[i] = merges_.Find(ids[i], ids[i + 1]);
  while (num_pairs > 0) {
    size_t best = 0;
    for (size_t i = 1; i < num_pairs; ++i) {
      if (merges[i].rank < merges[best].rank) best = i;
    }
    ++scratch.num_steps;
    if (!merges[best].exists()) return;
    ids[best] = merges[best].merged;
    ids.erase(ids.begin() + static_cast<ptrdiff_t>(best) + 1);
    std::copy(merges + best + 1, merges + num_pairs, merges + best);
    --num_pairs;
    if (best < num_pairs) merges[best] = merges_.Find(ids[best], ids[best + 1]);
    if (best > 0) merges[best - 1] = merges_.Find(ids[best - 1], ids[best]);
  }
}

void BpeModel::MergeLong(Scratch& scratch) const {
  auto& symbols = scratch.symbols;
  auto& heap = scratch.heap;
  const auto num_symbols = static_cast<int32_t>(scratch.ids.size());
  symbols.resize(scratch.ids.size());
  heap.clear();
  for (int32_t i = 0; i < num_symbols; ++i) {
    symbols[i] = {scratch.ids[i], i - 1, i + 1 < num_symbols ? i + 1 : -1};
  }
  // Adds the pair whose left part stands at `pos` to the heap's array if the pair merges.
  const auto propose = [&](int32_t pos) {
    const auto& left = symbols[pos];
    if (left.next < 0) return false;
    const TokenId right_id = symbols[left.next].id;
    const MergeTable::Merge merge = merges_.Find(left.id, right_id);
    if (!merge.exists()) return false;
    heap.push_back(
        {static_cast<uint64_t>(merge.rank) << 32 | static_cast<uint32_t>(pos), left.id, right_id, merge.merged});
    return true;
  };
  for (int32_t i = 0; i < num_symbols; ++i) propose(i);
  std::make_heap(heap.begin(), heap.end(), LaterCandidate{});
  constexpr TokenId kGone = -1;
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), LaterCandidate{});
    const Scratch::Candidate candidate = heap.back();
    heap.pop_back();
    ++scratch.num_steps;
    const auto pos = static_cast<int32_t>(candidate.key & 0xFFFFFFFF);
    auto& left = symbols[pos];
    // The candidate is out of date if one of its two symbols has merged with another neighbour since.
    if (left.id != candidate.left || left.next < 0) continue;
    auto& right = symbols[left.next];
    if (right.id != candidate.right) continue;
    left.id = candidate.merged;
    right.id = kGone;
    left.next = right.next;
    if (left.next >= 0) symbols[left.next].prev = pos;
    if (left.prev >= 0 && propose(left.prev)) std::push_heap(heap.begin(), heap.end(), LaterCandidate{});
    if (propose(pos)) std::push_heap(heap.begin(), heap.end(), LaterCandidate{});
  }
  scratch.ids.clear();
  for (int32_t i = 0; i >= 0; i = symbols[i].next) {
    scratch.ids.push_back(symbols[i].id);
  }
}

void BpeModel::Emit(const std::vector<TokenId>& ids, std::vector<TokenId>& out) const {
  if (frozen_.empty() && hidden_.empty()) {
    out.insert(out.end(), ids.begin(), ids.end());
    return;
  }
  absl::flat_hash_map<TokenId, char32_t> characters;
  bool after_unk = false;
  for (const TokenId id : ids) {
    if (id < 0) {
      out.push_back(Thaw(id));
    } else if (id < vocabulary_.size()) {
      out.push_back(id);
    } else {
      // A hidden character that has merged with nothing is unknown.
      if (characters.empty()) {
        for (const auto& [code_point, hidden_id] : hidden_) characters[hidden_id] = code_point;
      }
      std::string bytes;
      AppendUtf8(characters[id], bytes);
      if (options_.byte_fallback && AppendByteIds(bytes, out)) continue;
      if (options_.unk_id >= 0 && !(after_unk && options_.fuse_unk)) out.push_back(options_.unk_id);
    }
    after_unk = !out.empty() && out.back() == options_.unk_id;
  }
}

uint64_t BpeModel::memory_bytes() const {
  return sizeof(*this) + vocabulary_.memory_bytes() + merges_.memory_bytes() + frozen_.memory_bytes() +
         hidden_.capacity() * (sizeof(std::pair<char32_t, TokenId>) + 1);
}

}  // namespace penstock
