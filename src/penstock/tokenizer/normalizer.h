// Normalizers change a text before it is split into words.
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
    kUnicode,         // applies the normal form `form`
    kLowercase,
    kStrip,          // removes white space at the ends
    kStripAccents,   // removes marks
    kByteLevel,      // bytes become the characters of the byte alphabet
    kNmt,            // removes control characters; unusual spaces become spaces
    kCharsmap,       // applies `charsmap` as Hugging Face's tokenizers do
    kSentencePiece,  // applies all of `sentencepiece`
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
  // Reads tokenizer.json's "normalizer" (null: none). Returns kModel, naming the type that is not implemented.
  static absl::StatusOr<Normalizer> FromJson(const json::value& value);

  void Add(NormalizerStep step) { steps_.push_back(std::move(step)); }

  // Normalises `text` in place. `at_start` says whether it begins at the beginning of the whole text; it becomes false
  // if the normalizer removes that beginning.
  void Apply(TrackedText& text, bool& at_start) const;
  std::string Apply(std::string_view text) const;

  bool empty() const { return steps_.empty(); }

 private:
  std::vector<NormalizerStep> steps_;
};

// Returns, for each byte, the character (UTF-8) that stands for it in byte-level vocabularies.
const std::vector<std::string>& ByteAlphabet();
// Returns the byte that a character of this alphabet stands for, or -1 for other characters.
int ByteOfCharacter(char32_t character);

}  // namespace penstock
