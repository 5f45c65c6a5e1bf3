#include "penstock/grammar/schema/schema_compiler.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "penstock/base/status.h"
#include "penstock/base/text.h"

namespace penstock::grammar {

SchemaCompiler::SchemaCompiler(const json::value& root, Spelling spelling, const Dfa* allowed_text, Work& work)
    : work_(work),
      spelling_(spelling),
      allowed_text_(allowed_text),
      json_(grammar_, spelling),
      reader_(root),
      root_(root) {}

absl::StatusOr<Grammar> SchemaCompiler::Run() {
  PENSTOCK_ASSIGN_OR_RETURN(const ExprId ref, RefTo({{.schema = &root_, .path = "#"}}));
  const RuleId root = grammar_.AddRule("root");
  grammar_.Define(root, ref);
  grammar_.SetRoot(root);
  while (!queue_.empty()) {
    // The last one first: so fewer of them wait at once.
    const auto [rule, parts] = std::move(queue_.back());
    queue_.pop_back();
    PENSTOCK_ASSIGN_OR_RETURN(const ExprId expr, Compile(parts));
    grammar_.Define(rule, expr);
    PENSTOCK_RETURN_IF_ERROR(HoldExprs());
  }
  return std::move(grammar_);
}

absl::Status SchemaCompiler::HoldExprs() {
  const int64_t num_exprs = grammar_.num_exprs();
  work_.Hold((num_exprs - std::exchange(num_held_exprs_, num_exprs)) * static_cast<int64_t>(sizeof(Expr)));
  return work_.Spend(1);
}

absl::StatusOr<ExprId> SchemaCompiler::RefTo(const SchemaParts& parts) {
  PENSTOCK_ASSIGN_OR_RETURN(std::optional<SchemaParts> flat, reader_.Flatten(parts));
  constexpr int64_t kStepsPerPart = 128;  // a set of parts takes memory, too
  PENSTOCK_RETURN_IF_ERROR(work_.Spend(flat.has_value() ? kStepsPerPart * (std::ssize(*flat) + 1) : 1));
  if (!flat.has_value()) return grammar_.Never();
  if (flat->empty()) return json_.Any();
  Key key;
  for (const SchemaPart& part : *flat) key.push_back(part.key());
  std::ranges::sort(key);
  if (HasSingleSource(*flat)) key.emplace_back(nullptr, false, false);
  const auto [found, is_new] = rules_.try_emplace(std::move(key), 0);
  if (is_new) {
    found->second = grammar_.AddRule((*flat)[0].path);
    queue_.emplace_back(found->second, *std::move(flat));
  }
  return grammar_.Ref(found->second);
}

absl::StatusOr<ExprId> SchemaCompiler::Compile(const SchemaParts& parts) {
  for (size_t i = 0; i < parts.size(); ++i) {
    for (const std::string_view keyword : {"anyOf", "oneOf"}) {
      const bool is_taken = keyword == "anyOf" ? parts[i].without_any_of : parts[i].without_one_of;
      if (!is_taken && parts[i].Find(keyword) != nullptr) return CompileAlternatives(parts, i, keyword);
    }
  }
  if (const auto values = SchemaReader::ValuesOf(parts); values.has_value()) return CompileValues(parts, *values);
  const TypeSet types = SchemaReader::TypesOf(parts);
  std::vector<ExprId> choices;
  for (const TypeSet type : {kString, kNumber, kInteger, kBoolean, kObject, kArray, kNull}) {
    // Numbers include integers.
    if ((types & type) == 0 || (type == kInteger && (types & kNumber) != 0)) continue;
    PENSTOCK_ASSIGN_OR_RETURN(choices.emplace_back(), CompileType(parts, type));
  }
  return choices.empty() ? grammar_.Never() : grammar_.Choice(std::move(choices));
}

absl::StatusOr<ExprId> SchemaCompiler::CompileAlternatives(const SchemaParts& parts, size_t part_idx,
                                                           std::string_view keyword) {
  SchemaParts rest = parts;
  (keyword == "anyOf" ? rest[part_idx].without_any_of : rest[part_idx].without_one_of) = true;
  const json::array& list = parts[part_idx].Find(keyword)->get_array();
  std::vector<SchemaPart> alternatives;
  for (size_t i = 0; i < list.size(); ++i) {
    alternatives.push_back(
        {.schema = &list[i], .path = fmt::format("{}/{}/{}", parts[part_idx].path, keyword, i), .is_derived = true});
  }
  std::vector<ExprId> choices;
  for (size_t i = 0; i < alternatives.size(); ++i) {
    SchemaParts with = rest;
    with.push_back(alternatives[i]);
    for (size_t k = 0; keyword == "oneOf" && k < alternatives.size(); ++k) {
      PENSTOCK_RETURN_IF_ERROR(work_.Spend(16));
      PENSTOCK_ASSIGN_OR_RETURN(const bool are_disjoint, reader_.AreDisjoint(alternatives[k], alternatives[i], 0));
      if (k == i || are_disjoint) continue;
      // The others must not be valid. An opposite names members, so nothing may ask which ones are named.
      const absl::StatusOr<SchemaPart> opposite = reader_.OppositeOf(alternatives[k]);
      const bool has_rest = std::ranges::any_of(parts, [](const SchemaPart& part) {
        return part.Find("unevaluatedProperties") != nullptr || part.Find("unevaluatedItems") != nullptr;
      });
      if (!opposite.ok() || has_rest) {
        return SchemaError(parts[part_idx], keyword,
                           fmt::format("schemas {} and {} may both be valid, which is not supported; use anyOf",
                                       std::min(i, k), std::max(i, k)));
      }
      with.push_back(*opposite);
    }
    PENSTOCK_ASSIGN_OR_RETURN(choices.emplace_back(), RefTo(with));
  }
  return grammar_.Choice(std::move(choices));
}

absl::StatusOr<ExprId> SchemaCompiler::CompileValues(const SchemaParts& parts,
                                                     const std::vector<const json::value*>& values) {
  std::vector<ExprId> choices;
  for (const json::value* value : values) {
    PENSTOCK_RETURN_IF_ERROR(HoldExprs());
    PENSTOCK_ASSIGN_OR_RETURN(const bool is_valid, IsValid(parts, *value));
    if (!is_valid) continue;
    choices.push_back(allowed_text_ == nullptr ? json_.Value(*value) : grammar_.Text(View(value->get_string())));
  }
  return choices.empty() ? grammar_.Never() : grammar_.Choice(std::move(choices));
}

absl::StatusOr<bool> SchemaCompiler::IsValid(const SchemaParts& parts, const json::value& value) {
  const TypeSet type = TypeOf(value);
  if ((SchemaReader::TypesOf(parts) & type) == 0) return false;
  if (type == kString) {
    PENSTOCK_ASSIGN_OR_RETURN(const StringSet strings, StringsOf(parts));
    if (!strings.has_all) return AcceptsText(strings.dfa, View(value.get_string()));
    const CountRange lengths = CountsOf(parts, "minLength", "maxLength");
    const auto text = View(value.get_string());
    const int64_t length = std::ranges::count_if(text, [](char c) { return !ContinuesCharacter(c); });
    return length >= lengths.min && length <= lengths.max;
  }
  if (value.is_number()) {
    const auto [min, max] = BoundsOf(parts);
    const double number = value.to_number<double>();
    bool is_valid = IsWithin(number, min, max);
    for (const SchemaPart& part : parts) {
      const json::value* divisor = part.Find("multipleOf");
      if (divisor != nullptr) is_valid = is_valid && std::fmod(number, divisor->to_number<double>()) == 0;
    }
    return is_valid;
  }
  if (type != kArray && type != kObject) return true;
  constexpr std::string_view kOfArrays[] = {"items",    "prefixItems",      "minItems",   "maxItems",
                                            "contains", "unevaluatedItems", "uniqueItems"};
  constexpr std::string_view kOfObjects[] = {
      "properties", "patternProperties", "additionalProperties", "propertyNames",
      "required",   "minProperties",     "maxProperties",        "unevaluatedProperties"};
  for (const std::string_view keyword : type == kArray ? std::span<const std::string_view>(kOfArrays) : kOfObjects) {
    for (const SchemaPart& part : parts) {
      if (part.Find(keyword) == nullptr) continue;
      return SchemaError(part, keyword, "the keyword is not supported beside enum or const of arrays or objects");
    }
  }
  return true;
}

absl::StatusOr<ExprId> SchemaCompiler::CompileType(const SchemaParts& parts, TypeSet type) {
  switch (type) {
    case kNull: return grammar_.Text("null");
    case kBoolean: return grammar_.Choice({grammar_.Text("true"), grammar_.Text("false")});
    case kString: return CompileString(parts);
    case kInteger: return CompileNumber(parts, true);
    case kNumber: return CompileNumber(parts, false);
    case kArray: return CompileArray(parts);
    default: return CompileObject(parts);
  }
}

CountRange CountsOf(const SchemaParts& parts, std::string_view min_keyword, std::string_view max_keyword) {
  CountRange range;
  const auto count = [](const json::value& value) {
    constexpr double kMax = 1e15;
    return static_cast<int64_t>(std::min(value.to_number<double>(), kMax));
  };
  for (const SchemaPart& part : parts) {
    if (const json::value* min = part.Find(min_keyword); min != nullptr) range.min = std::max(range.min, count(*min));
    if (const json::value* max = part.Find(max_keyword); max != nullptr) range.max = std::min(range.max, count(*max));
  }
  return range;
}

const SchemaPart& PartWith(const SchemaParts& parts, std::string_view keyword) {
  const auto found = std::ranges::find_if(parts, [&](const SchemaPart& part) { return part.Find(keyword) != nullptr; });
  return found == parts.end() ? parts[0] : *found;
}

bool HasSingleSource(const SchemaParts& parts) {
  return std::ranges::count(parts, false, &SchemaPart::is_derived) == 1;
}

bool AcceptsText(const Dfa& dfa, std::string_view text) {
  if (dfa.states.empty()) return false;
  int32_t state = 0;
  for (size_t pos = 0; pos < text.size();) {
    const DecodedRune rune = DecodeUtf8(text, pos);
    pos += static_cast<size_t>(rune.num_bytes);
    const std::vector<Edge>& edges = dfa.states[state].edges;
    const auto edge = std::ranges::lower_bound(edges, static_cast<uint32_t>(rune.code_point), {}, &Edge::last);
    if (edge == edges.end() || edge->first > rune.code_point) return false;
    state = edge->target;
  }
  return dfa.states[state].accepts;
}

}  // namespace penstock::grammar
