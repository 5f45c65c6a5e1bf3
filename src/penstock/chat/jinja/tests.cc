// The tests that can follow `is`.
#include "penstock/chat/jinja/builtins.h"

namespace penstock::jinja {
namespace {

template <bool (*kIs)(const Value&)>
Result Check(Interp& /*interp*/, Bound& args) {
  return Value::Bool(kIs(args[0]));
}

bool IsDefined(const Value& v) { return !v.Is(Kind::kUndefined); }
bool IsUndefined(const Value& v) { return v.Is(Kind::kUndefined); }
bool IsNone(const Value& v) { return v.Is(Kind::kNone); }
bool IsString(const Value& v) { return v.Is(Kind::kString); }
bool IsNumber(const Value& v) { return v.is_number(); }
bool IsInteger(const Value& v) { return v.Is(Kind::kInt); }
bool IsFloat(const Value& v) { return v.Is(Kind::kFloat); }
bool IsBoolean(const Value& v) { return v.Is(Kind::kBool); }
bool IsMapping(const Value& v) { return v.Is(Kind::kDict); }
bool IsIterable(const Value& v) {
  return v.Is(Kind::kUndefined) || v.Is(Kind::kString) || v.Is(Kind::kList) || v.Is(Kind::kIterator) ||
         v.Is(Kind::kDict) || v.Is(Kind::kLoop);
}
bool IsSequence(const Value& v) {
  return v.Is(Kind::kUndefined) || v.Is(Kind::kString) || (v.Is(Kind::kList) && v.is_indexable()) || v.Is(Kind::kDict);
}
bool IsCallable(const Value& v) {
  const bool is_joiner = v.Is(Kind::kObject) && v.object().type == Object::Type::kJoiner;
  return v.Is(Kind::kCallable) || v.Is(Kind::kUndefined) || is_joiner;
}
bool IsTrueLiteral(const Value& v) { return v.Is(Kind::kBool) && v.integer() != 0; }
bool IsFalseLiteral(const Value& v) { return v.Is(Kind::kBool) && v.integer() == 0; }
bool IsEscaped(const Value& /*v*/) { return false; }

Result TestUpper(Interp& interp, Bound& args) {
  PENSTOCK_ASSIGN_OR_RETURN(const Text text, interp.ToText(args[0]));
  return Value::Bool(IsUpperText(text.bytes()));
}

Result TestLower(Interp& interp, Bound& args) {
  PENSTOCK_ASSIGN_OR_RETURN(const Text text, interp.ToText(args[0]));
  return Value::Bool(IsLowerText(text.bytes()));
}

Result Remainder(Interp& interp, const Value& value, const Value& divisor, int64_t wanted) {
  if (value.Is(Kind::kString)) return interp.Fail("a str has no remainder");
  PENSTOCK_ASSIGN_OR_RETURN(const Value rest, interp.Binary("%", value, divisor));
  PENSTOCK_ASSIGN_OR_RETURN(const bool equal, interp.Equal(rest, Value::Int(wanted)));
  return Value::Bool(equal);
}

Result Even(Interp& interp, Bound& args) { return Remainder(interp, args[0], Value::Int(2), 0); }
Result Odd(Interp& interp, Bound& args) { return Remainder(interp, args[0], Value::Int(2), 1); }
Result DivisibleBy(Interp& interp, Bound& args) { return Remainder(interp, args[0], args[1], 0); }

Result SameAs(Interp& /*interp*/, Bound& args) { return Value::Bool(args[0].SameAs(args[1])); }

Result OfBool(absl::StatusOr<bool> truth, bool wanted = true) {
  if (!truth.ok()) return truth.status();
  return Value::Bool(*truth == wanted);
}

Result Eq(Interp& interp, Bound& args) { return OfBool(interp.Equal(args[0], args[1])); }
Result Ne(Interp& interp, Bound& args) { return OfBool(interp.Equal(args[0], args[1]), false); }
Result Lt(Interp& interp, Bound& args) { return OfBool(interp.Less(args[0], args[1])); }
Result Gt(Interp& interp, Bound& args) { return OfBool(interp.Less(args[1], args[0])); }
Result In(Interp& interp, Bound& args) { return OfBool(interp.Contains(args[0], args[1])); }

Result Le(Interp& interp, Bound& args) {
  PENSTOCK_ASSIGN_OR_RETURN(const bool less, interp.Less(args[0], args[1]));
  return less ? Result(Value::Bool(true)) : OfBool(interp.Equal(args[0], args[1]));
}

Result Ge(Interp& interp, Bound& args) {
  PENSTOCK_ASSIGN_OR_RETURN(const bool less, interp.Less(args[1], args[0]));
  return less ? Result(Value::Bool(true)) : OfBool(interp.Equal(args[0], args[1]));
}

Result IsFilter(Interp& /*interp*/, Bound& args) {
  return Value::Bool(args[0].Is(Kind::kString) && HasFilter(args[0].bytes()));
}

Result IsTest(Interp& /*interp*/, Bound& args) {
  return Value::Bool(args[0].Is(Kind::kString) && HasTest(args[0].bytes()));
}

constexpr Builtin kTests[] = {
    {"defined", "value", 1, Check<IsDefined>},
    {"undefined", "value", 1, Check<IsUndefined>},
    {"none", "value", 1, Check<IsNone>},
    {"string", "value", 1, Check<IsString>},
    {"number", "value", 1, Check<IsNumber>},
    {"integer", "value", 1, Check<IsInteger>},
    {"float", "value", 1, Check<IsFloat>},
    {"boolean", "value", 1, Check<IsBoolean>},
    {"mapping", "value", 1, Check<IsMapping>},
    {"iterable", "value", 1, Check<IsIterable>},
    {"sequence", "value", 1, Check<IsSequence>},
    {"callable", "value", 1, Check<IsCallable>},
    {"true", "value", 1, Check<IsTrueLiteral>},
    {"false", "value", 1, Check<IsFalseLiteral>},
    {"escaped", "value", 1, Check<IsEscaped>},
    {"upper", "value", 1, TestUpper},
    {"lower", "value", 1, TestLower},
    {"even", "value", 1, Even},
    {"odd", "value", 1, Odd},
    {"divisibleby", "value num", 2, DivisibleBy},
    {"sameas", "value other", 2, SameAs},
    {"eq", "a b", 2, Eq},
    {"equalto", "a b", 2, Eq},
    {"==", "a b", 2, Eq},
    {"ne", "a b", 2, Ne},
    {"!=", "a b", 2, Ne},
    {"lt", "a b", 2, Lt},
    {"lessthan", "a b", 2, Lt},
    {"<", "a b", 2, Lt},
    {"le", "a b", 2, Le},
    {"<=", "a b", 2, Le},
    {"gt", "a b", 2, Gt},
    {"greaterthan", "a b", 2, Gt},
    {">", "a b", 2, Gt},
    {"ge", "a b", 2, Ge},
    {">=", "a b", 2, Ge},
    {"in", "value seq", 2, In},
    {"filter", "value", 1, IsFilter},
    {"test", "value", 1, IsTest},
};

}  // namespace

std::span<const Builtin> Tests() { return kTests; }

}  // namespace penstock::jinja
