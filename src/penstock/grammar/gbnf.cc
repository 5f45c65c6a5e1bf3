#include "penstock/grammar/gbnf.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "penstock/base/json.h"
#include "penstock/base/text.h"

namespace penstock::grammar {
namespace {

bool IsOfName(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || IsDigit(c) || c == '-' || c == '_'; }

class GbnfParser {
 public:
  explicit GbnfParser(std::string_view text) : text_(text) {}

  absl::StatusOr<Grammar> Run() {
    SkipSpace(true);
    while (pos_ < text_.size()) PENSTOCK_RETURN_IF_ERROR(ParseRule());
    for (RuleId rule = 0; rule < grammar_.num_rules(); ++rule) {
      if (grammar_.rule(rule).expr >= 0) continue;
      pos_ = first_use_[static_cast<size_t>(rule)];
      return Refuse("the rule {} is not defined", Excerpt(grammar_.rule(rule).name));
    }
    const auto root = rules_.find("root");
    if (root == rules_.end()) return InputError("the grammar has no rule named root");
    grammar_.SetRoot(root->second);
    return std::move(grammar_);
  }

 private:
  template <typename... Args>
  absl::Status Refuse(fmt::format_string<Args...> format, Args&&... args) const {
    return InputError("{}: {}", JsonPlace(text_, pos_), fmt::format(format, std::forward<Args>(args)...));
  }
  bool At(std::string_view text) const { return text_.substr(pos_).starts_with(text); }
  bool Take(std::string_view text) {
    if (!At(text)) return false;
    pos_ += text.size();
    return true;
  }

  // Skips spaces and comments, and with `lines` also line ends.
  void SkipSpace(bool lines) {
    while (pos_ < text_.size()) {
      const char c = text_[pos_];
      if (c == '#') {
        pos_ = std::min(text_.find('\n', pos_), text_.size());
      } else if (c == ' ' || c == '\t' || (lines && (c == '\r' || c == '\n'))) {
        ++pos_;
      } else {
        return;
      }
    }
  }

  absl::StatusOr<RuleId> ParseName() {
    const size_t start = pos_;
    while (pos_ < text_.size() && IsOfName(text_[pos_])) ++pos_;
    if (pos_ == start) return Refuse("expected the name of a rule");
    const std::string name(text_.substr(start, pos_ - start));
    const auto [found, is_new] = rules_.try_emplace(name, static_cast<RuleId>(grammar_.num_rules()));
    if (is_new) {
      grammar_.AddRule(name);
      first_use_.push_back(start);
    }
    return found->second;
  }

  absl::Status ParseRule() {
    const size_t start = pos_;
    PENSTOCK_ASSIGN_OR_RETURN(const RuleId rule, ParseName());
    SkipSpace(false);
    if (!Take("::=")) return Refuse("expected ::=");
    SkipSpace(true);
    PENSTOCK_ASSIGN_OR_RETURN(const ExprId expr, ParseAlternatives(0));
    if (grammar_.rule(rule).expr >= 0) {
      pos_ = start;
      return Refuse("the rule {} is defined twice", Excerpt(grammar_.rule(rule).name));
    }
    grammar_.Define(rule, expr);
    if (pos_ < text_.size() && !At("\r") && !At("\n")) return Refuse("expected the end of the line");
    SkipSpace(true);
    return absl::OkStatus();
  }

  absl::StatusOr<ExprId> ParseAlternatives(int depth) {
    if (depth > kMaxGrammarDepth) return Refuse("groups are nested deeper than {}", kMaxGrammarDepth);
    std::vector<ExprId> all;
    while (true) {
      PENSTOCK_ASSIGN_OR_RETURN(const ExprId sequence, ParseSequence(depth));
      all.push_back(sequence);
      // Another alternative may begin on the next line.
      const size_t end = pos_;
      SkipSpace(true);
      if (!Take("|")) {
        if (depth == 0) pos_ = end;
        return grammar_.Choice(std::move(all));
      }
      SkipSpace(true);
    }
  }

  absl::StatusOr<ExprId> ParseSequence(int depth) {
    std::vector<ExprId> parts;
    while (true) {
      SkipSpace(depth > 0);
      ExprId part = 0;
      if (At("\"")) {
        PENSTOCK_ASSIGN_OR_RETURN(part, ParseLiteral());
      } else if (At("[")) {
        PENSTOCK_ASSIGN_OR_RETURN(CodeSet set, ParseClass());
        part = grammar_.Set(std::move(set), Spelling::kUtf8);
      } else if (Take("(")) {
        SkipSpace(true);
        PENSTOCK_ASSIGN_OR_RETURN(part, ParseAlternatives(depth + 1));
        SkipSpace(true);
        if (!Take(")")) return Refuse("expected )");
      } else if (Take(".")) {
        part = grammar_.Set(CodeSet::All(), Spelling::kUtf8);
      } else if (pos_ < text_.size() && IsOfName(text_[pos_])) {
        PENSTOCK_ASSIGN_OR_RETURN(const RuleId rule, ParseName());
        part = grammar_.Ref(rule);
      } else {
        return grammar_.Sequence(std::move(parts));
      }
      PENSTOCK_RETURN_IF_ERROR(ParseRepeats(part));
      parts.push_back(part);
    }
  }

