// Reads a GgufVocabulary from JSON as tools/conformance/dump_gguf_vocabulary.py writes it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "penstock/base/json.h"
#include "penstock/base/status.h"
#include "penstock/tokenizer/formats/gguf_tokenizer.h"

namespace penstock::testing_tokenizers {

// Returns kInput if the JSON has another form.
inline absl::StatusOr<GgufVocabulary> GgufFromJson(std::string_view text) {
  PENSTOCK_ASSIGN_OR_RETURN(const json::value document, ParseJson(text, Fault::kInput));
  if (!document.is_object()) return InputError("expected object");
  const json::object& fields = document.get_object();
  GgufVocabulary out;
  boost::system::error_code error;
  const auto read = [&](const char* key, auto& to) {
    const json::value* value = fields.if_contains(key);
    if (value == nullptr || value->is_null() || error) return;
    auto result = json::try_value_to<std::decay_t<decltype(to)>>(*value);
    if (result.has_value()) {
      to = *std::move(result);
    } else {
      error = result.error();
    }
  };
  const auto read_flag = [&](const char* key, std::optional<bool>& to) {
    const json::value* value = fields.if_contains(key);
    if (value != nullptr && value->is_bool()) to = value->get_bool();
  };
  std::string charsmap;
  read("model", out.model);
  read("pre", out.pre);
  read("tokens", out.tokens);
  read("scores", out.scores);
  read("token_type", out.token_types);
  read("merges", out.merges);
  read("precompiled_charsmap", charsmap);
  read("bos_token_id", out.bos_id);
  read("eos_token_id", out.eos_id);
  read("unknown_token_id", out.unk_id);
  read("padding_token_id", out.pad_id);
  read_flag("add_bos_token", out.add_bos);
  read_flag("add_eos_token", out.add_eos);
  read_flag("add_space_prefix", out.add_space_prefix);
  read_flag("remove_extra_whitespaces", out.remove_extra_whitespaces);
  if (error) return InputError("a field has another type: {}", error.message());
  if (!absl::Base64Unescape(charsmap, &out.precompiled_charsmap)) return InputError("precompiled_charsmap: no base64");
  return out;
}

}  // namespace penstock::testing_tokenizers
