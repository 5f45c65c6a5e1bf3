#include "penstock/model/generation_config.h"

#include <algorithm>
#include <string>
#include <type_traits>

#include "penstock/base/limits.h"
#include "penstock/base/status.h"

namespace penstock {

std::vector<TokenId> ReadTokenIds(ConfigReader& reader, std::string_view field, int64_t vocab_size) {
  std::vector<TokenId> ids;
  const json::value* value = reader.Find(field);
  if (value == nullptr) return ids;
  const auto add = [&](const json::value& entry) {
    if (!entry.is_int64() || entry.get_int64() < 0 || entry.get_int64() >= vocab_size) {
      reader.Fail(field, fmt::format("token ids from 0 to {}", vocab_size - 1), json::serialize(entry).substr(0, 60));
      return;
    }
    ids.push_back(static_cast<TokenId>(entry.get_int64()));
  };
  if (!value->is_array()) {
    add(*value);
    return ids;
  }
  for (const json::value& entry : value->get_array()) add(entry);
  return ids;
}

absl::StatusOr<GenerationConfig> ParseGenerationConfig(std::string_view text, int64_t vocab_size) {
  auto parsed = ParseJson(text, Fault::kModel, kPythonJson);
  if (!parsed.ok()) return Annotate(parsed.status(), "generation_config.json");
  if (!parsed->is_object()) {
    return ModelError("generation_config.json: expected an object, found {}", JsonTypeName(*parsed));
  }
  ConfigReader reader("generation_config.json", parsed->get_object());
  GenerationConfig config;
  config.eos_ids = ReadTokenIds(reader, "eos_token_id", vocab_size);
  config.decoder_start_ids = ReadTokenIds(reader, "decoder_start_token_id", vocab_size);
  if (config.decoder_start_ids.size() > 1) reader.Fail("decoder_start_token_id", "one token id", "several");
  config.do_sample = reader.BoolOr("do_sample", false);
  config.temperature = reader.NumberOr("temperature", 1.0, 0, kMaxTemperature);
  config.top_k = reader.IntOr("top_k", 0, 0, kMaxVocabSize);
  config.top_p = reader.NumberOr("top_p", 1.0, 0, 1);
  if (config.top_p == 0) config.top_p = 1.0;
  config.min_p = reader.NumberOr("min_p", 0.0, 0, 1);
  config.repetition_penalty = reader.NumberOr("repetition_penalty", 1.0, kMinRepetitionPenalty, kMaxRepetitionPenalty);
  config.max_new_tokens = reader.IntOr("max_new_tokens", 0, 1, kMaxContext);
  PENSTOCK_RETURN_IF_ERROR(reader.status());
  return config;
}

absl::StatusOr<GenerationConfig> LoadGenerationConfig(const ModelFolder& folder, int64_t vocab_size) {
  if (!folder.Has("generation_config.json")) return GenerationConfig{};
  PENSTOCK_ASSIGN_OR_RETURN(const std::string text, folder.Read("generation_config.json", kMaxConfigBytes));
  return ParseGenerationConfig(text, vocab_size);
}

absl::StatusOr<GenerationConfig> ReadGgufGenerationConfig(const GgufMetadata& metadata) {
  GenerationConfig config;
  const auto read = [&](const char* name, double min, double max, auto& target) -> absl::Status {
    const std::string key = fmt::format("general.sampling.{}", name);
    PENSTOCK_ASSIGN_OR_RETURN(const std::optional<double> number, metadata.Number(key));
    if (!number.has_value()) return absl::OkStatus();
    if (!(*number >= min && *number <= max)) {
      return ModelError("{}: expected a number from {} to {}, found {}", key, min, max, *number);
    }
    target = static_cast<std::remove_reference_t<decltype(target)>>(*number);
    config.do_sample = true;
    return absl::OkStatus();
  };
  PENSTOCK_RETURN_IF_ERROR(read("temp", 0, kMaxTemperature, config.temperature));
  PENSTOCK_RETURN_IF_ERROR(read("top_k", -1, kMaxVocabSize, config.top_k));
  config.top_k = std::max<int64_t>(config.top_k, 0);  // -1 is llama.cpp's word for off
  PENSTOCK_RETURN_IF_ERROR(read("top_p", 0, 1, config.top_p));
  if (config.top_p == 0) config.top_p = 1.0;
  PENSTOCK_RETURN_IF_ERROR(read("min_p", 0, 1, config.min_p));
  PENSTOCK_RETURN_IF_ERROR(
      read("penalty_repeat", kMinRepetitionPenalty, kMaxRepetitionPenalty, config.repetition_penalty));
  return config;
}

}  // namespace penstock
