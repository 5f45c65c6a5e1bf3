// Arithmetic, comparison, attributes, items and slices, as Python defines them.
#include <algorithm>
#include <cmath>

#include "penstock/chat/jinja/builtins.h"
#include "penstock/chat/jinja/print.h"

namespace penstock::jinja {
namespace {

Result IntegerPower(Interp& interp, int64_t base, int64_t exponent, Origin origin) {
  int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) {
      return interp.Fail("the result of '**' does not fit 64 bits");
    }
    exponent >>= 1;
    // Only 0, 1 and -1 stay small; any other base overflows within 64 rounds.
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) {
      return interp.Fail("the result of '**' does not fit 64 bits");
    }
  }
  return Value::Int(result, origin);
}

Result IntegerArithmetic(Interp& interp, std::string_view op, int64_t a, int64_t b, Origin origin) {
  int64_t result = 0;
  bool overflow = false;
  if (op == "+") {
    overflow = __builtin_add_overflow(a, b, &result);
  } else if (op == "-") {
    overflow = __builtin_sub_overflow(a, b, &result);
  } else if (op == "*") {
    overflow = __builtin_mul_overflow(a, b, &result);
  } else if (op == "**") {
    if (b < 0 && a == 0) return interp.Fail("division by zero");
    if (b < 0) return Value::Float(std::pow(static_cast<double>(a), static_cast<double>(b)), origin);
    return IntegerPower(interp, a, b, origin);
  } else {
    if (b == 0) return interp.Fail("division by zero");
    if (op == "/") return Value::Float(static_cast<double>(a) / static_cast<double>(b), origin);
    if (b == -1) {
      overflow = op == "//" && __builtin_sub_overflow(int64_t{0}, a, &result);
    } else {
      // As in Python, the quotient is rounded down, and the remainder has the divisor's sign.
      const int64_t remainder = a % b;
      const bool round_down = remainder != 0 && (remainder < 0) != (b < 0);
      result = op == "//" ? a / b - (round_down ? 1 : 0) : remainder + (round_down ? b : 0);
    }
  }
  if (overflow) return interp.Fail("the result of '{}' does not fit 64 bits", op);
  return Value::Int(result, origin);
}

Result FloatArithmetic(Interp& interp, std::string_view op, double a, double b, Origin origin) {
  if (op == "+") return Value::Float(a + b, origin);
  if (op == "-") return Value::Float(a - b, origin);
  if (op == "*") return Value::Float(a * b, origin);
  if (op == "**") {
    const double power = std::pow(a, b);
    if (std::isfinite(a) && std::isfinite(b) && !std::isfinite(power)) return interp.Fail("'**' has no finite result");
    return Value::Float(power, origin);
  }
  if (b == 0) return interp.Fail("division by zero");
  if (op == "/") return Value::Float(a / b, origin);
  double remainder = std::fmod(a, b);
  if (remainder != 0 && (remainder < 0) != (b < 0)) remainder += b;
  if (op == "%") return Value::Float(remainder == 0 ? std::copysign(0.0, b) : remainder, origin);
  return Value::Float(std::floor((a - remainder) / b + 0.5), origin);
}

Result Repeat(Interp& interp, const Value& value, int64_t count) {
  count = std::max<int64_t>(count, 0);
  const bool is_text = value.Is(Kind::kString);
  const auto size = static_cast<int64_t>(is_text ? value.text().size() : value.list().items.size());
  int64_t total = 0;
  if (__builtin_mul_overflow(size, count, &total) || total > interp.max_text_bytes()) {
    return interp.Fail("'*' makes more than {} elements or bytes, the limit for a chat template",
                       interp.max_text_bytes());
  }
  if (size == 0) count = 0;
  PENSTOCK_RETURN_IF_ERROR(interp.Charge(count));
  if (is_text) {
    Text text;
    for (int64_t i = 0; i < count; ++i) text.Append(value.text());
    return interp.MakeString(std::move(text));
  }
  PENSTOCK_RETURN_IF_ERROR(interp.Charge(total));
  std::vector<Value> items;
  items.reserve(total);
  for (int64_t i = 0; i < count; ++i) {
    items.insert(items.end(), value.list().items.begin(), value.list().items.end());
  }
  return interp.MakeListAs({.items = std::move(items), .type = value.is_tuple() ? ListType::kTuple : ListType::kList},
                           value.origin());
}

