// Executes statements and macros, and enforces the limits.
#include <algorithm>

#include "absl/strings/string_view.h"

#include "penstock/chat/jinja/frame.h"
#include "penstock/chat/jinja/interp.h"

namespace penstock::jinja {
namespace {

// The charge for each object that lives until rendering ends: captured scopes and the states of loops.
constexpr int64_t kCaptureSteps = 8;

// The charge for a round of a loop, which makes a scope with the loop's variables.
constexpr int64_t kRoundSteps = 4;

Value MacroValue(const Stmt& stmt, Scope& scope) {
  return Value::Of(std::make_shared<const Callable>(
      Callable{.type = Callable::Type::kMacro, .name = stmt.name, .self = {}, .macro = &stmt, .scope = &scope}));
}

}  // namespace

const Value* Scope::Find(std::string_view name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->parent_) {
    const auto found = scope->variables_.find(absl::string_view(name.data(), name.size()));
    if (found != scope->variables_.end()) return &found->second;
  }
  return nullptr;
}

void Scope::Capture() {
  for (Scope* scope = this; scope != nullptr && !scope->captured_; scope = scope->parent_) scope->captured_ = true;
}

absl::Status Interp::Charge(int64_t steps) {
  steps_ += steps;
  if (steps_ <= limits_.max_steps) return absl::OkStatus();
  return Fail("rendering takes more than {} steps, the limit for a chat template", limits_.max_steps);
}

absl::Status Interp::ChargeKey(const Value& value) {
  if (value.Is(Kind::kString)) return Charge(1 + static_cast<int64_t>(value.text().size() / 32));
  return Charge(value.Is(Kind::kList) ? 128 : 1);  // a tuple's key is bounded
}

absl::Status Interp::CheckText(const Text& text) {
  if (static_cast<int64_t>(text.size()) > limits_.max_output_bytes) {
    return Fail("a text has more than {} bytes, the limit for a chat template", limits_.max_output_bytes);
  }
  return Charge(1 + static_cast<int64_t>(text.size() / 32 + text.runs().size() / 2));
}

Result Interp::MakeString(Text text) {
  PENSTOCK_RETURN_IF_ERROR(CheckText(text));
  return Value::String(std::move(text));
}

Result Interp::MakeListAs(List list, Origin origin) {
  PENSTOCK_RETURN_IF_ERROR(Charge(1 + static_cast<int64_t>(list.items.size())));
  for (const Value& item : list.items) list.depth = std::max(list.depth, item.depth() + 1);
  if (list.depth > limits_.max_depth) return Fail("a value nests deeper than {} levels", limits_.max_depth);
  return Value::Of(std::make_shared<const List>(std::move(list)), origin);
}

Result Interp::MakeList(std::vector<Value> items, Origin origin) {
  return MakeListAs({.items = std::move(items)}, origin);
}

Result Interp::MakeTuple(std::vector<Value> items, Origin origin) {
  return MakeListAs({.items = std::move(items), .type = ListType::kTuple}, origin);
}

Result Interp::MakeIterator(std::vector<Value> items, absl::Status end, Origin origin) {
  PENSTOCK_RETURN_IF_ERROR(Charge(1 + static_cast<int64_t>(items.size())));
  auto iterator = std::make_shared<Iterator>();
  for (const Value& item : items) iterator->depth = std::max(iterator->depth, item.depth() + 1);
  if (iterator->depth > limits_.max_depth) return Fail("a value nests deeper than {} levels", limits_.max_depth);
  iterator->items = std::move(items);
  iterator->end = std::move(end);
  return Value::Of(std::move(iterator), origin);
}

