#include "penstock/grammar/code_set.h"

#include <algorithm>

#include "penstock/tokenizer/split/unicode.h"

namespace penstock::grammar {
namespace {

constexpr char32_t kFirstSurrogate = 0xD800, kLastSurrogate = 0xDFFF;

// Returns all code points that have one of utf8proc's classes.
CodeSet OfClasses(uint16_t classes) {
  CodeSet set;
  char32_t first = 0;
  bool is_open = false;
  for (char32_t code = 0; code <= kMaxCodePoint + 1; ++code) {
    const bool belongs = code <= kMaxCodePoint && (unicode::ClassesOf(code) & classes) != 0;
    if (belongs && !is_open) first = code;
    if (!belongs && is_open) set.Add(first, code - 1);
    is_open = belongs;
  }
  return set;
}

// All that Python or ECMAScript may count as a digit, a part of a word, or white space.
const CodeSet& WideDigits() {
  static const CodeSet set = OfClasses(unicode::kNumber);
  return set;
}
const CodeSet& WideWord() {
  static const CodeSet set = OfClasses(unicode::kWord | unicode::kLetter | unicode::kNumber | unicode::kMark);
  return set;
}
const CodeSet& WideSpace() {
  static const CodeSet set = [] {
    CodeSet space = OfClasses(unicode::kSpace);
    space.Add(0x1C, 0x1F);
    space.Add(0xFEFF, 0xFEFF);
    return space;
  }();
  return set;
}

}  // namespace

CodeSet::CodeSet(std::initializer_list<CodeRange> ranges) {
  for (const CodeRange& range : ranges) Add(range.first, range.last);
}

CodeSet CodeSet::All() { return {{0, kMaxCodePoint}}; }

void CodeSet::Add(char32_t first, char32_t last) {
  if (first < kFirstSurrogate && last >= kFirstSurrogate) {
    Add(first, kFirstSurrogate - 1);
    first = kFirstSurrogate;
  }
  if (first >= kFirstSurrogate && first <= kLastSurrogate) first = kLastSurrogate + 1;
  if (last >= kFirstSurrogate && last <= kLastSurrogate) last = kFirstSurrogate - 1;
  if (first > last) return;
  const auto touches = [](const CodeRange& a, char32_t code) { return a.last + 1 < code; };
  auto begin = std::lower_bound(ranges_.begin(), ranges_.end(), first, touches);
  auto end = begin;
  for (; end != ranges_.end() && end->first <= last + 1; ++end) {
    first = std::min(first, end->first);
    last = std::max(last, end->last);
  }
  if (begin == end) {
    ranges_.insert(begin, {first, last});
  } else {
    *begin = {first, last};
    ranges_.erase(begin + 1, end);
  }
}

void CodeSet::Add(const CodeSet& other) {
  for (const CodeRange& range : other.ranges_) Add(range.first, range.last);
}

CodeSet CodeSet::Complement() const {
  CodeSet rest;
  char32_t next = 0;
  for (const CodeRange& range : ranges_) {
    if (range.first > next) rest.Add(next, range.first - 1);
    next = range.last + 1;
  }
  if (next <= kMaxCodePoint) rest.Add(next, kMaxCodePoint);
  return rest;
}

CodeSet CodeSet::Intersect(const CodeSet& other) const {
  CodeSet both;
  for (auto a = ranges_.begin(), b = other.ranges_.begin(); a != ranges_.end() && b != other.ranges_.end();) {
    const char32_t first = std::max(a->first, b->first), last = std::min(a->last, b->last);
    if (first <= last) both.Add(first, last);
    a->last < b->last ? ++a : ++b;
  }
  return both;
}

bool CodeSet::Contains(char32_t code) const {
  const auto range = std::ranges::lower_bound(ranges_, code, {}, &CodeRange::last);
  return range != ranges_.end() && range->first <= code;
}

CodeSet NamedClass(char letter) {
  switch (letter) {
    case 'd': return {{'0', '9'}};
    case 'w': return {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
    case 's': return {{'\t', '\r'}, {' ', ' '}};
    case 'D': return WideDigits().Complement();
    case 'W': return WideWord().Complement();
    default: return WideSpace().Complement();
  }
}

CodeSet AnyButNewline() { return CodeSet({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}).Complement(); }

}  // namespace penstock::grammar