Result Join(Interp& interp, const Value& left, const Value& right) {
  if (left.Is(Kind::kString)) {
    const bool markup = left.is_markup() || right.is_markup();
    Text text;
    for (const Value* part : {&left, &right}) {
      const bool escape = markup && !part->is_markup();
      PENSTOCK_RETURN_IF_ERROR(interp.AppendStr(escape ? Value::String(Escaped(part->text())) : *part, text));
    }
    if (!markup) return interp.MakeString(std::move(text));
    PENSTOCK_RETURN_IF_ERROR(interp.CheckText(text));
    return Value::Markup(std::move(text));
  }
  PENSTOCK_RETURN_IF_ERROR(interp.Charge(static_cast<int64_t>(left.list().items.size() + right.list().items.size())));
  std::vector<Value> items = left.list().items;
  items.insert(items.end(), right.list().items.begin(), right.list().items.end());
  const Origin origin = Mixed(left.origin(), right.origin());
  return interp.MakeListAs({.items = std::move(items), .type = left.is_tuple() ? ListType::kTuple : ListType::kList},
                           origin);
}

// Returns whether Python accepts the value as the key of a dict.
bool IsHashable(const Value& value) {
  if (value.Is(Kind::kDict)) return false;
  return !value.Is(Kind::kList) || value.list().type == ListType::kRange || KeyOf(value).has_value();
}

// Returns start + count * step. The sum may wrap around only at the ends of the range that a slice prints.
int64_t Progression(int64_t start, int64_t count, int64_t step) {
  int64_t product = 0;
  int64_t sum = 0;
  (void)__builtin_mul_overflow(count, step, &product);
  (void)__builtin_add_overflow(start, product, &sum);
  return sum;
}

// Returns the type of a sequence made from parts of `list`.
ListType PartsType(const List& list) { return list.type == ListType::kGroup ? ListType::kTuple : list.type; }

// Start, stop and step of a slice over `size` elements, by Python's rules for negative and missing ones.
struct SliceRange {
  int64_t start = 0;
  int64_t stop = 0;
  int64_t step = 1;
};

absl::StatusOr<SliceRange> ResolveSlice(Interp& interp, int64_t size, const Value& start, const Value& stop,
                                        const Value& step) {
  for (const Value* part : {&start, &stop, &step}) {
    if (part->Is(Kind::kUndefined)) return interp.UndefinedError(*part);
    if (!part->Is(Kind::kNone) && !part->is_integral()) {
      return interp.Fail("a slice needs integers, found {}", part->type_name());
    }
  }
  SliceRange range;
  if (!step.Is(Kind::kNone)) range.step = step.integer();
  if (range.step == 0) return interp.Fail("the step of a slice is zero");
  const bool forward = range.step > 0;
  const int64_t low = forward ? 0 : -1;
  const int64_t high = forward ? size : size - 1;
  const auto clamp = [&](const Value& part, int64_t missing) {
    if (part.Is(Kind::kNone)) return missing;
    const int64_t at = part.integer();
    return std::clamp(at < 0 ? (at < -size ? low : at + size) : at, low, high);
  };
  range.start = clamp(start, forward ? low : high);
  range.stop = clamp(stop, forward ? high : low);
  return range;
}

}  // namespace

Result Interp::Binary(std::string_view op, const Value& left, const Value& right) {
  if (left.Is(Kind::kUndefined)) return UndefinedError(left);
  if (op == "%" && left.Is(Kind::kString)) return FormatPercent(*this, left.text(), right);
  if (right.Is(Kind::kUndefined)) return UndefinedError(right);
  const Origin origin = Mixed(left.origin(), right.origin());
  if (left.is_number() && right.is_number()) {
    if (left.Is(Kind::kFloat) || right.Is(Kind::kFloat)) {
      return FloatArithmetic(*this, op, left.number(), right.number(), origin);
    }
    return IntegerArithmetic(*this, op, left.integer(), right.integer(), origin);
  }
  const auto repeats = [](const Value& value) {
    return value.Is(Kind::kString) || (value.Is(Kind::kList) && value.is_plain_list());
  };
  const bool same = repeats(left) && left.type_name() == right.type_name();
  if (op == "+" && same) return Join(*this, left, right);
  if (op == "*" && repeats(left) && right.is_integral()) return Repeat(*this, left, right.integer());
  if (op == "*" && repeats(right) && left.is_integral()) return Repeat(*this, right, left.integer());
  return Fail("'{}' cannot be used on {} and {}", op, left.type_name(), right.type_name());
}

