#include "penstock/job/runner.h"

#include <algorithm>
#include <utility>

#include <xxhash.h>

#include "penstock/base/check.h"
#include "penstock/base/limits.h"
#include "penstock/base/logging.h"
#include "penstock/base/status.h"
#include "penstock/job/prepared_request.h"

namespace penstock {

uint64_t RequestSeed(uint64_t job_seed, int64_t line_number) {
  return XXH3_64bits_withSeed(&line_number, sizeof(line_number), job_seed);
}

Runner::Runner(const Args& args)
    : args_(args),
      prompts_(MakerOf(args.engine, args.system, args.date)),
      token_text_([&engine = args.engine](TokenId id, bool begins_text) { return engine.TokenBytes(id, begins_text); }),
      reader_(args.inputs) {
  counts_.num_requests = args.report.num_requests;
  counts_.num_done = args.scan.num_done;
  counts_.num_resumed = args.scan.num_done;
  counts_.num_failed = args.scan.num_failed;
  counts_.labels = args.scan.labels;
  constexpr double kBytesPerToken = 4;
  const Workload expected = WorkloadOf(args.report, kBytesPerToken);
  const double prompts_per_request = static_cast<double>(args.report.prompts.num_prompts) /
                                     static_cast<double>(std::max<int64_t>(1, args.report.num_requests));
  counts_.max_expected = {static_cast<double>(expected.prompt_tokens) * prompts_per_request,
                          static_cast<double>(expected.new_tokens) * prompts_per_request};
}

absl::Status Runner::Run(const std::atomic<bool>& stop) {
  const absl::Status status = Loop(stop);
  // However the loop ended, finished results are worth keeping.
  const absl::Status synced = args_.output.Sync();
  return status.ok() ? synced : status;
}

absl::Status Runner::Loop(const std::atomic<bool>& stop) {
  while (true) {
    PENSTOCK_RETURN_IF_ERROR(SubmitFurther());
    if (!stop.load() && further_.empty()) PENSTOCK_RETURN_IF_ERROR(Fill(stop));
    if (stop.load() && !drain_until_.has_value()) BeginDrain();
    const bool is_idle = args_.engine.idle() && further_.empty();
    const bool is_stopping = drain_until_.has_value();
    if (is_idle && at_end_ && (!is_stopping || counts_.num_done == counts_.num_requests)) return absl::OkStatus();
    if (is_stopping && (is_idle || Clock::now() >= *drain_until_)) {
      return MakeError(Fault::kStopped,
                       fmt::format("stopped with {} of {} requests done{}", counts_.num_done, counts_.num_requests,
                                   args_.output.is_regular() ? "; continue with --resume" : ""));
    }
    absl::StatusOr<std::vector<Completion>> finished = args_.engine.Step();
    if (!finished.ok()) return AnnotateStop(finished.status());
    PENSTOCK_RETURN_IF_ERROR(FinishAll(*std::move(finished)));
    PENSTOCK_RETURN_IF_ERROR(args_.output.SyncIfDue());
    if (args_.on_progress) args_.on_progress(counts_);
  }
}

void Runner::BeginDrain() {
  drain_until_ =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(args_.drain_s));
  for (const RequestId id : args_.engine.DropWaiting()) {
    const auto found = active_.find(id);
    const Place place = found->second;
    active_.erase(found);
    if (place.active->is_scored.has_value() && place.choice_idx != kOfPrompt) {
      further_.push_back(place);  // its request is under way
    } else {
      place.active->num_left = 0;
    }
  }
  if (args_.drain_s > 0 && args_.engine.num_running() > 0) {
    LogInfo("stopping: {} requests under way have {:.0f} s to finish; a second signal stops at once",
            args_.engine.num_running(), args_.drain_s);
  }
}

absl::Status Runner::AnnotateStop(const absl::Status& status) const {
  return Annotate(status, fmt::format("after {} of {} requests (they are kept; continue with --resume)",
                                      counts_.num_done, counts_.num_requests));
}

absl::Status Runner::FinishAll(std::vector<Completion> finished) {
  absl::Status fault;
  for (Completion& completion : finished) {
    if (!completion.status.ok() && FaultOf(completion.status) == Fault::kIo) {
      fault.Update(completion.status);
    } else {
      PENSTOCK_RETURN_IF_ERROR(Finish(std::move(completion)));
    }
  }
  return fault.ok() ? fault : AnnotateStop(fault);
}

bool Runner::WantsMore(int64_t max_waiting) const {
  const Engine& engine = args_.engine;
  if (engine.num_waiting() == 0) return true;
  return engine.num_waiting() < max_waiting && engine.num_waiting_tokens() < kReadAheadTokens;
}

