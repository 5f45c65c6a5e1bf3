#include "penstock/tokenizer/unigram.h"

#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "penstock/base/text.h"

namespace penstock {

UnigramModel::UnigramModel(Vocabulary vocabulary, std::vector<double> scores, const UnigramOptions& options)
    : vocabulary_(std::move(vocabulary)), scores_(std::move(scores)), options_(options) {
  scores_.resize(vocabulary_.size(), std::numeric_limits<double>::quiet_NaN());
  for (TokenId id = 0; id < vocabulary_.size(); ++id) {
    if (vocabulary_.Has(id) && !std::isnan(scores_[id])) tokens_.Add(vocabulary_.Text(id), id);
  }
}

void UnigramModel::Forbid(const absl::flat_hash_set<TokenId>& tokens) {
  for (const TokenId id : tokens) {
    if (vocabulary_.Has(id)) scores_[id] = std::numeric_limits<double>::quiet_NaN();
  }
}

void UnigramModel::Encode(std::string_view word, Scratch& scratch, std::vector<TokenId>& out) const {
  if (word.empty()) return;
  FindBest(word, scratch);
  scratch.ends.clear();
  for (auto end = static_cast<uint32_t>(word.size()); end > 0; end -= scratch.best[end].num_bytes) {
    scratch.ends.push_back(end);
  }
  size_t unknown_begin = 0;  // start of the run of unknown characters that ends at `begin`
  size_t begin = 0;
  for (auto end = scratch.ends.rbegin(); end != scratch.ends.rend(); begin = *end++) {
    const TokenId id = scratch.best[*end].id;
    if (id < 0) continue;
    AppendUnknown(word.substr(unknown_begin, begin - unknown_begin), out);
    out.push_back(id);
    unknown_begin = *end;
  }
  AppendUnknown(word.substr(unknown_begin), out);
}

// Fills best[i] with the last token of the best way to write the first i bytes. Among equal ways, the first found wins.
void UnigramModel::FindBest(std::string_view word, Scratch& scratch) const {
  scratch.best.assign(word.size() + 1, {0, -1, 0});
  const auto propose = [&](size_t begin, size_t num_bytes, TokenId id, double score) {
    auto& best = scratch.best[begin + num_bytes];
    double sum = scratch.best[begin].score + score;
    if (options_.float_sums) sum = static_cast<float>(sum);
    if (best.num_bytes > 0 && !(sum > best.score)) return;
    best = {sum, id, static_cast<uint32_t>(num_bytes)};
  };
  for (size_t begin = 0; begin < word.size();) {
    const size_t rune_bytes = DecodeUtf8(word, begin).num_bytes;
    bool rune_is_token = false;
    tokens_.ForEachAt(word, begin, [&](TokenId id, size_t num_bytes) {
      ++scratch.num_steps;
      const double score = scores_[id];
      if (std::isnan(score)) return;
      propose(begin, num_bytes, id, score);
      rune_is_token |= num_bytes == rune_bytes;
    });
    if (!rune_is_token) propose(begin, rune_bytes, -1, options_.unknown_score);
    begin += rune_bytes;
  }
}

void UnigramModel::AppendUnknown(std::string_view text, std::vector<TokenId>& out) const {
  if (text.empty()) return;
  if (options_.look_up_unknown) {
    const TokenId id = vocabulary_.Find(text);
    if (id >= 0 && !std::isnan(scores_[id])) {
      out.push_back(id);
      return;
    }
  }
  const size_t size = out.size();
  bool has_bytes = options_.byte_fallback;
  for (size_t i = 0; i < text.size() && has_bytes; ++i) {
    out.push_back(vocabulary_.Find(fmt::format("<0x{:02X}>", static_cast<uint8_t>(text[i]))));
    has_bytes = out.back() >= 0;
  }
  if (has_bytes) return;
  out.resize(size);
  if (options_.unk_id >= 0) out.push_back(options_.unk_id);
}

uint64_t UnigramModel::memory_bytes() const {
  return sizeof(*this) + vocabulary_.memory_bytes() + scores_.capacity() * sizeof(double) + tokens_.memory_bytes();
}

}  // namespace penstock
