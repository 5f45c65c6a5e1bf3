// Filters on numbers and single values.
#include <charconv>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "penstock/chat/jinja/builtins.h"

namespace penstock::jinja {
namespace {

// Returns the digits of a number as Python's int() and float() read it. They accept blanks around the digits and single
// underscores between them.
std::optional<std::string> CleanNumber(std::string_view text) {
  text = text.substr(0, SkipSpaceRight(text));
  text.remove_prefix(SkipSpaceLeft(text));
  if (text.empty() || text.size() > 400) return std::nullopt;
  std::string clean;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      clean.push_back(text[i]);
    } else if (i == 0 || i + 1 == text.size() || !absl::ascii_isalnum(static_cast<unsigned char>(text[i - 1])) ||
               !absl::ascii_isalnum(static_cast<unsigned char>(text[i + 1]))) {
      return std::nullopt;
    }
  }
  return clean;
}

std::optional<int64_t> ParseInteger(std::string_view text, int64_t base) {
  std::optional<std::string> clean = CleanNumber(text);
  if (!clean.has_value()) return std::nullopt;
  std::string_view digits = *clean;
  const bool negative = digits[0] == '-';
  if (digits[0] == '-' || digits[0] == '+') digits.remove_prefix(1);
  const char prefix = base == 16 ? 'x' : base == 8 ? 'o' : base == 2 ? 'b' : '\0';
  if (prefix != '\0' && digits.size() > 2 && digits[0] == '0' && (digits[1] | 0x20) == prefix) digits.remove_prefix(2);
  int64_t value = 0;
  const char* end = digits.data() + digits.size();
  if (digits.empty() || digits[0] == '-') return std::nullopt;
  const auto [stop, error] = std::from_chars(digits.data(), end, value, static_cast<int>(base));
  if (error != std::errc() || stop != end) return std::nullopt;
  return negative ? -value : value;
}

std::optional<double> ParseFloat(std::string_view text) {
  const std::optional<std::string> clean = CleanNumber(text);
  double number = 0;
  if (!clean.has_value() || clean->find_first_of("xX(") != std::string::npos || !absl::SimpleAtod(*clean, &number)) {
    return std::nullopt;
  }
  return number;
}

std::optional<int64_t> Truncated(double number) {
  if (!(std::abs(number) < 9.2e18)) return std::nullopt;
  return static_cast<int64_t>(number);
}

Result ToInt(Interp& interp, Bound& args) {
  const Value& value = args[0];
  if (value.Is(Kind::kUndefined)) return interp.UndefinedError(value);
  PENSTOCK_ASSIGN_OR_RETURN(const int64_t base, IntOr(interp, args, 2, 10));
  if (base < 2 || base > 36) return interp.Fail("the base of int must be 2 to 36, found {}", base);
  std::optional<int64_t> result;
  if (value.is_integral()) {
    result = value.integer();
  } else if (value.Is(Kind::kFloat)) {
    result = Truncated(value.number());
  } else if (value.Is(Kind::kString)) {
    result = ParseInteger(value.bytes(), base);
    if (!result.has_value()) {
      const std::optional<double> number = ParseFloat(value.bytes());
      if (number.has_value()) result = Truncated(*number);
    }
  }
  if (result.has_value()) return Value::Int(*result, value.origin());
  return args.Has(1) ? args[1] : Value::Int(0);
}

Result ToFloat(Interp& interp, Bound& args) {
  const Value& value = args[0];
  if (value.Is(Kind::kUndefined)) return interp.UndefinedError(value);
  std::optional<double> result;
  if (value.is_number()) result = value.number();
  if (value.Is(Kind::kString)) result = ParseFloat(value.bytes());
  if (result.has_value()) return Value::Float(*result, value.origin());
  return args.Has(1) ? args[1] : Value::Float(0);
}

Result Abs(Interp& interp, Bound& args) {
  const Value& value = args[0];
  if (value.Is(Kind::kUndefined)) return interp.UndefinedError(value);
  if (value.Is(Kind::kFloat)) return Value::Float(std::abs(value.number()), value.origin());
  if (!value.is_integral()) return interp.Fail("a {} has no absolute value", value.type_name());
  if (value.integer() < 0) return interp.Binary("-", Value::Int(0), value);
  return Value::Int(value.integer(), value.origin());
}

Result Round(Interp& interp, Bound& args) {
  const Value& value = args[0];
  if (value.Is(Kind::kUndefined)) return interp.UndefinedError(value);
  if (!value.is_number()) return interp.Fail("a {} cannot be rounded", value.type_name());
  PENSTOCK_ASSIGN_OR_RETURN(const int64_t precision, IntOr(interp, args, 1, 0));
  if (precision < -300 || precision > 300) return interp.Fail("a precision of {} is out of range", precision);
  std::string method = "common";
  if (args.Has(2)) {
    PENSTOCK_ASSIGN_OR_RETURN(const Text* text, TextArg(interp, args, 2));
    method = text->bytes();
  }
  if (method != "common" && method != "ceil" && method != "floor") {
    return interp.Fail("round knows 'common', 'ceil' and 'floor', found '{}'", method);
  }
  if (method == "common") {
    if (value.is_integral() && precision >= 0) return Value::Int(value.integer(), value.origin());
    if (!std::isfinite(value.number())) return value;
    if (precision >= 0) {
      // Rounds the exact decimal digits of the binary value half to even, as Python does.
      double rounded = 0;
      if (!absl::SimpleAtod(fmt::format("{:.{}f}", value.number(), static_cast<int>(precision)), &rounded)) {
        return interp.Fail("a number cannot be rounded");
      }
      return Value::Float(rounded, value.origin());
    }
    const double scale = std::pow(10.0, static_cast<double>(-precision));
    const double rounded = std::nearbyint(value.number() / scale) * scale;
    if (!value.is_integral()) return Value::Float(rounded, value.origin());
    const std::optional<int64_t> whole = Truncated(rounded);
    if (!whole.has_value()) return interp.Fail("a rounded number does not fit 64 bits");
    return Value::Int(*whole, value.origin());
  }
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = value.number() * scale;
  return Value::Float((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale, value.origin());
}

Result Default(Interp& /*interp*/, Bound& args) {
  const bool by_truth = TruthOr(args, 2, false);
  const bool use = args[0].Is(Kind::kUndefined) || (by_truth && !IsTrue(args[0]));
  if (!use) return args[0];
  return args.Has(1) ? args[1] : Value::String("");
}

Result Attr(Interp& interp, Bound& args) {
  PENSTOCK_ASSIGN_OR_RETURN(const Text* name, TextArg(interp, args, 1));
  if (args[0].Is(Kind::kDict) && FindMethod(args[0], name->bytes()) == MethodKind::kNone) {
    return Value::Undefined(fmt::format("'dict object' has no attribute '{}'", name->bytes()));
  }
  return interp.GetAttr(args[0], name->bytes());
}

constexpr Builtin kValueFilters[] = {
    {"int", "value default base", 1, ToInt},
    {"float", "value default", 1, ToFloat},
    {"abs", "x", 1, Abs},
    {"round", "value precision method", 1, Round},
    {"default", "value default_value boolean", 1, Default},
    {"d", "value default_value boolean", 1, Default},
    {"attr", "obj name", 2, Attr},
};

}  // namespace

std::span<const Builtin> ValueFilters() { return kValueFilters; }

}  // namespace penstock::jinja
