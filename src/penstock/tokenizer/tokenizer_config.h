// What tokenizer_config.json says about special tokens.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/base/json.h"
#include "penstock/tokenizer/added_tokens.h"

namespace penstock {

struct TokenizerConfig {
  // Contents; absent when the field is absent or null.
  std::optional<std::string> bos_token;
  std::optional<std::string> eos_token;
  std::optional<std::string> unk_token;
  std::optional<bool> add_bos_token;
  std::optional<bool> add_eos_token;
  std::optional<bool> legacy;
  std::optional<bool> add_prefix_space;
  std::string tokenizer_class;
  std::vector<AddedToken> added_tokens;  // added_tokens_decoder, by id

  // An empty text is an empty config.
  static absl::StatusOr<TokenizerConfig> Parse(std::string_view text);
};

// One added token as JSON: content, special, normalized ... The id is left to the caller.
absl::StatusOr<AddedToken> ParseAddedToken(const json::value& value, const std::string& where);

}  // namespace penstock
