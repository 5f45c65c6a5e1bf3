#include <algorithm>
#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "penstock/grammar/regex.h"
#include "penstock/grammar/schema/schema_compiler.h"
#include "penstock/grammar/schema/schema_rewrites.h"

namespace penstock::grammar {
namespace {

constexpr int64_t kMaxPrefix = 64;
constexpr size_t kMaxNamePatterns = 5;

// A pattern of names and the schema of the members that it matches.
struct NamePattern {
  const SchemaPart* part = nullptr;
  std::string_view pattern;
  const json::value* schema = nullptr;
};

std::vector<NamePattern> PatternsOf(const SchemaPart& part) {
  std::vector<NamePattern> patterns;
  if (const json::value* all = part.Find("patternProperties"); all != nullptr) {
    for (const auto& [pattern, schema] : all->get_object()) {
      patterns.push_back({&part, {pattern.data(), pattern.size()}, &schema});
    }
  }
  return patterns;
}

SchemaPart Child(const SchemaPart& part, const json::value& schema, std::string_view keyword,
                 std::string_view key = {}) {
  std::string path = Below(part.path, keyword);
  return {.schema = &schema, .path = key.empty() ? path : Below(path, key)};
}

// Whether other members than those that the part names may be written.
bool IsOpen(const SchemaPart& part) {
  if (part.Find("additionalProperties") != nullptr || part.Find("patternProperties") != nullptr) return true;
  return part.Find("properties") == nullptr;
}

bool AnyHas(const SchemaParts& parts, std::string_view keyword) {
  return std::ranges::any_of(parts, [&](const SchemaPart& part) { return part.Find(keyword) != nullptr; });
}

// Whether the parts forbid what none of them names, by unevaluatedProperties or unevaluatedItems. `rest` is the keyword
// that names everything. The parts must be those that the keyword sees: its own schema, and what that asks for.
absl::StatusOr<bool> ForbidsRest(const SchemaParts& parts, std::string_view keyword, std::string_view rest) {
  bool forbids = false;
  for (const SchemaPart& part : parts) {
    const json::value* schema = part.Find(keyword);
    if (schema == nullptr || *schema == json::value(true)) continue;
    const bool sees_all =
        HasSingleSource(parts) && !part.is_derived && !AnyHas(parts, "patternProperties") &&
        !AnyHas(parts, "contains") &&
        std::ranges::all_of(parts, [](const SchemaPart& other) { return RewrittenKeyword(other).empty(); });
    if (!sees_all || *schema != json::value(false)) {
      return SchemaError(part, keyword, "only false is supported, beside properties, items, allOf, anyOf and $ref");
    }
    forbids = std::ranges::none_of(parts, [&](const SchemaPart& other) {
      return (rest == "items" ? OtherItemsOf(other) : other.Find(rest)) != nullptr;
    });
  }
  return forbids;
}

}  // namespace

absl::StatusOr<bool> SchemaCompiler::MatchesPattern(const SchemaPart& part, std::string_view pattern,
                                                    std::string_view name) {
  PENSTOCK_ASSIGN_OR_RETURN(const Dfa dfa, PatternDfa(part, "patternProperties", pattern, RegexMatch::kSearch));
  return AcceptsText(dfa, name);
}

absl::StatusOr<std::optional<SchemaParts>> SchemaCompiler::MemberParts(const SchemaParts& parts,
                                                                       std::string_view name) {
  SchemaParts of_member;
  for (const SchemaPart& part : parts) {
    bool is_named = false;
    const json::value* properties = part.Find("properties");
    const json::value* schema = properties == nullptr
                                    ? nullptr
                                    : properties->get_object().if_contains(json::string_view(name.data(), name.size()));
    if (schema != nullptr) {
      is_named = true;
      of_member.push_back(Child(part, *schema, "properties", name));
    }
    for (const NamePattern& pattern : PatternsOf(part)) {
      PENSTOCK_ASSIGN_OR_RETURN(const bool matches, MatchesPattern(part, pattern.pattern, name));
      if (!matches) continue;
      is_named = true;
      of_member.push_back(Child(part, *pattern.schema, "patternProperties", pattern.pattern));
    }
    const json::value* additional = part.Find("additionalProperties");
    if (!is_named && additional != nullptr) of_member.push_back(Child(part, *additional, "additionalProperties"));
  }
  PENSTOCK_ASSIGN_OR_RETURN(const StringSet allowed, NamesOf(parts));
  if (!allowed.has_all && !AcceptsText(allowed.dfa, name)) return std::optional<SchemaParts>();
  return of_member;
}

absl::StatusOr<StringSet> SchemaCompiler::NamesOf(const SchemaParts& parts) {
  SchemaParts of_names;
  for (const SchemaPart& part : parts) {
    if (const json::value* names = part.Find("propertyNames"); names != nullptr) {
      of_names.push_back(Child(part, *names, "propertyNames"));
    }
  }
  if (of_names.empty()) return StringSet{};
  PENSTOCK_ASSIGN_OR_RETURN(const std::optional<SchemaParts> flat, reader_.Flatten(of_names));
  if (!flat.has_value()) return StringSet{.has_all = false};
  if (flat->empty()) return StringSet{};
  for (const SchemaPart& part : *flat) {
    for (const std::string_view keyword : {"anyOf", "oneOf"}) {
      if (part.Find(keyword) == nullptr) continue;
      return SchemaError(part, keyword, "the keyword is not supported in propertyNames");
    }
  }
  if ((SchemaReader::TypesOf(*flat) & kString) == 0) return StringSet{.has_all = false};
  if (const auto values = SchemaReader::ValuesOf(*flat); values.has_value()) {
    Grammar of_values;
    std::vector<ExprId> choices = {of_values.Never()};
    for (const json::value* value : *values) {
      if (!value->is_string()) continue;
      PENSTOCK_ASSIGN_OR_RETURN(const bool is_valid, IsValid(*flat, *value));
      if (is_valid) choices.push_back(of_values.Text(View(value->get_string())));
    }
    PENSTOCK_ASSIGN_OR_RETURN(Dfa dfa, CodePointDfa(of_values, of_values.Choice(std::move(choices)), work_));
    return StringSet{.has_all = false, .dfa = std::move(dfa)};
  }
  PENSTOCK_ASSIGN_OR_RETURN(StringSet strings, StringsOf(*flat));
  const CountRange lengths = CountsOf(*flat, "minLength", "maxLength");
  if (!strings.has_all || (lengths.min == 0 && lengths.max == INT64_MAX)) return strings;
  // Lengths alone: a pattern that matches all makes an automaton of them.
  Grammar of_any;
  const ExprId any = of_any.Set(CodeSet::All(), Spelling::kJson);
  if (lengths.min > lengths.max) return StringSet{.has_all = false};
  const int64_t last = lengths.max == INT64_MAX ? lengths.min : lengths.max;
  if (last > kMaxPatternStates) {
    return SchemaError(PartWith(*flat, "maxLength"), "maxLength", "it is too large for the names of members");
  }
  const ExprId name = of_any.Repeat(any, static_cast<int32_t>(lengths.min),
                                    lengths.max == INT64_MAX ? kUnbounded : static_cast<int32_t>(lengths.max));
  PENSTOCK_ASSIGN_OR_RETURN(Dfa of_lengths, CodePointDfa(of_any, name, work_));
  return StringSet{.has_all = false, .dfa = std::move(of_lengths)};
}

absl::StatusOr<Dfa> SchemaCompiler::OtherNames(const std::vector<std::string>& names) {
  Grammar of_names;
  std::vector<ExprId> choices = {of_names.Never()};
  for (const std::string& name : names) choices.push_back(of_names.Text(name));
  PENSTOCK_ASSIGN_OR_RETURN(const Dfa dfa, CodePointDfa(of_names, of_names.Choice(std::move(choices)), work_));
  Dfa none;
  none.states.emplace_back();
  return Complement(dfa.states.empty() ? none : dfa);
}

// For each set of patterns, takes the names that match exactly these.
absl::StatusOr<ExprId> SchemaCompiler::OtherMembers(const SchemaParts& parts, const std::vector<std::string>& names) {
  std::vector<NamePattern> patterns;
  for (const SchemaPart& part : parts) {
    for (const NamePattern& pattern : PatternsOf(part)) patterns.push_back(pattern);
    if (!IsOpen(part)) return grammar_.Never();
  }
  if (patterns.size() > kMaxNamePatterns) {
    return SchemaError(*patterns[0].part, "patternProperties", fmt::format("more than {} patterns", kMaxNamePatterns));
  }
  PENSTOCK_ASSIGN_OR_RETURN(const StringSet allowed, NamesOf(parts));
  std::vector<ExprId> choices;
  for (size_t subset = 0; subset < size_t{1} << patterns.size(); ++subset) {
    const auto is_matched = [&](size_t i) { return (subset >> i & 1) != 0; };
    SchemaParts of_member;
    bool is_allowed = true;
    for (size_t i = 0; i < patterns.size(); ++i) {
      if (!is_matched(i)) continue;
      of_member.push_back(Child(*patterns[i].part, *patterns[i].schema, "patternProperties", patterns[i].pattern));
    }
    for (const SchemaPart& part : parts) {
      bool is_named = false;
      for (size_t i = 0; i < patterns.size(); ++i) is_named |= is_matched(i) && patterns[i].part == &part;
      if (is_named) continue;
      const json::value* additional = part.Find("additionalProperties");
      if (additional != nullptr) of_member.push_back(Child(part, *additional, "additionalProperties"));
      // Without the keyword, names that no pattern matches are left out, as those beside properties.
      if (additional == nullptr && !PatternsOf(part).empty()) is_allowed = false;
    }
    if (!is_allowed) continue;
    PENSTOCK_ASSIGN_OR_RETURN(const ExprId value, RefTo(of_member));
    if (grammar_.expr(value).kind == Expr::Kind::kNever) continue;
    if (patterns.empty() && names.empty() && allowed.has_all) {
      return grammar_.Sequence({json_.String(0, kUnbounded), json_.Colon(), value});
    }
    PENSTOCK_ASSIGN_OR_RETURN(Dfa dfa, OtherNames(names));
    if (!allowed.has_all) {
      PENSTOCK_ASSIGN_OR_RETURN(dfa, Intersect(dfa, allowed.dfa, kMaxPatternStates, work_));
    }
    for (size_t i = 0; i < patterns.size(); ++i) {
      PENSTOCK_ASSIGN_OR_RETURN(const Dfa pattern, PatternDfa(*patterns[i].part, "patternProperties",
                                                              patterns[i].pattern, RegexMatch::kSearch));
      PENSTOCK_ASSIGN_OR_RETURN(
          dfa, Intersect(dfa, is_matched(i) ? pattern : Complement(pattern), kMaxPatternStates, work_));
    }
    const ExprId name = json_.InQuotes(grammar_.Accepted(std::move(dfa), spelling_));
    choices.push_back(grammar_.Sequence({name, json_.Colon(), value}));
  }
  return choices.empty() ? grammar_.Never() : grammar_.Choice(std::move(choices));
}

absl::StatusOr<ExprId> SchemaCompiler::CompileObject(const SchemaParts& parts) {
  std::vector<std::string> names;
  absl::flat_hash_set<std::string> known, required;
  const auto add_name = [&](std::string_view name) {
    if (known.emplace(name).second) names.emplace_back(name);
  };
  for (const SchemaPart& part : parts) {
    if (const json::value* properties = part.Find("properties"); properties != nullptr) {
      for (const auto& member : properties->get_object()) add_name({member.key().data(), member.key().size()});
    }
    if (const json::value* list = part.Find("required"); list != nullptr) {
      for (const json::value& name : list->get_array()) required.emplace(View(name.get_string()));
    }
  }
  for (const SchemaPart& part : parts) {
    const json::value* list = part.Find("required");
    if (list == nullptr) continue;
    for (const json::value& name : list->get_array()) add_name(View(name.get_string()));
  }
  PENSTOCK_RETURN_IF_ERROR(work_.Spend(static_cast<int64_t>(names.size() * names.size()) / 8));
  PENSTOCK_ASSIGN_OR_RETURN(const bool forbids_rest,
                            ForbidsRest(parts, "unevaluatedProperties", "additionalProperties"));
  std::vector<Member> members;
  int64_t num_required = 0;
  for (const std::string& name : names) {
    const bool is_required = required.contains(name);
    num_required += is_required ? 1 : 0;
    PENSTOCK_ASSIGN_OR_RETURN(const std::optional<SchemaParts> of_member, MemberParts(parts, name));
    ExprId expr = grammar_.Never();
    if (of_member.has_value() && !(forbids_rest && of_member->empty())) {
      PENSTOCK_ASSIGN_OR_RETURN(const ExprId value, RefTo(*of_member));
      expr = grammar_.Sequence({json_.Quoted(name), json_.Colon(), value});
    }
    members.push_back({expr, is_required});
  }
  ExprId other = grammar_.Never();
  if (!forbids_rest) {
    PENSTOCK_ASSIGN_OR_RETURN(other, OtherMembers(parts, names));
  }
  const bool has_others = grammar_.expr(other).kind != Expr::Kind::kNever;
  CountRange counts = CountsOf(parts, "minProperties", "maxProperties");
  if (counts.min <= num_required) counts.min = 0;
  // Two other members may have one name, and then count once.
  if (counts.min > num_required + 1 && has_others) {
    return SchemaError(PartWith(parts, "minProperties"), "minProperties",
                       "without additionalProperties: false it may be one more than the required ones");
  }
  if (!has_others && counts.max >= std::ssize(members)) counts.max = INT64_MAX;
  if (counts.min > counts.max) return grammar_.Never();
  const auto clipped = [](int64_t count) { return static_cast<int32_t>(std::min<int64_t>(count, kUnbounded)); };
  return json_.InBraces(
      grammar_.Members(std::move(members), json_.Comma(), other, clipped(counts.min), clipped(counts.max)));
}

SchemaParts SchemaCompiler::ItemParts(const SchemaParts& parts, int64_t i) {
  SchemaParts of_item;
  for (const SchemaPart& part : parts) {
    const json::array* prefix = PrefixItemsOf(part);
    const json::value* items = OtherItemsOf(part);
    if (prefix != nullptr && i < std::ssize(*prefix)) {
      of_item.push_back(Child(part, (*prefix)[i], "prefixItems", std::to_string(i)));
    } else if (items != nullptr) {
      of_item.push_back(Child(part, *items, "items"));
    }
  }
  return of_item;
}

absl::StatusOr<ExprId> SchemaCompiler::CompileContains(const SchemaParts& parts, const SchemaPart& part,
                                                       int64_t min_count) {
  const CountRange counts = CountsOf(parts, "minItems", "maxItems");
  const bool is_simple = counts.min <= min_count && counts.max == INT64_MAX && part.Find("maxContains") == nullptr &&
                         std::ranges::all_of(parts, [&](const SchemaPart& other) {
                           const bool is_only = &other == &part || other.Find("contains") == nullptr;
                           return is_only && PrefixItemsOf(other) == nullptr;
                         });
  if (!is_simple || min_count > kMaxPrefix) {
    return SchemaError(part, "contains",
                       "the keyword is not supported beside maxContains, maxItems, prefixItems or a larger minItems");
  }
  SchemaParts of_item = ItemParts(parts, 0);
  PENSTOCK_ASSIGN_OR_RETURN(const ExprId any, RefTo(of_item));
  of_item.push_back(Child(part, *part.Find("contains"), "contains"));
  PENSTOCK_ASSIGN_OR_RETURN(const ExprId wanted, RefTo(of_item));
  const ExprId before = grammar_.Repeat(grammar_.Sequence({any, json_.Comma()}), 0, kUnbounded);
  const ExprId after = grammar_.Repeat(grammar_.Sequence({json_.Comma(), any}), 0, kUnbounded);
  const auto num_more = static_cast<int32_t>(min_count - 1);
  const ExprId more = grammar_.Repeat(grammar_.Sequence({json_.Comma(), before, wanted}), num_more, num_more);
  return json_.InBrackets(grammar_.Sequence({before, wanted, more, after}));
}

absl::StatusOr<ExprId> SchemaCompiler::CompileSet(const SchemaParts& parts, const SchemaPart& part,
                                                  const CountRange& counts) {
  const bool is_simple = !AnyHas(parts, "contains") && !AnyHas(parts, "unevaluatedItems") &&
                         std::ranges::all_of(parts, [](const SchemaPart& p) { return PrefixItemsOf(p) == nullptr; });
  PENSTOCK_ASSIGN_OR_RETURN(const std::optional<SchemaParts> items, reader_.Flatten(ItemParts(parts, 0)));
  const auto values = items.has_value() ? SchemaReader::ValuesOf(*items) : std::nullopt;
  constexpr size_t kMaxValues = 1000;
  if (!is_simple || !values.has_value() || values->size() > kMaxValues) {
    return SchemaError(part, "uniqueItems", "the keyword is not supported, unless the items are an enum");
  }
  std::vector<Member> members;
  for (auto value = values->begin(); value != values->end(); ++value) {
    PENSTOCK_RETURN_IF_ERROR(work_.Spend(std::ssize(*values)));
    if (std::any_of(values->begin(), value, [&](const json::value* other) { return IsSame(*other, **value); }))
      continue;
    PENSTOCK_ASSIGN_OR_RETURN(const ExprId expr, CompileValues(*items, {*value}));
    members.push_back({.expr = expr});
  }
  const auto clipped = [](int64_t count) { return static_cast<int32_t>(std::min<int64_t>(count, kUnbounded)); };
  const int64_t max = counts.max >= std::ssize(members) ? kUnbounded : counts.max;
  return json_.InBrackets(
      grammar_.Members(std::move(members), json_.Comma(), grammar_.Never(), clipped(counts.min), clipped(max)));
}

absl::StatusOr<ExprId> SchemaCompiler::CompileArray(const SchemaParts& parts) {
  PENSTOCK_ASSIGN_OR_RETURN(const bool forbids_rest, ForbidsRest(parts, "unevaluatedItems", "items"));
  for (const SchemaPart& part : parts) {
    const json::value* is_set = part.Find("uniqueItems");
    const CountRange counts = CountsOf(parts, "minItems", "maxItems");
    if (counts.min <= counts.max && counts.max > 1 && is_set != nullptr && is_set->get_bool()) {
      return CompileSet(parts, part, counts);
    }
  }
  for (const SchemaPart& part : parts) {
    if (part.Find("contains") == nullptr) continue;
    const int64_t min_count = part.Find("minContains") == nullptr ? 1 : CountsOf({part}, "minContains", "").min;
    if (min_count > 0 || part.Find("maxContains") != nullptr) return CompileContains(parts, part, min_count);
  }
  CountRange counts = CountsOf(parts, "minItems", "maxItems");
  int64_t num_prefix = 0;
  for (const SchemaPart& part : parts) {
    const json::array* prefix = PrefixItemsOf(part);
    if (prefix != nullptr) num_prefix = std::max(num_prefix, std::ssize(*prefix));
  }
  if (num_prefix > kMaxPrefix) {
    return SchemaError(PartWith(parts, "prefixItems"), "prefixItems", fmt::format("more than {} items", kMaxPrefix));
  }
  if (forbids_rest) counts.max = std::min(counts.max, num_prefix);
  if (counts.min > counts.max) return grammar_.Never();
  const auto item_at = [&](int64_t i) { return RefTo(ItemParts(parts, i)); };
  const auto left = [](int64_t count, int64_t taken) {
    return count == INT64_MAX ? kUnbounded
                              : static_cast<int32_t>(std::clamp<int64_t>(count - taken, 0, kMaxGrammarRepeat));
  };
  PENSTOCK_ASSIGN_OR_RETURN(const ExprId item, item_at(num_prefix));
  const int64_t num_first = std::max<int64_t>(num_prefix, 1);
  ExprId list = grammar_.Repeat(grammar_.Sequence({json_.Comma(), item}), left(counts.min, num_first),
                                left(counts.max, num_first));
  for (int64_t i = num_first - 1; i >= 0; --i) {
    if (i >= counts.max) {
      list = grammar_.Empty();
      continue;
    }
    PENSTOCK_ASSIGN_OR_RETURN(const ExprId one, item_at(i));
    list = i == 0 ? grammar_.Sequence({one, list}) : grammar_.Sequence({json_.Comma(), one, list});
    if (i >= counts.min) list = grammar_.Optional(list);
  }
  return json_.InBrackets(list);
}

}  // namespace penstock::grammar
