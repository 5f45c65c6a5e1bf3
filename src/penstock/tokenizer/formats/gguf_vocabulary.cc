// Reads the keys tokenizer.ggml.* of a GGUF file.
#include <algorithm>
#include <utility>

#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "penstock/tokenizer/formats/gguf_tokenizer.h"

namespace penstock {
namespace {

std::string Key(std::string_view name) { return fmt::format("tokenizer.ggml.{}", name); }

// Reads a list of one-byte numbers as a string of bytes.
absl::StatusOr<std::string> Bytes(const GgufMetadata& metadata, std::string_view key) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<int64_t> values, metadata.Integers(key));
  std::string bytes;
  for (const int64_t value : values) {
    if (value < -128 || value > 255) return ModelError("key '{}': expected bytes, found {}", key, value);
    bytes.push_back(static_cast<char>(value));
  }
  return bytes;
}

}  // namespace

absl::StatusOr<std::optional<GgufVocabulary>> ReadGgufVocabulary(const GgufMetadata& metadata) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::optional<std::string> model, metadata.String(Key("model")));
  if (!model.has_value() || *model == "none" || *model == "no_vocab") return std::nullopt;
  GgufVocabulary vocabulary;
  vocabulary.model = *model;
  PENSTOCK_ASSIGN_OR_RETURN(const std::optional<std::string> pre, metadata.String(Key("pre")));
  vocabulary.pre = pre.value_or("");
  // Merges have the limit of tokens because each merge makes a token.
  for (const auto& [name, max] :
       {std::pair("tokens", kMaxVocabSize), std::pair("scores", kMaxVocabSize), std::pair("token_type", kMaxVocabSize),
        std::pair("merges", kMaxVocabSize), std::pair("precompiled_charsmap", kMaxCharsmapBytes)}) {
    const GgufMetadata::Field* list = metadata.Find(Key(name));
    if (list != nullptr && list->count > static_cast<uint64_t>(max)) {
      return ModelError("key '{}': {} {}, the limit is {}", list->key, list->count,
                        std::string_view(name) == "tokens" ? "tokens" : "elements", max);
    }
  }
  PENSTOCK_ASSIGN_OR_RETURN(vocabulary.tokens, metadata.Strings(Key("tokens")));
  PENSTOCK_ASSIGN_OR_RETURN(vocabulary.scores, metadata.Floats(Key("scores")));
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<int64_t> types, metadata.Integers(Key("token_type")));
  for (const int64_t type : types)
    vocabulary.token_types.push_back(static_cast<int32_t>(std::clamp<int64_t>(type, -1, 99)));
  PENSTOCK_ASSIGN_OR_RETURN(vocabulary.merges, metadata.Strings(Key("merges")));
  PENSTOCK_ASSIGN_OR_RETURN(vocabulary.precompiled_charsmap, Bytes(metadata, Key("precompiled_charsmap")));
  const auto read_id = [&](std::string_view name, int64_t& id) -> absl::Status {
    PENSTOCK_ASSIGN_OR_RETURN(const std::optional<int64_t> value, metadata.Integer(Key(name)));
    // Some converters write 2^32 - 1 for a token that does not exist.
    if (value.has_value() && *value != 0xFFFFFFFF) id = *value;
    return absl::OkStatus();
  };
  PENSTOCK_RETURN_IF_ERROR(read_id("bos_token_id", vocabulary.bos_id));
  PENSTOCK_RETURN_IF_ERROR(read_id("eos_token_id", vocabulary.eos_id));
  PENSTOCK_RETURN_IF_ERROR(read_id("unknown_token_id", vocabulary.unk_id));
  PENSTOCK_RETURN_IF_ERROR(read_id("padding_token_id", vocabulary.pad_id));
  PENSTOCK_ASSIGN_OR_RETURN(vocabulary.add_bos, metadata.Bool(Key("add_bos_token")));
  PENSTOCK_ASSIGN_OR_RETURN(vocabulary.add_eos, metadata.Bool(Key("add_eos_token")));
  PENSTOCK_ASSIGN_OR_RETURN(vocabulary.add_space_prefix, metadata.Bool(Key("add_space_prefix")));
  PENSTOCK_ASSIGN_OR_RETURN(vocabulary.remove_extra_whitespaces, metadata.Bool(Key("remove_extra_whitespaces")));
  return vocabulary;
}

}  // namespace penstock