  absl::Status ParseRepeats(ExprId& part) {
    for (int i = 0;; ++i) {
      if (i > kMaxGrammarDepth) return Refuse("more than {} repetitions of each other", kMaxGrammarDepth);
      if (Take("*")) {
        part = grammar_.Repeat(part, 0, kUnbounded);
      } else if (Take("+")) {
        part = grammar_.Repeat(part, 1, kUnbounded);
      } else if (Take("?")) {
        part = grammar_.Optional(part);
      } else if (Take("{")) {
        int32_t min = 0, max = kUnbounded;
        PENSTOCK_ASSIGN_OR_RETURN(min, ParseCount());
        const bool has_comma = Take(",");
        SkipSpace(false);
        if (!has_comma) {
          max = min;
        } else if (!At("}")) {
          PENSTOCK_ASSIGN_OR_RETURN(max, ParseCount());
        }
        if (!Take("}")) return Refuse("expected }}");
        if (max < min) return Refuse("a repetition whose maximum is less than its minimum");
        part = grammar_.Repeat(part, min, max);
      } else {
        return absl::OkStatus();
      }
    }
  }

  absl::StatusOr<int32_t> ParseCount() {
    SkipSpace(false);
    int64_t count = 0;
    const size_t start = pos_;
    for (; pos_ < text_.size() && IsDigit(text_[pos_]); ++pos_) {
      count = std::min<int64_t>(count * 10 + (text_[pos_] - '0'), int64_t{kMaxGrammarRepeat} + 1);
    }
    if (pos_ == start) return Refuse("expected a number");
    if (count > kMaxGrammarRepeat) return Refuse("a repetition of more than {} times", kMaxGrammarRepeat);
    SkipSpace(false);
    return static_cast<int32_t>(count);
  }

  absl::StatusOr<ExprId> ParseLiteral() {
    Take("\"");
    std::string literal;
    while (!Take("\"")) {
      PENSTOCK_ASSIGN_OR_RETURN(const char32_t code, ParseCharacter('"'));
      AppendUtf8(code, literal);
    }
    return grammar_.Text(literal);
  }

  absl::StatusOr<CodeSet> ParseClass() {
    Take("[");
    const bool is_negated = Take("^");
    CodeSet set;
    while (!Take("]")) {
      PENSTOCK_ASSIGN_OR_RETURN(const char32_t first, ParseCharacter(']'));
      char32_t last = first;
      if (At("-") && pos_ + 1 < text_.size() && text_[pos_ + 1] != ']') {
        Take("-");
        PENSTOCK_ASSIGN_OR_RETURN(last, ParseCharacter(']'));
        if (last < first) return Refuse("a range that ends before it begins");
      }
      set.Add(first, last);
    }
    return is_negated ? set.Complement() : set;
  }

  // Reads a character of a literal or a class, which `end` closes.
  absl::StatusOr<char32_t> ParseCharacter(char end) {
    if (pos_ >= text_.size() || At("\n")) return Refuse("expected {}", end);
    if (Take("\\")) {
      if (Take("x")) return ParseHex(2);
      if (Take("u")) return ParseHex(4);
      if (Take("U")) return ParseHex(8);
      constexpr std::string_view kLetters = "nrt\\\"[]", kCodes = "\n\r\t\\\"[]";
      const size_t found = pos_ < text_.size() ? kLetters.find(text_[pos_]) : std::string_view::npos;
      if (found == std::string_view::npos) return Refuse("an unknown escape");
      ++pos_;
      return static_cast<char32_t>(kCodes[found]);
    }
    const DecodedRune rune = DecodeUtf8(text_, pos_);
    if (!rune.valid) return Refuse("the grammar is not UTF-8");
    pos_ += static_cast<size_t>(rune.num_bytes);
    return rune.code_point;
  }

  absl::StatusOr<char32_t> ParseHex(size_t num_digits) {
    uint64_t code = 0;
    for (size_t i = 0; i < num_digits; ++i, ++pos_) {
      const char c = pos_ < text_.size() ? text_[pos_] : ' ';
      const char lower = static_cast<char>(c | 0x20);
      if (!IsDigit(c) && (lower < 'a' || lower > 'f')) return Refuse("expected {} hexadecimal digits", num_digits);
      code = code * 16 + static_cast<uint64_t>(IsDigit(c) ? c - '0' : lower - 'a' + 10);
    }
    CodeSet set;
    if (code <= kMaxCodePoint) set.Add(static_cast<char32_t>(code), static_cast<char32_t>(code));
    if (set.empty()) return Refuse("U+{:04X} is not a character", code);
    return static_cast<char32_t>(code);
  }

  std::string_view text_;
  size_t pos_ = 0;
  Grammar grammar_;
  absl::flat_hash_map<std::string, RuleId> rules_;
  std::vector<size_t> first_use_;  // [num_rules]
};

}  // namespace

absl::StatusOr<Grammar> ParseGbnf(std::string_view text) { return GbnfParser(text).Run(); }

}  // namespace penstock::grammar
