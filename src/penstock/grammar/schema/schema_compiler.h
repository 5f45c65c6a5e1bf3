// Compiles sets of schemas that hold together (SchemaParts). Each set becomes a rule, so recursion ends.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "penstock/grammar/grammar.h"
#include "penstock/grammar/json_parts.h"
#include "penstock/grammar/regex.h"
#include "penstock/grammar/schema/schema_parts.h"

namespace penstock::grammar {

// A bound on numbers: of the value `value`, or beyond it.
struct NumberBound {
  double value = 0;
  bool is_exclusive = false;
};

// The smallest and largest count that keywords like minLength and maxLength allow.
struct CountRange {
  int64_t min = 0;
  int64_t max = INT64_MAX;
};

// The strings that keywords allow: all, or those of an automaton of code points.
struct StringSet {
  bool has_all = true;
  Dfa dfa = {};
};

class SchemaCompiler {
 public:
  // With `allowed_text`, strings are not JSON but text of this automaton. All of it must outlive the compiler.
  SchemaCompiler(const json::value& root, Spelling spelling, const Dfa* allowed_text, Work& work);

  absl::StatusOr<Grammar> Run();

 private:
  // Returns a reference to the rule of these schemas, which is defined later.
  absl::StatusOr<ExprId> RefTo(const SchemaParts& parts);
  absl::StatusOr<ExprId> Compile(const SchemaParts& parts);
  absl::StatusOr<ExprId> CompileAlternatives(const SchemaParts& parts, size_t part_idx, std::string_view keyword);
  absl::StatusOr<ExprId> CompileValues(const SchemaParts& parts, const std::vector<const json::value*>& values);
  absl::StatusOr<ExprId> CompileType(const SchemaParts& parts, TypeSet type);
  // Counts the memory of the expressions that are new.
  absl::Status HoldExprs();
  // Whether a value of enum or const satisfies the other keywords.
  absl::StatusOr<bool> IsValid(const SchemaParts& parts, const json::value& value);

  // schema_strings.cc
  absl::StatusOr<ExprId> CompileString(const SchemaParts& parts);
  // Returns the strings that pattern, format and lengths allow. Lengths alone count as allowing all.
  absl::StatusOr<StringSet> StringsOf(const SchemaParts& parts);
  absl::StatusOr<Dfa> PatternDfa(const SchemaPart& part, std::string_view keyword, std::string_view pattern,
                                 RegexMatch match);

  // schema_numbers.cc
  absl::StatusOr<ExprId> CompileNumber(const SchemaParts& parts, bool integers_only);
  ExprId DigitRange(std::string_view first, std::string_view last);
  ExprId NaturalRange(int64_t first, int64_t last);
  ExprId IntegerRange(int64_t first, int64_t last);
  ExprId DecimalRange(const std::optional<NumberBound>& min, const std::optional<NumberBound>& max);
  ExprId MagnitudeRange(const NumberBound& min, const NumberBound& max);
  ExprId FractionRange(int64_t min, int64_t max);

  // schema_objects.cc
  absl::StatusOr<ExprId> CompileObject(const SchemaParts& parts);
  absl::StatusOr<ExprId> CompileArray(const SchemaParts& parts);
  // Returns a list that has no value twice. Values come in the order of their enum.
  absl::StatusOr<ExprId> CompileSet(const SchemaParts& parts, const SchemaPart& part, const CountRange& counts);
  // Returns the schemas of the i-th item.
  static SchemaParts ItemParts(const SchemaParts& parts, int64_t i);
  // Returns a list of which at least `min_count` items satisfy `contains` of the part.
  absl::StatusOr<ExprId> CompileContains(const SchemaParts& parts, const SchemaPart& part, int64_t min_count);
  // Returns what the value of a member must satisfy; absent if the member is not allowed.
  absl::StatusOr<std::optional<SchemaParts>> MemberParts(const SchemaParts& parts, std::string_view name);
  absl::StatusOr<bool> MatchesPattern(const SchemaPart& part, std::string_view pattern, std::string_view name);
  // Returns members with other names than `names`.
  absl::StatusOr<ExprId> OtherMembers(const SchemaParts& parts, const std::vector<std::string>& names);
  // Returns the names that propertyNames allows.
  absl::StatusOr<StringSet> NamesOf(const SchemaParts& parts);
  absl::StatusOr<Dfa> OtherNames(const std::vector<std::string>& names);

  using Key = std::vector<std::tuple<const json::value*, bool, bool>>;

  Work& work_;
  Spelling spelling_;
  const Dfa* allowed_text_;
  Grammar grammar_;
  int64_t num_held_exprs_ = 0;
  JsonParts json_;
  SchemaReader reader_;
  const json::value& root_;
  std::map<Key, RuleId> rules_;
  std::vector<std::pair<RuleId, SchemaParts>> queue_;  // rules to define
  absl::flat_hash_map<std::string, Dfa> patterns_;
};

// Returns the strictest of these keywords.
CountRange CountsOf(const SchemaParts& parts, std::string_view min_keyword, std::string_view max_keyword);
// Returns the first part that has the keyword, or the first of all.
const SchemaPart& PartWith(const SchemaParts& parts, std::string_view keyword);
// Whether one of the parts asks for all others.
bool HasSingleSource(const SchemaParts& parts);
bool AcceptsText(const Dfa& dfa, std::string_view text);
// The numbers that minimum, maximum and the exclusive ones allow.
std::pair<std::optional<NumberBound>, std::optional<NumberBound>> BoundsOf(const SchemaParts& parts);
bool IsWithin(double value, const std::optional<NumberBound>& min, const std::optional<NumberBound>& max);
// Returns the pattern of a format, or "" if it is unknown.
std::string_view FormatPattern(std::string_view name);

}  // namespace penstock::grammar
