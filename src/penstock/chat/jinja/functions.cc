// Global functions, and Jinja's own objects: loop, cycler, joiner.
#include <array>

#include "penstock/base/clock.h"
#include "penstock/chat/jinja/builtins.h"

namespace penstock::jinja {
namespace {

// The limit of Jinja's sandbox.
constexpr int64_t kMaxRange = 100'000;

Result Range(Interp& interp, const Args& args) {
  if (args.positional.empty() || args.positional.size() > 3 || !args.named.empty()) {
    return interp.Fail("range takes one to three integers");
  }
  std::vector<int64_t> numbers;
  for (const Value& value : args.positional) {
    if (value.Is(Kind::kUndefined)) return interp.UndefinedError(value);
    if (!value.is_integral()) return interp.Fail("range needs integers, found {}", value.type_name());
    numbers.push_back(value.integer());
  }
  const int64_t start = numbers.size() > 1 ? numbers[0] : 0;
  const int64_t stop = numbers.size() > 1 ? numbers[1] : numbers[0];
  const int64_t step = numbers.size() > 2 ? numbers[2] : 1;
  if (step == 0) return interp.Fail("the step of range is zero");
  std::vector<Value> items;
  for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
    if (static_cast<int64_t>(items.size()) >= kMaxRange) {
      return interp.Fail("a range has more than {} elements, the limit for a chat template", kMaxRange);
    }
    items.push_back(Value::Int(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return interp.MakeListAs(
      {.items = std::move(items), .type = ListType::kRange, .start = start, .stop = stop, .step = step});
}

Result MakeDictOf(Interp& interp, Args& args) {
  std::vector<std::pair<Value, Value>> entries;
  if (args.positional.size() > 1) return interp.Fail("dict takes one positional argument");
  if (!args.positional.empty() && args.positional[0].Is(Kind::kDict)) {
    PENSTOCK_RETURN_IF_ERROR(interp.Charge(static_cast<int64_t>(args.positional[0].dict().entries.size())));
    entries = args.positional[0].dict().entries;
  } else if (!args.positional.empty() && args.positional[0].Is(Kind::kUndefined)) {
    return interp.UndefinedError(args.positional[0]);
  } else if (!args.positional.empty()) {
    PENSTOCK_ASSIGN_OR_RETURN(const std::vector<Value> pairs, interp.Iterate(args.positional[0]));
    for (const Value& pair : pairs) {
      PENSTOCK_ASSIGN_OR_RETURN(std::vector<Value> parts, interp.Iterate(pair));
      if (parts.size() != 2) return interp.Fail("dict needs pairs, found {} values", parts.size());
      entries.emplace_back(std::move(parts[0]), std::move(parts[1]));
    }
  }
  for (auto& [name, value] : args.named) entries.emplace_back(Value::String(name), std::move(value));
  return interp.MakeDict(std::move(entries));
}

Result MakeNamespace(Interp& interp, Args& args) {
  PENSTOCK_ASSIGN_OR_RETURN(const Value dict, MakeDictOf(interp, args));
  PENSTOCK_RETURN_IF_ERROR(interp.Charge(8));
  Object& object = interp.MakeObject(Object::Type::kNamespace);
  for (const auto& [key, value] : dict.dict().entries) {
    if (!key.Is(Kind::kString) || key.bytes().starts_with('_')) {
      return interp.Fail("an attribute of a namespace must be a name that does not start with '_'");
    }
    object.attributes.emplace_back(key.bytes(), value);
  }
  return Value::Of(&object);
}

int DayOfYear(const DateTime& date) {
  static constexpr std::array<int, 12> kBefore = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334};
  const bool leap = (date.year % 4 == 0 && date.year % 100 != 0) || date.year % 400 == 0;
  return kBefore[date.month - 1] + date.day + (leap && date.month > 2 ? 1 : 0);
}

// Returns the day of the week; 0 is Sunday.
int DayOfWeek(const DateTime& date) {
  const int years = date.year - 1;
  return (years * 365 + years / 4 - years / 100 + years / 400 + DayOfYear(date)) % 7;
}

constexpr std::array<std::string_view, 12> kMonths = {"January",   "February", "March",    "April",
                                                      "May",       "June",     "July",     "August",
                                                      "September", "October",  "November", "December"};
constexpr std::array<std::string_view, 7> kDays = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                                   "Thursday", "Friday", "Saturday"};

// Formats one conversion of strftime in the C locale; returns nullopt for conversions that are not implemented.
std::optional<std::string> FormatDatePart(const DateTime& date, char part) {
  const std::string_view month = kMonths[date.month - 1];
  const std::string_view day = kDays[DayOfWeek(date)];
  const int hour12 = date.hour % 12 == 0 ? 12 : date.hour % 12;
  switch (part) {
    case 'Y': return fmt::format("{}", date.year);
    case 'y': return fmt::format("{:02}", date.year % 100);
    case 'm': return fmt::format("{:02}", date.month);
    case 'd': return fmt::format("{:02}", date.day);
    case 'e': return fmt::format("{:2}", date.day);
    case 'B': return std::string(month);
    case 'b':
    case 'h': return std::string(month.substr(0, 3));
    case 'A': return std::string(day);
    case 'a': return std::string(day.substr(0, 3));
    case 'H': return fmt::format("{:02}", date.hour);
    case 'I': return fmt::format("{:02}", hour12);
    case 'p': return date.hour < 12 ? "AM" : "PM";
    case 'M': return fmt::format("{:02}", date.minute);
    case 'S': return fmt::format("{:02}", date.second);
    case 'j': return fmt::format("{:03}", DayOfYear(date));
    case 'F': return fmt::format("{}-{:02}-{:02}", date.year, date.month, date.day);
    case 'T': return fmt::format("{:02}:{:02}:{:02}", date.hour, date.minute, date.second);
    case '%': return "%";
    default: return std::nullopt;
  }
}

Result StrftimeNow(Interp& interp, const Args& args) {
  if (args.positional.size() != 1 || !args.positional[0].Is(Kind::kString)) {
    return interp.Fail("strftime_now takes one str");
  }
  DateTime date;
  if (!interp.current_time().empty()) {
    const std::optional<DateTime> parsed = ParseDateTime(interp.current_time());
    if (!parsed.has_value()) {
      return interp.Fail("current_time must be YYYY-MM-DD or YYYY-MM-DDTHH:MM:SS, found '{}'", interp.current_time());
    }
    date = *parsed;
  }
  const Text& format = args.positional[0].text();
  const Origin origin = format.AnyOrigin();
  Text out;
  const std::string& bytes = format.bytes();
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] != '%' || i + 1 == bytes.size()) {
      out.Append(format, i, i + 1);
      continue;
    }
    const bool no_padding = bytes[i + 1] == '-' && i + 2 < bytes.size();
    i += no_padding ? 2 : 1;
    std::optional<std::string> part = FormatDatePart(date, bytes[i]);
    if (!part.has_value()) return interp.Fail("strftime_now does not implement that conversion");
    while (no_padding && part->size() > 1 && part->front() == '0') part->erase(0, 1);
    out.Append(*part, origin);
  }
  return interp.MakeString(std::move(out));
}

