// The recursive-descent parser. parser_expr.cc has its expressions, parser.cc its statements.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "penstock/chat/jinja/ast.h"
#include "penstock/chat/jinja/lexer.h"

namespace penstock::jinja {

// Chains such as a + b + c ... nest to the left without nesting in the source, so the tree's depth has its own bound.
inline constexpr int kMaxExprDepth = 3 * kMaxTemplateDepth;

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  absl::StatusOr<Body> ParseAll();

 private:
  // One level of nesting in the source; fails beyond kMaxTemplateDepth.
  class Nesting {
   public:
    explicit Nesting(Parser& parser) : parser_(parser) { ++parser_.nesting_; }
    ~Nesting() { --parser_.nesting_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;
    bool too_deep() const { return parser_.nesting_ > kMaxTemplateDepth; }

   private:
    Parser& parser_;
  };
  enum class Conditional : uint8_t { kNo, kYes };
  using ExprOr = absl::StatusOr<ExprPtr>;
  using StmtOr = absl::StatusOr<std::unique_ptr<Stmt>>;

  const Token& Peek(size_t ahead = 0) const { return tokens_[std::min(pos_ + ahead, tokens_.size() - 1)]; }
  void Skip() { pos_ = std::min(pos_ + 1, tokens_.size() - 1); }
  bool IsOp(std::string_view op, size_t ahead = 0) const {
    return Peek(ahead).kind == TokenKind::kOperator && Peek(ahead).text == op;
  }
  bool IsName(std::string_view name, size_t ahead = 0) const {
    return Peek(ahead).kind == TokenKind::kName && Peek(ahead).text == name;
  }
  bool IsAnyName(std::initializer_list<std::string_view> names) const;
  bool TakeOp(std::string_view op);
  bool TakeName(std::string_view name);
  absl::Status ExpectOp(std::string_view op);
  absl::Status ExpectName(std::string_view name);
  absl::Status Expect(TokenKind kind, std::string_view what);
  absl::StatusOr<std::string> TakeIdentifier(std::string_view what);

  template <typename... Args>
  absl::Status Fail(int line, fmt::format_string<Args...> format, Args&&... args) const {
    return ModelError("template line {}: {}", line, fmt::format(format, std::forward<Args>(args)...));
  }
  absl::Status Unexpected(std::string_view expected) const;
  absl::Status TooDeep() const;

  // Makes a node over `children` (some may be null); fails if the tree becomes too deep.
  ExprOr Node(ExprKind kind, int line, std::vector<ExprPtr> children) const;
  template <typename... Children>
  ExprOr NodeOf(ExprKind kind, int line, Children... children) const {
    std::vector<ExprPtr> list;
    (list.push_back(std::move(children)), ...);
    return Node(kind, line, std::move(list));
  }

  // Expressions.
  ExprOr ParseExpression(Conditional conditional = Conditional::kYes);
  ExprOr ParseOr();
  ExprOr ParseAnd();
  ExprOr ParseNot();
  ExprOr ParseCompare();
  ExprOr ParseSum();
  ExprOr ParseConcat();
  ExprOr ParseProduct();
  ExprOr ParsePower();
  ExprOr ParseUnary(bool with_filter);
  ExprOr ParsePrimary(bool with_attr_ref = false);
  ExprOr ParsePrimaryName(bool with_attr_ref);
  ExprOr ParseListLiteral();
  ExprOr ParseDictLiteral();
  ExprOr ParsePostfix(ExprPtr node);
  ExprOr ParseFilters(ExprPtr node);
  ExprOr ParseSubscript(ExprPtr node);
  ExprOr ParseSubscribed();
  ExprOr ParseCallArgs(ExprKind kind, int line, ExprPtr callee);
  ExprOr ParseOneFilter(ExprPtr node);
  ExprOr ParseTest(ExprPtr node);
  // Parses comma-separated expressions up to `}}`, `%}`, `)` or the name `end_name`. One expression without a comma is
  // no tuple.
  ExprOr ParseTuple(Conditional conditional, bool parenthesized, std::string_view end_name = {});
  // Parses a name, a name.attribute (if allowed) or a tuple of them.
  ExprOr ParseTarget(bool with_attr_ref);
  absl::Status CheckTarget(const Expr& target) const;

  // Statements.
  absl::Status ParseUntil(std::initializer_list<std::string_view> end_names, Body& body);
  absl::Status ParseBlock(std::initializer_list<std::string_view> end_names, Body& body);
  StmtOr ParseStatement();
  StmtOr ParseIf();
  StmtOr ParseFor();
  StmtOr ParseSet();
  StmtOr ParseMacro();
  StmtOr ParseCallBlock();
  StmtOr ParseFilterBlock();
  StmtOr ParseNamedBlock();
  StmtOr ParseWith();
  absl::Status ParseSignature(Stmt& stmt);
  absl::Status ParseOutputs(Body& body);
  absl::Status ParseMacroBody(std::string_view end_name, Stmt& stmt);

  std::vector<Token> tokens_;
  size_t pos_ = 0;
  int nesting_ = 0;
  int loop_nesting_ = 0;
  int conditional_nesting_ = 0;  // > 0: an unknown filter is an error only when it runs, as in Jinja
  absl::flat_hash_set<std::string> block_names_;
  bool saw_caller_ = false;
  bool saw_varargs_ = false;
  bool saw_kwargs_ = false;
};

}  // namespace penstock::jinja
