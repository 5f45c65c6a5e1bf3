#include "penstock/job/prepared_request.h"

#include <optional>
#include <utility>

#include "penstock/base/status.h"
#include "penstock/chat/answer/answer_stream.h"

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
  if (request.format.has_value()) {
    PENSTOCK_ASSIGN_OR_RETURN(made.constraint, formats.Compile(engine, *request.format));
  }
  if (!request.forced_tool.empty()) {
    if (request.format.has_value()) {
      return InputError("tool_choice: an answer that must call a tool has no other format; leave {} out",
                        request.format->field);
    }
    PENSTOCK_ASSIGN_OR_RETURN(const ForcedCall call, engine.ForceCall(made.prompt_ids, request.forced_tool));
    made.prompt_ids.insert(made.prompt_ids.end(), call.prefix_ids.begin(), call.prefix_ids.end());
    made.continues_text = true;
    PENSTOCK_ASSIGN_OR_RETURN(
        made.constraint,
        formats.Compile(engine, {.format = {OutputFormat::Kind::kJsonSchema, call.schema}, .field = "tools"}));
    prepared.new_stream = [name = call.name] { return NewCallStream(name); };
  } else if (chat.has_value()) {
    prepared.new_stream = [&engine, prompt = made.prompt_ids, chat = *std::move(chat), one = request.has_one_call] {
      std::unique_ptr<AnswerStream> stream = engine.NewAnswerStream(prompt, chat);
      return one ? OnlyFirstCall(std::move(stream)) : std::move(stream);
    };
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
