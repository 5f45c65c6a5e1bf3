// Reads special tokens from tokenizer_config.json.
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
  // One of bos_token, eos_token, unk_token, pad_token, sep_token, cls_token and mask_token.
  struct NamedToken {
    std::string name;
    std::string content;
    bool from_map = false;  // comes from special_tokens_map.json
  };
  std::vector<NamedToken> named_tokens;
  std::optional<bool> add_bos_token;
  std::optional<bool> add_eos_token;
  std::optional<bool> legacy;
  std::optional<bool> add_prefix_space;
  std::optional<bool> clean_up_spaces;  // clean_up_tokenization_spaces
  std::string tokenizer_class;
  std::vector<AddedToken> added_tokens;  // added_tokens_decoder, by id

  // Parses the result of WithSpecialTokensMap or the plain file. An empty text is an empty config.
  static absl::StatusOr<TokenizerConfig> Parse(std::string_view text);
};

// Merges tokenizer_config.json with special_tokens_map.json, whose named tokens count only if the first has no
// added_tokens_decoder. Either may be empty.
absl::StatusOr<std::string> WithSpecialTokensMap(std::string_view config, std::string_view map);

// Parses one added token (content, special, normalized ...); the caller sets its id.
absl::StatusOr<AddedToken> ParseAddedToken(const json::value& value, const std::string& where);

}  // namespace penstock
