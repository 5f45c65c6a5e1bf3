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
  // bos_token, eos_token, unk_token, pad_token, sep_token, cls_token and mask_token, those that there are.
  struct NamedToken {
    std::string name;
    std::string content;
    bool from_map = false;  // of special_tokens_map.json
  };
  std::vector<NamedToken> named_tokens;
  std::optional<bool> add_bos_token;
  std::optional<bool> add_eos_token;
  std::optional<bool> legacy;
  std::optional<bool> add_prefix_space;
  std::optional<bool> clean_up_spaces;  // clean_up_tokenization_spaces
  std::string tokenizer_class;
  std::vector<AddedToken> added_tokens;  // added_tokens_decoder, by id

  // An empty text is an empty config. `text` is what WithSpecialTokensMap gives, or the file as it is.
  static absl::StatusOr<TokenizerConfig> Parse(std::string_view text);
};

// tokenizer_config.json together with special_tokens_map.json, whose named tokens count where the first has no
// added_tokens_decoder. Either may be empty.
absl::StatusOr<std::string> WithSpecialTokensMap(std::string_view config, std::string_view map);

// One added token as JSON: content, special, normalized ... The id is left to the caller.
absl::StatusOr<AddedToken> ParseAddedToken(const json::value& value, const std::string& where);

}  // namespace penstock