Result Interp::MakeDict(std::vector<std::pair<Value, Value>> entries, Origin origin) {
  PENSTOCK_RETURN_IF_ERROR(Charge(1 + 2 * static_cast<int64_t>(entries.size())));
  auto dict = std::make_shared<Dict>();
  for (auto& [key, value] : entries) {
    PENSTOCK_RETURN_IF_ERROR(ChargeKey(key));
    std::optional<std::string> id = KeyOf(key);
    if (!id.has_value()) return Fail("a {} cannot be the key of a dict", key.type_name());
    dict->depth = std::max({dict->depth, key.depth() + 1, value.depth() + 1});
    const auto [place, is_new] = dict->index.try_emplace(std::move(*id), dict->entries.size());
    if (is_new) {
      dict->entries.emplace_back(std::move(key), std::move(value));
    } else {
      dict->entries[place->second].second = std::move(value);
    }
  }
  if (dict->depth > limits_.max_depth) return Fail("a value nests deeper than {} levels", limits_.max_depth);
  return Value::Of(std::shared_ptr<const Dict>(std::move(dict)), origin);
}

Object& Interp::MakeObject(Object::Type type) {
  objects_.push_back(std::make_unique<Object>());
  objects_.back()->type = type;
  return *objects_.back();
}

absl::Status Interp::AppendOutput(const Text& text, Text& out) {
  const size_t before = out.size();
  out.Append(text);
  if (static_cast<int64_t>(out.size()) > limits_.max_output_bytes) {
    return Fail("the output has more than {} bytes, the limit for a chat template", limits_.max_output_bytes);
  }
  return Charge(static_cast<int64_t>((out.size() - before) / 32 + text.runs().size() / 2));
}

