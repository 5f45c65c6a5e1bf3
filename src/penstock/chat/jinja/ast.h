// The syntax tree of a parsed template.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "penstock/chat/jinja/value.h"

namespace penstock::jinja {

enum class ExprKind : uint8_t {
  kConst,    // constant
  kName,     // name
  kAttrRef,  // name.attribute as an assignment target: name, attribute in `op`
  kTuple,    // children
  kList,     // children
  kDict,     // key, value, key, value ...
  kGetAttr,  // children[0] . name
  kGetItem,  // children[0] [ children[1] ]
  kSlice,    // start, stop, step; each may be null
  kCall,     // children[0] ( children[1..] with arg_names )
  kFilter,   // children[0] | name ( children[1..] ); children[0] is null in a filter block
  kTest,     // children[0] is name ( children[1..] )
  kNot,
  kNegate,
  kPlus,
  kAnd,
  kOr,
  kBinary,   // children[0] op children[1]
  kConcat,   // children joined as text
  kCompare,  // children[0] ops[0] children[1] ops[1] ...
  kCond,     // children: test, then, else (may be null)
};

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Expr {
  ExprKind kind = ExprKind::kConst;
  int line = 0;
  int depth = 1;  // depth of the tree below
  std::string name;
  std::string op;
  Value constant;
  std::vector<ExprPtr> children;
  std::vector<std::string> names;  // kCall, kFilter, kTest: "" positional, "*", "**" or a keyword; kCompare: operators
};

enum class StmtKind : uint8_t {
  kData,         // constant
  kOutput,       // expr
  kIf,           // tests[i] -> bodies[i], else `otherwise`
  kFor,          // target, expr, test (may be null), body, otherwise, recursive
  kSet,          // target = expr
  kSetBlock,     // target = text of body, after the filters in `expr` (may be null)
  kMacro,        // name, params, defaults, body
  kCallBlock,    // expr (a call), params, defaults, body
  kFilterBlock,  // expr (filters with an empty input), body
  kWith,         // targets[i] = tests[i], body
  kScope,        // body in its own scope
  kBlock,        // body, which sees only variables of the top level unless `scoped`
  kBreak,
  kContinue,
};

struct Stmt;
using Body = std::vector<std::unique_ptr<Stmt>>;

struct Stmt {
  StmtKind kind = StmtKind::kData;
  int line = 0;
  std::string name;
  Value constant;
  ExprPtr target;
  ExprPtr expr;
  ExprPtr test;
  std::vector<ExprPtr> targets;
  std::vector<ExprPtr> tests;
  std::vector<Body> bodies;
  Body body;
  Body otherwise;
  std::vector<std::string> params;
  std::vector<ExprPtr> defaults;  // for the last params
  bool recursive = false;
  bool scoped = false;
  bool uses_caller = false;  // kMacro: the names `caller`, `varargs`, `kwargs` occur in the body
  bool uses_varargs = false;
  bool uses_kwargs = false;
};

}  // namespace penstock::jinja
