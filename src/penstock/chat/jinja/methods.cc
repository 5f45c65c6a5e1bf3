// Methods of dicts and lists, and the lookup of all methods. Methods that change a value are refused, as in Hugging
// Face's immutable sandbox.
#include <algorithm>

#include "penstock/chat/jinja/builtins.h"

namespace penstock::jinja {
namespace {

Result Items(Interp& interp, Bound& args) {
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<Value> pairs, PairsOf(interp, args[0]));
  return interp.MakeListAs({.items = std::move(pairs), .type = ListType::kItems}, args[0].origin());
}

Result Keys(Interp& interp, Bound& args) {
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<Value> keys, interp.Iterate(args[0]));
  return interp.MakeListAs({.items = std::move(keys), .type = ListType::kKeys}, args[0].origin());
}

Result Values(Interp& interp, Bound& args) {
  PENSTOCK_RETURN_IF_ERROR(interp.Charge(static_cast<int64_t>(args[0].dict().entries.size())));
  std::vector<Value> values;
  for (const auto& [key, value] : args[0].dict().entries) values.push_back(value);
  return interp.MakeListAs({.items = std::move(values), .type = ListType::kValues}, args[0].origin());
}

Result Get(Interp& interp, Bound& args) {
  PENSTOCK_RETURN_IF_ERROR(interp.ChargeKey(args[1]));
  const std::optional<std::string> key = KeyOf(args[1]);
  if (!key.has_value()) return interp.Fail("a {} cannot be the key of a dict", args[1].type_name());
  const Value* value = args[0].dict().Find(*key);
  if (value != nullptr) return *value;
  return args.Has(2) ? args[2] : Value::None();
}

Result Copy(Interp& /*interp*/, Bound& args) { return args[0]; }

Result Index(Interp& interp, Bound& args) {
  const std::vector<Value>& items = args[0].list().items;
  for (size_t i = 0; i < items.size(); ++i) {
    PENSTOCK_ASSIGN_OR_RETURN(const bool equal, interp.Equal(items[i], args[1]));
    if (equal) return Value::Int(static_cast<int64_t>(i));
  }
  return interp.Fail("the value is not in the list");
}

Result CountItems(Interp& interp, Bound& args) {
  int64_t count = 0;
  for (const Value& item : args[0].list().items) {
    PENSTOCK_ASSIGN_OR_RETURN(const bool equal, interp.Equal(item, args[1]));
    count += equal;
  }
  return Value::Int(count);
}

constexpr Builtin kDictMethods[] = {
    {"items", "self", 1, Items},         {"keys", "self", 1, Keys}, {"values", "self", 1, Values},
    {"get", "self key default", 2, Get}, {"copy", "self", 1, Copy},
};

constexpr Builtin kListMethods[] = {
    {"index", "self value", 2, Index},
    {"count", "self value", 2, CountItems},
    {"copy", "self", 1, Copy},
};

std::span<const Builtin> MethodsOf(const Value& base) {
  if (base.Is(Kind::kString)) return StringMethods();
  if (base.Is(Kind::kDict)) return DictMethods();
  if (base.Is(Kind::kList)) return ListMethods();
  return {};
}

const Builtin* FindBuiltin(const Value& base, std::string_view name) {
  for (const Builtin& builtin : MethodsOf(base)) {
    if (builtin.name == name) return &builtin;
  }
  return nullptr;
}

}  // namespace

std::span<const Builtin> DictMethods() { return kDictMethods; }
std::span<const Builtin> ListMethods() { return kListMethods; }

MethodKind FindMethod(const Value& base, std::string_view name) {
  static constexpr std::string_view kOfDict[] = {"clear", "pop", "popitem", "setdefault", "update"};
  static constexpr std::string_view kOfList[] = {"append", "clear", "pop",    "reverse",
                                                 "insert", "sort",  "extend", "remove"};
  const auto has = [name](std::span<const std::string_view> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (base.Is(Kind::kDict) && has(kOfDict)) return MethodKind::kForbidden;
  if (base.Is(Kind::kList) && base.list().type == ListType::kList && has(kOfList)) return MethodKind::kForbidden;
  if (base.Is(Kind::kList) && base.list().type != ListType::kList && name == "copy") return MethodKind::kNone;
  if (base.Is(Kind::kList) && !base.is_indexable()) return MethodKind::kNone;
  return FindBuiltin(base, name) != nullptr ? MethodKind::kCallable : MethodKind::kNone;
}

Result Interp::CallMethod(const Value& self, std::string_view name, Args& args) {
  if (self.Is(Kind::kObject)) {
    Object& cycler = self.object();
    const Value current = cycler.items[cycler.pos % cycler.items.size()];
    cycler.pos = name == "reset" ? 0 : (cycler.pos + 1) % cycler.items.size();
    return name == "reset" ? Value::None() : current;
  }
  const Builtin* builtin = FindBuiltin(self, name);
  if (builtin == nullptr) return Fail("'{}' is no method of a {}", name, self.type_name());
  args.positional.insert(args.positional.begin(), self);
  PENSTOCK_ASSIGN_OR_RETURN(Bound bound, BindArgs(*this, *builtin, args));
  return builtin->fn(*this, bound);
}

}  // namespace penstock::jinja