Interp::FlowOr Interp::Exec(const Body& body, Scope& scope, Text& out) {
  const Frame frame(*this);
  if (!frame.ok()) return Fail("the template nests too deeply while it runs");
  for (const std::unique_ptr<Stmt>& stmt : body) {
    PENSTOCK_RETURN_IF_ERROR(Charge(1));
    line_ = stmt->line;
    PENSTOCK_ASSIGN_OR_RETURN(const Flow flow, ExecStmt(*stmt, scope, out));
    if (flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

Interp::FlowOr Interp::ExecStmt(const Stmt& stmt, Scope& scope, Text& out) {
  switch (stmt.kind) {
    case StmtKind::kData: PENSTOCK_RETURN_IF_ERROR(AppendOutput(stmt.constant.text(), out)); return Flow::kNormal;
    case StmtKind::kOutput: {
      PENSTOCK_ASSIGN_OR_RETURN(const Value value, Eval(*stmt.expr, scope));
      line_ = stmt.line;
      if (value.Is(Kind::kString)) {
        PENSTOCK_RETURN_IF_ERROR(AppendOutput(value.text(), out));
      } else {
        PENSTOCK_ASSIGN_OR_RETURN(const Text text, ToText(value));
        PENSTOCK_RETURN_IF_ERROR(AppendOutput(text, out));
      }
      return Flow::kNormal;
    }
    case StmtKind::kIf: return ExecIf(stmt, scope, out);
    case StmtKind::kFor: return ExecFor(stmt, scope, out);
    case StmtKind::kSet: {
      PENSTOCK_ASSIGN_OR_RETURN(Value value, Eval(*stmt.expr, scope));
      PENSTOCK_RETURN_IF_ERROR(Assign(*stmt.target, std::move(value), scope));
      return Flow::kNormal;
    }
    case StmtKind::kSetBlock: return ExecSetBlock(stmt, scope);
    case StmtKind::kMacro: {
      PENSTOCK_RETURN_IF_ERROR(Charge(kCaptureSteps));
      scope.Capture();
      scope.Set(stmt.name, MacroValue(stmt, scope));
      return Flow::kNormal;
    }
    case StmtKind::kCallBlock: return ExecCallBlock(stmt, scope, out);
    case StmtKind::kFilterBlock: return ExecFilterBlock(stmt, scope, out);
    case StmtKind::kWith: return ExecWith(stmt, scope, out);
    case StmtKind::kScope:
    case StmtKind::kBlock: {
      const ScopeHolder inner(*this, stmt.kind == StmtKind::kBlock && !stmt.scoped ? top_ : &scope);
      return Exec(stmt.body, *inner, out);
    }
    case StmtKind::kBreak: return Flow::kBreak;
    case StmtKind::kContinue: return Flow::kContinue;
  }
  return Flow::kNormal;
}

Interp::FlowOr Interp::ExecIf(const Stmt& stmt, Scope& scope, Text& out) {
  for (size_t i = 0; i < stmt.tests.size(); ++i) {
    PENSTOCK_ASSIGN_OR_RETURN(const Value test, Eval(*stmt.tests[i], scope));
    if (IsTrue(test)) return Exec(stmt.bodies[i], scope, out);
  }
  return Exec(stmt.otherwise, scope, out);
}

absl::StatusOr<std::vector<Value>> Interp::LoopItems(const Stmt& stmt, const Value& iterable, Scope& scope) {
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<Value> items, Iterate(iterable));
  if (stmt.test == nullptr) return items;
  std::vector<Value> kept;
  for (Value& item : items) {
    const ScopeHolder inner(*this, &scope);
    PENSTOCK_RETURN_IF_ERROR(Assign(*stmt.target, item, *inner));
    PENSTOCK_ASSIGN_OR_RETURN(const Value test, Eval(*stmt.test, *inner));
    if (IsTrue(test)) kept.push_back(std::move(item));
  }
  return kept;
}

Interp::FlowOr Interp::ExecFor(const Stmt& stmt, Scope& scope, Text& out) {
  PENSTOCK_ASSIGN_OR_RETURN(const Value iterable, Eval(*stmt.expr, scope));
  line_ = stmt.line;
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<Value> items, LoopItems(stmt, iterable, scope));
  return RunLoop(stmt, std::move(items), scope, 0, out);
}

Interp::FlowOr Interp::RunLoop(const Stmt& stmt, std::vector<Value> items, Scope& scope, int depth0, Text& out) {
  PENSTOCK_RETURN_IF_ERROR(Charge(kCaptureSteps));
  loops_.push_back(std::make_unique<LoopState>());
  LoopState& loop = *loops_.back();
  loop.items = std::move(items);
  loop.depth0 = depth0;
  loop.stmt = &stmt;
  loop.scope = &scope;
  FlowOr result = Flow::kNormal;
  bool use_otherwise = true;  // Jinja runs `else` unless a round of the loop ran to its end
  for (; loop.index0 < loop.items.size(); ++loop.index0) {
    if (absl::Status status = Charge(kRoundSteps); !status.ok()) {
      result = status;
      break;
    }
    const ScopeHolder inner(*this, &scope);
    inner->Set("loop", Value::Of(&loop));
    line_ = stmt.line;
    if (absl::Status status = Assign(*stmt.target, loop.items[loop.index0], *inner); !status.ok()) {
      result = status;
      break;
    }
    result = Exec(stmt.body, *inner, out);
    if (!result.ok() || *result == Flow::kBreak) break;
    use_otherwise &= *result == Flow::kContinue;
  }
  loop.scope = nullptr;
  loop.items.clear();
  loop.items.shrink_to_fit();
  loop.last_changed.reset();
  if (!result.ok() || !use_otherwise) return result.ok() ? FlowOr(Flow::kNormal) : result;
  const ScopeHolder inner(*this, &scope);
  return Exec(stmt.otherwise, *inner, out);
}

// Runs `loop(items)`: the body of a recursive loop over other items.
Result Interp::CallLoop(LoopState& loop, const Args& args) {
  if (loop.scope == nullptr || !loop.stmt->recursive) return Fail("only a loop that is marked recursive can be called");
  if (args.positional.size() != 1 || !args.named.empty()) return Fail("loop() needs one argument, the items");
  if (macro_depth_ >= limits_.max_depth) return Fail("a loop calls itself more than {} levels deep", limits_.max_depth);
  ++macro_depth_;
  const int line = line_;
  Text text;
  absl::Status status;
  {
    absl::StatusOr<std::vector<Value>> items = LoopItems(*loop.stmt, args.positional[0], *loop.scope);
    status = items.status();
    if (status.ok()) status = RunLoop(*loop.stmt, *std::move(items), *loop.scope, loop.depth0 + 1, text).status();
  }
  --macro_depth_;
  if (!status.ok()) return status;
  line_ = line;
  return MakeString(std::move(text));
}

Interp::FlowOr Interp::ExecSetBlock(const Stmt& stmt, Scope& scope) {
  Text text;
  {
    const ScopeHolder inner(*this, &scope);
    PENSTOCK_ASSIGN_OR_RETURN(const Flow flow, Exec(stmt.body, *inner, text));
    if (flow != Flow::kNormal) return flow;
  }
  PENSTOCK_ASSIGN_OR_RETURN(Value value, MakeString(std::move(text)));
  if (stmt.expr != nullptr) {
    PENSTOCK_ASSIGN_OR_RETURN(value, EvalFilter(*stmt.expr, scope, &value));
  }
  PENSTOCK_RETURN_IF_ERROR(Assign(*stmt.target, std::move(value), scope));
  return Flow::kNormal;
}

Interp::FlowOr Interp::ExecCallBlock(const Stmt& stmt, Scope& scope, Text& out) {
  PENSTOCK_ASSIGN_OR_RETURN(const Value callee, Eval(*stmt.expr->children[0], scope));
  Args args;
  PENSTOCK_RETURN_IF_ERROR(EvalArgs(*stmt.expr, scope, args));
  PENSTOCK_RETURN_IF_ERROR(Charge(kCaptureSteps));
  scope.Capture();
  args.named.emplace_back("caller", MacroValue(stmt, scope));
  PENSTOCK_ASSIGN_OR_RETURN(const Value value, Call(callee, std::move(args)));
  PENSTOCK_ASSIGN_OR_RETURN(const Text text, ToText(value));
  PENSTOCK_RETURN_IF_ERROR(AppendOutput(text, out));
  return Flow::kNormal;
}

Interp::FlowOr Interp::ExecFilterBlock(const Stmt& stmt, Scope& scope, Text& out) {
  Text text;
  const ScopeHolder inner(*this, &scope);
  PENSTOCK_ASSIGN_OR_RETURN(const Flow flow, Exec(stmt.body, *inner, text));
  if (flow != Flow::kNormal) return flow;
  PENSTOCK_ASSIGN_OR_RETURN(Value value, MakeString(std::move(text)));
  PENSTOCK_ASSIGN_OR_RETURN(value, EvalFilter(*stmt.expr, *inner, &value));
  PENSTOCK_ASSIGN_OR_RETURN(const Text filtered, ToText(value));
  PENSTOCK_RETURN_IF_ERROR(AppendOutput(filtered, out));
  return Flow::kNormal;
}

Interp::FlowOr Interp::ExecWith(const Stmt& stmt, Scope& scope, Text& out) {
  const ScopeHolder inner(*this, &scope);
  for (size_t i = 0; i < stmt.targets.size(); ++i) {
    PENSTOCK_ASSIGN_OR_RETURN(Value value, Eval(*stmt.tests[i], scope));
    PENSTOCK_RETURN_IF_ERROR(Assign(*stmt.targets[i], std::move(value), *inner));
  }
  return Exec(stmt.body, *inner, out);
}

// NOLINTNEXTLINE(misc-no-recursion): as deep as the tuple in the source, which the parser bounds.
absl::Status Interp::Assign(const Expr& target, Value value, Scope& scope) {
  if (target.kind == ExprKind::kName) {
    scope.Set(target.name, std::move(value));
    return absl::OkStatus();
  }
  if (target.kind == ExprKind::kAttrRef) {
    const Value* object = scope.Find(target.name);
    if (object == nullptr || !object->Is(Kind::kObject) || object->object().type != Object::Type::kNamespace) {
      return Fail("only a namespace can have its attributes set; '{}' is not one", target.name);
    }
    if (target.op.starts_with('_')) return Fail("an attribute of a namespace cannot start with '_'");
    Object& attributes = object->object();
    PENSTOCK_RETURN_IF_ERROR(Charge(static_cast<int64_t>(attributes.attributes.size())));
    if (Value* old = attributes.Find(target.op); old != nullptr) {
      *old = std::move(value);
    } else {
      attributes.attributes.emplace_back(target.op, std::move(value));
    }
    return absl::OkStatus();
  }
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<Value> items, Iterate(value));
  if (items.size() != target.children.size()) {
    return Fail("{} values cannot be assigned to {} names", items.size(), target.children.size());
  }
  for (size_t i = 0; i < items.size(); ++i) {
    PENSTOCK_RETURN_IF_ERROR(Assign(*target.children[i], std::move(items[i]), scope));
  }
  return absl::OkStatus();
}

