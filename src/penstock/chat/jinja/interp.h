// Runs a parsed template within limits. One interpreter renders once.
//
// Every piece of work is charged: one step for each node that is evaluated, for each element that is made or compared,
// and for each 32 bytes of text that is built. So the steps bound both time and memory, whatever a template does with
// its values.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "penstock/base/json.h"
#include "penstock/base/status.h"
#include "penstock/chat/chat_template.h"
#include "penstock/chat/jinja/ast.h"

namespace penstock::jinja {

using Result = absl::StatusOr<Value>;

// Arguments of a call.
struct Args {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// Variables by name, innermost first.
class Scope {
 public:
  explicit Scope(Scope* parent) : parent_(parent) {}

  const Value* Find(std::string_view name) const;
  void Set(std::string_view name, Value value) { variables_[std::string(name)] = std::move(value); }
  // Notes that a macro refers to this scope, which then lives until rendering ends.
  void Capture();
  bool captured() const { return captured_; }
  Scope* parent() const { return parent_; }

 private:
  Scope* parent_;
  bool captured_ = false;
  absl::flat_hash_map<std::string, Value> variables_;
};

class Interp {
 public:
  explicit Interp(const TemplateLimits& limits) : limits_(limits) {}
  Interp(const Interp&) = delete;
  Interp& operator=(const Interp&) = delete;

  // Renders `body` with the variables of both objects; trusted ones win.
  absl::StatusOr<Text> Render(const Body& body, const json::object& trusted, const json::object& untrusted);

  // Returns an error at the current line.
  template <typename... FormatArgs>
  absl::Status Fail(fmt::format_string<FormatArgs...> format, FormatArgs&&... args) const {
    return InputError("template line {}: {}", line_, fmt::format(format, std::forward<FormatArgs>(args)...));
  }
  absl::Status UndefinedError(const Value& value) const { return Fail("{}", value.UndefinedText()); }
  absl::Status Charge(int64_t steps);
  // Charges for making a dict's key from `value`.
  absl::Status ChargeKey(const Value& value);
  int64_t max_text_bytes() const { return limits_.max_output_bytes; }
  // Charges for the text built so far, and fails if it is too long.
  absl::Status CheckText(const Text& text);

  // Construction of values, within the limits.
  Result MakeString(Text text);
  Result MakeList(std::vector<Value> items, Origin origin = Origin::kTemplate);
  Result MakeTuple(std::vector<Value> items, Origin origin = Origin::kTemplate);
  Result MakeListAs(List list, Origin origin = Origin::kTemplate);
  // Makes an iterator that yields `items`, and then fails with `end` unless that is OK.
  Result MakeIterator(std::vector<Value> items, absl::Status end, Origin origin = Origin::kTemplate);
  // Later entries replace earlier ones with the same key.
  Result MakeDict(std::vector<std::pair<Value, Value>> entries, Origin origin = Origin::kTemplate);
  Object& MakeObject(Object::Type type);

  // Printing (print.cc), as Python's str() and repr() do.
  absl::Status AppendStr(const Value& value, Text& out);
  absl::Status AppendRepr(const Value& value, Text& out);
  absl::StatusOr<Text> ToText(const Value& value);

  // Operators (operators.cc).
  Result Binary(std::string_view op, const Value& left, const Value& right);
  absl::StatusOr<bool> Equal(const Value& left, const Value& right);
  // Compares by Python's `<`; fails for kinds that have no order.
  absl::StatusOr<bool> Less(const Value& left, const Value& right);
  absl::StatusOr<bool> Contains(const Value& item, const Value& container);
  Result GetAttr(const Value& base, std::string_view name);
  Result GetItem(const Value& base, const Value& key);
  // Returns the remaining items of an iterator without consuming them: some templates ask for the length of what Python
  // can only iterate over.
  Result RestOf(const Value& value);
  Result Slice(const Value& base, const Value& start, const Value& stop, const Value& step);
  absl::StatusOr<std::vector<Value>> Iterate(const Value& value);
  absl::StatusOr<int64_t> Length(const Value& value);

