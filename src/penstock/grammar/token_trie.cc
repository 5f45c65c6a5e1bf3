#include "penstock/grammar/token_trie.h"

#include <algorithm>
#include <numeric>

#include "penstock/base/status.h"
#include "penstock/base/text.h"

namespace penstock::grammar {
namespace {

// Bytes that UTF-8 does not have.
constexpr char kMarkBegin = '\xFF', kMarkEnd = '\xFE';

// Returns for each place of a text which classes of bytes are behind it.
std::vector<ByteClasses> ClassesBehind(std::string_view text) {
  std::vector<ByteClasses> behind(text.size() + 1, 0);
  for (size_t i = text.size(); i-- > 0;) {
    const DecodedRune rune = DecodeUtf8(text, i);
    const auto num_bytes = static_cast<size_t>(rune.num_bytes);
    if (static_cast<uint8_t>(text[i]) < 0x80) {
      behind[i] = ClassOf(static_cast<uint8_t>(text[i])) | behind[i + 1];
    } else {
      behind[i] = rune.valid ? kWideClass | behind[i + num_bytes] : kOtherClass;
    }
  }
  return behind;
}

}  // namespace

std::string MarkText(std::string_view mark) {
  std::string text(1, kMarkBegin);
  text += mark;
  return text + kMarkEnd;
}

absl::StatusOr<TokenTrie> TokenTrie::Create(const Tokenizer& tokenizer, int64_t vocab_size) {
  if (tokenizer.cleans_spaces()) {
    return ModelError("output formats: the tokenizer removes spaces between tokens, so no text can be prescribed");
  }
  std::vector<std::string> texts(static_cast<size_t>(vocab_size));
  TokenMask changed(MaskWords(vocab_size), 0);
  const auto num_ids = static_cast<TokenId>(std::min(vocab_size, tokenizer.vocab_size()));
  for (TokenId id = 0; id < num_ids; ++id) {
    if (tokenizer.IsMark(id)) {
      texts[id] = MarkText(tokenizer.TokenText(id));
      continue;
    }
    DecodeState inside{.num_tokens = 1, .past_leading = true}, start;
    tokenizer.DecodeNext(id, SkipSpecial::kYes, inside, texts[id]);
    std::string first;
    tokenizer.DecodeNext(id, SkipSpecial::kYes, start, first);
    if (first != texts[id]) AddToken(changed, id);
    // A byte that could begin a mark is part of no valid text.
    if (texts[id].find_first_of({kMarkBegin, kMarkEnd}) != std::string::npos) texts[id].clear();
  }
  constexpr size_t kMaxBytes = size_t{1} << 24;  // so many nodes can be counted
  size_t num_bytes = 0;
  for (const std::string& text : texts) num_bytes += text.size();
  if (num_bytes >= kMaxBytes) return ModelError("output formats: the vocabulary has {} bytes of text", num_bytes);
  TokenTrie trie(texts);
  trie.changed_at_start_ = std::move(changed);
  return trie;
}

uint64_t TokenTrie::MaxBytes(const Tokenizer& tokenizer, int64_t vocab_size) {
  uint64_t num_bytes = static_cast<uint64_t>(vocab_size) * (sizeof(uint32_t) + 1);
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    const size_t num_around = tokenizer.IsMark(id) ? 2 : 0;
    num_bytes += (sizeof(Node) + sizeof(ByteClasses) + 1) * (tokenizer.TokenText(id).size() + num_around);
  }
  return num_bytes;
}

TokenTrie::TokenTrie(std::span<const std::string> texts)
    : changed_at_start_(MaskWords(std::ssize(texts)), 0), all_tokens_(MaskWords(std::ssize(texts)), 0) {
  size_t num_bytes = 0;
  for (const std::string& text : texts) num_bytes += text.size();
  bytes_.reserve(num_bytes);
  ends_.reserve(texts.size());
  for (const std::string& text : texts) {
    bytes_ += text;
    ends_.push_back(static_cast<uint32_t>(bytes_.size()));
    longest_token_ = std::max(longest_token_, text.size());
  }
  std::vector<TokenId> order(texts.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](TokenId id) { return std::string_view(texts[id]); });
  std::vector<size_t> path;  // the node of each byte of the last text
  const auto close = [&](size_t depth) {
    for (; path.size() > depth; path.pop_back()) nodes_[path.back()].num_below = nodes_.size() - path.back() - 1;
  };
  std::string_view last;
  for (const TokenId id : order) {
    const std::string_view text = texts[id];
    if (text.empty()) continue;
    size_t shared = std::mismatch(text.begin(), text.end(), last.begin(), last.end()).first - text.begin();
    // A token with the same text as another one gets a node of its own.
    if (shared == text.size()) --shared;
    close(shared);
    for (size_t i = shared; i < text.size(); ++i) {
      path.push_back(nodes_.size());
      nodes_.push_back({.byte = static_cast<uint8_t>(text[i])});
      classes_below_.push_back(0);
    }
    const std::vector<ByteClasses> behind = ClassesBehind(text);
    for (size_t i = 0; i < text.size(); ++i) classes_below_[path[i]] |= behind[i + 1];
    nodes_.back().token = id;
    AddToken(all_tokens_, id);
    last = text;
  }
  close(0);
  nodes_.shrink_to_fit();
  classes_below_.shrink_to_fit();
}

}  // namespace penstock::grammar