// Requests are started until all places are taken, or one must wait for KV pages. As many more are read ahead.
absl::Status Runner::Fill(const std::atomic<bool>& stop) {
  Line line;
  while (!at_end_ && !stop.load() && num_scored_ < num_places() &&
         WantsMore(2 * num_places() - args_.engine.num_running())) {
    const InputFile& left = reader_.file();  // the reader may go on to the next file
    PENSTOCK_ASSIGN_OR_RETURN(const bool more, reader_.Next(line));
    PENSTOCK_ASSIGN_OR_RETURN(const bool left_changed, left.LooksChanged());
    PENSTOCK_ASSIGN_OR_RETURN(const bool changed, reader_.file().LooksChanged());
    if (left_changed || changed) PENSTOCK_RETURN_IF_ERROR(args_.inputs.CheckUnchanged(args_.report.digest));
    at_end_ = !more;
    if (!more || (!line.too_long && IsBlank(line.text))) continue;
    if (args_.scan.done[line.number] || !args_.report.Has(line.number)) continue;
    PENSTOCK_RETURN_IF_ERROR(StartLine(line));
  }
  return absl::OkStatus();
}

absl::Status Runner::StartLine(const Line& line) {
  RequestLine parsed = line.too_long ? TooLongLine(line.num_bytes) : ParseRequestLine(line.text, line.number);
  CheckLineModel(args_.report, parsed);
  CheckLineTask(args_.task, parsed);
  const auto active = std::make_shared<Active>();
  active->head = {args_.job_digest, line.number, parsed.id, reader_.place()};
  if (parsed.error.has_value()) return WriteError(*active, *parsed.error);
  active->request = std::move(parsed.request);
  active->sampling = Overlay(args_.sampling, active->request.sampling);
  if (!active->request.sampling.seed.has_value()) active->sampling.seed = RequestSeed(args_.seed, line.number);
  return Submit(active);
}

absl::Status Runner::SubmitAs(Request request, const std::shared_ptr<Active>& active, size_t choice_idx) {
  PENSTOCK_ASSIGN_OR_RETURN(const RequestId id, args_.engine.Submit(std::move(request)));
  const bool is_new = active_.emplace(id, Place{active, choice_idx}).second;
  PENSTOCK_CHECK(is_new);
  return absl::OkStatus();
}

absl::Status Runner::SubmitScoredPrompt(const std::shared_ptr<Active>& active) {
  PENSTOCK_ASSIGN_OR_RETURN(active->scored, ScoredPromptOf(prompts_, active->request));
  active->num_left = 1;
  active->is_scored.emplace(num_scored_);
  return SubmitAs(FirstScoringRequest(active->scored, active->sampling.logprobs), active, kOfPrompt);
}

absl::Status Runner::TakeScoredPrompt(const std::shared_ptr<Active>& active, Completion completion) {
  active->prompt_tokens = completion.num_prompt_tokens;
  active->choices =
      FirstScores(active->request.choices, std::move(completion), active->sampling.logprobs >= 0, token_text_);
  active->num_left = 0;
  for (size_t i = 0; i < active->choices.size(); ++i) {
    const auto num_tokens = std::ssize(active->scored.choices[i]);
    active->completion_tokens += num_tokens;
    if (num_tokens == 1) continue;
    further_.push_back({active, i});
    ++active->num_left;
  }
  return active->num_left > 0 ? absl::OkStatus() : WriteFinished(*active);
}

absl::Status Runner::SubmitFurther() {
  while (!further_.empty() && WantsMore(2 * num_places())) {
    const auto [active, choice_idx] = further_.front();
    further_.pop_front();
    if (active->num_left == 0) continue;  // another choice of the request has failed
    const absl::Status status =
        SubmitAs(FurtherScoringRequest(active->scored, choice_idx, active->sampling.logprobs), active, choice_idx);
    if (status.ok()) continue;
    PENSTOCK_RETURN_IF_ERROR(GiveUp(*active, Annotate(status, fmt::format("choices: number {}", choice_idx + 1))));
  }
  return absl::OkStatus();
}

absl::Status Runner::TrySubmit(const std::shared_ptr<Active>& active) {
  if (!active->request.choices.empty()) return SubmitScoredPrompt(active);
  PENSTOCK_ASSIGN_OR_RETURN(const PreparedRequest prepared, Prepare(args_.engine, prompts_, formats_, active->request,
                                                                    active->sampling, active->answers));
  const uint64_t seed = active->sampling.seed;
  active->choices.clear();
  active->choices.resize(static_cast<size_t>(active->request.num_answers));
  active->streams.clear();
  active->num_left = active->request.num_answers;
  for (size_t i = 0; i < active->choices.size(); ++i) {
    // Each turn and each further answer has its own random stream.
    const int64_t stream = -static_cast<int64_t>(active->answers.size() + i);
    Request answer = prepared.request;
    if (prepared.new_stream) active->streams.push_back(prepared.new_stream());
    if (stream != 0) answer.sampling.seed = RequestSeed(seed, stream);
    PENSTOCK_RETURN_IF_ERROR(SubmitAs(std::move(answer), active, i));
  }
  return absl::OkStatus();
}