  // Calls.
  Result Call(const Value& callee, Args args);
  Result CallMethod(const Value& self, std::string_view name, Args& args);    // methods.cc
  Result CallFunction(std::string_view name, Args& args);                     // functions.cc
  Result CallObject(Object& object, Args& args);                              // functions.cc
  Result CallLoopMethod(LoopState& loop, std::string_view name, Args& args);  // functions.cc
  Result ApplyFilter(std::string_view name, Args args);                       // input first; builtins.cc
  absl::StatusOr<bool> ApplyTest(std::string_view name, Args args);           // input first; builtins.cc
  // The date that strftime_now() prints.
  std::string_view current_time() const { return current_time_; }

 private:
  enum class Flow : uint8_t { kNormal, kBreak, kContinue };
  using FlowOr = absl::StatusOr<Flow>;
  // One level of evaluation; it bounds the C++ stack.
  class Frame;
  // A scope that ends with the C++ block, unless a macro captured it.
  class ScopeHolder;

  // Conversion of values from outside (convert.cc).
  Result Convert(const json::value& value, Origin origin, int depth);
  Result ConvertMessages(const json::value& value);

  Result Eval(const Expr& expr, Scope& scope);
  Result EvalNode(const Expr& expr, Scope& scope);
  Result EvalName(const Expr& expr, Scope& scope);
  Result EvalItems(const Expr& expr, Scope& scope);
  Result EvalDict(const Expr& expr, Scope& scope);
  Result EvalGetItem(const Expr& expr, Scope& scope);
  Result EvalLogic(const Expr& expr, Scope& scope);
  Result EvalSign(const Expr& expr, Scope& scope);
  Result EvalConcat(const Expr& expr, Scope& scope);
  Result EvalCompare(const Expr& expr, Scope& scope);
  Result EvalFilter(const Expr& expr, Scope& scope, const Value* input);
  Result EvalBinary(const Expr& expr, Scope& scope);
  Result EvalTest(const Expr& expr, Scope& scope);
  Result EvalCall(const Expr& expr, Scope& scope);
  absl::Status EvalArgs(const Expr& expr, Scope& scope, Args& args);

  FlowOr Exec(const Body& body, Scope& scope, Text& out);
  FlowOr ExecStmt(const Stmt& stmt, Scope& scope, Text& out);
  FlowOr ExecIf(const Stmt& stmt, Scope& scope, Text& out);
  FlowOr ExecFor(const Stmt& stmt, Scope& scope, Text& out);
  FlowOr RunLoop(const Stmt& stmt, std::vector<Value> items, Scope& scope, int depth0, Text& out);
  FlowOr ExecSetBlock(const Stmt& stmt, Scope& scope);
  FlowOr ExecCallBlock(const Stmt& stmt, Scope& scope, Text& out);
  FlowOr ExecFilterBlock(const Stmt& stmt, Scope& scope, Text& out);
  FlowOr ExecWith(const Stmt& stmt, Scope& scope, Text& out);
  // Returns the items of `iterable` over which a for statement runs.
  absl::StatusOr<std::vector<Value>> LoopItems(const Stmt& stmt, const Value& iterable, Scope& scope);
  absl::Status Assign(const Expr& target, Value value, Scope& scope);
  absl::Status AppendOutput(const Text& text, Text& out);
  Result CallMacro(const Callable& callable, Args args);
  Result CallLoop(LoopState& loop, const Args& args);
  absl::Status BindMacro(const Stmt& macro, Args& args, Scope& scope);

  TemplateLimits limits_;
  int64_t steps_ = 0;
  int frames_ = 0;
  int macro_depth_ = 0;
  int line_ = 1;
  Scope* top_ = nullptr;
  std::string current_time_;
  std::vector<std::unique_ptr<Scope>> kept_scopes_;
  std::vector<std::unique_ptr<Object>> objects_;
  std::vector<std::unique_ptr<LoopState>> loops_;
};

}  // namespace penstock::jinja
