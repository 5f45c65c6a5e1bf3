#include <algorithm>
#include <utility>

#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "penstock/grammar/regex.h"
#include "penstock/grammar/schema/schema_compiler.h"
#include "penstock/grammar/schema/schema_rewrites.h"

namespace penstock::grammar {
namespace {

#define PENSTOCK_DATE                                            \
  "[1-9][0-9]{3}-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])|" \
  "(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
#define PENSTOCK_TIME                                            \
  "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,6})?" \
  "(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
#define PENSTOCK_HOURS "(?:[0-9]{1,4}H(?:[0-9]{1,4}M(?:[0-9]{1,4}S)?)?|[0-9]{1,4}M(?:[0-9]{1,4}S)?|[0-9]{1,4}S)"
#define PENSTOCK_H16 "[0-9A-Fa-f]{1,4}"

constexpr std::string_view kAnyText = "[\\x00-\\u{10FFFF}]*";

// The formats, as patterns for whole strings. They leave rare valid strings out: February 29th, years before 1000.
constexpr std::pair<std::string_view, std::string_view> kFormats[] = {
    {"date", PENSTOCK_DATE},
    {"time", PENSTOCK_TIME},
    {"date-time", PENSTOCK_DATE "T" PENSTOCK_TIME},
    {"duration",
     "P(?:[0-9]{1,4}W|(?:[0-9]{1,4}D|[0-9]{1,4}M(?:[0-9]{1,4}D)?|[0-9]{1,4}Y(?:[0-9]{1,4}M(?:[0-9]{1,4}D)?)?)"
     "(?:T" PENSTOCK_HOURS ")?|T" PENSTOCK_HOURS ")"},
    {"email",
     "[A-Za-z0-9_+-]{1,32}(?:\\.[A-Za-z0-9_+-]{1,31})?@(?:[A-Za-z0-9](?:-?[A-Za-z0-9]){0,15}\\.){1,3}[A-Za-z]{2,12}"},
    {"hostname", "(?:[A-Za-z0-9](?:-?[A-Za-z0-9]){0,30}\\.){0,3}[A-Za-z](?:-?[A-Za-z0-9]){0,30}"},
    {"ipv4", "(?:(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\\.){3}(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"},
    {"ipv6",
     "(?:" PENSTOCK_H16 ":){7}" PENSTOCK_H16 "|(?:" PENSTOCK_H16 ":){1,7}:|(?:" PENSTOCK_H16 ":){1,6}:" PENSTOCK_H16
     "|(?:" PENSTOCK_H16 ":){1,5}(?::" PENSTOCK_H16 "){1,2}|(?:" PENSTOCK_H16 ":){1,4}(?::" PENSTOCK_H16 "){1,3}"
     "|(?:" PENSTOCK_H16 ":){1,3}(?::" PENSTOCK_H16 "){1,4}|(?:" PENSTOCK_H16 ":){1,2}(?::" PENSTOCK_H16 "){1,5}"
     "|" PENSTOCK_H16 ":(?::" PENSTOCK_H16 "){1,6}|:(?:(?::" PENSTOCK_H16 "){1,7}|:)"},
    {"uri",
     "[A-Za-z][A-Za-z0-9+.-]{0,15}://[A-Za-z0-9](?:[A-Za-z0-9.-]{0,62}[A-Za-z0-9])?(?::[0-9]{1,4})?"
     "(?:/(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})*)*"
     "(?:\\?(?:[A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})*)?(?:#(?:[A-Za-z0-9._~-]|%[0-9A-Fa-f]{2})*)?"},
    {"uuid", "[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"},
    {"uuid4", "[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-4[0-9A-Fa-f]{3}-[89ABab][0-9A-Fa-f]{3}-[0-9A-Fa-f]{12}"},
    {"json-pointer", "(?:/(?:[^~/]|~[01])*)*"},
    {"byte", "(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"},
    // They say what the text is for.
    {"password", kAnyText},
    {"binary", kAnyText},
    {"path", kAnyText},
    {"file-path", kAnyText},
    {"directory-path", kAnyText},
};

// Formats that have the texts of another one, and more.
constexpr std::pair<std::string_view, std::string_view> kWiderFormats[] = {
    {"iri", "uri"},         {"uri-reference", "uri"},     {"iri-reference", "uri"},  {"url", "uri"},
    {"idn-email", "email"}, {"idn-hostname", "hostname"}, {"ipvanyaddress", "ipv4"},
};

#undef PENSTOCK_DATE
#undef PENSTOCK_TIME
#undef PENSTOCK_HOURS
#undef PENSTOCK_H16

// Returns strings of so many code points.
Dfa LengthDfa(const CountRange& lengths) {
  const bool is_open = lengths.max == INT64_MAX;
  const int64_t last = is_open ? lengths.min : lengths.max;
  Dfa dfa;
  for (int64_t i = 0; i <= last; ++i) {
    Dfa::State state{.edges = {}, .calls = {}, .accepts = i >= lengths.min};
    const int64_t next = i < last ? i + 1 : i;
    if (i < last || is_open) state.edges.push_back({0, kMaxCodePoint, static_cast<int32_t>(next)});
    dfa.states.push_back(std::move(state));
  }
  return dfa;
}

}  // namespace

std::string_view FormatPattern(std::string_view name) {
  for (const auto& [format, pattern] : kFormats) {
    if (format == name) return pattern;
  }
  for (const auto& [wide, format] : kWiderFormats) {
    if (wide == name) return FormatPattern(format);
  }
  return {};
}

absl::StatusOr<Dfa> SchemaCompiler::PatternDfa(const SchemaPart& part, std::string_view keyword,
                                               std::string_view pattern, RegexMatch match) {
  const std::string key = fmt::format("{} {}", static_cast<int>(match), pattern);
  if (const auto found = patterns_.find(key); found != patterns_.end()) return found->second;
  Grammar of_pattern;
  const auto annotated = [&](const absl::Status& status) { return Annotate(status, Below(part.path, keyword)); };
  const absl::StatusOr<ExprId> expr = ParseRegex(pattern, match, Spelling::kJson, of_pattern, work_);
  if (!expr.ok()) return annotated(expr.status());
  absl::StatusOr<Dfa> dfa = CodePointDfa(of_pattern, *expr, work_);
  if (!dfa.ok()) return annotated(dfa.status());
  patterns_.emplace(key, *dfa);
  return dfa;
}

absl::StatusOr<StringSet> SchemaCompiler::StringsOf(const SchemaParts& parts) {
  StringSet all;
  if (allowed_text_ != nullptr) all = {.has_all = false, .dfa = *allowed_text_};
  const SchemaPart* last = &parts[0];
  const auto restrict_to = [&](const Dfa& dfa) -> absl::Status {
    if (all.has_all) {
      all = {.has_all = false, .dfa = dfa};
      return absl::OkStatus();
    }
    absl::StatusOr<Dfa> both = Intersect(all.dfa, dfa, kMaxPatternStates, work_);
    if (!both.ok()) return Annotate(both.status(), last->path);
    all.dfa = *std::move(both);
    return absl::OkStatus();
  };
  for (const SchemaPart& part : parts) {
    last = &part;
    if (const json::value* pattern = part.Find("pattern"); pattern != nullptr) {
      PENSTOCK_ASSIGN_OR_RETURN(const Dfa dfa,
                                PatternDfa(part, "pattern", View(pattern->get_string()), RegexMatch::kSearch));
      PENSTOCK_RETURN_IF_ERROR(restrict_to(dfa));
    }
    if (const json::value* format = part.Find("format"); format != nullptr) {
      const std::string_view pattern = FormatPattern(View(format->get_string()));
      if (pattern.empty()) {
        return SchemaError(part, "format", fmt::format("the format {} is not supported", View(format->get_string())));
      }
      PENSTOCK_ASSIGN_OR_RETURN(const Dfa dfa, PatternDfa(part, "format", pattern, RegexMatch::kWhole));
      PENSTOCK_RETURN_IF_ERROR(restrict_to(dfa));
    }
    if (const json::string* pattern = ExcludedPattern(part); pattern != nullptr) {
      PENSTOCK_ASSIGN_OR_RETURN(const Dfa dfa, PatternDfa(part, "not", View(*pattern), RegexMatch::kAbsent));
      PENSTOCK_RETURN_IF_ERROR(restrict_to(dfa));
    }
    if (const json::array* excluded = ExcludedTexts(part); excluded != nullptr) {
      std::vector<std::string> texts;
      for (const json::value& text : *excluded) texts.emplace_back(View(text.get_string()));
      PENSTOCK_ASSIGN_OR_RETURN(const Dfa dfa, OtherNames(texts));
      PENSTOCK_RETURN_IF_ERROR(restrict_to(dfa));
    }
  }
  const CountRange lengths = CountsOf(parts, "minLength", "maxLength");
  if (all.has_all || (lengths.min == 0 && lengths.max == INT64_MAX)) return all;
  int64_t max_length = kMaxPatternStates / 4;
  if (allowed_text_ != nullptr) {
    // Without tags the automaton is so small that far more characters can be counted.
    Dfa no_tag;
    no_tag.states.push_back({.edges = {{0, '<' - 1, 0}, {'<' + 1, kMaxCodePoint, 0}}, .calls = {}, .accepts = true});
    PENSTOCK_RETURN_IF_ERROR(restrict_to(no_tag));
    max_length /= std::max<int64_t>(1, std::ssize(all.dfa.states));
  }
  if (lengths.min > lengths.max) return StringSet{.has_all = false};
  // Longer strings than the automaton has states are left out. They would be valid, too.
  const CountRange counted = {lengths.min, lengths.max == INT64_MAX
                                               ? lengths.max
                                               : std::min<int64_t>(lengths.max, std::max(lengths.min, max_length))};
  if ((counted.max == INT64_MAX ? counted.min : counted.max) > kMaxPatternStates) {
    return SchemaError(*last, "minLength", "it is too large beside pattern or format");
  }
  if (const absl::Status exact = restrict_to(LengthDfa(counted)); exact.ok() || lengths.max == INT64_MAX) {
    PENSTOCK_RETURN_IF_ERROR(exact);
    return all;
  }
  const int64_t shorter = kMaxPatternStates / std::max<int64_t>(1, std::ssize(all.dfa.states));
  PENSTOCK_RETURN_IF_ERROR(restrict_to(LengthDfa({lengths.min, std::max(lengths.min, shorter)})));
  return all;
}

absl::StatusOr<ExprId> SchemaCompiler::CompileString(const SchemaParts& parts) {
  const bool is_restricted = allowed_text_ != nullptr || std::ranges::any_of(parts, [](const SchemaPart& part) {
                               return part.Find("pattern") != nullptr || part.Find("format") != nullptr ||
                                      ExcludedTexts(part) != nullptr || ExcludedPattern(part) != nullptr;
                             });
  const CountRange lengths = CountsOf(parts, "minLength", "maxLength");
  if (!is_restricted) {
    if (lengths.min > lengths.max) return grammar_.Never();
    if (lengths.min > kMaxGrammarRepeat)
      return SchemaError(PartWith(parts, "minLength"), "minLength", "it is too large");
    // A longer string than that fits no context.
    return json_.String(static_cast<int32_t>(lengths.min),
                        lengths.max > kMaxGrammarRepeat ? kUnbounded : static_cast<int32_t>(lengths.max));
  }
  // One simple pattern can be copied as it is, and may then count far.
  const bool has_lengths = lengths.min > 0 || lengths.max != INT64_MAX;
  const SchemaPart& part = PartWith(parts, "pattern");
  const bool is_single = allowed_text_ == nullptr && parts.size() == 1 && !has_lengths &&
                         part.Find("format") == nullptr && part.Find("pattern") != nullptr;
  if (is_single) {
    const absl::StatusOr<ExprId> expr =
        ParseRegex(View(part.Find("pattern")->get_string()), RegexMatch::kSearch, spelling_, grammar_, work_);
    if (!expr.ok()) return Annotate(expr.status(), Below(part.path, "pattern"));
    return json_.InQuotes(*expr);
  }
  PENSTOCK_ASSIGN_OR_RETURN(StringSet strings, StringsOf(parts));
  const ExprId text = grammar_.Accepted(std::move(strings.dfa), spelling_);
  return allowed_text_ == nullptr ? json_.InQuotes(text) : text;
}

}  // namespace penstock::grammar
