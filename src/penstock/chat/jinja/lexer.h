// Splits a template's source into tokens, with Jinja's white-space rules as Hugging Face sets them: trim_blocks (a
// newline after a block tag is dropped), lstrip_blocks (blanks before a block tag on its line are dropped), `-` and `+`
// signs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace penstock::jinja {

enum class TokenKind : uint8_t {
  kData,
  kVariableBegin,
  kVariableEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  int line = 0;
  std::string text;  // data, name, value of a string, spelling of an operator
  int64_t integer = 0;
  double number = 0;
};

// The tokens of `source`, with one kEnd last. kModel with the line on a lexical error. REQUIRES: source is UTF-8.
absl::StatusOr<std::vector<Token>> Tokenize(std::string_view source);

// "'name'" or "end of template" for messages.
std::string Describe(const Token& token);

}  // namespace penstock::jinja
