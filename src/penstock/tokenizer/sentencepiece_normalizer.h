// SentencePiece's normalizer: it replaces characters (nmt_nfkc and others), shortens runs of spaces to one, puts a
// space in front, and turns spaces into U+2581.
#pragma once

#include <optional>

#include "penstock/tokenizer/added_tokens.h"
#include "penstock/tokenizer/charsmap.h"
#include "penstock/tokenizer/tracked_text.h"

namespace penstock {

inline constexpr char kSpaceMark[] = "\xE2\x96\x81";  // U+2581, which stands for a space

struct SentencePieceNormalizer {
  enum class Prefix : uint8_t {
    kNone,
    kEachText,   // in front of each stretch of text between special tokens
    kFirstText,  // in front of the whole text only (Hugging Face's `legacy: false`)
  };

  std::optional<Charsmap> charsmap;
  PatternMatcher verbatim;  // user-defined pieces; nothing inside them is replaced
  Prefix prefix = Prefix::kEachText;
  bool remove_extra_spaces = true;

  void Apply(TrackedText& text, bool at_start) const;
};

// Applies the map as Hugging Face's tokenizers do. If the map replaces the beginning of a short grapheme, the shortest
// match replaces the whole grapheme. Otherwise each of its characters is looked up.
void ApplyCharsmapToGraphemes(const Charsmap& charsmap, TrackedText& text);

}  // namespace penstock
