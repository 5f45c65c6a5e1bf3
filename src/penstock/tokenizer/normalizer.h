// Normalizers: what happens to a text before it is split into words.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/base/json.h"
#include "penstock/tokenizer/charsmap.h"
#include "penstock/tokenizer/sentencepiece_normalizer.h"
#include "penstock/tokenizer/split/split_pattern.h"
#include "penstock/tokenizer/split/unicode.h"
#include "penstock/tokenizer/tracked_text.h"

namespace penstock {

struct NormalizerStep {
  enum class Kind : uint8_t {
    kPrepend,         // puts `to` in front of a text that is not empty
    kReplace,         // each `from` becomes `to`
    kReplaceMatches,  // each match of `pattern` becomes `to`
    kUnicode,         // `form`
    kLowercase,
    kStrip,          // white space at the ends
    kStripAccents,   // removes marks
    kByteLevel,      // bytes become the characters of the byte alphabet
    kNmt,            // control characters vanish, unusual spaces become spaces
    kCharsmap,       // `charsmap` as Hugging Face's tokenizers apply it
    kSentencePiece,  // all that `sentencepiece` says
  };

  Kind kind;
  std::string from = {};
  std::string to = {};
  unicode::NormalForm form = unicode::NormalForm::kNfc;
  bool left = false;
  bool right = false;
  SplitPattern pattern = SplitPattern::Gpt2();
  std::shared_ptr<const Charsmap> charsmap = nullptr;
  std::shared_ptr<const SentencePieceNormalizer> sentencepiece = nullptr;
};

class Normalizer {
 public:
  // From tokenizer.json's "normalizer" (null: none). kModel names a type that is not implemented.
  static absl::StatusOr<Normalizer> FromJson(const json::value& value);

  void Add(NormalizerStep step) { steps_.push_back(std::move(step)); }

  // Normalises `text` in place. `at_start`: does it begin at the beginning of the whole text? Becomes false when the
  // beginning is taken away.
  void Apply(TrackedText& text, bool& at_start) const;
  std::string Apply(std::string_view text) const;

  bool empty() const { return steps_.empty(); }

 private:
  std::vector<NormalizerStep> steps_;
};

// The 256 characters that stand for bytes in byte-level vocabularies, in UTF-8, by byte.
const std::vector<std::string>& ByteAlphabet();
// The byte that a character of the alphabet stands for, -1 for other characters.
int ByteOfCharacter(char32_t character);

}  // namespace penstock
