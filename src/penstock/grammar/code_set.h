// Sets of Unicode's code points, without surrogates: what a character class of a regular expression means.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>
#include <vector>

namespace penstock::grammar {

inline constexpr char32_t kMaxCodePoint = 0x10FFFF;

struct CodeRange {
  char32_t first = 0;
  char32_t last = 0;
  bool operator==(const CodeRange&) const = default;
};

class CodeSet {
 public:
  CodeSet() = default;
  CodeSet(std::initializer_list<CodeRange> ranges);

  static CodeSet All();
  static CodeSet One(char32_t code) { return {{code, code}}; }

  void Add(char32_t first, char32_t last);
  void Add(const CodeSet& other);

  CodeSet Complement() const;
  CodeSet Intersect(const CodeSet& other) const;
  CodeSet Minus(const CodeSet& other) const { return Intersect(other.Complement()); }

  bool empty() const { return ranges_.empty(); }
  bool Contains(char32_t code) const;
  // Sorted; two ranges neither meet nor touch.
  std::span<const CodeRange> ranges() const { return ranges_; }
  bool operator==(const CodeSet&) const = default;

 private:
  std::vector<CodeRange> ranges_;
};

inline bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// The classes \d, \w and \s: the letter, negated if it is a capital. Python and ECMAScript disagree about characters
// beyond ASCII. The class has those of which both say that they belong to it.
CodeSet NamedClass(char letter);
// Returns what "." means: all code points that neither Python nor ECMAScript takes for the end of a line.
CodeSet AnyButNewline();

}  // namespace penstock::grammar
