#include "penstock/job/prepared_request.h"

#include <optional>
#include <utility>

#include "penstock/base/status.h"

namespace penstock {

absl::StatusOr<PreparedRequest> Prepare(const Engine& engine, const PromptMaker& maker, FormatCache& formats,
                                        JobRequest& request, const SamplingParams& sampling,
                                        const std::vector<std::string>& answers) {
  PreparedRequest prepared;
  std::optional<Chat> chat;
  Request& made = prepared.request;
  const bool continues_last = request.chat.continues_last;
  PENSTOCK_ASSIGN_OR_RETURN(made.prompt_ids, PromptOf(maker, request, answers, &chat));
  made.sampling = sampling;
  made.continues_text = request.echoes_prompt || continues_last;
  PENSTOCK_ASSIGN_OR_RETURN(made.sampling.bad_words, BadWordsOf(maker, request.bad_words));
  AnswerRule& rule = request.rule;
  std::optional<OutputFormat> format;
  // A format is that of the content. An answer that must call a tool has none.
  if (request.format.has_value() && !rule.must_call) format = request.format->format;
  const std::string field = format.has_value() ? request.format->field : "tools";
  if (chat.has_value()) {
    rule.content = format;
    PENSTOCK_ASSIGN_OR_RETURN(format, engine.FormatOfAnswer(made.prompt_ids, *chat, rule));
    prepared.new_stream = [&engine, prompt = made.prompt_ids, chat = *chat, rule] {
      return engine.NewAnswerStream(prompt, chat, rule);
    };
  }
  if (format.has_value()) {
    PENSTOCK_ASSIGN_OR_RETURN(made.constraint, formats.Compile(engine, {.format = *std::move(format), .field = field}));
  }
  return prepared;
}

void KeepEcho(const Engine& engine, JobRequest& request) {
  if (!request.echoes_prompt) {
    request.prompt = {};
  } else if (request.prompt.empty()) {
    for (const TokenId id : request.prompt_ids) request.prompt += engine.TokenBytes(id, request.prompt.empty());
  }
}

}  // namespace penstock