// NOLINTNEXTLINE(misc-no-recursion): values are at most max_depth deep.
absl::StatusOr<bool> Interp::Equal(const Value& left, const Value& right) {
  PENSTOCK_RETURN_IF_ERROR(Charge(1));
  if (left.is_number() && right.is_number()) {
    if (left.Is(Kind::kFloat) || right.Is(Kind::kFloat)) return left.number() == right.number();
    return left.integer() == right.integer();
  }
  if (left.kind() != right.kind()) return false;
  switch (left.kind()) {
    case Kind::kUndefined:
    case Kind::kNone: return true;
    case Kind::kString:
      if (left.text().size() != right.text().size()) return false;
      PENSTOCK_RETURN_IF_ERROR(Charge(static_cast<int64_t>(left.text().size() / 256)));
      return left.bytes() == right.bytes();
    case Kind::kList: {
      const List& a = left.list();
      const List& b = right.list();
      const bool is_set = a.type == ListType::kKeys || a.type == ListType::kItems;
      if (is_set && b.type != ListType::kKeys && b.type != ListType::kItems) return false;
      if ((left.type_name() != right.type_name() && !is_set) || a.items.size() != b.items.size()) return false;
      if (a.type == ListType::kValues) return left.SameAs(right);
      for (size_t i = 0; i < a.items.size(); ++i) {
        PENSTOCK_ASSIGN_OR_RETURN(const bool equal,
                                  is_set ? Contains(a.items[i], right) : Equal(a.items[i], b.items[i]));
        if (!equal) return false;
      }
      return true;
    }
    case Kind::kDict: {
      const Dict& a = left.dict();
      const Dict& b = right.dict();
      if (a.entries.size() != b.entries.size()) return false;
      for (const auto& [key, place] : a.index) {
        const Value* other = b.Find(key);
        if (other == nullptr) return false;
        PENSTOCK_ASSIGN_OR_RETURN(const bool equal, Equal(a.entries[place].second, *other));
        if (!equal) return false;
      }
      return true;
    }
    default: return left.SameAs(right);
  }
}

// NOLINTNEXTLINE(misc-no-recursion): values are at most max_depth deep.
absl::StatusOr<bool> Interp::Less(const Value& left, const Value& right) {
  PENSTOCK_RETURN_IF_ERROR(Charge(1));
  if (left.is_number() && right.is_number()) {
    if (left.Is(Kind::kFloat) || right.Is(Kind::kFloat)) return left.number() < right.number();
    return left.integer() < right.integer();
  }
  if (left.Is(Kind::kUndefined)) return UndefinedError(left);
  if (right.Is(Kind::kUndefined)) return UndefinedError(right);
  if (left.Is(Kind::kString) && right.Is(Kind::kString)) {
    const size_t shorter = std::min(left.text().size(), right.text().size());
    PENSTOCK_RETURN_IF_ERROR(Charge(static_cast<int64_t>(shorter / 256)));
    return left.bytes() < right.bytes();  // the order of UTF-8 bytes is that of code points
  }
  if (left.Is(Kind::kList) && left.is_plain_list() && left.type_name() == right.type_name()) {
    const std::vector<Value>& a = left.list().items;
    const std::vector<Value>& b = right.list().items;
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
      PENSTOCK_ASSIGN_OR_RETURN(const bool equal, Equal(a[i], b[i]));
      if (!equal) return Less(a[i], b[i]);
    }
    return a.size() < b.size();
  }
  return Fail("{} and {} have no order", left.type_name(), right.type_name());
}

absl::StatusOr<bool> Interp::Contains(const Value& item, const Value& container) {
  switch (container.kind()) {
    case Kind::kUndefined: return false;
    case Kind::kString:
      if (item.Is(Kind::kUndefined)) return UndefinedError(item);
      if (!item.Is(Kind::kString)) return Fail("'in' on a str needs a str, found {}", item.type_name());
      PENSTOCK_RETURN_IF_ERROR(Charge(static_cast<int64_t>(container.text().size() / 32)));
      return FindText(container.bytes(), item.bytes()) != std::string_view::npos;
    case Kind::kIterator: {
      Iterator& iterator = container.iterator();
      while (iterator.pos < iterator.items.size()) {
        PENSTOCK_ASSIGN_OR_RETURN(const bool equal, Equal(item, iterator.items[iterator.pos++]));
        if (equal) return true;
      }
      PENSTOCK_RETURN_IF_ERROR(std::exchange(iterator.end, absl::OkStatus()));
      return false;
    }
    case Kind::kList:
      if (container.list().type == ListType::kKeys && !IsHashable(item)) {
        return Fail("a {} cannot be the key of a dict", item.type_name());
      }
      for (const Value& member : container.list().items) {
        PENSTOCK_ASSIGN_OR_RETURN(const bool equal, Equal(item, member));
        if (equal) return true;
      }
      return false;
    case Kind::kDict: {
      PENSTOCK_RETURN_IF_ERROR(ChargeKey(item));
      const std::optional<std::string> key = KeyOf(item);
      if (!IsHashable(item)) return Fail("a {} cannot be the key of a dict", item.type_name());
      return key.has_value() && container.dict().Find(*key) != nullptr;
    }
    default: return Fail("'in' cannot be used on {}", container.type_name());
  }
}

