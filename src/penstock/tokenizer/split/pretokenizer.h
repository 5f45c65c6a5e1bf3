// Pre-tokenizers cut a normalised text into the words that the model encodes one by one.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/base/json.h"
#include "penstock/tokenizer/split/split_pattern.h"

namespace penstock {

enum class SplitBehavior : uint8_t { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };
enum class PrependScheme : uint8_t { kNever, kFirst, kAlways };

struct PreTokenizerStep {
  enum class Kind : uint8_t {
    kSplit,        // cuts with `pattern`
    kByteLevel,    // bytes become characters of the byte alphabet
    kPrefixSpace,  // puts a space before a word that has none
    kMetaspace,    // spaces become `replacement`, which may be put in front
  };

  Kind kind;
  SplitPattern pattern = SplitPattern::Gpt2();
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;  // cuts where the pattern does not match
  std::string replacement = {};
  PrependScheme prepend = PrependScheme::kAlways;
};

class PreTokenizer {
 public:
  // The words of a text, as ranges of `text`.
  struct Words {
    struct Word {
      size_t begin;
      size_t end;
      bool at_start;  // begins at the beginning of the whole text
    };
    std::string text;
    std::vector<Word> words;
  };

  // Reads tokenizer.json's "pre_tokenizer" (null: none). Returns kModel, naming the type or pattern that is not
  // implemented.
  static absl::StatusOr<PreTokenizer> FromJson(const json::value& value);

  void Add(PreTokenizerStep step) { steps_.push_back(std::move(step)); }
  // Adds the steps of a ByteLevel pre-tokenizer.
  void AddByteLevel(bool prefix_space, bool use_regex);

  Words Split(std::string_view text, bool at_start) const;

 private:
  std::vector<PreTokenizerStep> steps_;
};

}  // namespace penstock
