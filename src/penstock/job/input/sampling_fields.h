// Sampling parameters as requests and flags give them. An absent parameter is taken from the layer below.
//
// The layers are, lowest first: the model's generation_config.json, the command line's flags, the request line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "penstock/base/json.h"
#include "penstock/engine.h"

namespace penstock {

struct SamplingOverrides {
  std::optional<double> temperature;
  std::optional<int64_t> top_k;
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
  std::optional<double> presence_penalty;
  std::optional<double> frequency_penalty;
  std::optional<std::vector<std::pair<TokenId, float>>> logit_bias;
  std::optional<uint64_t> seed;
  std::optional<int64_t> max_tokens;
  std::optional<int64_t> min_tokens;
  std::optional<std::vector<std::string>> stop;
  std::optional<bool> includes_stop;
  std::optional<std::vector<TokenId>> stop_token_ids;
  std::optional<bool> ignore_eos;
  std::optional<int> logprobs, prompt_logprobs;
};

// Returns `base` with every parameter that `overrides` has.
SamplingParams Overlay(SamplingParams base, const SamplingOverrides& overrides);

// Returns whether a text may be a stop text: UTF-8 of 1 to kMaxStopTextBytes bytes.
bool IsStopText(std::string_view text);

// Returns every parameter by name, null when absent (for the manifest).
json::object ToJson(const SamplingOverrides& overrides);
json::object ToJson(const SamplingParams& params);

// The reason why a line is not a valid request. `code` is one of invalid_json, line_too_long, invalid_id,
// invalid_request, unsupported, mixed_models.
struct LineError {
  std::string code;
  std::string message;
  std::string param;  // the faulty field; may be empty
};

// Reads typed fields of one JSON object and keeps the errors. A null counts as absent, because OpenAI's clients send
// nulls for absent fields.
class FieldReader {
 public:
  // `prefix` stands before field names in errors ("body.").
  FieldReader(const json::object& object, std::string_view prefix) : object_(object), prefix_(prefix) {}

  // Returns the field's value, or nullptr when it is absent or null.
  const json::value* Find(std::string_view name) const;
  // Returns the names of the fields that no call has asked for, without those that are null.
  std::vector<std::string> Unread() const;
  std::optional<double> Number(std::string_view name, double min, double max);
  std::optional<int64_t> Integer(std::string_view name, int64_t min, int64_t max);
  std::optional<bool> Bool(std::string_view name);
  std::optional<std::string> Text(std::string_view name);

  // Reads a list of token ids, of at most `max_size`: the field's value, or a part of it.
  std::optional<std::vector<TokenId>> TokenIds(std::string_view name, size_t max_size);
  std::optional<std::vector<TokenId>> TokenIds(std::string_view name, const json::value& value, size_t max_size);

  // Adds an error of a field, unless that has one. The code is that of the first error; the message names up to eight
  // fields.
  void Fail(std::string_view code, std::string_view name, std::string message);
  const std::optional<LineError>& error() const { return error_; }
  const json::object& object() const { return object_; }

 private:
  const json::object& object_;
  std::string prefix_;
  std::optional<LineError> error_;
  std::vector<std::string> failed_;               // the fields that the error names
  mutable std::vector<const json::value*> read_;  // values that Find() has returned
};

// Reads the fields of SamplingOverrides. `max_completion_tokens` is another name for max_tokens,
// `include_stop_str_in_output` is includes_stop, and logprobs also reads `top_logprobs`.
SamplingOverrides ReadSamplingFields(FieldReader& fields);

}  // namespace penstock
