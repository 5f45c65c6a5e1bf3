// Compiles the classes of regular expressions: [...], \p{...}, \s and so on, and escaped characters.
#include <utility>

#include "penstock/base/status.h"
#include "penstock/tokenizer/split/split_regex_compiler.h"
#include "penstock/tokenizer/split/unicode.h"

namespace penstock {

absl::StatusOr<SplitRegexCompiler::Node> SplitRegexCompiler::Escape(Flags flags) {
  if (rest_.empty()) return Refuse("it ends with a backslash");
  const auto anchor = [](Op op, bool negated) {
    return Node{.kind = Node::Kind::kAnchor, .negated = negated, .anchor = op};
  };
  if (Take("A")) return anchor(Op::kTextBegin, false);
  if (Take("z")) return anchor(Op::kTextEnd, false);
  if (Take("b")) return anchor(Op::kWordBoundary, false);
  if (Take("B")) return anchor(Op::kWordBoundary, true);
  constexpr std::string_view kSetLetters = "sSdDwWpP";
  if (kSetLetters.find(rest_[0]) != std::string_view::npos) {
    Node node{.kind = Node::Kind::kSet};
    const char letter = rest_[0];
    rest_.remove_prefix(1);
    PENSTOCK_ASSIGN_OR_RETURN(node.set, EscapedSet(letter));
    return node;
  }
  PENSTOCK_ASSIGN_OR_RETURN(const char32_t rune, EscapedRune());
  return SetOf(rune, flags);
}

absl::StatusOr<RuneSet> SplitRegexCompiler::EscapedSet(char letter) {
  RuneSet set;
  switch (letter) {
    case 'p': return Property(false);
    case 'P': return Property(true);
    case 's':
    case 'S': set.AddClasses(unicode::kSpace); break;
    case 'd':
    case 'D': set.AddCategories(unicode::CategoryMask("Nd")); break;
    default: set.AddClasses(unicode::kWord); break;
  }
  if (letter == 'S' || letter == 'D' || letter == 'W') set.Negate();
  return set;
}

absl::StatusOr<RuneSet> SplitRegexCompiler::Property(bool negated) {
  std::string_view name = rest_.substr(0, 1);
  if (Take("{")) {
    const size_t end = rest_.find('}');
    if (end == std::string_view::npos) return Refuse("\\p{ is not closed");
    name = rest_.substr(0, end);
    rest_.remove_prefix(end + 1);
    if (name.starts_with('^')) {
      negated = !negated;
      name.remove_prefix(1);
    }
  } else if (!rest_.empty()) {
    rest_.remove_prefix(1);
  }
  for (const std::string_view prefix : {"Script=", "sc=", "General_Category=", "gc="}) {
    if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
  }
  RuneSet set;
  if (const uint32_t categories = unicode::CategoryMask(name); categories != 0) {
    set.AddCategories(categories);
  } else if (const auto ranges = unicode::ScriptRanges(name); !ranges.empty()) {
    for (const auto& [first, last] : ranges) set.AddRange(first, last);
  } else {
    return Refuse(fmt::format("the property {}", name));
  }
  if (negated) set.Negate();
  return set;
}

absl::StatusOr<char32_t> SplitRegexCompiler::EscapedRune() {
  const auto hex = [this](size_t max_digits) -> absl::StatusOr<char32_t> {
    char32_t value = 0;
    size_t num_digits = 0;
    for (; num_digits < max_digits && !rest_.empty(); ++num_digits) {
      const char c = rest_[0];
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) break;
      value = value * 16 + static_cast<char32_t>(digit);
      rest_.remove_prefix(1);
    }
    if (num_digits == 0 || value > 0x10FFFF) return Refuse("a code point in hexadecimal");
    return value;
  };
  const char32_t rune = TakeRune();
  switch (rune) {
    case 'n': return U'\n';
    case 'r': return U'\r';
    case 't': return U'\t';
    case 'f': return U'\f';
    case 'v': return U'\v';
    case 'a': return U'\a';
    case 'e': return U'\x1B';
    case 'x':
    case 'u': {
      if (!Take("{")) return hex(rune == 'x' ? 2 : 4);
      PENSTOCK_ASSIGN_OR_RETURN(const char32_t value, hex(8));
      if (!Take("}")) return Refuse("a code point in hexadecimal");
      return value;
    }
    default: break;
  }
  if (unicode::IsAsciiPunctuation(rune) || rune == ' ' || rune >= 0x80) return rune;
  std::string letter;
  AppendUtf8(rune, letter);
  return Refuse(fmt::format("the escape \\{}", letter));
}

// Parses a class; rest_ begins behind its '['.
absl::StatusOr<RuneSet> SplitRegexCompiler::Class(Flags flags, int depth) {
  if (depth > 16) return Refuse("classes are nested more than 16 deep");
  const bool negated = Take("^");
  RuneSet whole;
  RuneSet part;
  bool is_first = true;
  bool has_intersection = false;
  while (true) {
    if (rest_.empty()) return Refuse("a class is not closed");
    if (!is_first && Take("]")) break;
    if (Take("&&")) {
      if (flags.ignore_case) part.IgnoreCase();
      if (has_intersection) {
        whole.Intersect(std::exchange(part, RuneSet()));
      } else {
        whole.AddSet(std::exchange(part, RuneSet()));
      }
      has_intersection = true;
      is_first = false;
      continue;
    }
    is_first = false;
    PENSTOCK_RETURN_IF_ERROR(ClassItem(part, flags, depth));
  }
  if (flags.ignore_case) part.IgnoreCase();
  if (has_intersection) {
    whole.Intersect(std::move(part));
  } else {
    whole = std::move(part);
  }
  if (negated) whole.Negate();
  return whole;
}

absl::Status SplitRegexCompiler::ClassItem(RuneSet& set, Flags flags, int depth) {
  if (rest_.starts_with("[:")) return Refuse("a POSIX class");
  if (Take("[")) {
    PENSTOCK_ASSIGN_OR_RETURN(RuneSet inner, Class(flags, depth + 1));
    set.AddSet(std::move(inner));
    return absl::OkStatus();
  }
  char32_t first = 0;
  if (Take("\\")) {
    if (rest_.empty()) return Refuse("it ends with a backslash");
    constexpr std::string_view kSetLetters = "sSdDwWpP";
    if (kSetLetters.find(rest_[0]) != std::string_view::npos) {
      const char letter = rest_[0];
      rest_.remove_prefix(1);
      PENSTOCK_ASSIGN_OR_RETURN(RuneSet inner, EscapedSet(letter));
      set.AddSet(std::move(inner));
      return absl::OkStatus();
    }
    PENSTOCK_ASSIGN_OR_RETURN(first, EscapedRune());
  } else {
    first = TakeRune();
  }
  char32_t last = first;
  if (rest_.size() >= 2 && rest_[0] == '-' && rest_[1] != ']') {
    rest_.remove_prefix(1);
    if (Take("\\")) {
      PENSTOCK_ASSIGN_OR_RETURN(last, EscapedRune());
    } else {
      last = TakeRune();
    }
    if (last < first) return Refuse("a range that ends before it begins");
  }
  set.AddRange(first, last);
  return absl::OkStatus();
}

}  // namespace penstock
