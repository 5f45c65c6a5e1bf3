// Puts marks back into the text of an answer: special tokens, which decoded text leaves out.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "penstock/tokenizer/tokenizer.h"

namespace penstock {

// A mark, or text without marks.
struct MarkedPiece {
  TokenId mark = -1;                      // -1: text
  std::string text;                       // of a mark: as `hidden` spells it
  std::vector<size_t> token_starts = {};  // of text: where tokens begin in it; those without text begin with the next
};

class MarkedText {
 public:
  using Hidden = absl::flat_hash_map<TokenId, std::string>;

  // `hidden` holds the special tokens that are marks. It and the tokenizer must outlive the object.
  MarkedText(const Tokenizer& tokenizer, const Hidden& hidden) : hidden_(&hidden), decoder_(tokenizer) {}

  // Takes the next tokens, and the next text that is final. Text comes with its tokens or later. A stop text may have
  // cut the text off: a mark behind the cut counts no more.
  std::vector<MarkedPiece> Push(std::span<const TokenId> ids, std::string_view text);

 private:
  struct Place {
    uint64_t offset;  // in bytes of the whole text
    TokenId id;
  };

  const Hidden* hidden_;
  StreamDecoder decoder_;
  uint64_t num_decoded_ = 0;  // bytes
  uint64_t num_final_ = 0;
  std::deque<Place> waiting_;    // marks whose place is not yet reached
  std::deque<uint64_t> starts_;  // of tokens that are no marks, in the text that is not yet final
};

}  // namespace penstock