absl::Status Runner::Submit(const std::shared_ptr<Active>& active) {
  const absl::Status status = TrySubmit(active);
  if (status.ok()) {
    // The engine has the prompt now. Only turns are needed again, with the fields that build their prompts.
    KeepEcho(args_.engine, active->request);
    active->request.prompt_ids = {};
    if (active->request.kind != RequestKind::kTurns) active->request.chat = {};
    return absl::OkStatus();
  }
  return GiveUp(*active, status);
}

absl::Status Runner::GiveUp(Active& active, const absl::Status& status) {
  if (FaultOf(status) != Fault::kInput && FaultOf(status) != Fault::kModel) {
    return Annotate(status, active.head.place.FullText());
  }
  active.num_left = 0;
  return WriteFailure(active, status);
}

// Writes the error record of a request.
absl::Status Runner::WriteFailure(const Active& active, const absl::Status& status) {
  const std::string_view code = FaultOf(status) == Fault::kInput ? "invalid_request" : "model_error";
  std::string message = penstock::Message(status);
  if (active.request.kind == RequestKind::kTurns) {
    message = fmt::format("turn {}: {}", active.answers.size() + 1, message);
  }
  return WriteError(active, {std::string(code), std::move(message), ""});
}

absl::Status Runner::WriteError(const Active& active, const LineError& error) {
  counts_.AddFailure({error.code, 1, active.head.place.Text(), error.message});
  return WriteResult(FormatError(active.head, error, active.answers));
}

absl::Status Runner::Finish(Completion completion) {
  const auto found = active_.find(completion.request_id);
  PENSTOCK_CHECK(found != active_.end());
  const auto [active, choice_idx] = found->second;
  active_.erase(found);
  if (active->num_left == 0) return absl::OkStatus();  // another answer of the request has failed
  if (!completion.status.ok()) {
    if (!std::exchange(has_told_of_failure_, true)) {
      LogWarning("{}: {}; it gets an error record and the job goes on (further ones are not shown)",
                 active->head.place.Text(), penstock::Message(completion.status));
    }
    active->num_left = 0;
    return WriteFailure(*active, completion.status);
  }
  active->given_tokens += completion.num_prompt_tokens;
  if (choice_idx == kOfPrompt) return TakeScoredPrompt(active, std::move(completion));
  if (!active->request.choices.empty()) {
    AddScores(std::move(completion), active->sampling.logprobs >= 0, active->choices[choice_idx]);
    return --active->num_left > 0 ? absl::OkStatus() : WriteFinished(*active);
  }
  if (choice_idx == 0) active->prompt_tokens += completion.num_prompt_tokens;
  active->completion_tokens += static_cast<int64_t>(completion.token_ids.size());
  ResultChoice& choice = active->choices[choice_idx];
  if (active->request.kind != RequestKind::kCompletion) {
    choice.answer = ReadAnswer(*active->streams[choice_idx], completion.token_ids, completion.text);
    active->reasoning_tokens += choice.answer.num_reasoning_tokens;
  }
  choice.completion = std::move(completion);
  if (--active->num_left > 0) return absl::OkStatus();
  if (active->request.kind == RequestKind::kTurns) {
    active->answers.push_back(choice.answer.content);
    if (active->answers.size() < active->request.turns.size()) return Submit(active);
  }
  return WriteFinished(*active);
}

absl::Status Runner::WriteFinished(Active& active) {
  const RequestResult result = {.kind = active.request.choices.empty() ? active.request.kind : RequestKind::kCompletion,
                                .model = args_.model_name,
                                .choices = std::move(active.choices),
                                .answers = std::move(active.answers),
                                .prompt_tokens = active.prompt_tokens,
                                .completion_tokens = active.completion_tokens,
                                .reasoning_tokens = active.reasoning_tokens,
                                .logprobs = active.sampling.logprobs,
                                .echoes_prompt = active.request.echoes_prompt,
                                .prompt = std::move(active.request.prompt),
                                .shown_prompt_logprobs = active.request.shown_prompt_logprobs,
                                .is_scored = !active.request.choices.empty(),
                                .is_short = args_.task == JobTask::kClassify,
                                .label = active.request.label};
  if (result.label.has_value()) counts_.labels.Add(LabelsOf(result));
  counts_.finished.prompt += static_cast<double>(active.given_tokens);
  if (!result.is_scored) counts_.finished.answer += static_cast<double>(active.completion_tokens);
  return WriteResult(FormatResult(active.head, result, token_text_));
}

absl::Status Runner::WriteResult(const std::string& result) {
  PENSTOCK_RETURN_IF_ERROR(args_.output.Append(result));
  ++counts_.num_done;
  return absl::OkStatus();
}

}  // namespace penstock
