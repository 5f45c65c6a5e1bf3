#include "penstock/server/api/openai_writers.h"

#include <utility>

#include "penstock/base/text.h"
#include "penstock/job/result_logprobs.h"

namespace penstock::server {
namespace {

constexpr std::string_view kDone = "data: [DONE]\n\n";
constexpr std::string_view kNull = "null";

class Writer : public AnswerWriter {
 public:
  Writer(OpenAiForm form, TokenText token_text) : form_(std::move(form)), token_text_(std::move(token_text)) {
    head_ = OpenJson({{"id", BodyId(form_.kind, form_.head.number)},
                      {"object", is_chat() ? "chat.completion.chunk" : "text_completion"},
                      {"created", form_.head.created},
                      {"model", ReplaceInvalidUtf8(form_.model)}});
  }

  std::string Body(std::span<const RequestResult> results, int64_t num_shared_tokens) override {
    BodyHead head = form_.head;
    head.shared_tokens = num_shared_tokens;
    std::string body;
    AppendBody(head, results, token_text_, body);
    return body;
  }

  uint64_t held_bytes() const override {
    uint64_t num_bytes = 0;
    for (const std::string& echo : form_.echoes) num_bytes += echo.size();
    return num_bytes;
  }

  void Begin(std::string&) override {}

  void Add(size_t choice_idx, const AnswerGain& gain, std::string& out) override {
    Progress& progress = BeginChoice(choice_idx, out);
    progress.num_tokens += std::ssize(gain.token_ids);
    if (!is_chat()) {
      if (gain.text.empty() && form_.logprobs < 0) return;
      return AppendChoice(choice_idx, TextField(gain.text), Logprobs(gain, progress), kNull, out);
    }
    // Log-probabilities stand with the first part.
    std::string logprobs = Logprobs(gain, progress);
    for (const AnswerDelta& delta : gain.deltas) {
      const std::string field = fmt::format(R"("delta":{})", JsonText(DeltaOf(choice_idx, delta)));
      AppendChoice(choice_idx, field, std::exchange(logprobs, std::string(kNull)), kNull, out);
    }
    if (logprobs != kNull) AppendChoice(choice_idx, R"("delta":{})", logprobs, kNull, out);
  }

  void EndChoice(size_t choice_idx, const ResultChoice& choice, std::string& out) override {
    BeginChoice(choice_idx, out);
    AppendChoice(choice_idx, is_chat() ? R"("delta":{})" : TextField(""), kNull,
                 fmt::format("\"{}\"", FinishName(choice)), out);
  }

  void End(std::span<const RequestResult> results, int64_t num_shared_tokens, std::string& out) override {
    if (form_.shows_usage) {
      json::object usage = UsageOf(results);
      usage["prompt_tokens_details"] = json::object{{"cached_tokens", num_shared_tokens}};
      out += "data: " + head_ + R"(,"choices":[],"usage":)" + JsonText(usage) + "}\n\n";
    }
    out += kDone;
  }

  void Fail(const ApiError& error, std::string& out) override {
    out += "data: " + JsonText(ErrorBody(error)) + "\n\n";
    out += kDone;
  }

 private:
  // How far the stream of a choice has come.
  struct Progress {
    bool has_begun = false;
    bool has_tokens = false;
    int64_t num_chars = 0, num_tokens = 0;
  };

  bool is_chat() const { return form_.kind == RequestKind::kChat; }

  Progress& BeginChoice(size_t choice_idx, std::string& out) {
    if (progress_.size() <= choice_idx) progress_.resize(choice_idx + 1);
    Progress& progress = progress_[choice_idx];
    if (std::exchange(progress.has_begun, true)) return progress;
    if (is_chat()) {
      AppendChoice(choice_idx, R"("delta":{"role":"assistant","content":""})", kNull, kNull, out);
    } else if (!form_.echoes.empty() && !form_.echoes[choice_idx / form_.num_answers].empty()) {
      AppendChoice(choice_idx, TextField(form_.echoes[choice_idx / form_.num_answers]), kNull, kNull, out);
    }
    return progress;
  }

  std::string Logprobs(const AnswerGain& gain, Progress& progress) {
    if (form_.logprobs < 0 || gain.logprobs.empty()) return std::string(kNull);
    std::string text;
    const bool is_first = !std::exchange(progress.has_tokens, true);
    if (is_chat()) {
      AppendChatLogprobs(gain.logprobs, is_first, token_text_, text);
    } else {
      Completion piece;
      piece.logprobs = gain.logprobs;
      AppendCompletionLogprobs(piece, is_first ? TextBegins::kWithAnswer : TextBegins::kBefore, form_.logprobs,
                               token_text_, progress.num_chars, text);
    }
    return text;
  }

  static std::string TextField(const std::string& text) {
    return R"("text":)" + JsonText(json::value(ReplaceInvalidUtf8(text)));
  }

  json::object DeltaOf(size_t choice_idx, const AnswerDelta& delta) const {
    const std::string text = ReplaceInvalidUtf8(delta.text);
    const auto call = [&](json::object fields) {
      fields["index"] = delta.call_idx;
      return json::object{{"tool_calls", json::array{std::move(fields)}}};
    };
    switch (delta.kind) {
      case AnswerDelta::Kind::kReasoning: return {{"reasoning_content", text}};
      case AnswerDelta::Kind::kCallBegin:
        return call({{"id", CallId(form_.head.request_number, choice_idx, static_cast<size_t>(delta.call_idx))},
                     {"type", "function"},
                     {"function", json::object{{"name", text}, {"arguments", ""}}}});
      case AnswerDelta::Kind::kCallArguments: return call({{"function", json::object{{"arguments", text}}}});
      case AnswerDelta::Kind::kContent: break;
    }
    return {{"content", text}};
  }

  // All are JSON.
  void AppendChoice(size_t choice_idx, std::string_view field, std::string_view logprobs,
                    std::string_view finish_reason, std::string& out) {
    out += "data: " + head_;
    out += fmt::format(R"(,"choices":[{{"index":{},{},"logprobs":{},"finish_reason":{}}}])", choice_idx, field,
                       logprobs, finish_reason);
    if (form_.shows_usage_so_far) {
      const int64_t prompt = form_.prompt_tokens[choice_idx / form_.num_answers],
                    answer = progress_[choice_idx].num_tokens;
      out += fmt::format(R"(,"usage":{{"prompt_tokens":{},"completion_tokens":{},"total_tokens":{}}})", prompt, answer,
                         prompt + answer);
    } else if (form_.shows_usage) {
      out += R"(,"usage":null)";
    }
    out += "}\n\n";
  }

  OpenAiForm form_;
  TokenText token_text_;
  std::string head_;  // of every chunk, without its closing brace
  std::vector<Progress> progress_;
};

}  // namespace

std::unique_ptr<AnswerWriter> OpenAiWriter(OpenAiForm form, TokenText token_text) {
  return std::make_unique<Writer>(std::move(form), std::move(token_text));
}

std::string_view FinishName(const ResultChoice& choice) {
  if (choice.completion.finish_reason == FinishReason::kLength) return "length";
  return choice.answer.tool_calls.empty() ? "stop" : "tool_calls";
}

}  // namespace penstock::server
