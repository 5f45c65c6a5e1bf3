#include "penstock/server/api/answering.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "penstock/job/runner.h"

namespace penstock::server {

// Receives what the engine's thread tells of one answer.
class Answering::Listener : public AnswerListener {
 public:
  Listener(std::shared_ptr<Answering> answering, size_t choice_idx)
      : answering_(std::move(answering)), choice_idx_(choice_idx) {}
  void OnPiece(const AnswerPiece& piece) override { answering_->OnPiece(choice_idx_, piece); }
  void OnEnd(Completion completion) override { answering_->OnEnd(choice_idx_, std::move(completion)); }

 private:
  std::shared_ptr<Answering> answering_;
  size_t choice_idx_;
};

Answering::Answering(EngineService& service, Args args) : service_(service), args_(std::move(args)) {
  for (size_t i = 0; i < args_.prompts.size(); ++i) {
    for (int64_t n = 0; n < args_.prompts[i].request.num_answers; ++n) {
      Choice& choice = choices_.emplace_back();
      choice.prompt_idx = i;
      auto& streams = args_.prompts[i].streams;
      if (!streams.empty()) choice.stream = std::move(streams[static_cast<size_t>(n)]);
    }
  }
  num_left_ = choices_.size();
}

void Answering::Start() {
  args_.exchange->OnGone([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->Abandon();
  });
  if (args_.is_stream) args_.exchange->Stream(shared_from_this(), args_.headers);
  const std::lock_guard lock(mutex_);
  size_t choice_idx = 0;
  for (PromptWork& prompt : args_.prompts) {
    for (int64_t i = 0; i < prompt.request.num_answers && !is_over_; ++i, ++choice_idx) {
      const bool is_last = i + 1 == prompt.request.num_answers;
      Request request = is_last ? std::move(prompt.engine_request) : prompt.engine_request;  // numbers stay
      if (i > 0) request.sampling.seed = RequestSeed(request.sampling.seed, -i);
      choices_[choice_idx].ticket =
          service_.Submit(std::move(request), std::make_shared<Listener>(shared_from_this(), choice_idx));
    }
  }
}

void Answering::OnPiece(size_t choice_idx, const AnswerPiece& piece) {
  {
    const std::lock_guard lock(mutex_);
    Choice& choice = choices_[choice_idx];
    const Clock::time_point now = Clock::now();
    if (!first_token_.has_value()) first_token_ = now;
    if (args_.on_gap && choice.last_piece != Clock::time_point{}) {
      args_.on_gap(std::chrono::duration<double>(now - choice.last_piece).count(), std::ssize(piece.token_ids));
    }
    choice.last_piece = now;
    if (!args_.is_stream) return;
    choice.pending.text += piece.text;
    choice.pending.token_ids.insert(choice.pending.token_ids.end(), piece.token_ids.begin(), piece.token_ids.end());
    choice.pending.logprobs.insert(choice.pending.logprobs.end(), piece.logprobs.begin(), piece.logprobs.end());
  }
  args_.exchange->Wake();
}

void Answering::OnEnd(size_t choice_idx, Completion completion) {
  bool is_last = false;
  {
    const std::lock_guard lock(mutex_);
    Choice& choice = choices_[choice_idx];
    choice.has_ended = true;
    is_last = --num_left_ == 0;
    if (!completion.status.ok()) {
      if (!error_.has_value()) error_ = ErrorOf(completion.status);
    } else {
      num_shared_tokens_ += choice_idx == 0 || choices_[choice_idx - 1].prompt_idx != choice.prompt_idx
                                ? completion.num_shared_tokens
                                : 0;
      choice.result.completion = std::move(completion);
    }
    if (error_.has_value()) is_last = !is_over_;
    if (is_over_) return;
    is_over_ = is_last;
    if (error_.has_value()) CancelAll();
  }
  if (args_.is_stream) return args_.exchange->Wake();
  if (is_last) {
    args_.exchange->Run([self = shared_from_this()] { self->RespondWhole(); });
  }
}

AnswerGain Answering::TakeGain(Choice& choice) {
  AnswerGain gain = std::exchange(choice.pending, {});
  if (choice.stream == nullptr) return gain;
  gain.deltas = choice.stream->Push(gain.token_ids, gain.text);
  if (choice.has_ended) std::ranges::move(choice.stream->Finish(), std::back_inserter(gain.deltas));
  for (const AnswerDelta& delta : gain.deltas) AddDelta(delta, choice.result.answer);
  choice.result.answer.num_reasoning_tokens = choice.stream->num_reasoning_tokens();
  return gain;
}

std::vector<RequestResult> Answering::Results() {
  std::vector<RequestResult> results;
  for (size_t i = 0; i < args_.prompts.size(); ++i) {
    const PromptWork& prompt = args_.prompts[i];
    RequestResult& result = results.emplace_back();
    result.kind = prompt.request.kind;
    result.model = args_.model_name;
    result.logprobs = prompt.engine_request.sampling.logprobs;
    result.echoes_prompt = prompt.request.echoes_prompt;
    result.prompt = prompt.request.prompt;
    result.shown_prompt_logprobs = prompt.request.shown_prompt_logprobs;
    for (Choice& choice : choices_) {
      if (choice.prompt_idx != i) continue;
      result.prompt_tokens = choice.result.completion.num_prompt_tokens;
      result.completion_tokens += std::ssize(choice.result.completion.token_ids);
      result.reasoning_tokens += choice.result.answer.num_reasoning_tokens;
      result.choices.push_back(std::move(choice.result));
    }
  }
  return results;
}

void Answering::RespondWhole() {
  const std::lock_guard lock(mutex_);
  HttpResponse response;
  Report(!error_.has_value());
  if (error_.has_value()) {
    response = ErrorResponse(*error_, args_.writer->style());
  } else {
    for (Choice& choice : choices_) {
      const Completion& completion = choice.result.completion;
      if (choice.stream != nullptr) {
        choice.result.answer = ReadAnswer(*choice.stream, completion.token_ids, completion.text);
      }
    }
    response.body = args_.writer->Body(Results(), num_shared_tokens_);
  }
  response.headers.insert(response.headers.end(), args_.headers.begin(), args_.headers.end());
  args_.exchange->Respond(std::move(response));
}

bool Answering::Take(std::string& out) {
  const std::lock_guard lock(mutex_);
  AnswerWriter& writer = *args_.writer;
  if (error_.has_value()) {
    writer.Fail(*error_, out);
    Report(false);
    return true;
  }
  if (!std::exchange(has_begun_, true)) writer.Begin(out);
  for (size_t i = 0; i < choices_.size(); ++i) {
    Choice& choice = choices_[i];
    if (choice.is_told) continue;
    if (const AnswerGain gain = TakeGain(choice); !gain.empty()) writer.Add(i, gain, out);
    choice.is_told = choice.has_ended;
    if (choice.is_told) writer.EndChoice(i, choice.result, out);
  }
  if (num_left_ > 0) return false;
  Report(true);
  writer.End(Results(), num_shared_tokens_, out);
  return true;
}

void Answering::Abandon() {
  const std::lock_guard lock(mutex_);
  is_over_ = true;
  CancelAll();
  Report(false);
}

void Answering::CancelAll() {
  for (const Choice& choice : choices_) {
    if (!choice.has_ended && choice.ticket != 0) service_.Cancel(choice.ticket);
  }
}

void Answering::Report(bool is_good) {
  const auto on_end = std::exchange(args_.on_end, {});
  if (!on_end) return;
  AnsweringReport report{.is_good = is_good, .total_s = SecondsSince(start_)};
  if (first_token_.has_value()) {
    report.first_token_s = std::chrono::duration<double>(*first_token_ - start_).count();
  }
  for (const Choice& choice : choices_) {
    report.finish_reason = choice.result.completion.finish_reason;
    report.prompt_tokens = std::max(report.prompt_tokens, choice.result.completion.num_prompt_tokens);
    report.completion_tokens += std::ssize(choice.result.completion.token_ids);
  }
  on_end(report);
}

}  // namespace penstock::server
