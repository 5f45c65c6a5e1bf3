// A grammar: rules, each of which is an expression over bytes that may refer to rules. Formats (JSON Schema, regular
// expressions, GBNF) are translated into a grammar, and Compile() (automaton.h) makes an automaton of it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "penstock/grammar/code_set.h"
#include "penstock/grammar/finite_automaton.h"

namespace penstock::grammar {

using ExprId = int32_t;
using RuleId = int32_t;

inline constexpr int32_t kUnbounded = INT32_MAX;

// How a code point is spelled in bytes.
enum class Spelling : uint8_t {
  kUtf8,
  kJson,        // inside a JSON string: UTF-8, with the escapes that JSON demands and no others
  kTaggedJson,  // the same with an escape for "<", so that no tag can end the text
};

// A member of an object.
struct Member {
  ExprId expr = 0;
  bool is_required = false;
};

struct Expr {
  enum class Kind : uint8_t {
    kNever,     // matches nothing
    kText,      // `text`
    kSet,       // a code point of `set`
    kSequence,  // `parts`, one after the other; without parts: the empty text
    kChoice,    // one of `parts`
    kRepeat,    // `parts[0]`, from `min` to `max` times
    kRule,      // a text of `rule`
    kMembers,   // `members` in order with parts[0] between two of them, then from `min` to `max` times parts[1]
    kDfa,       // a text of code points that `dfa` accepts
  };
  Kind kind = Kind::kNever;
  Spelling spelling = Spelling::kUtf8;
  int32_t min = 0;
  int32_t max = 0;
  RuleId rule = 0;
  std::vector<ExprId> parts = {};
  std::vector<Member> members = {};
  std::string text = {};
  CodeSet set = {};
  Dfa dfa = {};
};

struct Rule {
  std::string name;
  ExprId expr = -1;        // -1: not defined yet
  bool is_shared = false;  // never becomes a part of the rules that refer to it
};

class Grammar {
 public:
  ExprId Never() { return Add({.kind = Expr::Kind::kNever}); }
  ExprId Empty() { return Sequence({}); }
  ExprId Text(std::string_view text) { return Add({.kind = Expr::Kind::kText, .text = std::string(text)}); }
  ExprId Set(CodeSet set, Spelling spelling);
  ExprId Sequence(std::vector<ExprId> parts);
  ExprId Choice(std::vector<ExprId> parts);
  ExprId Repeat(ExprId part, int32_t min, int32_t max);
  ExprId Optional(ExprId part) { return Repeat(part, 0, 1); }
  ExprId Ref(RuleId rule) { return Add({.kind = Expr::Kind::kRule, .rule = rule}); }
  ExprId Members(std::vector<Member> members, ExprId separator, ExprId other, int32_t min, int32_t max);
  ExprId Accepted(Dfa dfa, Spelling spelling);
  // Adds all of another grammar, and returns a reference to its root.
  ExprId Include(const Grammar& other);

  RuleId AddRule(std::string name, bool is_shared = false);
  void Define(RuleId rule, ExprId expr) { rules_[rule].expr = expr; }
  // Adds a rule and returns a reference to it.
  ExprId Named(std::string name, ExprId expr, bool is_shared = false);

  const Expr& expr(ExprId id) const { return exprs_[id]; }
  const Rule& rule(RuleId id) const { return rules_[id]; }
  int64_t num_exprs() const { return static_cast<int64_t>(exprs_.size()); }
  int64_t num_rules() const { return static_cast<int64_t>(rules_.size()); }
  RuleId root() const { return root_; }
  void SetRoot(RuleId rule) { root_ = rule; }

 private:
  ExprId Add(Expr expr) {
    exprs_.push_back(std::move(expr));
    return static_cast<ExprId>(exprs_.size()) - 1;
  }

  std::vector<Expr> exprs_;
  std::vector<Rule> rules_;
  RuleId root_ = 0;
};

// Facts about each expression and rule, found before they become automata.
struct GrammarFacts {
  std::vector<bool> expr_matches, rule_matches;    // some text
  std::vector<bool> expr_is_empty, rule_is_empty;  // matches the empty text, besides others
  std::vector<int64_t> expr_size;                  // states of an automaton, about; at most kMaxGrammarStates
  std::vector<int64_t> rule_size;
  std::vector<bool> rule_recurs;  // refers to itself, perhaps through others, or to such a rule
};
absl::StatusOr<GrammarFacts> FactsOf(const Grammar& grammar, Work& work);

// Adds the paths that spell the code points of a set.
void AddSpelled(Nfa& nfa, int32_t from, int32_t to, const CodeSet& set, Spelling spelling);

}  // namespace penstock::grammar
