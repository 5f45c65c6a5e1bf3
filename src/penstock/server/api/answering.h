// The work of one HTTP request on the engine: one or several prompts, each with one or several answers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "penstock/base/clock.h"
#include "penstock/engine.h"
#include "penstock/job/input/request_line.h"
#include "penstock/job/result_line.h"
#include "penstock/server/api/api_error.h"
#include "penstock/server/engine_service.h"
#include "penstock/server/http/exchange.h"

namespace penstock::server {

// The part of an answer that a client has not got yet.
struct AnswerGain {
  std::string text = {};
  std::vector<TokenId> token_ids = {};
  std::vector<TokenLogprobs> logprobs = {};
  std::vector<AnswerDelta> deltas = {};  // of chats: parts that became final

  bool empty() const { return text.empty() && token_ids.empty() && deltas.empty(); }
};

// Writes answers in the form of one endpoint. One thread at a time uses it.
class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;

  // Return the response's body, when all answers are there.
  virtual std::string Body(std::span<const RequestResult> results, int64_t num_shared_tokens) = 0;
  // These write a stream: its beginning, the next piece of an answer, the end of an answer, the end of all.
  virtual void Begin(std::string& out) = 0;
  virtual void Add(size_t choice_idx, const AnswerGain& gain, std::string& out) = 0;
  virtual void EndChoice(size_t choice_idx, const ResultChoice& choice, std::string& out) = 0;
  virtual void End(std::span<const RequestResult> results, int64_t num_shared_tokens, std::string& out) = 0;
  // The end of a stream that fails.
  virtual void Fail(const ApiError& error, std::string& out) = 0;
  virtual std::string_view Ping() const { return ": ping\n\n"; }
  // Returns the bytes that it holds of the request.
  virtual uint64_t held_bytes() const { return 0; }
  // Returns how many texts list all log-probabilities of an answer at once.
  virtual int NumLogprobLists(bool is_stream) const { return is_stream ? 0 : 1; }
  virtual ApiStyle style() const { return ApiStyle::kOpenAi; }
};

// A prompt and its answers.
struct PromptWork {
  JobRequest request;
  Request engine_request;  // of the first answer; further ones differ in their seeds
  // They split the answers to a chat, one each.
  std::vector<std::unique_ptr<AnswerStream>> streams = {};
};

// Numbers of a request that has ended.
struct AnsweringReport {
  bool is_good = false;
  FinishReason finish_reason = FinishReason::kStop;  // of the last answer
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  double first_token_s = 0;  // from the beginning; 0: there was none
  double total_s = 0;
};

class Answering : public StreamSource, public std::enable_shared_from_this<Answering> {
 public:
  struct Args {
    std::shared_ptr<Exchange> exchange;
    std::unique_ptr<AnswerWriter> writer = {};
    std::vector<PromptWork> prompts = {};
    std::string model_name = {};
    bool is_stream = false;
    HttpHeaders headers = {};
    std::function<void(const AnsweringReport&)> on_end = {};          // called once
    std::function<void(double seconds, int64_t tokens)> on_gap = {};  // between two pieces of an answer
  };
  Answering(EngineService& service, Args args);

  // Submits the requests to the engine. The exchange gets the response, now or later.
  void Start();

  bool Take(std::string& out) override;
  std::string_view Ping() const override { return args_.writer->Ping(); }

 private:
  class Listener;
  struct Choice {
    size_t prompt_idx = 0;
    Ticket ticket = 0;
    AnswerGain pending = {};
    std::unique_ptr<AnswerStream> stream = {};  // of a chat
    Clock::time_point last_piece = {};
    bool has_ended = false;
    bool is_told = false;  // the stream has its end
    ResultChoice result = {};
  };

  void OnPiece(size_t choice_idx, const AnswerPiece& piece);
  void OnEnd(size_t choice_idx, Completion completion);
  // The client has left.
  void Abandon();
  // With the lock: these give up what runs, and call on_end.
  void CancelAll();
  void Report(bool is_good);
  // Takes what the client has not got of a choice, split into its parts.
  AnswerGain TakeGain(Choice& choice);
  std::vector<RequestResult> Results();
  void RespondWhole();

  EngineService& service_;
  Args args_;
  Clock::time_point start_ = Clock::now();

  std::mutex mutex_;  // of all that follow, and of the writer
  std::vector<Choice> choices_;
  size_t num_left_ = 0;
  int64_t num_shared_tokens_ = 0;
  std::optional<Clock::time_point> first_token_;
  std::optional<ApiError> error_;
  bool has_begun_ = false;
  bool is_over_ = false;  // nothing more is told
};

}  // namespace penstock::server
