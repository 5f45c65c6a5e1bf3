// The filters, tests, methods and functions that a template can use, and what they share.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/chat/jinja/interp.h"

namespace penstock::jinja {

// Arguments of one call, by the callee's parameters; a missing one has no value.
struct Bound {
  std::vector<std::optional<Value>> slots;
  Args rest;  // of callees that take any

  bool Has(size_t i) const { return slots[i].has_value(); }
  const Value& operator[](size_t i) const { return *slots[i]; }  // REQUIRES: Has(i)
};

using BuiltinFn = Result (*)(Interp& interp, Bound& args);

// `params` are separated by blanks; a last "*" says that any other arguments are taken too.
struct Builtin {
  std::string_view name;
  std::string_view params;
  size_t num_required;
  BuiltinFn fn;
};

// Gives each parameter of `builtin` its argument. Fails on unknown, doubled and missing ones.
absl::StatusOr<Bound> BindArgs(Interp& interp, const Builtin& builtin, Args& args);

bool HasFilter(std::string_view name);
bool HasTest(std::string_view name);

// Tables; each is in the file of its functions.
std::span<const Builtin> TextFilters();    // jinja_filters_text.cc
std::span<const Builtin> ListFilters();    // jinja_filters_list.cc
std::span<const Builtin> ValueFilters();   // jinja_filters_value.cc
std::span<const Builtin> Tests();          // jinja_tests.cc
std::span<const Builtin> StringMethods();  // jinja_methods_string.cc: self first
std::span<const Builtin> DictMethods();    // jinja_methods.cc
std::span<const Builtin> ListMethods();    // jinja_methods.cc

enum class MethodKind : uint8_t { kNone, kCallable, kForbidden };
// Is there a method `name` of this value? kForbidden for those of Python that change it.
MethodKind FindMethod(const Value& base, std::string_view name);
Result LoopAttribute(Interp& interp, LoopState& loop, std::string_view name);
Result CyclerAttribute(Interp& interp, const Value& cycler, std::string_view name);

// Reading arguments.
bool TruthOr(const Bound& args, size_t i, bool missing);
absl::StatusOr<int64_t> IntOr(Interp& interp, const Bound& args, size_t i, int64_t missing);
absl::StatusOr<const Text*> TextArg(Interp& interp, const Bound& args, size_t i);  // must be a str

// Upper or lower case of one character; some become two or three.
void AppendUpper(char32_t c, Origin origin, Text& out);
void AppendLower(char32_t c, Origin origin, Text& out);
void AppendTitle(char32_t c, Origin origin, Text& out);
// A letter, digit or underscore: \w of Python's regular expressions.
bool IsWordRune(char32_t c);
Text ToLower(const Text& text);
// With & < > " ' as HTML entities.
Text Escaped(const Text& text);
Text Trimmed(const Text& text, const Text* characters, bool left, bool right);
// All places of `from` replaced by `to`, at most `max_count` (negative: no limit).
absl::StatusOr<Text> Replaced(Interp& interp, const Text& text, const Text& from, const Text& to, int64_t max_count);
// Lines with Python's idea of line ends; byte ranges without and with the end.
struct LineRange {
  size_t begin;
  size_t end;
  size_t next;
};
// (key, value) of each entry of a dict.
absl::StatusOr<std::vector<Value>> PairsOf(Interp& interp, const Value& dict);
std::vector<LineRange> SplitLines(std::string_view text);
bool IsUpperText(std::string_view text);
bool IsLowerText(std::string_view text);

}  // namespace penstock::jinja