// Gives every parameter its argument, its default, or undefined. The remaining arguments become varargs and kwargs if
// the macro uses them.
absl::Status Interp::BindMacro(const Stmt& macro, Args& args, Scope& scope) {
  const size_t num_params = macro.params.size();
  const size_t num_required = num_params - macro.defaults.size();
  std::vector<Value> varargs;
  std::vector<bool> given(num_params, false);
  for (size_t i = 0; i < args.positional.size(); ++i) {
    if (i < num_params) {
      scope.Set(macro.params[i], std::move(args.positional[i]));
      given[i] = true;
    } else if (macro.uses_varargs) {
      varargs.push_back(std::move(args.positional[i]));
    } else {
      return Fail("the macro '{}' takes {} arguments, found {}", macro.name, num_params, args.positional.size());
    }
  }
  std::vector<std::pair<Value, Value>> kwargs;
  Value caller = Value::Undefined("no caller is defined");
  for (auto& [name, value] : args.named) {
    const auto place = std::find(macro.params.begin(), macro.params.end(), name);
    if (place != macro.params.end()) {
      const size_t i = place - macro.params.begin();
      if (given[i]) return Fail("the macro '{}' got its argument '{}' twice", macro.name, name);
      scope.Set(name, std::move(value));
      given[i] = true;
    } else if (name == "caller" && macro.uses_caller) {
      caller = std::move(value);
    } else if (macro.uses_kwargs) {
      kwargs.emplace_back(Value::String(name), std::move(value));
    } else {
      return Fail("the macro '{}' has no parameter '{}'", macro.name, name);
    }
  }
  for (size_t i = 0; i < num_params; ++i) {
    if (given[i]) continue;
    Value value = Value::Undefined(fmt::format("parameter '{}' was not provided", macro.params[i]));
    if (i >= num_required) {
      PENSTOCK_ASSIGN_OR_RETURN(value, Eval(*macro.defaults[i - num_required], scope));
    }
    scope.Set(macro.params[i], std::move(value));
  }
  if (macro.uses_caller && std::find(macro.params.begin(), macro.params.end(), "caller") == macro.params.end()) {
    scope.Set("caller", std::move(caller));
  }
  if (macro.uses_varargs) {
    PENSTOCK_ASSIGN_OR_RETURN(Value list, MakeTuple(std::move(varargs)));
    scope.Set("varargs", std::move(list));
  }
  if (macro.uses_kwargs) {
    PENSTOCK_ASSIGN_OR_RETURN(Value dict, MakeDict(std::move(kwargs)));
    scope.Set("kwargs", std::move(dict));
  }
  return absl::OkStatus();
}

Result Interp::CallMacro(const Callable& callable, Args args) {
  if (macro_depth_ >= limits_.max_depth) {
    return Fail("macros call each other more than {} levels deep", limits_.max_depth);
  }
  ++macro_depth_;
  const int line = line_;
  Text text;
  absl::Status status;
  {
    const ScopeHolder inner(*this, callable.scope);
    status = BindMacro(*callable.macro, args, *inner);
    if (status.ok()) status = Exec(callable.macro->body, *inner, text).status();
  }
  --macro_depth_;
  if (!status.ok()) return status;
  line_ = line;
  return MakeString(std::move(text));
}

}  // namespace penstock::jinja
