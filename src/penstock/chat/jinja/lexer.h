// Splits a template's source into tokens, with Jinja's white-space rules as Hugging Face sets them. trim_blocks drops a
// newline after a block tag, lstrip_blocks drops blanks before a block tag on its line, and the signs `-` and `+` work.
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
  std::string text;  // data, a name, a string's value, or the spelling of an operator
  int64_t integer = 0;
  double number = 0;
};

// Returns the tokens of `source` and a final kEnd. A lexical error gives kModel with the line. REQUIRES: source is
// UTF-8.
absl::StatusOr<std::vector<Token>> Tokenize(std::string_view source);

// Returns "'name'" or "end of template" for messages.
std::string Describe(const Token& token);

}  // namespace penstock::jinja
