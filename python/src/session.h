// An engine with requests in the form of job lines (docs/jobs.md). It knows nothing of Python.
//
// A line is parsed, checked and tokenized exactly as `penstock run` does it, so both give the same answers.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "penstock/engine.h"
#include "penstock/job/format_cache.h"
#include "penstock/job/input/request_line.h"
#include "penstock/job/prompt.h"
#include "penstock/job/result_line.h"
#include "penstock/job/scoring.h"

namespace penstock::python {

// Names a request of the session; the caller chooses it.
using Ticket = uint64_t;

struct Result {
  Ticket ticket = 0;
  absl::Status status;  // not OK: the request failed, and the rest is empty
  std::vector<TokenId> prompt_ids;
  // The answers, or the given choices with their scores. A single answer may also have the prompt's log-probabilities.
  std::vector<ResultChoice> choices;
  bool is_chat = false;
  bool is_scored = false;
};

// The tokens that an answer has gained, and the text that is final.
struct Piece {
  Ticket ticket = 0;
  int64_t answer_idx = 0;
  std::vector<TokenId> token_ids;
  std::string text;
};

struct Events {
  std::vector<Result> results;
  std::vector<Piece> pieces;
};

// Returns what a session with these options needs of the budget beside the engine.
std::function<CallerMemory(const ModelInfo&)> SessionMemory(const EngineOptions& options);

// One thread at a time may use a session.
class Session {
 public:
  static absl::StatusOr<std::unique_ptr<Session>> Open(const EngineOptions& options, const std::string& date);

  const Engine& engine() const { return *engine_; }
  Engine& engine() { return *engine_; }

  // Returns the tokens of a chat in JSON (Chat::FromJson). May be called beside the thread that uses the session.
  absl::StatusOr<std::vector<TokenId>> TokenizeChat(const std::string& messages, const std::string& tools,
                                                    const std::string& variables) const;
  // Queues the request of a job line. A line without a seed gets that of the job line `number` (from 1). With
  // `streams`, the text of its answers comes in pieces. kInput leaves the session unchanged, except that some answers
  // of a request with several may run; GiveUp() ends them.
  absl::Status Submit(Ticket ticket, std::string_view line, int64_t number, bool streams);
  // Gives up a request: it gets no result.
  void GiveUp(Ticket ticket);
  // Returns whether the engine has room for another request. More of them would only take memory.
  bool WantsMore();
  bool idle() const { return engine_->idle() && further_.empty(); }

  // Makes steps until a request has a result, a piece of text is final, `wake` is set, or the session is idle. After an
  // error, the session can no longer be used.
  absl::StatusOr<Events> Run(const std::atomic<bool>& wake);

 private:
  struct Active {
    Ticket ticket = 0;
    JobRequest request;
    ScoredPrompt scored;  // of a request with choices
    Result result;
    std::vector<std::unique_ptr<AnswerStream>> parts;  // of a chat: they split the answers into their parts
    SamplingParams sampling;
    int64_t num_left = 0;  // answers or choices that are not finished
    bool streams = false;
  };
  static constexpr size_t kOfPrompt = static_cast<size_t>(-1);
  struct Place {
    std::shared_ptr<Active> active;
    size_t idx = 0;  // of the answer or choice; kOfPrompt: the prompt of a request with choices
  };

  Session(std::unique_ptr<Engine> engine, const std::string& date, uint64_t max_format_bytes);
  int64_t num_places() const;
  absl::Status SubmitAs(Request request, const std::shared_ptr<Active>& active, size_t idx);
  absl::Status SubmitAnswers(const std::shared_ptr<Active>& active);
  absl::Status SubmitScoring(const std::shared_ptr<Active>& active);
  void SubmitFurther(Events& events);
  void Finish(Completion completion, Events& events);
  void TakeScoredPrompt(const std::shared_ptr<Active>& active, Completion completion, Events& events);
  // Ends a request with its result.
  void End(Active& active, absl::Status status, Events& events);

  std::unique_ptr<Engine> engine_;
  PromptMaker prompts_;
  FormatCache formats_;
  TokenText token_text_;
  absl::flat_hash_map<RequestId, Place> places_;
  absl::flat_hash_map<Ticket, std::shared_ptr<Active>> active_;
  std::deque<Place> further_;  // choices that are not submitted yet
  std::vector<Piece> pieces_;
};

}  // namespace penstock::python
