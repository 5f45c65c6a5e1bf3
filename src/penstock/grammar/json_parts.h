// The parts of JSON texts as expressions of a grammar.
//
// White space is bounded, so that no answer can consist of it: after "{", "[" and "," and before "}" and "]" there may
// be a space, or a line end with up to 32 spaces or 8 tabs; after ":" a space. Numbers have at most 20 digits before
// the point, 20 after it, and an exponent of two digits.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "penstock/base/json.h"
#include "penstock/grammar/grammar.h"

namespace penstock::grammar {

class JsonParts {
 public:
  // `spelling` is that of characters in strings.
  JsonParts(Grammar& grammar, Spelling spelling);

  ExprId Comma() const { return comma_; }
  ExprId Colon() const { return colon_; }
  // "{" members "}", where `members` has commas between members already; the same for arrays.
  ExprId InBraces(ExprId members);
  ExprId InBrackets(ExprId items);
  // A string with `min` to `max` characters.
  ExprId String(int32_t min, int32_t max);
  ExprId InQuotes(ExprId characters);
  // This string alone.
  ExprId Quoted(std::string_view text);
  ExprId Digit();
  ExprId WholeNumber();  // the same as Integer(), but no rule of its own
  ExprId Integer();
  ExprId Number();
  // Any value, array or object.
  ExprId Any();
  ExprId AnyArray();
  ExprId AnyObject();
  // One value, as it is.
  ExprId Value(const json::value& value);

 private:
  ExprId AnyCharacter();
  void DefineAny();

  Grammar& grammar_;
  Spelling spelling_;
  ExprId space_ = 0, comma_ = 0, colon_ = 0, character_ = 0;
  std::map<std::pair<int32_t, int32_t>, ExprId> strings_;
  RuleId any_ = -1, any_array_ = -1, any_object_ = -1;
  ExprId number_ = -1, integer_ = -1;
};

// Returns a number as JSON.
std::string JsonNumber(const json::value& number);

// Any JSON object.
Grammar JsonGrammar();

}  // namespace penstock::grammar