Result RaiseException(Interp& interp, const Args& args) {
  if (args.positional.size() != 1) return interp.Fail("raise_exception takes one message");
  PENSTOCK_ASSIGN_OR_RETURN(const Text message, interp.ToText(args.positional[0]));
  return interp.Fail("{}", message.bytes());
}

}  // namespace

Result Interp::CallFunction(std::string_view name, Args& args) {
  if (name == "range") return Range(*this, args);
  if (name == "dict") return MakeDictOf(*this, args);
  if (name == "namespace") return MakeNamespace(*this, args);
  if (name == "raise_exception") return RaiseException(*this, args);
  if (name == "strftime_now") return StrftimeNow(*this, args);
  PENSTOCK_RETURN_IF_ERROR(Charge(8));
  if (name == "cycler") {
    if (args.positional.empty()) return Fail("cycler needs at least one item");
    Object& cycler = MakeObject(Object::Type::kCycler);
    cycler.items = std::move(args.positional);
    return Value::Of(&cycler);
  }
  Object& joiner = MakeObject(Object::Type::kJoiner);
  joiner.items.push_back(args.positional.empty() ? Value::String(", ") : args.positional[0]);
  return Value::Of(&joiner);
}

Result Interp::CallObject(Object& object, Args& args) {
  if (!args.positional.empty() || !args.named.empty()) return Fail("this object is called without arguments");
  if (object.type == Object::Type::kJoiner) {
    if (object.pos++ == 0) return Value::String("");
    return object.items[0];
  }
  return Fail("a namespace or cycler cannot be called");
}

Result CyclerAttribute(Interp& interp, const Value& cycler, std::string_view name) {
  const Object& object = cycler.object();
  if (name == "current") return object.items[object.pos % object.items.size()];
  if (name == "next" || name == "reset") {
    return Value::Of(std::make_shared<const Callable>(
        Callable{.type = Callable::Type::kMethod, .name = std::string(name), .self = cycler}));
  }
  (void)interp;
  return Value::Undefined(fmt::format("a cycler has no attribute '{}'", name));
}

Result LoopAttribute(Interp& interp, LoopState& loop, std::string_view name) {
  const auto size = static_cast<int64_t>(loop.items.size());
  const auto index0 = static_cast<int64_t>(loop.index0);
  if (name == "index") return Value::Int(index0 + 1);
  if (name == "index0") return Value::Int(index0);
  if (name == "revindex") return Value::Int(size - index0);
  if (name == "revindex0") return Value::Int(size - index0 - 1);
  if (name == "first") return Value::Bool(index0 == 0);
  if (name == "last") return Value::Bool(index0 + 1 == size);
  if (name == "length") return Value::Int(size);
  if (name == "depth") return Value::Int(loop.depth0 + 1);
  if (name == "depth0") return Value::Int(loop.depth0);
  if (name == "previtem") {
    if (index0 == 0 || index0 > size) return Value::Undefined("there is no previous item");
    return loop.items[loop.index0 - 1];
  }
  if (name == "nextitem") {
    if (index0 + 1 >= size) return Value::Undefined("there is no next item");
    return loop.items[loop.index0 + 1];
  }
  if (name == "cycle" || name == "changed") {
    return Value::Of(std::make_shared<const Callable>(
        Callable{.type = Callable::Type::kMethod, .name = std::string(name), .self = Value::Of(&loop)}));
  }
  (void)interp;
  return Value::Undefined(fmt::format("'loop' has no attribute '{}'", name));
}

Result Interp::CallLoopMethod(LoopState& loop, std::string_view name, Args& args) {
  if (name == "cycle") {
    if (args.positional.empty()) return Fail("loop.cycle needs at least one value");
    return args.positional[loop.index0 % args.positional.size()];
  }
  bool changed = !loop.last_changed.has_value() || loop.last_changed->size() != args.positional.size();
  for (size_t i = 0; !changed && i < args.positional.size(); ++i) {
    PENSTOCK_ASSIGN_OR_RETURN(const bool equal, Equal((*loop.last_changed)[i], args.positional[i]));
    changed = !equal;
  }
  if (changed) loop.last_changed = std::move(args.positional);
  return Value::Bool(changed);
}

}  // namespace penstock::jinja
