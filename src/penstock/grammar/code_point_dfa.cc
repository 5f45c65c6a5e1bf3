#include "penstock/base/text.h"
#include "penstock/grammar/regex.h"

namespace penstock::grammar {
namespace {

// Adds the paths of an expression, with an edge for each range of code points.
class CodePointBuilder {
 public:
  CodePointBuilder(const Grammar& grammar, Work& work) : nfa(work), grammar_(grammar), work_(work) {}

  absl::Status Build(ExprId id, int32_t from, int32_t to) {
    const Expr& expr = grammar_.expr(id);
    PENSTOCK_RETURN_IF_ERROR(work_.Spend(1));
    if (nfa.size() > kMaxGrammarStates) return InputError("it is too large to be combined with other keywords");
    switch (expr.kind) {
      case Expr::Kind::kText: {
        for (size_t pos = 0; pos < expr.text.size();) {
          const DecodedRune rune = DecodeUtf8(expr.text, pos);
          pos += static_cast<size_t>(rune.num_bytes);
          const int32_t next = nfa.AddState();
          nfa.AddEdge(from, rune.code_point, rune.code_point, next);
          from = next;
        }
        nfa.AddEmpty(from, to);
        return absl::OkStatus();
      }
      case Expr::Kind::kSet:
        for (const CodeRange& range : expr.set.ranges()) nfa.AddEdge(from, range.first, range.last, to);
        return absl::OkStatus();
      case Expr::Kind::kSequence:
        for (const ExprId part : expr.parts) {
          const int32_t next = nfa.AddState();
          PENSTOCK_RETURN_IF_ERROR(Build(part, from, next));
          from = next;
        }
        nfa.AddEmpty(from, to);
        return absl::OkStatus();
      case Expr::Kind::kChoice:
        for (const ExprId part : expr.parts) PENSTOCK_RETURN_IF_ERROR(Build(part, from, to));
        return absl::OkStatus();
      case Expr::Kind::kRepeat: return BuildRepeat(expr, from, to);
      case Expr::Kind::kDfa: return BuildDfa(expr.dfa, from, to);
      default: return absl::OkStatus();  // kNever; patterns have no others
    }
  }

  Nfa nfa;

 private:
  absl::Status BuildRepeat(const Expr& expr, int32_t from, int32_t to) {
    const bool is_open = expr.max == kUnbounded;
    for (int32_t i = 0; i < (is_open ? expr.min : expr.max); ++i) {
      if (i >= expr.min) nfa.AddEmpty(from, to);
      const int32_t next = nfa.AddState();
      PENSTOCK_RETURN_IF_ERROR(Build(expr.parts[0], from, next));
      from = next;
    }
    if (is_open) {
      const int32_t loop = nfa.AddState();
      nfa.AddEmpty(from, loop);
      PENSTOCK_RETURN_IF_ERROR(Build(expr.parts[0], loop, loop));
      from = loop;
    }
    nfa.AddEmpty(from, to);
    return absl::OkStatus();
  }

  absl::Status BuildDfa(const Dfa& dfa, int32_t from, int32_t to) {
    if (dfa.states.empty()) return absl::OkStatus();
    const auto first = static_cast<int32_t>(nfa.size());
    for (size_t i = 0; i < dfa.states.size(); ++i) nfa.AddState();
    nfa.AddEmpty(from, first);
    for (size_t i = 0; i < dfa.states.size(); ++i) {
      const int32_t state = first + static_cast<int32_t>(i);
      for (const Edge& edge : dfa.states[i].edges) nfa.AddEdge(state, edge.first, edge.last, first + edge.target);
      if (dfa.states[i].accepts) nfa.AddEmpty(state, to);
      PENSTOCK_RETURN_IF_ERROR(work_.Spend(1));
    }
    return absl::OkStatus();
  }

  const Grammar& grammar_;
  Work& work_;
};

}  // namespace

absl::StatusOr<Dfa> CodePointDfa(const Grammar& grammar, ExprId expr, Work& work) {
  CodePointBuilder builder(grammar, work);
  const int32_t start = builder.nfa.AddState(), accept = builder.nfa.AddState();
  PENSTOCK_RETURN_IF_ERROR(builder.Build(expr, start, accept));
  PENSTOCK_ASSIGN_OR_RETURN(const Dfa dfa, Determinise(builder.nfa, start, accept, kMaxPatternStates, work));
  return Trim(dfa);
}

}  // namespace penstock::grammar
