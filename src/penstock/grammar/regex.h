// Regular expressions: the part of Python's and ECMAScript's that finite automata can match, and that both read alike.
//
// Classes, groups, alternatives, repetitions, \d \w \s, code points in UTF-8, anchors at the ends of an alternative,
// and look-aheads whose groups end the pattern. A lazy repetition matches the same texts as another one. Back
// references, look-behind, flags, \b and \p are refused.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "penstock/grammar/grammar.h"

namespace penstock::grammar {

enum class RegexMatch : uint8_t {
  kWhole,   // the whole text matches; anchors at the ends change nothing
  kSearch,  // a part of the text matches, as in JSON Schema
  kAbsent,  // no part of the text matches
};

// Translates a pattern. kInput for what is refused, with its place.
absl::StatusOr<ExprId> ParseRegex(std::string_view pattern, RegexMatch match, Spelling spelling, Grammar& grammar,
                                  Work& work);

// Returns an automaton of code points for an expression of a pattern. REQUIRES: it refers to no rules.
absl::StatusOr<Dfa> CodePointDfa(const Grammar& grammar, ExprId expr, Work& work);

}  // namespace penstock::grammar
