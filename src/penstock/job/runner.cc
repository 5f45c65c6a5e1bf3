#include "penstock/job/runner.h"

#include <algorithm>
#include <utility>

#include <xxhash.h>

#include "penstock/base/check.h"
#include "penstock/base/limits.h"
#include "penstock/base/logging.h"
#include "penstock/base/status.h"

namespace penstock {
namespace {

// A missing disk must not turn a whole job into error lines. After this many errors the job stops and can be resumed.
constexpr int kMaxIoErrorsInARow = 256;

json::object Message(std::string_view role, std::string_view content) {
  return {{"role", json::string_view(role.data(), role.size())},
          {"content", json::string_view(content.data(), content.size())}};
}

// Returns the chat so far: every question with its answer, then the next question.
json::array ConversationSoFar(const std::vector<std::string>& turns, const std::vector<std::string>& answers) {
  json::array messages;
  for (size_t i = 0; i < answers.size(); ++i) {
    messages.push_back(Message("user", turns[i]));
    messages.push_back(Message("assistant", answers[i]));
  }
  messages.push_back(Message("user", turns[answers.size()]));
  return messages;
}

}  // namespace

uint64_t RequestSeed(uint64_t job_seed, int64_t line_number) {
  return XXH3_64bits_withSeed(&line_number, sizeof(line_number), job_seed);
}

Runner::Runner(const Args& args) : args_(args), reader_(args.input.fd(), args.input.name(), kMaxRequestLineBytes) {
  counts_.num_requests = args.report.num_requests;
  counts_.num_done = args.scan.num_done;
  counts_.num_resumed = args.scan.num_done;
  counts_.num_failed = args.scan.num_failed;
}

absl::Status Runner::Run(const std::atomic<bool>& stop) {
  const absl::Status status = Loop(stop);
  // However the loop ended, finished results are worth keeping.
  const absl::Status synced = args_.output.Sync();
  return status.ok() ? synced : status;
}

absl::Status Runner::Loop(const std::atomic<bool>& stop) {
  while (true) {
    if (!stop.load()) PENSTOCK_RETURN_IF_ERROR(Fill(stop));
    if (stop.load()) {
      return MakeError(Fault::kStopped, fmt::format("stopped with {} of {} requests done; continue with --resume",
                                                    counts_.num_done, counts_.num_requests));
    }
    if (args_.engine.idle() && at_end_) return absl::OkStatus();
    absl::StatusOr<std::vector<Completion>> finished = args_.engine.Step();
    if (!finished.ok()) {
      return Annotate(finished.status(), fmt::format("after {} of {} requests (they are kept; continue with --resume)",
                                                     counts_.num_done, counts_.num_requests));
    }
    for (const Completion& completion : *finished) PENSTOCK_RETURN_IF_ERROR(Finish(completion));
    PENSTOCK_RETURN_IF_ERROR(args_.output.SyncIfDue());
    if (args_.on_progress) args_.on_progress(counts_);
  }
}

// Starts requests until all places are taken, or one must wait for KV pages.
absl::Status Runner::Fill(const std::atomic<bool>& stop) {
  const int64_t places = std::max<int64_t>(1, args_.engine.memory_plan().batch_size);
  Line line;
  while (!at_end_ && !stop.load() && args_.engine.num_waiting() == 0 && args_.engine.num_running() < places) {
    PENSTOCK_ASSIGN_OR_RETURN(const bool more, reader_.Next(line));
    PENSTOCK_RETURN_IF_ERROR(args_.input.CheckUnchanged());
    at_end_ = !more;
    if (!more || (!line.too_long && IsBlank(line.text))) continue;
    if (args_.scan.done[line.number]) continue;
    PENSTOCK_RETURN_IF_ERROR(StartLine(line));
  }
  return absl::OkStatus();
}

absl::Status Runner::StartLine(const Line& line) {
  RequestLine parsed = line.too_long ? TooLongLine(line.num_bytes) : ParseRequestLine(line.text, line.number);
  CheckLineModel(args_.report, parsed);
  Active active;
  active.head = {args_.job_digest, line.number, parsed.id};
  if (parsed.error.has_value()) return WriteResult(FormatError(active.head, *parsed.error), /*failed=*/true);
  active.request = std::move(parsed.request);
  active.sampling = Overlay(args_.sampling, active.request.sampling);
  if (!active.request.sampling.seed.has_value()) active.sampling.seed = RequestSeed(args_.seed, line.number);
  return Submit(std::move(active));
}

// Tokenizing takes many times a text's bytes of memory, so a prompt that cannot fit is refused first.
static absl::Status CheckPromptBytes(const ModelInfo& model, uint64_t num_bytes) {
  if (model.max_prompt_bytes == 0 || num_bytes <= model.max_prompt_bytes) return absl::OkStatus();
  return InputError("the prompt has {} bytes, which cannot fit the context length of {} tokens", num_bytes,
                    model.context_length);
}

absl::StatusOr<RequestId> Runner::TrySubmit(Active& active) {
  Request request{.prompt_ids = {}, .sampling = active.sampling};
  const JobRequest& job = active.request;
  switch (job.kind) {
    case RequestKind::kCompletion: {
      request.prompt_ids = job.prompt_ids;
      if (!job.prompt_ids.empty()) break;
      PENSTOCK_RETURN_IF_ERROR(CheckPromptBytes(args_.engine.model(), job.prompt.size()));
      PENSTOCK_ASSIGN_OR_RETURN(request.prompt_ids, args_.engine.Tokenize(job.prompt));
      break;
    }
    case RequestKind::kChat: {
      PENSTOCK_RETURN_IF_ERROR(CheckPromptBytes(args_.engine.model(), JsonBytes(job.chat.messages)));
      PENSTOCK_ASSIGN_OR_RETURN(request.prompt_ids, args_.engine.TokenizeChat(Chat(std::move(active.request.chat))));
      break;
    }
    case RequestKind::kTurns: {
      // All turns are held until they are asked, so all of them must fit.
      uint64_t num_bytes = 0;
      for (const std::string& turn : job.turns) num_bytes += turn.size();
      PENSTOCK_RETURN_IF_ERROR(CheckPromptBytes(args_.engine.model(), num_bytes));
      // Each turn has its own random stream.
      if (!active.answers.empty())
        request.sampling.seed = RequestSeed(active.sampling.seed, -static_cast<int64_t>(active.answers.size()));
      ChatParts chat = job.chat;
      chat.messages = ConversationSoFar(job.turns, active.answers);
      PENSTOCK_RETURN_IF_ERROR(CheckPromptBytes(args_.engine.model(), JsonBytes(chat.messages)));
      PENSTOCK_ASSIGN_OR_RETURN(request.prompt_ids, args_.engine.TokenizeChat(Chat(std::move(chat))));
      break;
    }
  }
  return args_.engine.Submit(std::move(request));
}

absl::Status Runner::Submit(Active active) {
  const absl::StatusOr<RequestId> id = TrySubmit(active);
  if (id.ok()) {
    // The engine has the prompt now. Only turns are needed again, with the fields that build their prompts.
    active.request.prompt = {};
    active.request.prompt_ids = {};
    if (active.request.kind != RequestKind::kTurns) active.request.chat = {};
    const bool is_new = active_.emplace(*id, std::move(active)).second;
    PENSTOCK_CHECK(is_new);
    return absl::OkStatus();
  }
  if (FaultOf(id.status()) != Fault::kInput) {
    return Annotate(id.status(), fmt::format("{}: line {}", args_.input.name(), active.head.line_number));
  }
  std::string message = penstock::Message(id.status());
  if (active.request.kind == RequestKind::kTurns)
    message = fmt::format("turn {}: {}", active.answers.size() + 1, message);
  return WriteResult(FormatError(active.head, {"invalid_request", std::move(message), ""}), /*failed=*/true);
}

absl::Status Runner::Finish(const Completion& completion) {
  const auto found = active_.find(completion.request_id);
  PENSTOCK_CHECK(found != active_.end());
  Active active = std::move(found->second);
  active_.erase(found);
  active.prompt_tokens += completion.num_prompt_tokens;
  active.completion_tokens += static_cast<int64_t>(completion.token_ids.size());
  if (!completion.status.ok()) {
    if (!std::exchange(told_of_io_error_, true)) {
      LogWarning("line {}: {}; it gets an error record and the job goes on (further ones are not shown)",
                 active.head.line_number, penstock::Message(completion.status));
    }
    if (++num_io_errors_in_a_row_ > kMaxIoErrorsInARow) {
      return Annotate(completion.status,
                      fmt::format("{} requests in a row could not be computed", num_io_errors_in_a_row_));
    }
    std::string message = penstock::Message(completion.status);
    if (active.request.kind == RequestKind::kTurns) {
      message = fmt::format("turn {}: {}", active.answers.size() + 1, message);
    }
    return WriteResult(FormatError(active.head, {"io_error", std::move(message), ""}), /*failed=*/true);
  }
  num_io_errors_in_a_row_ = 0;
  ChatAnswer answer;
  if (active.request.kind != RequestKind::kCompletion) answer = args_.engine.ReadAnswer(completion);
  if (active.request.kind == RequestKind::kTurns) {
    active.answers.push_back(answer.content);
    if (active.answers.size() < active.request.turns.size()) return Submit(std::move(active));
  }
  const RequestResult result = {.kind = active.request.kind,
                                .model = args_.engine.model().name,
                                .completion = completion,
                                .answer = std::move(answer),
                                .answers = std::move(active.answers),
                                .prompt_tokens = active.prompt_tokens,
                                .completion_tokens = active.completion_tokens,
                                .logprobs = active.sampling.logprobs};
  const Engine& engine = args_.engine;
  const TokenText token_text = [&engine](TokenId id, bool begins_text) { return engine.TokenBytes(id, begins_text); };
  return WriteResult(FormatResult(active.head, result, token_text), /*failed=*/false);
}

absl::Status Runner::WriteResult(const std::string& result, bool failed) {
  PENSTOCK_RETURN_IF_ERROR(args_.output.Append(result));
  ++counts_.num_done;
  counts_.num_failed += failed ? 1 : 0;
  return absl::OkStatus();
}

}  // namespace penstock
