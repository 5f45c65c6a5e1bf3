#include "penstock/job/input/sampling_fields.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include "penstock/base/limits.h"
#include "penstock/base/text.h"

namespace penstock {
namespace {

constexpr double kMinPositive = std::numeric_limits<double>::min();

// Returns the integer, also of a number such as 4.0.
std::optional<int64_t> IntegerOf(const json::value& value) {
  if (value.is_int64()) return value.get_int64();
  constexpr double kExact = 9007199254740992;  // 2^53
  if (!value.is_double() || std::abs(value.get_double()) > kExact) return std::nullopt;
  const auto integer = static_cast<int64_t>(value.get_double());
  return static_cast<double>(integer) == value.get_double() ? std::optional(integer) : std::nullopt;
}

template <typename T>
json::value Optional(const std::optional<T>& value) {
  return value.has_value() ? json::value(*value) : json::value(nullptr);
}

json::array ToArray(const std::vector<std::string>& texts) {
  json::array array;
  for (const std::string& text : texts) array.emplace_back(text);
  return array;
}

std::optional<std::vector<std::string>> ReadStop(FieldReader& fields) {
  const json::value* value = fields.Find("stop");
  if (value == nullptr) return std::nullopt;
  json::array list;
  if (value->is_array()) {
    list = value->get_array();
  } else {
    list.push_back(*value);
  }
  if (list.size() > kMaxStopTexts) {
    fields.Fail("invalid_request", "stop",
                fmt::format("expected at most {} stop texts, found {}", kMaxStopTexts, list.size()));
    return std::nullopt;
  }
  std::vector<std::string> stop;
  for (const json::value& item : list) {
    if (!item.is_string()) {
      fields.Fail("invalid_request", "stop",
                  fmt::format("expected a string or a list of strings, found {}", JsonTypeName(item)));
      return std::nullopt;
    }
    const json::string& text = item.get_string();
    if (!IsStopText({text.data(), text.size()})) {
      fields.Fail("invalid_request", "stop",
                  fmt::format("a stop text must have 1 to {} bytes, found {}", kMaxStopTextBytes, text.size()));
      return std::nullopt;
    }
    stop.emplace_back(text.data(), text.size());
  }
  return stop;
}

// Reads OpenAI's {"1234": -5.5}, whose keys are token ids.
std::optional<std::vector<std::pair<TokenId, float>>> ReadLogitBias(FieldReader& fields) {
  constexpr std::string_view kName = "logit_bias";
  const json::value* value = fields.Find(kName);
  if (value == nullptr) return std::nullopt;
  if (!value->is_object() || value->get_object().size() > kMaxBiasedTokens) {
    fields.Fail("invalid_request", kName,
                fmt::format("expected an object of at most {} token ids with numbers, found {}", kMaxBiasedTokens,
                            value->is_object() ? fmt::format("{}", value->get_object().size()) : JsonTypeName(*value)));
    return std::nullopt;
  }
  std::vector<std::pair<TokenId, float>> biases;
  for (const auto& [key, bias] : value->get_object()) {
    TokenId id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    const double number = bias.is_number() ? bias.to_number<double>() : kMaxLogitBias + 1;
    if (error != std::errc() || end != key.data() + key.size() || id < 0 || id >= kMaxVocabSize ||
        !(std::abs(number) <= kMaxLogitBias)) {
      fields.Fail("invalid_request", kName,
                  fmt::format("expected token ids with numbers of -{0} to {0}, found \"{1}\": {2}", kMaxLogitBias,
                              Printable({key.data(), key.size()}), std::string(json::serialize(bias))));
      return std::nullopt;
    }
    biases.emplace_back(id, static_cast<float>(number));
  }
  return biases;
}

// OpenAI's chats write `logprobs: true, top_logprobs: 5`, its completions `logprobs: 5`. Both forms are accepted
// everywhere.
std::optional<int> ReadLogprobs(FieldReader& fields) {
  const json::value* value = fields.Find("logprobs");
  const std::optional<int64_t> top = fields.Integer("top_logprobs", 0, kMaxLogprobs);
  if (value == nullptr || (value->is_bool() && !value->get_bool())) {
    if (top.has_value() && *top > 0) fields.Fail("invalid_request", "top_logprobs", "needs \"logprobs\": true");
    if (value == nullptr) return std::nullopt;
    return -1;
  }
  if (value->is_bool()) return static_cast<int>(top.value_or(0));
  const std::optional<int64_t> count = fields.Integer("logprobs", 0, kMaxLogprobs);
  if (!count.has_value()) return std::nullopt;
  return static_cast<int>(top.value_or(*count));
}

}  // namespace

bool IsStopText(std::string_view text) { return !text.empty() && text.size() <= kMaxStopTextBytes && IsUtf8(text); }

SamplingParams Overlay(SamplingParams base, const SamplingOverrides& overrides) {
  if (overrides.temperature) base.temperature = *overrides.temperature;
  if (overrides.top_k) base.top_k = *overrides.top_k;
  if (overrides.top_p) base.top_p = *overrides.top_p;
  if (overrides.min_p) base.min_p = *overrides.min_p;
  if (overrides.repetition_penalty) base.repetition_penalty = *overrides.repetition_penalty;
  if (overrides.presence_penalty) base.presence_penalty = *overrides.presence_penalty;
  if (overrides.frequency_penalty) base.frequency_penalty = *overrides.frequency_penalty;
  if (overrides.logit_bias) base.logit_bias = *overrides.logit_bias;
  if (overrides.min_tokens) base.min_tokens = *overrides.min_tokens;
  if (overrides.includes_stop) base.includes_stop = *overrides.includes_stop;
  if (overrides.stop_token_ids) base.stop_token_ids = *overrides.stop_token_ids;
  if (overrides.seed) base.seed = *overrides.seed;
  if (overrides.max_tokens) base.max_tokens = *overrides.max_tokens;
  if (overrides.stop) base.stop = *overrides.stop;
  if (overrides.ignore_eos) base.ignore_eos = *overrides.ignore_eos;
  if (overrides.logprobs) base.logprobs = *overrides.logprobs;
  if (overrides.prompt_logprobs) base.prompt_logprobs = *overrides.prompt_logprobs;
  return base;
}

json::object ToJson(const SamplingOverrides& o) {
  return {{"temperature", Optional(o.temperature)},
          {"top_k", Optional(o.top_k)},
          {"top_p", Optional(o.top_p)},
          {"min_p", Optional(o.min_p)},
          {"repetition_penalty", Optional(o.repetition_penalty)},
          {"presence_penalty", Optional(o.presence_penalty)},
          {"frequency_penalty", Optional(o.frequency_penalty)},
          {"max_tokens", Optional(o.max_tokens)},
          {"min_tokens", Optional(o.min_tokens)},
          {"stop", o.stop.has_value() ? json::value(ToArray(*o.stop)) : json::value(nullptr)},
          {"ignore_eos", Optional(o.ignore_eos)},
          {"logprobs", Optional(o.logprobs)}};
}

json::object ToJson(const SamplingParams& p) {
  return {{"temperature", p.temperature},
          {"top_k", p.top_k},
          {"top_p", p.top_p},
          {"min_p", p.min_p},
          {"repetition_penalty", p.repetition_penalty},
          {"presence_penalty", p.presence_penalty},
          {"frequency_penalty", p.frequency_penalty},
          {"max_tokens", p.max_tokens},
          {"min_tokens", p.min_tokens},
          {"stop", ToArray(p.stop)},
          {"ignore_eos", p.ignore_eos},
          {"logprobs", p.logprobs}};
}

const json::value* FieldReader::Find(std::string_view name) const {
  const json::value* value = object_.if_contains(json::string_view(name.data(), name.size()));
  if (value == nullptr || value->is_null()) return nullptr;
  read_.push_back(value);
  return value;
}

std::vector<std::string> FieldReader::Unread() const {
  std::vector<std::string> names;
  for (const auto& [key, value] : object_) {
    if (value.is_null() || std::ranges::find(read_, &value) != read_.end()) continue;
    names.emplace_back(key.data(), key.size());
  }
  return names;
}

void FieldReader::Fail(std::string_view code, std::string_view name, std::string message) {
  std::string param = prefix_ + std::string(name);
  constexpr size_t kMaxNamed = 8;
  if (failed_.size() == kMaxNamed || std::ranges::find(failed_, param) != failed_.end()) return;
  failed_.push_back(param);
  if (!error_.has_value()) {
    error_ = LineError{std::string(code), fmt::format("{}: {}", param, message), param};
  } else {
    error_->message += fmt::format("{} Also {}: {}", error_->message.ends_with('?') ? "" : ".", param, message);
  }
}

std::optional<double> FieldReader::Number(std::string_view name, double min, double max) {
  const json::value* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) {
    Fail("invalid_request", name, fmt::format("expected a number, found {}", JsonTypeName(*value)));
    return std::nullopt;
  }
  const double number = value->to_number<double>();
  if (!(number >= min && number <= max)) {
    const std::string low = min == kMinPositive ? "more than 0" : fmt::format("{} or more", min);
    Fail("invalid_request", name, fmt::format("expected {} and at most {}, found {}", low, max, number));
    return std::nullopt;
  }
  return number;
}