Result Interp::GetAttr(const Value& base, std::string_view name) {
  if (base.Is(Kind::kUndefined)) return UndefinedError(base);
  if (name.starts_with("__")) {
    return Value::Undefined(fmt::format("the attribute '{}' of a {} is not accessible", name, base.type_name()));
  }
  if (base.Is(Kind::kObject) && base.object().type == Object::Type::kNamespace) {
    PENSTOCK_RETURN_IF_ERROR(Charge(static_cast<int64_t>(base.object().attributes.size() / 8)));
    if (const Value* value = base.object().Find(name); value != nullptr) return *value;
  } else if (base.Is(Kind::kLoop)) {
    return LoopAttribute(*this, base.loop(), name);
  } else if (base.Is(Kind::kObject) && base.object().type == Object::Type::kCycler) {
    return CyclerAttribute(*this, base, name);
  }
  if (base.Is(Kind::kList) && base.list().type == ListType::kGroup && (name == "grouper" || name == "list")) {
    return base.list().items[name == "list" ? 1 : 0];
  }
  if (base.Is(Kind::kCallable) && base.callable().type == Callable::Type::kMacro && name == "name") {
    return Value::String(base.callable().name);
  }
  switch (FindMethod(base, name)) {
    case MethodKind::kCallable: {
      if (base.depth() >= limits_.max_depth) return Fail("a value nests deeper than {} levels", limits_.max_depth);
      return Value::Of(std::make_shared<const Callable>(
          Callable{.type = Callable::Type::kMethod, .name = std::string(name), .self = base}));
    }
    case MethodKind::kForbidden:
      return Value::Undefined(
          fmt::format("the method '{}' would change a {}, which a template may not", name, base.type_name()));
    case MethodKind::kNone: break;
  }
  if (base.Is(Kind::kDict)) {
    PENSTOCK_RETURN_IF_ERROR(Charge(1));
    if (const Value* value = base.dict().FindText(name); value != nullptr) return *value;
  }
  return Value::Undefined(fmt::format("'{} object' has no attribute '{}'", base.type_name(), name));
}

Result Interp::GetItem(const Value& base, const Value& key) {
  if (base.Is(Kind::kUndefined)) return UndefinedError(base);
  if (base.Is(Kind::kDict)) {
    PENSTOCK_RETURN_IF_ERROR(ChargeKey(key));
    const std::optional<std::string> id = KeyOf(key);
    if (id.has_value()) {
      if (const Value* value = base.dict().Find(*id); value != nullptr) return *value;
    }
  } else if (key.is_integral() && (base.Is(Kind::kString) || (base.Is(Kind::kList) && base.is_indexable()))) {
    PENSTOCK_ASSIGN_OR_RETURN(const int64_t size, Length(base));
    const int64_t at = key.integer() < 0 ? key.integer() + size : key.integer();
    if (at >= 0 && at < size) {
      if (base.Is(Kind::kList)) return base.list().items[at];
      const size_t begin = RuneOffset(base.bytes(), at);
      return MakeString(base.text().Sub(begin, begin + RuneOffset(base.bytes().substr(begin, 8), 1)));
    }
  }
  if (key.Is(Kind::kString)) return GetAttr(base, key.bytes());
  return Value::Undefined(fmt::format("'{} object' has no such element", base.type_name()));
}

Result Interp::RestOf(const Value& value) {
  const Iterator& iterator = value.iterator();
  PENSTOCK_RETURN_IF_ERROR(iterator.end);
  return MakeList({iterator.items.begin() + static_cast<int64_t>(iterator.pos), iterator.items.end()}, value.origin());
}

