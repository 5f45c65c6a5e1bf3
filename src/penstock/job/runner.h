// The main loop of a job: reads lines as the engine has room, runs steps, writes results as they finish.
//
// Memory is constant: it holds only the requests that the engine runs, and a few that wait. The engine chooses among
// these the ones whose prompts begin like those that it has computed.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "penstock/base/clock.h"
#include "penstock/engine.h"
#include "penstock/job/format_cache.h"
#include "penstock/job/input/inputs.h"
#include "penstock/job/input/request_line.h"
#include "penstock/job/input/validate_input.h"
#include "penstock/job/output_file.h"
#include "penstock/job/output_scan.h"
#include "penstock/job/progress.h"
#include "penstock/job/prompt.h"
#include "penstock/job/result_line.h"
#include "penstock/job/scoring.h"

namespace penstock {

// Returns the seed of a line without one. It depends only on the job's seed and the line number.
uint64_t RequestSeed(uint64_t job_seed, int64_t line_number);

// Lines are read ahead until the prompts that wait have this many tokens.
inline constexpr int64_t kReadAheadTokens = 32 << 10;

class Runner {
 public:
  struct Args {
    Engine& engine;
    Inputs& inputs;
    const InputReport& report;
    OutputFile& output;
    const OutputScan& scan;  // lines that are already done
    uint64_t job_digest;
    std::string model_name;             // that result lines name
    std::optional<std::string> system;  // see JobOptions
    std::string date;                   // that chat templates see
    uint64_t seed;
    SamplingParams sampling;  // where requests start from
    JobTask task;
    double drain_s;                                          // see JobOptions
    std::function<void(const ProgressCounts&)> on_progress;  // called after each step
  };
  explicit Runner(const Args& args);

  // Runs the lines that are not done. OK when every line has its result, kStopped when `stop` was set or the output has
  // no room. After `stop` was set, requests under way have drain_s to finish. Otherwise the error of the engine, the
  // input or the output. Finished results are on disk in each case, unless the output itself failed.
  absl::Status Run(const std::atomic<bool>& stop);

  const ProgressCounts& counts() const { return counts_; }

 private:
  // Counts the objects that live.
  class Counted {
   public:
    explicit Counted(int64_t& count) : count_(&count) { ++count; }
    ~Counted() { --*count_; }
    Counted(const Counted&) = delete;
    Counted& operator=(const Counted&) = delete;

   private:
    int64_t* count_;
  };
  struct Active {
    ResultHead head;
    JobRequest request;
    SamplingParams sampling;
    std::vector<std::string> answers;  // answers to the turns so far
    std::vector<ResultChoice> choices;
    std::vector<std::unique_ptr<AnswerStream>> streams;  // [choices.size()], which split the answers to a chat
    ScoredPrompt scored;                                 // of a request with choices
    std::optional<Counted> is_scored;
    int64_t num_left = 0;  // answers that are not finished
    int64_t prompt_tokens = 0;
    int64_t completion_tokens = 0;
    int64_t reasoning_tokens = 0;
    int64_t given_tokens = 0;  // of all prompts that the engine got, those of choices, too
  };

  absl::Status Loop(const std::atomic<bool>& stop);
  // Gives up the requests that wait.
  void BeginDrain();
  // Takes the requests that finished. A fault of the machine ends the job; the other requests are written first.
  absl::Status FinishAll(std::vector<Completion> finished);
  int64_t num_places() const { return std::max<int64_t>(1, args_.engine.memory_plan().batch_size); }
  // Whether the engine may have this many requests that wait, besides those that it runs.
  bool WantsMore(int64_t max_waiting) const;
  absl::Status Fill(const std::atomic<bool>& stop);
  absl::Status StartLine(const Line& line);
  // Submits the request or its next turn. A kInput or kModel error becomes the line's error record.
  absl::Status Submit(const std::shared_ptr<Active>& active);
  absl::Status TrySubmit(const std::shared_ptr<Active>& active);
  // Submits the prompt of a request with choices. Its last row scores their first tokens. Then choices of several
  // tokens wait in further_, from where the engine gets them as it has room. Only as many such requests are under way
  // as there are places, so that the KV entries of a prompt stay until its choices need them.
  absl::Status SubmitScoredPrompt(const std::shared_ptr<Active>& active);
  absl::Status TakeScoredPrompt(const std::shared_ptr<Active>& active, Completion completion);
  absl::Status SubmitFurther();
  absl::Status SubmitAs(Request request, const std::shared_ptr<Active>& active, size_t choice_idx);
  // Writes the error record of a request that cannot be submitted; an error of the machine is returned instead.
  absl::Status GiveUp(Active& active, const absl::Status& status);
  absl::Status Finish(Completion completion);
  // Adds to an error how far the job has come.
  absl::Status AnnotateStop(const absl::Status& status) const;
  // Writes the result of a request whose answers are all there.
  absl::Status WriteFinished(Active& active);
  absl::Status WriteFailure(const Active& active, const absl::Status& status);
  absl::Status WriteError(const Active& active, const LineError& error);
  absl::Status WriteResult(const std::string& result);

  Args args_;
  PromptMaker prompts_;
  TokenText token_text_;
  InputReader reader_;
  bool at_end_ = false;
  bool has_told_of_failure_ = false;
  std::optional<Clock::time_point> drain_until_;  // set when the job stops
  static constexpr size_t kOfPrompt = std::numeric_limits<size_t>::max();
  struct Place {
    std::shared_ptr<Active> active;
    size_t choice_idx = 0;  // kOfPrompt: the prompt of a request with choices
  };
  int64_t num_scored_ = 0;  // requests with choices under way
  absl::flat_hash_map<RequestId, Place> active_;
  FormatCache formats_;
  std::deque<Place> further_;  // choices that are not submitted yet
  ProgressCounts counts_;
};

}  // namespace penstock
