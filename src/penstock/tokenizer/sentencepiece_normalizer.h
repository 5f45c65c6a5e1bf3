// What SentencePiece does to a text before its model sees it: characters are replaced (nmt_nfkc and others), runs of
// spaces become one, a space goes in front, and spaces become U+2581.
#pragma once

#include <optional>

#include "penstock/tokenizer/added_tokens.h"
#include "penstock/tokenizer/charsmap.h"
#include "penstock/tokenizer/tracked_text.h"

namespace penstock {

struct SentencePieceNormalizer {
  enum class Prefix : uint8_t {
    kNone,
    kEachText,   // in front of each stretch of text between special tokens
    kFirstText,  // in front of the whole text only (Hugging Face's `legacy: false`)
  };

  std::optional<Charsmap> charsmap;
  PatternMatcher verbatim;  // user-defined pieces, which nothing is replaced in
  Prefix prefix = Prefix::kEachText;
  bool remove_extra_spaces = true;

  void Apply(TrackedText& text, bool at_start) const;
};

// The same map as Hugging Face's tokenizers apply it: a short grapheme whose beginning the map replaces is replaced
// whole, by the shortest match; otherwise each of its characters is looked up.
void ApplyCharsmapToGraphemes(const Charsmap& charsmap, TrackedText& text);

}  // namespace penstock
