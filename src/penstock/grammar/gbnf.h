// Grammars in llama.cpp's GBNF: rules of literals, character classes, groups, alternatives and repetitions.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "penstock/grammar/grammar.h"

namespace penstock::grammar {

// Translates a text whose rule "root" matches answers. kInput with the line and column of what is wrong.
absl::StatusOr<Grammar> ParseGbnf(std::string_view text);

}  // namespace penstock::grammar
