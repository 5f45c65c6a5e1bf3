#include "penstock/chat/jinja/parser.h"

#include <algorithm>

#include "penstock/base/text.h"
#include "penstock/chat/jinja/parser_internal.h"

namespace penstock::jinja {

bool Parser::IsAnyName(std::initializer_list<std::string_view> names) const {
  return std::any_of(names.begin(), names.end(), [this](std::string_view name) { return IsName(name); });
}

bool Parser::TakeOp(std::string_view op) {
  if (!IsOp(op)) return false;
  Skip();
  return true;
}

bool Parser::TakeName(std::string_view name) {
  if (!IsName(name)) return false;
  Skip();
  return true;
}

absl::Status Parser::ExpectOp(std::string_view op) {
  if (TakeOp(op)) return absl::OkStatus();
  return Unexpected(fmt::format("'{}'", op));
}

absl::Status Parser::ExpectName(std::string_view name) {
  if (TakeName(name)) return absl::OkStatus();
  return Unexpected(fmt::format("'{}'", name));
}

absl::Status Parser::Expect(TokenKind kind, std::string_view what) {
  if (Peek().kind != kind) return Unexpected(what);
  Skip();
  return absl::OkStatus();
}

absl::StatusOr<std::string> Parser::TakeIdentifier(std::string_view what) {
  if (Peek().kind != TokenKind::kName) return Unexpected(what);
  std::string name = Peek().text;
  Skip();
  return name;
}

absl::Status Parser::Unexpected(std::string_view expected) const {
  return Fail(Peek().line, "expected {}, found {}", expected, Describe(Peek()));
}

absl::Status Parser::TooDeep() const {
  return Fail(Peek().line, "the template nests deeper than {} levels", kMaxTemplateDepth);
}

absl::StatusOr<Body> Parser::ParseAll() {
  Body body;
  PENSTOCK_RETURN_IF_ERROR(ParseUntil({}, body));
  return body;
}

// Parses up to a block that starts with one of `end_names`, and leaves that name as the next token. Without names it
// parses to the end.
absl::Status Parser::ParseUntil(std::initializer_list<std::string_view> end_names, Body& body) {
  while (Peek().kind != TokenKind::kEnd) {
    const Token& token = Peek();
    if (token.kind == TokenKind::kData) {
      auto data = std::make_unique<Stmt>();
      data->line = token.line;
      data->constant = Value::String(token.text);
      body.push_back(std::move(data));
      Skip();
      continue;
    }
    if (token.kind == TokenKind::kVariableBegin) {
      Skip();
      auto output = std::make_unique<Stmt>();
      output->kind = StmtKind::kOutput;
      output->line = Peek().line;
      PENSTOCK_ASSIGN_OR_RETURN(output->expr, ParseTuple(Conditional::kYes, false));
      PENSTOCK_RETURN_IF_ERROR(Expect(TokenKind::kVariableEnd, "'}}'"));
      body.push_back(std::move(output));
      continue;
    }
    PENSTOCK_RETURN_IF_ERROR(Expect(TokenKind::kBlockBegin, "a tag"));
    if (IsAnyName(end_names)) return absl::OkStatus();
    if (IsName("print")) {
      PENSTOCK_RETURN_IF_ERROR(ParseOutputs(body));
    } else {
      PENSTOCK_ASSIGN_OR_RETURN(std::unique_ptr<Stmt> stmt, ParseStatement());
      body.push_back(std::move(stmt));
    }
    PENSTOCK_RETURN_IF_ERROR(Expect(TokenKind::kBlockEnd, "'%}'"));
  }
  if (end_names.size() == 0) return absl::OkStatus();
  return Fail(Peek().line, "the template ends where '{}' was expected", *(end_names.end() - 1));
}

absl::Status Parser::ParseBlock(std::initializer_list<std::string_view> end_names, Body& body) {
  TakeOp(":");  // accepted for people who write Python
  PENSTOCK_RETURN_IF_ERROR(Expect(TokenKind::kBlockEnd, "'%}'"));
  return ParseUntil(end_names, body);
}

absl::Status Parser::ParseOutputs(Body& body) {
  Skip();
  while (true) {
    auto output = std::make_unique<Stmt>();
    output->kind = StmtKind::kOutput;
    output->line = Peek().line;
    PENSTOCK_ASSIGN_OR_RETURN(output->expr, ParseExpression());
    body.push_back(std::move(output));
    if (!TakeOp(",")) return absl::OkStatus();
  }
}

Parser::StmtOr Parser::ParseStatement() {
  const Nesting nesting(*this);
  if (nesting.too_deep()) return TooDeep();
  const Token token = Peek();
  if (token.kind != TokenKind::kName) return Unexpected("the name of a tag");
  Skip();
  StmtOr stmt = nullptr;
  if (token.text == "if") {
    stmt = ParseIf();
  } else if (token.text == "for") {
    stmt = ParseFor();
  } else if (token.text == "set") {
    stmt = ParseSet();
  } else if (token.text == "macro") {
    stmt = ParseMacro();
  } else if (token.text == "call") {
    stmt = ParseCallBlock();
  } else if (token.text == "filter") {
    stmt = ParseFilterBlock();
  } else if (token.text == "with") {
    stmt = ParseWith();
  } else if (token.text == "generation") {
    // In training, this marks what the assistant said; here it is only a scope.
    stmt = std::make_unique<Stmt>();
    (*stmt)->kind = StmtKind::kScope;
    const int loops = std::exchange(loop_nesting_, 0);
    PENSTOCK_RETURN_IF_ERROR(ParseBlock({"endgeneration"}, (*stmt)->body));
    loop_nesting_ = loops;
    Skip();
  } else if (token.text == "break" || token.text == "continue") {
    if (loop_nesting_ == 0) return Fail(token.line, "'{}' stands outside of a loop", token.text);
    stmt = std::make_unique<Stmt>();
    (*stmt)->kind = token.text == "break" ? StmtKind::kBreak : StmtKind::kContinue;
  } else if (token.text == "block") {
    stmt = ParseNamedBlock();
  } else if (token.text == "extends" || token.text == "include" || token.text == "import" || token.text == "from" ||
             token.text == "autoescape" || token.text == "do") {
    return Fail(token.line, "the tag '{}' is not implemented for chat templates", token.text);
  } else {
    return Fail(token.line, "unknown tag '{}'", token.text);
  }
  if (stmt.ok()) (*stmt)->line = token.line;
  return stmt;
}

Parser::StmtOr Parser::ParseIf() {
  auto stmt = std::make_unique<Stmt>();
  stmt->kind = StmtKind::kIf;
  ++conditional_nesting_;
  while (true) {
    PENSTOCK_ASSIGN_OR_RETURN(ExprPtr test, ParseTuple(Conditional::kNo, false));
    Body body;
    PENSTOCK_RETURN_IF_ERROR(ParseBlock({"elif", "else", "endif"}, body));
    stmt->tests.push_back(std::move(test));
    stmt->bodies.push_back(std::move(body));
    if (TakeName("elif")) continue;
    if (TakeName("else")) PENSTOCK_RETURN_IF_ERROR(ParseBlock({"endif"}, stmt->otherwise));
    Skip();  // endif
    --conditional_nesting_;
    return stmt;
  }
}

Parser::StmtOr Parser::ParseFor() {
  auto stmt = std::make_unique<Stmt>();
  stmt->kind = StmtKind::kFor;
  PENSTOCK_ASSIGN_OR_RETURN(stmt->target, ParseTarget(false));
  PENSTOCK_RETURN_IF_ERROR(ExpectName("in"));
  PENSTOCK_ASSIGN_OR_RETURN(stmt->expr, ParseTuple(Conditional::kNo, false, "recursive"));
  if (TakeName("if")) {
    PENSTOCK_ASSIGN_OR_RETURN(stmt->test, ParseExpression());
  }
  stmt->recursive = TakeName("recursive");
  ++loop_nesting_;
  PENSTOCK_RETURN_IF_ERROR(ParseBlock({"else", "endfor"}, stmt->body));
  --loop_nesting_;
  if (TakeName("else")) PENSTOCK_RETURN_IF_ERROR(ParseBlock({"endfor"}, stmt->otherwise));
  Skip();  // endfor
  return stmt;
}

Parser::StmtOr Parser::ParseSet() {
  auto stmt = std::make_unique<Stmt>();
  PENSTOCK_ASSIGN_OR_RETURN(stmt->target, ParseTarget(true));
  if (TakeOp("=")) {
    stmt->kind = StmtKind::kSet;
    PENSTOCK_ASSIGN_OR_RETURN(stmt->expr, ParseTuple(Conditional::kYes, false));
    return stmt;
  }
  stmt->kind = StmtKind::kSetBlock;
  while (TakeOp("|")) {
    PENSTOCK_ASSIGN_OR_RETURN(stmt->expr, ParseOneFilter(std::move(stmt->expr)));
  }
  PENSTOCK_RETURN_IF_ERROR(ParseBlock({"endset"}, stmt->body));
  Skip();
  return stmt;
}

absl::Status Parser::ParseSignature(Stmt& stmt) {
  PENSTOCK_RETURN_IF_ERROR(ExpectOp("("));
  while (!IsOp(")")) {
    if (!stmt.params.empty()) PENSTOCK_RETURN_IF_ERROR(ExpectOp(","));
    PENSTOCK_ASSIGN_OR_RETURN(std::string name, TakeIdentifier("a parameter's name"));
    if (std::find(stmt.params.begin(), stmt.params.end(), name) != stmt.params.end()) {
      return Fail(Peek().line, "the parameter '{}' is named twice", name);
    }
    stmt.params.push_back(std::move(name));
    if (stmt.params.size() > 100) return Fail(Peek().line, "a macro has more than 100 parameters");
    if (TakeOp("=")) {
      PENSTOCK_ASSIGN_OR_RETURN(ExprPtr value, ParseExpression());
      stmt.defaults.push_back(std::move(value));
    } else if (!stmt.defaults.empty()) {
      return Fail(Peek().line, "a parameter without a default follows one with a default");
    }
  }
  Skip();
  return absl::OkStatus();
}

absl::Status Parser::ParseMacroBody(std::string_view end_name, Stmt& stmt) {
  const int loops = std::exchange(loop_nesting_, 0);
  const bool outer_caller = std::exchange(saw_caller_, false);
  const bool outer_varargs = std::exchange(saw_varargs_, false);
  const bool outer_kwargs = std::exchange(saw_kwargs_, false);
  PENSTOCK_RETURN_IF_ERROR(ParseBlock({end_name}, stmt.body));
  Skip();
  stmt.uses_caller = std::exchange(saw_caller_, outer_caller);
  stmt.uses_varargs = std::exchange(saw_varargs_, outer_varargs);
  stmt.uses_kwargs = std::exchange(saw_kwargs_, outer_kwargs);
  loop_nesting_ = loops;
  return absl::OkStatus();
}

Parser::StmtOr Parser::ParseMacro() {
  auto stmt = std::make_unique<Stmt>();
  stmt->kind = StmtKind::kMacro;
  PENSTOCK_ASSIGN_OR_RETURN(stmt->name, TakeIdentifier("the macro's name"));
  PENSTOCK_RETURN_IF_ERROR(ParseSignature(*stmt));
  PENSTOCK_RETURN_IF_ERROR(ParseMacroBody("endmacro", *stmt));
  return stmt;
}

Parser::StmtOr Parser::ParseCallBlock() {
  auto stmt = std::make_unique<Stmt>();
  stmt->kind = StmtKind::kCallBlock;
  stmt->name = "caller";
  if (IsOp("(")) PENSTOCK_RETURN_IF_ERROR(ParseSignature(*stmt));
  PENSTOCK_ASSIGN_OR_RETURN(stmt->expr, ParseExpression());
  if (stmt->expr->kind != ExprKind::kCall) return Fail(stmt->expr->line, "a call block needs a call");
  PENSTOCK_RETURN_IF_ERROR(ParseMacroBody("endcall", *stmt));
  return stmt;
}

Parser::StmtOr Parser::ParseFilterBlock() {
  auto stmt = std::make_unique<Stmt>();
  stmt->kind = StmtKind::kFilterBlock;
  do {
    PENSTOCK_ASSIGN_OR_RETURN(stmt->expr, ParseOneFilter(std::move(stmt->expr)));
  } while (TakeOp("|"));
  PENSTOCK_RETURN_IF_ERROR(ParseBlock({"endfilter"}, stmt->body));
  Skip();
  return stmt;
}

Parser::StmtOr Parser::ParseNamedBlock() {
  auto stmt = std::make_unique<Stmt>();
  stmt->kind = StmtKind::kBlock;
  PENSTOCK_ASSIGN_OR_RETURN(stmt->name, TakeIdentifier("the block's name"));
  if (!block_names_.insert(stmt->name).second) return Fail(Peek().line, "the block '{}' is defined twice", stmt->name);
  stmt->scoped = TakeName("scoped");
  const int loops = std::exchange(loop_nesting_, 0);
  PENSTOCK_RETURN_IF_ERROR(ParseBlock({"endblock"}, stmt->body));
  loop_nesting_ = loops;
  Skip();
  TakeName(stmt->name);
  return stmt;
}

Parser::StmtOr Parser::ParseWith() {
  auto stmt = std::make_unique<Stmt>();
  stmt->kind = StmtKind::kWith;
  while (Peek().kind != TokenKind::kBlockEnd) {
    if (!stmt->targets.empty()) PENSTOCK_RETURN_IF_ERROR(ExpectOp(","));
    PENSTOCK_ASSIGN_OR_RETURN(ExprPtr target, ParsePrimary());
    PENSTOCK_RETURN_IF_ERROR(CheckTarget(*target));
    PENSTOCK_RETURN_IF_ERROR(ExpectOp("="));
    PENSTOCK_ASSIGN_OR_RETURN(ExprPtr value, ParseExpression());
    stmt->targets.push_back(std::move(target));
    stmt->tests.push_back(std::move(value));
  }
  PENSTOCK_RETURN_IF_ERROR(ParseBlock({"endwith"}, stmt->body));
  Skip();
  return stmt;
}

absl::StatusOr<Body> ParseTemplate(std::string_view source) {
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<Token> tokens, Tokenize(source));
  return Parser(std::move(tokens)).ParseAll();
}

}  // namespace penstock::jinja
