#include "penstock/tokenizer/formats/tokenizer_config.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "penstock/base/limits.h"
#include "penstock/tokenizer/json_fields.h"

namespace penstock {
namespace {

constexpr char kConfigFile[] = "tokenizer_config.json";
constexpr char kMapFile[] = "special_tokens_map.json";
// WithSpecialTokensMap stores the map under this key; no field of the file has this name.
constexpr char kMapKey[] = "special_tokens_map.json";
constexpr const char* kNames[] = {"bos_token", "eos_token", "unk_token", "pad_token",
                                  "sep_token", "cls_token", "mask_token"};

absl::StatusOr<std::optional<bool>> OptionalBool(const JsonFields& fields, std::string_view key) {
  if (fields.Find(key) == nullptr) return std::optional<bool>();
  PENSTOCK_ASSIGN_OR_RETURN(const bool value, fields.Bool(key, false));
  return std::optional<bool>(value);
}

// A token is written as a string, or as an object with "content".
absl::StatusOr<std::optional<std::string>> OptionalToken(const JsonFields& fields, std::string_view key) {
  const json::value* value = fields.Find(key);
  if (value == nullptr) return std::optional<std::string>();
  std::string content;
  if (value->is_object()) {
    PENSTOCK_ASSIGN_OR_RETURN(
        content, JsonFields(value->get_object(), fmt::format("{}: {}", fields.where(), key)).String("content"));
  } else {
    PENSTOCK_ASSIGN_OR_RETURN(content, fields.String(key));
  }
  return std::optional<std::string>(std::move(content));
}

absl::Status ReadNamedTokens(const json::object& config, TokenizerConfig& out) {
  const json::object none;
  const json::value* map = config.if_contains(kMapKey);
  const JsonFields fields(config, kConfigFile);
  // As in transformers, the map counts only if tokenizer_config.json has no added_tokens_decoder; then it takes
  // precedence.
  const bool takes_map = map != nullptr && map->is_object() && !config.contains("added_tokens_decoder");
  const JsonFields of_map(takes_map ? map->get_object() : none, kMapFile);
  for (const char* name : kNames) {
    const bool from_map = of_map.Find(name) != nullptr;
    PENSTOCK_ASSIGN_OR_RETURN(std::optional<std::string> content, OptionalToken(from_map ? of_map : fields, name));
    if (content.has_value()) out.named_tokens.push_back({name, *std::move(content), from_map});
  }
  return absl::OkStatus();
}

absl::StatusOr<json::object> ParseObject(std::string_view text, const char* file) {
  if (text.empty()) return json::object();
  absl::StatusOr<json::value> document = ParseJson(text, Fault::kModel);
  if (!document.ok()) return Annotate(document.status(), file);
  if (!document->is_object()) return ModelError("{}: expected object, found {}", file, JsonTypeName(*document));
  return std::move(document->get_object());
}

absl::Status ParseAddedTokensDecoder(const json::object& decoder, std::vector<AddedToken>& tokens) {
  if (decoder.size() > kMaxAddedTokens) {
    return ModelError("{}: {} added tokens, the limit is {}", kConfigFile, decoder.size(), kMaxAddedTokens);
  }
  for (const auto& [key, value] : decoder) {
    const std::string where =
        fmt::format("{}: added_tokens_decoder '{}'", kConfigFile, std::string_view(key.data(), key.size()));
    int64_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0 || id >= kMaxVocabSize) {
      return ModelError("{}: expected an id from 0 to {}", where, kMaxVocabSize - 1);
    }
    PENSTOCK_ASSIGN_OR_RETURN(AddedToken token, ParseAddedToken(value, where));
    token.id = static_cast<TokenId>(id);
    tokens.push_back(std::move(token));
  }
  std::sort(tokens.begin(), tokens.end(), [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<AddedToken> ParseAddedToken(const json::value& value, const std::string& where) {
  if (!value.is_object()) return ModelError("{}: expected object, found {}", where, JsonTypeName(value));
  const JsonFields fields(value.get_object(), where);
  AddedToken token;
  PENSTOCK_ASSIGN_OR_RETURN(token.content, fields.String("content"));
  PENSTOCK_ASSIGN_OR_RETURN(token.single_word, fields.Bool("single_word", false));
  PENSTOCK_ASSIGN_OR_RETURN(token.lstrip, fields.Bool("lstrip", false));
  PENSTOCK_ASSIGN_OR_RETURN(token.rstrip, fields.Bool("rstrip", false));
  PENSTOCK_ASSIGN_OR_RETURN(token.special, fields.Bool("special", false));
  PENSTOCK_ASSIGN_OR_RETURN(token.normalized, fields.Bool("normalized", !token.special));
  if (token.content.empty() || token.content.size() > kMaxAddedTokenBytes) {
    return ModelError("{}: content of {} bytes, expected 1 to {}", where, token.content.size(), kMaxAddedTokenBytes);
  }
  return token;
}

absl::StatusOr<std::string> WithSpecialTokensMap(std::string_view config, std::string_view map) {
  if (map.empty()) return std::string(config);
  PENSTOCK_ASSIGN_OR_RETURN(json::object document, ParseObject(config, kConfigFile));
  PENSTOCK_ASSIGN_OR_RETURN(document[kMapKey], ParseObject(map, kMapFile));
  return std::string(json::serialize(document));
}

absl::StatusOr<TokenizerConfig> TokenizerConfig::Parse(std::string_view text) {
  TokenizerConfig config;
  if (text.empty()) return config;
  PENSTOCK_ASSIGN_OR_RETURN(const json::object document, ParseObject(text, kConfigFile));
  const JsonFields fields(document, kConfigFile);
  PENSTOCK_RETURN_IF_ERROR(ReadNamedTokens(document, config));
  PENSTOCK_ASSIGN_OR_RETURN(config.add_bos_token, OptionalBool(fields, "add_bos_token"));
  PENSTOCK_ASSIGN_OR_RETURN(config.add_eos_token, OptionalBool(fields, "add_eos_token"));
  PENSTOCK_ASSIGN_OR_RETURN(config.legacy, OptionalBool(fields, "legacy"));
  PENSTOCK_ASSIGN_OR_RETURN(config.add_prefix_space, OptionalBool(fields, "add_prefix_space"));
  PENSTOCK_ASSIGN_OR_RETURN(config.clean_up_spaces, OptionalBool(fields, "clean_up_tokenization_spaces"));
  if (fields.Find("tokenizer_class") != nullptr) {
    PENSTOCK_ASSIGN_OR_RETURN(config.tokenizer_class, fields.String("tokenizer_class"));
  }
  if (fields.Find("added_tokens_decoder") != nullptr) {
    PENSTOCK_ASSIGN_OR_RETURN(const json::object* decoder, fields.Object("added_tokens_decoder"));
    PENSTOCK_RETURN_IF_ERROR(ParseAddedTokensDecoder(*decoder, config.added_tokens));
  }
  return config;
}

}  // namespace penstock
