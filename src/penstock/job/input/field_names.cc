#include "penstock/job/input/field_names.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "penstock/base/json.h"
#include "penstock/base/text.h"

namespace penstock {
namespace {

// Fields of OpenAI's, vLLM's and llama.cpp's requests that would change the answer, and advice for each.
struct UnsupportedField {
  std::string_view name;
  std::string_view advice;
};
constexpr std::string_view kLeaveItOut = "leave it out";
constexpr UnsupportedField kUnsupportedFields[] = {
    {"max_new_tokens", "use max_tokens"},
    {"n_predict", "use max_tokens"},
    {"max_length", "use max_tokens"},
    {"max_output_tokens", "use max_tokens"},
    {"num_predict", "use max_tokens"},
    {"repeat_penalty", "use repetition_penalty"},
    {"stop_sequences", "use stop"},
    {"stop_sequence", "use stop"},
    {"random_seed", "use seed"},
    {"functions", "use tools or leave it out"},
    {"function_call", "use tool_choice or leave it out"},
    {"suffix", kLeaveItOut},
    {"use_beam_search", kLeaveItOut},
    {"length_penalty", kLeaveItOut},
    {"early_stopping", kLeaveItOut},
    {"allowed_token_ids", kLeaveItOut},
    {"truncate_prompt_tokens", kLeaveItOut},
    {"chat_template", "the model's own template is used"},
    {"guided_decoding_backend", kLeaveItOut},
    {"logits_processors", kLeaveItOut},
    {"prompt_embeds", kLeaveItOut},
    {"modalities", kLeaveItOut},
    {"audio", kLeaveItOut},
    {"prediction", kLeaveItOut},
    {"web_search_options", kLeaveItOut},
    {"verbosity", kLeaveItOut},
    {"typical_p", kLeaveItOut},
    {"tfs_z", kLeaveItOut},
    {"mirostat", kLeaveItOut},
    {"xtc_probability", kLeaveItOut},
    {"dry_multiplier", kLeaveItOut},
};

// Fields that Penstock reads. A name that is nearly one of these is a typing error.
constexpr std::string_view kFields[] = {"prompt",
                                        "messages",
                                        "turns",
                                        "choices",
                                        "model",
                                        "tools",
                                        "tool_choice",
                                        "parallel_tool_calls",
                                        "max_tokens",
                                        "max_completion_tokens",
                                        "min_tokens",
                                        "temperature",
                                        "top_k",
                                        "top_p",
                                        "min_p",
                                        "repetition_penalty",
                                        "presence_penalty",
                                        "frequency_penalty",
                                        "logit_bias",
                                        "bad_words",
                                        "stop",
                                        "stop_token_ids",
                                        "ignore_eos",
                                        "include_stop_str_in_output",
                                        "logprobs",
                                        "top_logprobs",
                                        "prompt_logprobs",
                                        "system",
                                        "seed",
                                        "reasoning_effort",
                                        "chat_template_kwargs",
                                        "response_format",
                                        "structured_outputs",
                                        "guided_json",
                                        "guided_regex",
                                        "guided_choice",
                                        "guided_grammar",
                                        "grammar",
                                        "json_schema",
                                        "documents",
                                        "label",
                                        "custom_id",
                                        "question_id"};

// Returns whether `name` is a typing error of `known`. With one wrong letter, short names resemble too many others;
// with two letters swapped they do not.
bool IsNearly(std::string_view name, std::string_view known) {
  if (SimplifiedName(name) == SimplifiedName(known)) return true;
  constexpr size_t kMinBytes = 6, kMinSwapped = 4;
  const bool may_be_swapped = name.size() >= kMinSwapped && std::ranges::is_permutation(name, known);
  return (name.size() >= kMinBytes || may_be_swapped) && EditDistance(name, known) == 1;
}

void RefuseTypingErrors(FieldReader& fields) {
  for (const auto& [key, value] : fields.object()) {
    const std::string_view name(key.data(), key.size());
    constexpr size_t kMaxBytes = 64;
    if (name.size() > kMaxBytes || IsRequestField(name)) continue;
    for (const std::string_view known : kFields) {
      // Rows of data sets have labels, and choices alone give them a meaning.
      if (known == "label" && !fields.object().contains("choices")) continue;
      if (!IsNearly(name, known)) continue;
      fields.Fail("unsupported", Printable(name), fmt::format("unknown field; did you mean {}?", known));
      break;
    }
  }
}

}  // namespace

bool IsRequestField(std::string_view name) { return std::ranges::find(kFields, name) != std::end(kFields); }

void RefuseUnsupported(FieldReader& fields) {
  for (const auto& [name, advice] : kUnsupportedFields) {
    const json::value* value = fields.Find(name);
    if (value == nullptr || *value == json::value(false) || *value == json::value("")) continue;
    fields.Fail("unsupported", name, fmt::format("is not supported; {}", advice));
  }
  RefuseTypingErrors(fields);
}

}  // namespace penstock