std::optional<int64_t> FieldReader::Integer(std::string_view name, int64_t min, int64_t max) {
  const json::value* value = Find(name);
  if (value == nullptr) return std::nullopt;
  const auto number = IntegerOf(*value);
  if (number.has_value() && *number >= min && *number <= max) return number;
  if (value->is_number()) {
    Fail("invalid_request", name,
         fmt::format("expected an integer of {} to {}, found {}", min, max, JsonForPeople(*value)));
  } else {
    Fail("invalid_request", name, fmt::format("expected an integer, found {}", JsonTypeName(*value)));
  }
  return std::nullopt;
}

std::optional<std::vector<TokenId>> FieldReader::TokenIds(std::string_view name, size_t max_size) {
  const json::value* value = Find(name);
  if (value == nullptr) return std::nullopt;
  return TokenIds(name, *value, max_size);
}

std::optional<std::vector<TokenId>> FieldReader::TokenIds(std::string_view name, const json::value& value,
                                                          size_t max_size) {
  const json::array* items = value.if_array();
  if (items == nullptr || items->size() > max_size) {
    Fail("invalid_request", name,
         fmt::format("expected a list of at most {} token ids, found {}", max_size,
                     items == nullptr ? std::string(JsonTypeName(value)) : fmt::format("{}", items->size())));
    return std::nullopt;
  }
  std::vector<TokenId> ids;
  for (const json::value& item : *items) {
    if (!item.is_int64() || item.get_int64() < 0 || item.get_int64() >= kMaxVocabSize) {
      Fail("invalid_request", name,
           fmt::format("expected token ids of 0 to {}, found {}", kMaxVocabSize - 1,
                       item.is_number() ? JsonForPeople(item) : std::string(JsonTypeName(item))));
      return std::nullopt;
    }
    ids.push_back(static_cast<TokenId>(item.get_int64()));
  }
  return ids;
}

