#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "penstock/base/status.h"
#include "penstock/grammar/regex.h"
#include "penstock/grammar/schema/schema_compiler.h"

namespace penstock::grammar {
namespace {

// Beyond these, bounds on numbers are cut: all such numbers are exact as doubles.
constexpr int64_t kMaxInteger = 999'999'999'999'999;
constexpr int64_t kMaxWhole = 999'999'999;  // the part before the point
constexpr int kFractionDigits = 6;
constexpr int64_t kMillion = 1'000'000;
constexpr int64_t kMaxDivisor = 1000;

// Returns an automaton of the multiples of a whole number, in decimal.
Dfa MultiplesOf(int64_t divisor) {
  Dfa dfa;
  const auto state_of = [](int64_t rest) { return static_cast<int32_t>(rest + 3); };
  const auto add_digits = [&](int64_t rest, uint32_t first) {
    for (uint32_t digit = first; digit <= 9; ++digit) {
      dfa.states.back().edges.push_back({'0' + digit, '0' + digit, state_of((rest * 10 + digit) % divisor)});
    }
  };
  constexpr int32_t kUnsigned = 1, kZero = 2;
  dfa.states.push_back({.edges = {{'-', '-', kUnsigned}, {'0', '0', kZero}}, .calls = {}, .accepts = false});
  add_digits(0, 1);
  dfa.states.push_back({.edges = {{'0', '0', kZero}}, .calls = {}, .accepts = false});
  add_digits(0, 1);
  dfa.states.push_back({.edges = {}, .calls = {}, .accepts = true});
  for (int64_t rest = 0; rest < divisor; ++rest) {
    dfa.states.push_back({.edges = {}, .calls = {}, .accepts = rest == 0});
    add_digits(rest, 0);
  }
  return dfa;
}

int64_t ToInteger(double value) {
  return static_cast<int64_t>(std::clamp(value, -static_cast<double>(kMaxInteger), static_cast<double>(kMaxInteger)));
}

std::string Padded(int64_t value, int num_digits) { return fmt::format("{:0{}}", value, num_digits); }

// In draft 4 the exclusive keyword is a boolean, and says that the bound itself is not allowed.
std::optional<NumberBound> BoundOf(const SchemaPart& part, std::string_view name, std::string_view exclusive) {
  const json::value* bound = part.Find(name);
  if (bound == nullptr || bound->is_bool()) return std::nullopt;
  const json::value* beyond = part.Find(exclusive);
  const bool is_flagged = beyond != nullptr && *beyond == json::value(true);
  return NumberBound{bound->to_number<double>(), name == exclusive || is_flagged};
}

}  // namespace

std::pair<std::optional<NumberBound>, std::optional<NumberBound>> BoundsOf(const SchemaParts& parts) {
  std::optional<NumberBound> min, max;
  for (const SchemaPart& part : parts) {
    for (const std::string_view name : {"minimum", "exclusiveMinimum"}) {
      const std::optional<NumberBound> bound = BoundOf(part, name, "exclusiveMinimum");
      if (!bound.has_value()) continue;
      const bool is_stricter =
          !min.has_value() || bound->value > min->value || (bound->value == min->value && bound->is_exclusive);
      if (is_stricter) min = bound;
    }
    for (const std::string_view name : {"maximum", "exclusiveMaximum"}) {
      const std::optional<NumberBound> bound = BoundOf(part, name, "exclusiveMaximum");
      if (!bound.has_value()) continue;
      const bool is_stricter =
          !max.has_value() || bound->value < max->value || (bound->value == max->value && bound->is_exclusive);
      if (is_stricter) max = bound;
    }
  }
  return {min, max};
}

bool IsWithin(double value, const std::optional<NumberBound>& min, const std::optional<NumberBound>& max) {
  if (min.has_value() && (value < min->value || (value == min->value && min->is_exclusive))) return false;
  return !max.has_value() || value < max->value || (value == max->value && !max->is_exclusive);
}

// Numbers of equally many digits.
ExprId SchemaCompiler::DigitRange(std::string_view first, std::string_view last) {
  if (first.empty()) return grammar_.Empty();
  const auto digit = [&](char low, char high) {
    return grammar_.Set({{static_cast<char32_t>(low), static_cast<char32_t>(high)}}, Spelling::kUtf8);
  };
  const auto rest = static_cast<int32_t>(first.size()) - 1;
  const bool all_low = first.find_first_not_of('0') == std::string_view::npos;
  const bool all_high = last.find_first_not_of('9') == std::string_view::npos;
  if (all_low && all_high) return grammar_.Repeat(digit('0', '9'), rest + 1, rest + 1);
  if (first[0] == last[0]) {
    return grammar_.Sequence({digit(first[0], first[0]), DigitRange(first.substr(1), last.substr(1))});
  }
  const std::string low(static_cast<size_t>(rest), '0'), high(static_cast<size_t>(rest), '9');
  std::vector<ExprId> choices = {grammar_.Sequence({digit(first[0], first[0]), DigitRange(first.substr(1), high)}),
                                 grammar_.Sequence({digit(last[0], last[0]), DigitRange(low, last.substr(1))})};
  if (first[0] + 1 < last[0]) {
    choices.push_back(grammar_.Sequence(
        {digit(static_cast<char>(first[0] + 1), static_cast<char>(last[0] - 1)), DigitRange(low, high)}));
  }
  return grammar_.Choice(std::move(choices));
}

ExprId SchemaCompiler::NaturalRange(int64_t first, int64_t last) {
  std::vector<ExprId> choices;
  for (int64_t low = 0, high = 9; low <= last; low = high + 1, high = 10 * high + 9) {
    const int64_t from = std::max(low, first), to = std::min(high, last);
    if (from <= to) choices.push_back(DigitRange(std::to_string(from), std::to_string(to)));
  }
  return choices.empty() ? grammar_.Never() : grammar_.Choice(std::move(choices));
}

ExprId SchemaCompiler::IntegerRange(int64_t first, int64_t last) {
  std::vector<ExprId> choices;
  if (last >= 0) choices.push_back(NaturalRange(std::max<int64_t>(first, 0), last));
  if (first < 0) {
    choices.push_back(grammar_.Sequence({grammar_.Text("-"), NaturalRange(std::max<int64_t>(-last, 1), -first)}));
  }
  return choices.empty() ? grammar_.Never() : grammar_.Choice(std::move(choices));
}

// A point and digits, or nothing: from `min` to `max` millionths.
ExprId SchemaCompiler::FractionRange(int64_t min, int64_t max) {
  std::vector<ExprId> choices;
  if (min > max) return grammar_.Never();
  if (min <= 0) choices.push_back(grammar_.Empty());
  int64_t unit = kMillion;
  for (int num_digits = 1; num_digits <= kFractionDigits; ++num_digits) {
    unit /= 10;
    const int64_t first = (min + unit - 1) / unit, last = max / unit;
    if (first > last) continue;
    choices.push_back(
        grammar_.Sequence({grammar_.Text("."), DigitRange(Padded(first, num_digits), Padded(last, num_digits))}));
  }
  return choices.empty() ? grammar_.Never() : grammar_.Choice(std::move(choices));
}

// Numbers from `min` to `max` without a sign. REQUIRES: both are at least 0.
ExprId SchemaCompiler::MagnitudeRange(const NumberBound& min, const NumberBound& max) {
  // In millionths: the least and the largest that are allowed.
  const auto millionths = [](double value) { return value * static_cast<double>(kMillion); };
  constexpr double kMax = static_cast<double>(kMaxWhole) + 1;
  if (min.value >= kMax) return grammar_.Never();
  auto first = static_cast<int64_t>(std::ceil(millionths(min.value)));
  auto last = static_cast<int64_t>(std::floor(millionths(std::min(max.value, kMax))));
  // Products are rounded, so the ends are compared as the numbers that a reader would make of them.
  const auto value_of = [](int64_t number) { return static_cast<double>(number) / static_cast<double>(kMillion); };
  const auto is_low = [&](int64_t n) {
    return value_of(n) < min.value || (value_of(n) == min.value && min.is_exclusive);
  };
  const auto is_high = [&](int64_t n) {
    return value_of(n) > max.value || (value_of(n) == max.value && max.is_exclusive);
  };
  while (first > 0 && !is_low(first - 1)) --first;
  while (is_low(first)) ++first;
  while (last >= 0 && is_high(last)) --last;
  last = std::min(last, kMaxWhole * kMillion + kMillion - 1);
  if (first > last) return grammar_.Never();
  const int64_t first_whole = first / kMillion, last_whole = last / kMillion;
  const auto whole = [&](int64_t number) { return grammar_.Text(std::to_string(number)); };
  if (first_whole == last_whole) {
    return grammar_.Sequence({whole(first_whole), FractionRange(first % kMillion, last % kMillion)});
  }
  std::vector<ExprId> choices = {grammar_.Sequence({whole(first_whole), FractionRange(first % kMillion, kMillion - 1)}),
                                 grammar_.Sequence({whole(last_whole), FractionRange(0, last % kMillion)})};
  if (first_whole + 1 < last_whole) {
    choices.push_back(
        grammar_.Sequence({NaturalRange(first_whole + 1, last_whole - 1), FractionRange(0, kMillion - 1)}));
  }
  return grammar_.Choice(std::move(choices));
}

ExprId SchemaCompiler::DecimalRange(const std::optional<NumberBound>& min, const std::optional<NumberBound>& max) {
  constexpr double kMax = static_cast<double>(kMaxWhole) + 1;
  const NumberBound low = min.value_or(NumberBound{-kMax, true}), high = max.value_or(NumberBound{kMax, true});
  std::vector<ExprId> choices;
  if (high.value >= 0) {
    choices.push_back(MagnitudeRange(low.value >= 0 ? low : NumberBound{0, false}, high));
  }
  if (low.value < 0) {
    const NumberBound from = high.value < 0 ? NumberBound{-high.value, high.is_exclusive} : NumberBound{0, true};
    choices.push_back(grammar_.Sequence({grammar_.Text("-"), MagnitudeRange(from, {-low.value, low.is_exclusive})}));
  }
  return grammar_.Choice(std::move(choices));
}

absl::StatusOr<ExprId> SchemaCompiler::CompileNumber(const SchemaParts& parts, bool integers_only) {
  const auto [min, max] = BoundsOf(parts);
  std::vector<int64_t> divisors;
  for (const SchemaPart& part : parts) {
    const json::value* divisor = part.Find("multipleOf");
    if (divisor == nullptr) continue;
    const auto value = divisor->to_number<double>();
    if (!(value > 0)) return SchemaError(part, "multipleOf", "expected a number above 0");
    // All whole numbers are multiples of 1/2, 1/4 and so on, also in floating-point arithmetic.
    int exponent = 0;
    if (value < 1 && std::frexp(value, &exponent) == 0.5) {
      divisors.push_back(1);
      continue;
    }
    if (std::floor(value) != value || value > static_cast<double>(kMaxDivisor)) {
      return SchemaError(part, "multipleOf", fmt::format("only whole numbers up to {} are supported", kMaxDivisor));
    }
    divisors.push_back(static_cast<int64_t>(value));
  }
  const bool is_bounded = min.has_value() || max.has_value();
  if (!integers_only && divisors.empty()) {
    return is_bounded ? DecimalRange(min, max) : json_.Number();
  }
  ExprId integers = 0;
  if (is_bounded) {
    int64_t first = -kMaxInteger, last = kMaxInteger;
    if (min.has_value())
      first = ToInteger(std::ceil(min->value)) + (min->is_exclusive && std::ceil(min->value) == min->value);
    if (max.has_value())
      last = ToInteger(std::floor(max->value)) - (max->is_exclusive && std::floor(max->value) == max->value);
    const bool is_cut = (min.has_value() && min->value > static_cast<double>(kMaxInteger)) ||
                        (max.has_value() && max->value < -static_cast<double>(kMaxInteger));
    integers = is_cut || first > last ? grammar_.Never() : IntegerRange(first, last);
  } else if (divisors.empty()) {
    return json_.Integer();
  } else {
    integers = IntegerRange(-kMaxInteger, kMaxInteger);
  }
  if (divisors.empty()) return integers;
  PENSTOCK_ASSIGN_OR_RETURN(Dfa dfa, CodePointDfa(grammar_, integers, work_));
  for (const int64_t divisor : divisors) {
    PENSTOCK_ASSIGN_OR_RETURN(dfa, Intersect(dfa, MultiplesOf(divisor), kMaxGrammarStates, work_));
  }
  return grammar_.Accepted(std::move(dfa), Spelling::kUtf8);
}

}  // namespace penstock::grammar
