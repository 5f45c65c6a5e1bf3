// The filters, tests, methods and functions of templates, and the helpers that they share.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/chat/jinja/interp.h"

namespace penstock::jinja {

// Arguments of one call, in the order of the callee's parameters. A missing argument has no value.
struct Bound {
  std::vector<std::optional<Value>> slots;
  Args rest;  // further arguments, for callees that accept any

  bool Has(size_t i) const { return slots[i].has_value(); }
  const Value& operator[](size_t i) const { return *slots[i]; }  // REQUIRES: Has(i)
};

using BuiltinFn = Result (*)(Interp& interp, Bound& args);

// `params` are separated by blanks; a "*" at the end accepts any further arguments.
struct Builtin {
  std::string_view name;
  std::string_view params;
  size_t num_required;
  BuiltinFn fn;
};

// Assigns an argument to each parameter of `builtin`. Fails on unknown, duplicate and missing arguments.
absl::StatusOr<Bound> BindArgs(Interp& interp, const Builtin& builtin, Args& args);

bool HasFilter(std::string_view name);
bool HasTest(std::string_view name);

// Tables; each is in the file with its functions.
std::span<const Builtin> TextFilters();    // filters_text.cc
std::span<const Builtin> ListFilters();    // filters_list.cc
std::span<const Builtin> ValueFilters();   // filters_value.cc
std::span<const Builtin> Tests();          // tests.cc
std::span<const Builtin> StringMethods();  // methods_string.cc: self first
std::span<const Builtin> DictMethods();    // methods.cc
std::span<const Builtin> ListMethods();    // methods.cc

enum class MethodKind : uint8_t { kNone, kCallable, kForbidden };
// Returns whether this value has a method `name`; kForbidden for Python's methods that change the value.
MethodKind FindMethod(const Value& base, std::string_view name);
Result LoopAttribute(Interp& interp, LoopState& loop, std::string_view name);
Result CyclerAttribute(Interp& interp, const Value& cycler, std::string_view name);

// Reading arguments.
bool TruthOr(const Bound& args, size_t i, bool missing);
absl::StatusOr<int64_t> IntOr(Interp& interp, const Bound& args, size_t i, int64_t missing);
absl::StatusOr<const Text*> TextArg(Interp& interp, const Bound& args, size_t i);  // must be a str

// Append the upper or lower case of one character; some become two or three characters.
void AppendUpper(char32_t c, Origin origin, Text& out);
void AppendLower(char32_t c, Origin origin, Text& out);
void AppendTitle(char32_t c, Origin origin, Text& out);
// Returns whether \w of Python's regular expressions matches: a letter, digit or underscore.
bool IsWordRune(char32_t c);
Text ToLower(const Text& text);
// Returns the text with & < > " ' as HTML entities.
Text Escaped(const Text& text);
Text Trimmed(const Text& text, const Text* characters, bool left, bool right);
// Replaces `from` by `to` at most `max_count` times (negative: no limit).
absl::StatusOr<Text> Replaced(Interp& interp, const Text& text, const Text& from, const Text& to, int64_t max_count);
// One line, by Python's line ends: byte ranges without and with its end.
struct LineRange {
  size_t begin;
  size_t end;
  size_t next;
};
// Returns (key, value) for each entry of a dict.
absl::StatusOr<std::vector<Value>> PairsOf(Interp& interp, const Value& dict);
std::vector<LineRange> SplitLines(std::string_view text);
bool IsUpperText(std::string_view text);
bool IsLowerText(std::string_view text);

}  // namespace penstock::jinja
