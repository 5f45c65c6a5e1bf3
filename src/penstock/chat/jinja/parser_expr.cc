#include "penstock/chat/jinja/builtins.h"
#include "penstock/chat/jinja/parser_internal.h"

namespace penstock::jinja {

Parser::ExprOr Parser::Node(ExprKind kind, int line, std::vector<ExprPtr> children) const {
  auto node = std::make_unique<Expr>();
  node->kind = kind;
  node->line = line;
  for (const ExprPtr& child : children) {
    if (child != nullptr) node->depth = std::max(node->depth, child->depth + 1);
  }
  node->children = std::move(children);
  if (node->depth > kMaxExprDepth) {
    return Fail(line, "an expression has more than {} levels of operators", kMaxExprDepth);
  }
  return node;
}

Parser::ExprOr Parser::ParseExpression(Conditional conditional) {
  const Nesting nesting(*this);
  if (nesting.too_deep()) return TooDeep();
  if (conditional == Conditional::kNo) return ParseOr();
  PENSTOCK_ASSIGN_OR_RETURN(ExprPtr then, ParseOr());
  while (IsName("if")) {
    const int line = Peek().line;
    Skip();
    ++conditional_nesting_;
    PENSTOCK_ASSIGN_OR_RETURN(ExprPtr test, ParseOr());
    ExprPtr otherwise;
    if (TakeName("else")) {
      PENSTOCK_ASSIGN_OR_RETURN(otherwise, ParseExpression());
    }
    --conditional_nesting_;
    PENSTOCK_ASSIGN_OR_RETURN(then,
                              NodeOf(ExprKind::kCond, line, std::move(test), std::move(then), std::move(otherwise)));
  }
  return then;
}

Parser::ExprOr Parser::ParseOr() {
  PENSTOCK_ASSIGN_OR_RETURN(ExprPtr left, ParseAnd());
  while (IsName("or")) {
    const int line = Peek().line;
    Skip();
    PENSTOCK_ASSIGN_OR_RETURN(ExprPtr right, ParseAnd());
    PENSTOCK_ASSIGN_OR_RETURN(left, NodeOf(ExprKind::kOr, line, std::move(left), std::move(right)));
  }
  return left;
}

Parser::ExprOr Parser::ParseAnd() {
  PENSTOCK_ASSIGN_OR_RETURN(ExprPtr left, ParseNot());
  while (IsName("and")) {
    const int line = Peek().line;
    Skip();
    PENSTOCK_ASSIGN_OR_RETURN(ExprPtr right, ParseNot());
    PENSTOCK_ASSIGN_OR_RETURN(left, NodeOf(ExprKind::kAnd, line, std::move(left), std::move(right)));
  }
  return left;
}

Parser::ExprOr Parser::ParseNot() {
  if (!IsName("not")) return ParseCompare();
  const Nesting nesting(*this);
  if (nesting.too_deep()) return TooDeep();
  const int line = Peek().line;
  Skip();
  PENSTOCK_ASSIGN_OR_RETURN(ExprPtr operand, ParseNot());
  return NodeOf(ExprKind::kNot, line, std::move(operand));
}

Parser::ExprOr Parser::ParseCompare() {
  PENSTOCK_ASSIGN_OR_RETURN(ExprPtr first, ParseSum());
  const int line = Peek().line;
  std::vector<ExprPtr> operands;
  std::vector<std::string> operators;
  operands.push_back(std::move(first));
  while (true) {
    if (IsOp("==") || IsOp("!=") || IsOp("<") || IsOp("<=") || IsOp(">") || IsOp(">=") || IsName("in")) {
      operators.push_back(Peek().text);
      Skip();
    } else if (IsName("not") && IsName("in", 1)) {
      operators.emplace_back("not in");
      Skip();
      Skip();
    } else {
      break;
    }
    PENSTOCK_ASSIGN_OR_RETURN(ExprPtr operand, ParseSum());
    operands.push_back(std::move(operand));
  }
  if (operators.empty()) return std::move(operands[0]);
  PENSTOCK_ASSIGN_OR_RETURN(ExprPtr node, Node(ExprKind::kCompare, line, std::move(operands)));
  node->names = std::move(operators);
  return node;
}

Parser::ExprOr Parser::ParseSum() {
  PENSTOCK_ASSIGN_OR_RETURN(ExprPtr left, ParseConcat());
  while (IsOp("+") || IsOp("-")) {
    const Token op = Peek();
    Skip();
    PENSTOCK_ASSIGN_OR_RETURN(ExprPtr right, ParseConcat());
    PENSTOCK_ASSIGN_OR_RETURN(left, NodeOf(ExprKind::kBinary, op.line, std::move(left), std::move(right)));
    left->op = op.text;
  }
  return left;
}

Parser::ExprOr Parser::ParseConcat() {
  PENSTOCK_ASSIGN_OR_RETURN(ExprPtr first, ParseProduct());
  if (!IsOp("~")) return first;
  const int line = Peek().line;
  std::vector<ExprPtr> parts;
  parts.push_back(std::move(first));
  while (TakeOp("~")) {
    PENSTOCK_ASSIGN_OR_RETURN(ExprPtr part, ParseProduct());
    parts.push_back(std::move(part));
  }
  return Node(ExprKind::kConcat, line, std::move(parts));
}

Parser::ExprOr Parser::ParseProduct() {
  PENSTOCK_ASSIGN_OR_RETURN(ExprPtr left, ParsePower());
  while (IsOp("*") || IsOp("/") || IsOp("//") || IsOp("%")) {
    const Token op = Peek();
    Skip();
    PENSTOCK_ASSIGN_OR_RETURN(ExprPtr right, ParsePower());
    PENSTOCK_ASSIGN_OR_RETURN(left, NodeOf(ExprKind::kBinary, op.line, std::move(left), std::move(right)));
    left->op = op.text;
  }
  return left;
}

// Jinja's power operator associates to the left, unlike Python's.
Parser::ExprOr Parser::ParsePower() {
  PENSTOCK_ASSIGN_OR_RETURN(ExprPtr left, ParseUnary(true));
  while (IsOp("**")) {
    const int line = Peek().line;
    Skip();
    PENSTOCK_ASSIGN_OR_RETURN(ExprPtr right, ParseUnary(true));
    PENSTOCK_ASSIGN_OR_RETURN(left, NodeOf(ExprKind::kBinary, line, std::move(left), std::move(right)));
    left->op = "**";
  }
  return left;
}

Parser::ExprOr Parser::ParseUnary(bool with_filter) {
  ExprPtr node;
  if (IsOp("-") || IsOp("+")) {
    const Nesting nesting(*this);
    if (nesting.too_deep()) return TooDeep();
    const Token op = Peek();
    Skip();
    PENSTOCK_ASSIGN_OR_RETURN(ExprPtr operand, ParseUnary(false));
    PENSTOCK_ASSIGN_OR_RETURN(
        node, NodeOf(op.text == "-" ? ExprKind::kNegate : ExprKind::kPlus, op.line, std::move(operand)));
  } else {
    PENSTOCK_ASSIGN_OR_RETURN(node, ParsePrimary());
  }
  PENSTOCK_ASSIGN_OR_RETURN(node, ParsePostfix(std::move(node)));
  if (!with_filter) return node;
  return ParseFilters(std::move(node));
}

Parser::ExprOr Parser::ParsePrimaryName(bool with_attr_ref) {
  const Token token = Peek();
  Skip();
  PENSTOCK_ASSIGN_OR_RETURN(ExprPtr node, NodeOf(ExprKind::kConst, token.line));
  if (token.text == "true" || token.text == "True" || token.text == "false" || token.text == "False") {
    node->constant = Value::Bool((token.text[0] | 0x20) == 't');
  } else if (token.text == "none" || token.text == "None") {
    node->constant = Value::None();
  } else if (with_attr_ref && IsOp(".")) {
    Skip();
    node->kind = ExprKind::kAttrRef;
    node->name = token.text;
    PENSTOCK_ASSIGN_OR_RETURN(node->op, TakeIdentifier("an attribute's name"));
  } else {
    node->kind = ExprKind::kName;
    node->name = token.text;
    saw_caller_ |= token.text == "caller";
    saw_varargs_ |= token.text == "varargs";
    saw_kwargs_ |= token.text == "kwargs";
  }
  return node;
}

Parser::ExprOr Parser::ParsePrimary(bool with_attr_ref) {
  const int line = Peek().line;
  switch (Peek().kind) {
    case TokenKind::kName: return ParsePrimaryName(with_attr_ref);
    case TokenKind::kString: {
      std::string text;
      for (; Peek().kind == TokenKind::kString; Skip()) text += Peek().text;
      PENSTOCK_ASSIGN_OR_RETURN(ExprPtr node, NodeOf(ExprKind::kConst, line));
      node->constant = Value::String(text);
      return node;
    }
    case TokenKind::kInteger:
    case TokenKind::kFloat: {
      PENSTOCK_ASSIGN_OR_RETURN(ExprPtr node, NodeOf(ExprKind::kConst, line));
      node->constant = Peek().kind == TokenKind::kInteger ? Value::Int(Peek().integer) : Value::Float(Peek().number);
      Skip();
      return node;
    }
    default: break;
  }
  if (TakeOp("(")) {
    PENSTOCK_ASSIGN_OR_RETURN(ExprPtr node, ParseTuple(Conditional::kYes, true));
    PENSTOCK_RETURN_IF_ERROR(ExpectOp(")"));
    return node;
  }
  if (IsOp("[")) return ParseListLiteral();
  if (IsOp("{")) return ParseDictLiteral();
  return Unexpected("an expression");
}

Parser::ExprOr Parser::ParseListLiteral() {
  const int line = Peek().line;
  PENSTOCK_RETURN_IF_ERROR(ExpectOp("["));
  std::vector<ExprPtr> items;
  while (!IsOp("]")) {
    if (!items.empty()) {
      PENSTOCK_RETURN_IF_ERROR(ExpectOp(","));
      if (IsOp("]")) break;
    }
    PENSTOCK_ASSIGN_OR_RETURN(ExprPtr item, ParseExpression());
    items.push_back(std::move(item));
  }
  Skip();
  return Node(ExprKind::kList, line, std::move(items));
}

Parser::ExprOr Parser::ParseDictLiteral() {
  const int line = Peek().line;
  PENSTOCK_RETURN_IF_ERROR(ExpectOp("{"));
  std::vector<ExprPtr> items;
  while (!IsOp("}")) {
    if (!items.empty()) {
      PENSTOCK_RETURN_IF_ERROR(ExpectOp(","));
      if (IsOp("}")) break;
    }
    PENSTOCK_ASSIGN_OR_RETURN(ExprPtr key, ParseExpression());
    PENSTOCK_RETURN_IF_ERROR(ExpectOp(":"));
    PENSTOCK_ASSIGN_OR_RETURN(ExprPtr value, ParseExpression());
    items.push_back(std::move(key));
    items.push_back(std::move(value));
  }
  Skip();
  return Node(ExprKind::kDict, line, std::move(items));
}

Parser::ExprOr Parser::ParsePostfix(ExprPtr node) {
  while (true) {
    if (IsOp(".") || IsOp("[")) {
      PENSTOCK_ASSIGN_OR_RETURN(node, ParseSubscript(std::move(node)));
    } else if (IsOp("(")) {
      PENSTOCK_ASSIGN_OR_RETURN(node, ParseCallArgs(ExprKind::kCall, Peek().line, std::move(node)));
    } else {
      return node;
    }
  }
}

Parser::ExprOr Parser::ParseFilters(ExprPtr node) {
  while (true) {
    if (TakeOp("|")) {
      PENSTOCK_ASSIGN_OR_RETURN(node, ParseOneFilter(std::move(node)));
    } else if (IsName("is")) {
      PENSTOCK_ASSIGN_OR_RETURN(node, ParseTest(std::move(node)));
    } else if (IsOp("(")) {
      PENSTOCK_ASSIGN_OR_RETURN(node, ParseCallArgs(ExprKind::kCall, Peek().line, std::move(node)));
    } else {
      return node;
    }
  }
}

Parser::ExprOr Parser::ParseSubscript(ExprPtr node) {
  const int line = Peek().line;
  if (TakeOp(".")) {
    if (Peek().kind == TokenKind::kInteger) {
      PENSTOCK_ASSIGN_OR_RETURN(ExprPtr index, NodeOf(ExprKind::kConst, line));
      index->constant = Value::Int(Peek().integer);
      Skip();
      return NodeOf(ExprKind::kGetItem, line, std::move(node), std::move(index));
    }
    PENSTOCK_ASSIGN_OR_RETURN(std::string name, TakeIdentifier("an attribute's name"));
    PENSTOCK_ASSIGN_OR_RETURN(ExprPtr get, NodeOf(ExprKind::kGetAttr, line, std::move(node)));
    get->name = std::move(name);
    return get;
  }
  PENSTOCK_RETURN_IF_ERROR(ExpectOp("["));
  std::vector<ExprPtr> args;
  while (!IsOp("]")) {
    if (!args.empty()) PENSTOCK_RETURN_IF_ERROR(ExpectOp(","));
    PENSTOCK_ASSIGN_OR_RETURN(ExprPtr arg, ParseSubscribed());
    args.push_back(std::move(arg));
  }
  Skip();
  if (args.size() == 1) return NodeOf(ExprKind::kGetItem, line, std::move(node), std::move(args[0]));
  PENSTOCK_ASSIGN_OR_RETURN(ExprPtr tuple, Node(ExprKind::kTuple, line, std::move(args)));
  return NodeOf(ExprKind::kGetItem, line, std::move(node), std::move(tuple));
}

Parser::ExprOr Parser::ParseSubscribed() {
  const int line = Peek().line;
  ExprPtr parts[3];
  if (!IsOp(":")) {
    PENSTOCK_ASSIGN_OR_RETURN(parts[0], ParseExpression());
    if (!IsOp(":")) return std::move(parts[0]);
  }
  for (int i = 1; i < 3 && TakeOp(":"); ++i) {
    if (IsOp(":") || IsOp("]") || IsOp(",")) continue;
    PENSTOCK_ASSIGN_OR_RETURN(parts[i], ParseExpression());
  }
  return NodeOf(ExprKind::kSlice, line, std::move(parts[0]), std::move(parts[1]), std::move(parts[2]));
}

Parser::ExprOr Parser::ParseCallArgs(ExprKind kind, int line, ExprPtr callee) {
  PENSTOCK_RETURN_IF_ERROR(ExpectOp("("));
  std::vector<ExprPtr> children;
  std::vector<std::string> names;
  children.push_back(std::move(callee));
  bool only_keywords = false;
  while (!IsOp(")")) {
    if (!names.empty()) {
      PENSTOCK_RETURN_IF_ERROR(ExpectOp(","));
      if (IsOp(")")) break;
    }
    std::string name;
    if (TakeOp("*")) {
      name = "*";
    } else if (TakeOp("**")) {
      name = "**";
    } else if (Peek().kind == TokenKind::kName && IsOp("=", 1)) {
      name = Peek().text;
      Skip();
      Skip();
    }
    if (name.empty() && only_keywords) return Fail(Peek().line, "a positional argument follows a keyword argument");
    only_keywords |= !name.empty();
    PENSTOCK_ASSIGN_OR_RETURN(ExprPtr arg, ParseExpression());
    children.push_back(std::move(arg));
    names.push_back(std::move(name));
  }
  Skip();
  PENSTOCK_ASSIGN_OR_RETURN(ExprPtr node, Node(kind, line, std::move(children)));
  node->names = std::move(names);
  return node;
}

Parser::ExprOr Parser::ParseOneFilter(ExprPtr node) {
  const int line = Peek().line;
  PENSTOCK_ASSIGN_OR_RETURN(std::string name, TakeIdentifier("a filter's name"));
  if (conditional_nesting_ == 0 && !HasFilter(name)) return Fail(line, "there is no filter '{}'", name);
  ExprPtr filter;
  if (IsOp("(")) {
    PENSTOCK_ASSIGN_OR_RETURN(filter, ParseCallArgs(ExprKind::kFilter, line, std::move(node)));
  } else {
    PENSTOCK_ASSIGN_OR_RETURN(filter, NodeOf(ExprKind::kFilter, line, std::move(node)));
  }
  filter->name = std::move(name);
  return filter;
}

Parser::ExprOr Parser::ParseTest(ExprPtr node) {
  const int line = Peek().line;
  PENSTOCK_RETURN_IF_ERROR(ExpectName("is"));
  const bool negated = TakeName("not");
  PENSTOCK_ASSIGN_OR_RETURN(std::string name, TakeIdentifier("a test's name"));
  if (conditional_nesting_ == 0 && !HasTest(name)) return Fail(line, "there is no test '{}'", name);
  ExprPtr test;
  const TokenKind next = Peek().kind;
  if (IsOp("(")) {
    PENSTOCK_ASSIGN_OR_RETURN(test, ParseCallArgs(ExprKind::kTest, line, std::move(node)));
  } else if ((next == TokenKind::kName || next == TokenKind::kString || next == TokenKind::kInteger ||
              next == TokenKind::kFloat || IsOp("[") || IsOp("{")) &&
             !IsAnyName({"else", "or", "and"})) {
    if (IsName("is")) return Fail(line, "tests cannot be chained with 'is'");
    const Nesting nesting(*this);
    if (nesting.too_deep()) return TooDeep();
    PENSTOCK_ASSIGN_OR_RETURN(ExprPtr arg, ParsePrimary());
    PENSTOCK_ASSIGN_OR_RETURN(arg, ParsePostfix(std::move(arg)));
    PENSTOCK_ASSIGN_OR_RETURN(test, NodeOf(ExprKind::kTest, line, std::move(node), std::move(arg)));
    test->names.emplace_back();
  } else {
    PENSTOCK_ASSIGN_OR_RETURN(test, NodeOf(ExprKind::kTest, line, std::move(node)));
  }
  test->name = std::move(name);
  if (!negated) return test;
  return NodeOf(ExprKind::kNot, line, std::move(test));
}

Parser::ExprOr Parser::ParseTuple(Conditional conditional, bool parenthesized, std::string_view end_name) {
  const int line = Peek().line;
  std::vector<ExprPtr> items;
  bool is_tuple = false;
  while (true) {
    const TokenKind kind = Peek().kind;
    if (kind == TokenKind::kVariableEnd || kind == TokenKind::kBlockEnd || IsOp(")")) break;
    if (!end_name.empty() && IsName(end_name)) break;
    PENSTOCK_ASSIGN_OR_RETURN(ExprPtr item, ParseExpression(conditional));
    items.push_back(std::move(item));
    if (!TakeOp(",")) break;
    is_tuple = true;
  }
  if (!is_tuple) {
    if (!items.empty()) return std::move(items[0]);
    if (!parenthesized) return Unexpected("an expression");
  }
  return Node(ExprKind::kTuple, line, std::move(items));
}

Parser::ExprOr Parser::ParseTarget(bool with_attr_ref) {
  const int line = Peek().line;
  std::vector<ExprPtr> items;
  bool is_tuple = false;
  while (Peek().kind != TokenKind::kBlockEnd) {
    PENSTOCK_ASSIGN_OR_RETURN(ExprPtr item, ParsePrimary(with_attr_ref));
    PENSTOCK_RETURN_IF_ERROR(CheckTarget(*item));
    items.push_back(std::move(item));
    if (!TakeOp(",")) break;
    is_tuple = true;
  }
  if (items.empty()) return Unexpected("a name to assign to");
  if (!is_tuple) return std::move(items[0]);
  return Node(ExprKind::kTuple, line, std::move(items));
}

absl::Status Parser::CheckTarget(const Expr& target) const {
  if (target.kind == ExprKind::kName || target.kind == ExprKind::kAttrRef) return absl::OkStatus();
  if (target.kind != ExprKind::kTuple) return Fail(target.line, "only names can be assigned to");
  for (const ExprPtr& item : target.children) PENSTOCK_RETURN_IF_ERROR(CheckTarget(*item));
  return absl::OkStatus();
}

}  // namespace penstock::jinja
