#include "penstock/tokenizer/split/pretokenizer.h"

#include <algorithm>

#include "penstock/base/text.h"
#include "penstock/tokenizer/json_fields.h"
#include "penstock/tokenizer/normalizer.h"
#include "penstock/tokenizer/split/unicode.h"

namespace penstock {
namespace {

using PreTokenizerKind = PreTokenizerStep::Kind;
using Word = PreTokenizer::Words::Word;

struct Cut {
  size_t begin;
  size_t end;
  bool is_match;
};

// Returns cuts that cover the word, in order.
std::vector<Cut> FindCuts(const PreTokenizerStep& step, std::string_view word) {
  std::vector<Cut> cuts;
  SplitRegex::Memo memo;
  size_t pos = 0;
  for (size_t from = 0; from < word.size();) {
    const SplitPattern::Match match = step.pattern.Next(word, from, memo);
    if (match.begin == word.size()) break;
    if (match.begin > pos) cuts.push_back({pos, match.begin, step.invert});
    if (match.end > match.begin) cuts.push_back({match.begin, match.end, !step.invert});
    pos = match.end;
    // An empty match only cuts; behind it, the search continues at the next code point.
    from = match.end > match.begin ? match.end : match.end + unicode::RuneAt(word, match.end).num_bytes;
  }
  if (pos < word.size()) cuts.push_back({pos, word.size(), step.invert});
  return cuts;
}

// Joins cuts as `behavior` says; the joined cuts are the new words.
void JoinCuts(SplitBehavior behavior, std::vector<Cut>& cuts) {
  switch (behavior) {
    case SplitBehavior::kIsolated: return;
    case SplitBehavior::kRemoved:
      cuts.erase(std::remove_if(cuts.begin(), cuts.end(), [](const Cut& cut) { return cut.is_match; }), cuts.end());
      return;
    case SplitBehavior::kContiguous:
    case SplitBehavior::kMergedWithPrevious: {
      std::vector<Cut> joined;
      bool previous_match = false;
      for (const Cut& cut : cuts) {
        const bool join =
            behavior == SplitBehavior::kContiguous ? cut.is_match == previous_match : cut.is_match && !previous_match;
        previous_match = cut.is_match;
        if (join && !joined.empty()) {
          joined.back().end = cut.end;
        } else {
          joined.push_back(cut);
        }
      }
      cuts = std::move(joined);
      return;
    }
    case SplitBehavior::kMergedWithNext: {
      std::vector<Cut> joined;  // last cut first
      bool previous_match = false;
      for (auto cut = cuts.rbegin(); cut != cuts.rend(); ++cut) {
        const bool join = cut->is_match && !previous_match;
        previous_match = cut->is_match;
        if (join && !joined.empty()) {
          joined.back().begin = cut->begin;
        } else {
          joined.push_back(*cut);
        }
      }
      cuts.assign(joined.rbegin(), joined.rend());
      return;
    }
  }
}

void ApplySplit(const PreTokenizerStep& step, PreTokenizer::Words& words) {
  std::vector<Word> out;
  out.reserve(words.words.size());
  for (const Word& word : words.words) {
    std::vector<Cut> cuts = FindCuts(step, std::string_view(words.text).substr(word.begin, word.end - word.begin));
    JoinCuts(step.behavior, cuts);
    for (const Cut& cut : cuts) {
      out.push_back({word.begin + cut.begin, word.begin + cut.end, word.at_start && cut.begin == 0});
    }
  }
  words.words = std::move(out);
}

// Rewrites each word with `rewrite(word, at_start, text)`, which appends to a new text.
template <typename Fn>
void RewriteWords(PreTokenizer::Words& words, size_t reserve_bytes, Fn rewrite) {
  std::string text;
  text.reserve(reserve_bytes);
  for (Word& word : words.words) {
    const size_t begin = text.size();
    rewrite(std::string_view(words.text).substr(word.begin, word.end - word.begin), word.at_start, text);
    word.begin = begin;
    word.end = text.size();
  }
  words.text = std::move(text);
}

void ApplyMetaspace(const PreTokenizerStep& step, PreTokenizer::Words& words) {
  RewriteWords(words, words.text.size() * 2, [&step](std::string_view word, bool at_start, std::string& text) {
    const bool has_prefix = word.starts_with(' ') || word.starts_with(step.replacement);
    const bool wants_prefix =
        step.prepend == PrependScheme::kAlways || (step.prepend == PrependScheme::kFirst && at_start);
    if (wants_prefix && !has_prefix) text += step.replacement;
    for (const char byte : word) {
      if (byte == ' ') {
        text += step.replacement;
      } else {
        text += byte;
      }
    }
  });
}

absl::StatusOr<SplitBehavior> ParseBehavior(const Component& component, std::string_view if_absent) {
  std::string name(if_absent);
  if (component.Find("behavior") != nullptr) {
    PENSTOCK_ASSIGN_OR_RETURN(name, component.String("behavior"));
  }
  if (name == "Isolated" || name == "isolated") return SplitBehavior::kIsolated;
  if (name == "Removed" || name == "removed") return SplitBehavior::kRemoved;
  if (name == "MergedWithPrevious" || name == "merged_with_previous") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext" || name == "merged_with_next") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous" || name == "contiguous") return SplitBehavior::kContiguous;
  return ModelError("{}: behavior '{}' is not implemented", component.where(), name);
}

absl::StatusOr<SplitPattern> ParsePattern(const Component& component) {
  PENSTOCK_ASSIGN_OR_RETURN(const json::object* pattern, component.Object("pattern"));
  const JsonFields fields(*pattern, component.where());
  if (fields.Find("Regex") != nullptr) {
    PENSTOCK_ASSIGN_OR_RETURN(const std::string regex, fields.String("Regex"));
    return SplitPattern::FromRegex(regex, component.where());
  }
  PENSTOCK_ASSIGN_OR_RETURN(const std::string text, component.LiteralPattern("pattern"));
  return SplitPattern::Literal(text);
}

absl::Status AddMetaspace(const Component& component, PreTokenizer& pretokenizer) {
  PreTokenizerStep step{.kind = PreTokenizerKind::kMetaspace};
  PENSTOCK_ASSIGN_OR_RETURN(step.replacement, component.String("replacement"));
  if (step.replacement.empty() || step.replacement.size() > 4 ||
      DecodeUtf8(step.replacement, 0).num_bytes != static_cast<int>(step.replacement.size())) {
    return ModelError("{}: replacement '{}' is not one character", component.where(), step.replacement);
  }
  // Older files say add_prefix_space, newer ones prepend_scheme.
  PENSTOCK_ASSIGN_OR_RETURN(const bool add_prefix_space, component.Bool("add_prefix_space", true));
  step.prepend = add_prefix_space ? PrependScheme::kAlways : PrependScheme::kNever;
  if (component.Find("prepend_scheme") != nullptr) {
    PENSTOCK_ASSIGN_OR_RETURN(const std::string scheme, component.String("prepend_scheme"));
    if (scheme != "always" && scheme != "first" && scheme != "never") {
      return ModelError("{}: prepend_scheme '{}' is not implemented", component.where(), scheme);
    }
    if (scheme == "first") step.prepend = PrependScheme::kFirst;
    if (scheme == "never") step.prepend = PrependScheme::kNever;
    if (scheme == "always") step.prepend = PrependScheme::kAlways;
  }
  PENSTOCK_ASSIGN_OR_RETURN(const bool split, component.Bool("split", true));
  const SplitPattern pattern = SplitPattern::Literal(step.replacement);
  pretokenizer.Add(std::move(step));
  if (split) {
    pretokenizer.Add(
        {.kind = PreTokenizerKind::kSplit, .pattern = pattern, .behavior = SplitBehavior::kMergedWithNext});
  }
  return absl::OkStatus();
}

absl::Status AddFromJson(const json::value& value, int depth, int& num_parts, PreTokenizer& pretokenizer) {
  if (++num_parts > static_cast<int>(kMaxComponents)) {
    return ModelError("pre_tokenizer: more than {} parts", kMaxComponents);
  }
  PENSTOCK_ASSIGN_OR_RETURN(const Component component, Component::From(value, "pre_tokenizer"));
  const std::string_view type = component.type();
  PreTokenizerStep split{.kind = PreTokenizerKind::kSplit};
  if (type == "Sequence") {
    if (depth > 8) return ModelError("pre_tokenizer: Sequences are nested more than 8 deep");
    PENSTOCK_ASSIGN_OR_RETURN(const json::array* parts, component.Array("pretokenizers"));
    for (const json::value& part : *parts) {
      PENSTOCK_RETURN_IF_ERROR(AddFromJson(part, depth + 1, num_parts, pretokenizer));
    }
    return absl::OkStatus();
  }
  if (type == "ByteLevel") {
    PENSTOCK_ASSIGN_OR_RETURN(const bool prefix_space, component.Bool("add_prefix_space", true));
    PENSTOCK_ASSIGN_OR_RETURN(const bool use_regex, component.Bool("use_regex", true));
    pretokenizer.AddByteLevel(prefix_space, use_regex);
    return absl::OkStatus();
  }
  if (type == "Metaspace") return AddMetaspace(component, pretokenizer);
  if (type == "Split") {
    PENSTOCK_ASSIGN_OR_RETURN(split.pattern, ParsePattern(component));
    PENSTOCK_ASSIGN_OR_RETURN(split.behavior, ParseBehavior(component, "Isolated"));
    PENSTOCK_ASSIGN_OR_RETURN(split.invert, component.Bool("invert", false));
  } else if (type == "Digits") {
    PENSTOCK_ASSIGN_OR_RETURN(const bool individual, component.Bool("individual_digits", false));
    split.pattern = SplitPattern::Classes(unicode::kNumber, !individual);
  } else if (type == "WhitespaceSplit") {
    split.pattern = SplitPattern::Classes(unicode::kSpace, true);
    split.behavior = SplitBehavior::kRemoved;
  } else if (type == "Whitespace") {
    split.pattern = SplitPattern::Words();
    split.behavior = SplitBehavior::kRemoved;
    split.invert = true;
  } else if (type == "CharDelimiterSplit") {
    PENSTOCK_ASSIGN_OR_RETURN(const std::string delimiter, component.String("delimiter"));
    if (delimiter.empty() || delimiter.size() > kMaxComponentTextBytes) {
      return ModelError("{}: delimiter of {} bytes, expected 1 to {}", component.where(), delimiter.size(),
                        kMaxComponentTextBytes);
    }
    split.pattern = SplitPattern::Literal(delimiter);
    split.behavior = SplitBehavior::kRemoved;
  } else if (type == "BertPreTokenizer") {
    split.pattern = SplitPattern::Classes(unicode::kSpace, true);
    split.behavior = SplitBehavior::kRemoved;
    pretokenizer.Add(std::move(split));
    split = {.kind = PreTokenizerKind::kSplit};
    split.pattern = SplitPattern::Punctuation();
  } else if (type == "Punctuation") {
    split.pattern = SplitPattern::Punctuation();
    PENSTOCK_ASSIGN_OR_RETURN(split.behavior, ParseBehavior(component, "Isolated"));
  } else {
    return component.NotImplemented();
  }
  pretokenizer.Add(std::move(split));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PreTokenizer> PreTokenizer::FromJson(const json::value& value) {
  PreTokenizer pretokenizer;
  int num_parts = 0;
  if (!value.is_null()) PENSTOCK_RETURN_IF_ERROR(AddFromJson(value, 0, num_parts, pretokenizer));
  const auto num_byte_levels =
      std::count_if(pretokenizer.steps_.begin(), pretokenizer.steps_.end(),
                    [](const auto& step) { return step.kind == PreTokenizerKind::kByteLevel; });
  if (num_byte_levels > 1) return ModelError("pre_tokenizer: {} ByteLevel parts, expected at most 1", num_byte_levels);
  return pretokenizer;
}

void PreTokenizer::AddByteLevel(bool prefix_space, bool use_regex) {
  if (prefix_space) Add({.kind = PreTokenizerKind::kPrefixSpace});
  if (use_regex) Add({.kind = PreTokenizerKind::kSplit, .pattern = SplitPattern::Gpt2()});
  Add({.kind = PreTokenizerKind::kByteLevel});
}

PreTokenizer::Words PreTokenizer::Split(std::string_view text, bool at_start) const {
  Words words{.text = std::string(text), .words = {}};
  if (text.empty()) return words;
  words.words.push_back({0, text.size(), at_start});
  for (const PreTokenizerStep& step : steps_) {
    switch (step.kind) {
      case PreTokenizerKind::kSplit: ApplySplit(step, words); break;
      case PreTokenizerKind::kMetaspace: ApplyMetaspace(step, words); break;
      case PreTokenizerKind::kPrefixSpace:
        RewriteWords(words, words.text.size() + words.words.size(), [](std::string_view word, bool, std::string& out) {
          if (!word.starts_with(' ')) out += ' ';
          out += word;
        });
        break;
      case PreTokenizerKind::kByteLevel:
        RewriteWords(words, words.text.size() * 2, [](std::string_view word, bool, std::string& out) {
          for (const char byte : word) out += ByteAlphabet()[static_cast<uint8_t>(byte)];
        });
        break;
    }
  }
  return words;
}

}  // namespace penstock