std::optional<bool> FieldReader::Bool(std::string_view name) {
  const json::value* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_bool()) return value->get_bool();
  Fail("invalid_request", name, fmt::format("expected true or false, found {}", JsonTypeName(*value)));
  return std::nullopt;
}

std::optional<std::string> FieldReader::Text(std::string_view name) {
  const json::value* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return std::string(value->get_string().data(), value->get_string().size());
  Fail("invalid_request", name, fmt::format("expected a string, found {}", JsonTypeName(*value)));
  return std::nullopt;
}

SamplingOverrides ReadSamplingFields(FieldReader& fields) {
  SamplingOverrides o;
  o.temperature = fields.Number("temperature", 0, kMaxTemperature);
  o.top_p = fields.Number("top_p", kMinPositive, 1);
  o.min_p = fields.Number("min_p", 0, 1);
  o.repetition_penalty = fields.Number("repetition_penalty", kMinRepetitionPenalty, kMaxRepetitionPenalty);
  o.presence_penalty = fields.Number("presence_penalty", -kMaxPenalty, kMaxPenalty);
  o.frequency_penalty = fields.Number("frequency_penalty", -kMaxPenalty, kMaxPenalty);
  o.logit_bias = ReadLogitBias(fields);
  o.min_tokens = fields.Integer("min_tokens", 0, kMaxContext);
  o.includes_stop = fields.Bool("include_stop_str_in_output");
  o.stop_token_ids = fields.TokenIds("stop_token_ids", kMaxStopTokens);
  o.top_k = fields.Integer("top_k", -1, kMaxVocabSize);
  if (o.top_k == -1) o.top_k = 0;  // both -1 and 0 mean "off"
  const json::value* seed = fields.Find("seed");
  if (seed != nullptr && seed->is_uint64()) {
    o.seed = seed->get_uint64();
  } else if (const auto number =
                 fields.Integer("seed", std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max())) {
    o.seed = static_cast<uint64_t>(*number);
  }
  if (const auto count = fields.Integer("prompt_logprobs", 0, kMaxLogprobs))
    o.prompt_logprobs = static_cast<int>(*count);
  const bool may_be_scored =
      o.prompt_logprobs.has_value() || fields.Bool("echo").value_or(false) || fields.Find("choices") != nullptr;
  const int64_t min_tokens = may_be_scored ? 0 : 1;  // 0: the prompt gets no answer
  o.max_tokens = fields.Integer("max_tokens", min_tokens, kMaxContext);
  if (const auto newer_name = fields.Integer("max_completion_tokens", min_tokens, kMaxContext))
    o.max_tokens = newer_name;
  o.stop = ReadStop(fields);
  o.ignore_eos = fields.Bool("ignore_eos");
  o.logprobs = ReadLogprobs(fields);
  return o;
}

}  // namespace penstock
