// Evaluates expressions.
#include "penstock/chat/jinja/frame.h"
#include "penstock/chat/jinja/interp.h"

namespace penstock::jinja {

Result Interp::Eval(const Expr& expr, Scope& scope) {
  const Frame frame(*this);
  if (!frame.ok()) return Fail("the template nests too deeply while it runs");
  PENSTOCK_RETURN_IF_ERROR(Charge(1));
  line_ = expr.line;
  return EvalNode(expr, scope);
}

Result Interp::EvalNode(const Expr& expr, Scope& scope) {
  switch (expr.kind) {
    case ExprKind::kConst: return expr.constant;
    case ExprKind::kName: return EvalName(expr, scope);
    case ExprKind::kTuple:
    case ExprKind::kList: return EvalItems(expr, scope);
    case ExprKind::kDict: return EvalDict(expr, scope);
    case ExprKind::kGetAttr: {
      PENSTOCK_ASSIGN_OR_RETURN(const Value base, Eval(*expr.children[0], scope));
      line_ = expr.line;
      return GetAttr(base, expr.name);
    }
    case ExprKind::kGetItem: return EvalGetItem(expr, scope);
    case ExprKind::kCall: return EvalCall(expr, scope);
    case ExprKind::kFilter: return EvalFilter(expr, scope, nullptr);
    case ExprKind::kTest: return EvalTest(expr, scope);
    case ExprKind::kNot:
    case ExprKind::kAnd:
    case ExprKind::kOr:
    case ExprKind::kCond: return EvalLogic(expr, scope);
    case ExprKind::kNegate:
    case ExprKind::kPlus: return EvalSign(expr, scope);
    case ExprKind::kBinary: return EvalBinary(expr, scope);
    case ExprKind::kConcat: return EvalConcat(expr, scope);
    case ExprKind::kCompare: return EvalCompare(expr, scope);
    case ExprKind::kSlice: return Fail("a slice stands outside of a subscript");
    case ExprKind::kAttrRef: break;
  }
  return Fail("an attribute of a namespace can only be assigned to");
}

Result Interp::EvalName(const Expr& expr, Scope& scope) {
  const Value* value = scope.Find(expr.name);
  if (value != nullptr) return *value;
  static constexpr std::string_view kFunctions[] = {"range",  "dict",   "namespace",   "raise_exception",
                                                    "cycler", "joiner", "strftime_now"};
  for (std::string_view name : kFunctions) {
    if (expr.name != name) continue;
    return Value::Of(std::make_shared<const Callable>(Callable{.name = std::string(name), .self = {}}));
  }
  return Value::Undefined(fmt::format("'{}' is undefined", expr.name));
}

Result Interp::EvalItems(const Expr& expr, Scope& scope) {
  std::vector<Value> items;
  for (const ExprPtr& child : expr.children) {
    PENSTOCK_ASSIGN_OR_RETURN(Value item, Eval(*child, scope));
    items.push_back(std::move(item));
  }
  return expr.kind == ExprKind::kTuple ? MakeTuple(std::move(items)) : MakeList(std::move(items));
}

Result Interp::EvalDict(const Expr& expr, Scope& scope) {
  std::vector<std::pair<Value, Value>> entries;
  for (size_t i = 0; i + 1 < expr.children.size(); i += 2) {
    PENSTOCK_ASSIGN_OR_RETURN(Value key, Eval(*expr.children[i], scope));
    PENSTOCK_ASSIGN_OR_RETURN(Value value, Eval(*expr.children[i + 1], scope));
    entries.emplace_back(std::move(key), std::move(value));
  }
  return MakeDict(std::move(entries));
}

Result Interp::EvalGetItem(const Expr& expr, Scope& scope) {
  PENSTOCK_ASSIGN_OR_RETURN(const Value base, Eval(*expr.children[0], scope));
  const Expr& key_expr = *expr.children[1];
  if (key_expr.kind != ExprKind::kSlice) {
    PENSTOCK_ASSIGN_OR_RETURN(const Value key, Eval(key_expr, scope));
    line_ = expr.line;
    return GetItem(base, key);
  }
  Value parts[3] = {Value::None(), Value::None(), Value::None()};
  for (size_t i = 0; i < 3; ++i) {
    if (key_expr.children[i] == nullptr) continue;
    PENSTOCK_ASSIGN_OR_RETURN(parts[i], Eval(*key_expr.children[i], scope));
  }
  line_ = expr.line;
  return Slice(base, parts[0], parts[1], parts[2]);
}

Result Interp::EvalLogic(const Expr& expr, Scope& scope) {
  PENSTOCK_ASSIGN_OR_RETURN(Value first, Eval(*expr.children[0], scope));
  const bool truth = IsTrue(first);
  switch (expr.kind) {
    case ExprKind::kNot: return Value::Bool(!truth);
    case ExprKind::kAnd: return truth ? Eval(*expr.children[1], scope) : Result(std::move(first));
    case ExprKind::kOr: return truth ? Result(std::move(first)) : Eval(*expr.children[1], scope);
    default: break;
  }
  if (truth) return Eval(*expr.children[1], scope);
  if (expr.children[2] != nullptr) return Eval(*expr.children[2], scope);
  return Value::Undefined("the inline if was false and has no else");
}

Result Interp::EvalSign(const Expr& expr, Scope& scope) {
  PENSTOCK_ASSIGN_OR_RETURN(const Value operand, Eval(*expr.children[0], scope));
  line_ = expr.line;
  if (operand.Is(Kind::kUndefined)) return UndefinedError(operand);
  if (!operand.is_number()) return Fail("'+' and '-' need a number, found {}", operand.type_name());
  const bool negate = expr.kind == ExprKind::kNegate;
  if (operand.Is(Kind::kFloat)) return Value::Float(negate ? -operand.number() : operand.number(), operand.origin());
  if (!negate) return Value::Int(operand.integer(), operand.origin());
  return Binary("-", Value::Int(0), operand);
}

Result Interp::EvalBinary(const Expr& expr, Scope& scope) {
  PENSTOCK_ASSIGN_OR_RETURN(const Value left, Eval(*expr.children[0], scope));
  PENSTOCK_ASSIGN_OR_RETURN(const Value right, Eval(*expr.children[1], scope));
  line_ = expr.line;
  return Binary(expr.op, left, right);
}

Result Interp::EvalConcat(const Expr& expr, Scope& scope) {
  Text text;
  for (const ExprPtr& child : expr.children) {
    PENSTOCK_ASSIGN_OR_RETURN(const Value part, Eval(*child, scope));
    line_ = expr.line;
    PENSTOCK_RETURN_IF_ERROR(AppendStr(part, text));
  }
  return MakeString(std::move(text));
}

Result Interp::EvalCompare(const Expr& expr, Scope& scope) {
  PENSTOCK_ASSIGN_OR_RETURN(Value left, Eval(*expr.children[0], scope));
  for (size_t i = 0; i < expr.names.size(); ++i) {
    PENSTOCK_ASSIGN_OR_RETURN(Value right, Eval(*expr.children[i + 1], scope));
    line_ = expr.line;
    const std::string& op = expr.names[i];
    bool truth = false;
    if (op == "==" || op == "!=") {
      PENSTOCK_ASSIGN_OR_RETURN(truth, Equal(left, right));
      truth = truth == (op == "==");
    } else if (op == "in" || op == "not in") {
      PENSTOCK_ASSIGN_OR_RETURN(truth, Contains(left, right));
      truth = truth == (op == "in");
    } else {
      const bool swap = op[0] == '>';
      PENSTOCK_ASSIGN_OR_RETURN(truth, Less(swap ? right : left, swap ? left : right));
      if (!truth && op.size() == 2) {
        PENSTOCK_ASSIGN_OR_RETURN(truth, Equal(left, right));
      }
    }
    if (!truth) return Value::Bool(false);
    left = std::move(right);
  }
  return Value::Bool(true);
}

absl::Status Interp::EvalArgs(const Expr& expr, Scope& scope, Args& args) {
  for (size_t i = 0; i < expr.names.size(); ++i) {
    PENSTOCK_ASSIGN_OR_RETURN(Value value, Eval(*expr.children[i + 1], scope));
    const std::string& name = expr.names[i];
    if (name.empty()) {
      args.positional.push_back(std::move(value));
    } else if (name == "*") {
      PENSTOCK_ASSIGN_OR_RETURN(std::vector<Value> items, Iterate(value));
      for (Value& item : items) args.positional.push_back(std::move(item));
    } else if (name == "**") {
      if (!value.Is(Kind::kDict)) return Fail("'**' needs a dict, found {}", value.type_name());
      for (const auto& [key, item] : value.dict().entries) {
        if (!key.Is(Kind::kString)) return Fail("'**' needs keys that are strings, found {}", key.type_name());
        args.named.emplace_back(key.bytes(), item);
      }
      PENSTOCK_RETURN_IF_ERROR(Charge(static_cast<int64_t>(value.dict().entries.size())));
    } else {
      args.named.emplace_back(name, std::move(value));
    }
  }
  line_ = expr.line;
  return absl::OkStatus();
}

Result Interp::EvalFilter(const Expr& expr, Scope& scope, const Value* input) {
  Args args;
  if (expr.children[0] == nullptr) {
    if (input == nullptr) return Fail("the filter '{}' has no input", expr.name);
    args.positional.push_back(*input);
  } else if (expr.children[0]->kind == ExprKind::kFilter && input != nullptr) {
    const Frame frame(*this);
    if (!frame.ok()) return Fail("the template nests too deeply while it runs");
    PENSTOCK_ASSIGN_OR_RETURN(Value value, EvalFilter(*expr.children[0], scope, input));
    args.positional.push_back(std::move(value));
  } else {
    PENSTOCK_ASSIGN_OR_RETURN(Value value, Eval(*expr.children[0], scope));
    args.positional.push_back(std::move(value));
  }
  PENSTOCK_RETURN_IF_ERROR(EvalArgs(expr, scope, args));
  return ApplyFilter(expr.name, std::move(args));
}

Result Interp::EvalTest(const Expr& expr, Scope& scope) {
  Args args;
  PENSTOCK_ASSIGN_OR_RETURN(Value value, Eval(*expr.children[0], scope));
  args.positional.push_back(std::move(value));
  PENSTOCK_RETURN_IF_ERROR(EvalArgs(expr, scope, args));
  PENSTOCK_ASSIGN_OR_RETURN(const bool truth, ApplyTest(expr.name, std::move(args)));
  return Value::Bool(truth);
}

Result Interp::EvalCall(const Expr& expr, Scope& scope) {
  PENSTOCK_ASSIGN_OR_RETURN(const Value callee, Eval(*expr.children[0], scope));
  Args args;
  PENSTOCK_RETURN_IF_ERROR(EvalArgs(expr, scope, args));
  return Call(callee, std::move(args));
}

Result Interp::Call(const Value& callee, Args args) {
  if (callee.Is(Kind::kUndefined)) return UndefinedError(callee);
  if (callee.Is(Kind::kObject)) return CallObject(callee.object(), args);
  if (callee.Is(Kind::kLoop)) return CallLoop(callee.loop(), args);
  if (!callee.Is(Kind::kCallable)) return Fail("a {} cannot be called", callee.type_name());
  const Callable& callable = callee.callable();
  switch (callable.type) {
    case Callable::Type::kFunction: return CallFunction(callable.name, args);
    case Callable::Type::kMacro: return CallMacro(callable, std::move(args));
    case Callable::Type::kMethod: break;
  }
  if (callable.self.Is(Kind::kLoop)) return CallLoopMethod(callable.self.loop(), callable.name, args);
  return CallMethod(callable.self, callable.name, args);
}

}  // namespace penstock::jinja