Result Interp::Slice(const Value& base, const Value& start, const Value& stop, const Value& step) {
  if (base.Is(Kind::kUndefined)) return UndefinedError(base);
  if (base.Is(Kind::kIterator)) {
    PENSTOCK_ASSIGN_OR_RETURN(const Value list, RestOf(base));
    return Slice(list, start, stop, step);
  }
  if (!base.Is(Kind::kString) && (!base.Is(Kind::kList) || !base.is_indexable())) {
    return Fail("a {} cannot be sliced", base.type_name());
  }
  PENSTOCK_ASSIGN_OR_RETURN(const int64_t size, Length(base));
  PENSTOCK_ASSIGN_OR_RETURN(const SliceRange range, ResolveSlice(*this, size, start, stop, step));
  if (base.Is(Kind::kString) && range.step == 1) {
    const size_t begin = RuneOffset(base.bytes(), range.start);
    const size_t end = RuneOffset(base.bytes(), std::max(range.start, range.stop));
    return MakeString(base.text().Sub(begin, end));
  }
  std::vector<Value> all;
  if (base.Is(Kind::kString)) {
    PENSTOCK_ASSIGN_OR_RETURN(all, Iterate(base));
  }
  const std::vector<Value>& source = base.Is(Kind::kString) ? all : base.list().items;
  std::vector<Value> items;
  for (int64_t i = range.start; range.step > 0 ? i < range.stop : i > range.stop;) {
    items.push_back(source[i]);
    if (__builtin_add_overflow(i, range.step, &i)) break;
  }
  PENSTOCK_RETURN_IF_ERROR(Charge(static_cast<int64_t>(items.size())));
  if (base.Is(Kind::kList)) {
    List list{.items = std::move(items), .type = PartsType(base.list())};
    if (list.type == ListType::kRange) {
      const List& from = base.list();
      list.start = Progression(from.start, range.start, from.step);
      list.stop = Progression(from.start, range.stop, from.step);
      list.step = Progression(0, range.step, from.step);
    }
    return MakeListAs(std::move(list), base.origin());
  }
  Text text;
  for (const Value& item : items) text.Append(item.text());
  return MakeString(std::move(text));
}

absl::StatusOr<std::vector<Value>> Interp::Iterate(const Value& value) {
  std::vector<Value> items;
  switch (value.kind()) {
    case Kind::kUndefined: return items;
    case Kind::kList:
      PENSTOCK_RETURN_IF_ERROR(Charge(static_cast<int64_t>(value.list().items.size())));
      return value.list().items;
    case Kind::kIterator: {
      Iterator& iterator = value.iterator();
      PENSTOCK_RETURN_IF_ERROR(Charge(static_cast<int64_t>(iterator.items.size())));
      items.assign(iterator.items.begin() + static_cast<int64_t>(iterator.pos), iterator.items.end());
      iterator.pos = iterator.items.size();
      PENSTOCK_RETURN_IF_ERROR(std::exchange(iterator.end, absl::OkStatus()));
      return items;
    }
    case Kind::kDict:
      PENSTOCK_RETURN_IF_ERROR(Charge(static_cast<int64_t>(value.dict().entries.size())));
      for (const auto& [key, unused] : value.dict().entries) items.push_back(key);
      return items;
    case Kind::kString:
      PENSTOCK_RETURN_IF_ERROR(Charge(4 * static_cast<int64_t>(value.text().size())));
      for (RuneReader reader(value.text()); !reader.done();) {
        const auto [c, origin] = reader.Next();
        Text character;
        character.AppendRune(c, origin);
        items.push_back(Value::String(std::move(character)));
      }
      return items;
    default: return Fail("a {} cannot be iterated over", value.type_name());
  }
}

absl::StatusOr<int64_t> Interp::Length(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined: return 0;
    case Kind::kString:
      PENSTOCK_RETURN_IF_ERROR(Charge(static_cast<int64_t>(value.text().size() / 32)));
      return NumRunes(value.bytes());
    case Kind::kList: return static_cast<int64_t>(value.list().items.size());
    case Kind::kIterator: {
      PENSTOCK_ASSIGN_OR_RETURN(const Value list, RestOf(value));
      return Length(list);
    }
    case Kind::kDict: return static_cast<int64_t>(value.dict().entries.size());
    default: return Fail("a {} has no length", value.type_name());
  }
}

}  // namespace penstock::jinja
