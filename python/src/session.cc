#include "session.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "penstock/base/check.h"
#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/job/prepared_request.h"
#include "penstock/job/runner.h"

namespace penstock::python {
namespace {

absl::StatusOr<JobRequest> ParseLine(std::string_view text, int64_t number) {
  if (text.size() > kMaxRequestLineBytes) return InputError("{}", TooLongLine(text.size()).error->message);
  RequestLine line = ParseRequestLine(text, number);
  if (line.error.has_value()) return InputError("{}", line.error->message);
  if (!line.ignored.empty())
    return InputError("{}: unknown field, or it means nothing here", Printable(line.ignored[0]));
  if (line.request.kind == RequestKind::kTurns) return InputError("turns are only for jobs; give messages");
  return std::move(line.request);
}

}  // namespace

std::function<CallerMemory(const ModelInfo&)> SessionMemory(const EngineOptions& options) {
  return [format_bytes = FormatBytesOf(options.memory_bytes)](const ModelInfo& model) {
    return CallerMemory{.bytes = format_bytes + model.format_bytes};
  };
}

Session::Session(std::unique_ptr<Engine> engine, const std::string& date, uint64_t max_format_bytes)
    : engine_(std::move(engine)),
      prompts_(MakerOf(*engine_, std::nullopt, date)),
      formats_(max_format_bytes),
      token_text_([this](TokenId id, bool begins_text) { return engine_->TokenBytes(id, begins_text); }) {
  engine_->SetPieceSink([this](const AnswerPiece& piece) {
    const auto found = places_.find(piece.request_id);
    if (found == places_.end() || !found->second.active->streams) return;
    const auto& [active, idx] = found->second;
    pieces_.push_back({.ticket = active->ticket,
                       .answer_idx = static_cast<int64_t>(idx),
                       .token_ids = {piece.token_ids.begin(), piece.token_ids.end()},
                       .text = std::string(piece.text)});
  });
}

absl::StatusOr<std::unique_ptr<Session>> Session::Open(const EngineOptions& options, const std::string& date) {
  EngineOptions counted = options;
  counted.caller_memory = SessionMemory(options);
  PENSTOCK_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, Engine::Open(counted));
  return std::unique_ptr<Session>(new Session(std::move(engine), date, FormatBytesOf(options.memory_bytes)));
}

int64_t Session::num_places() const { return std::max<int64_t>(1, engine_->memory_plan().batch_size); }

// Only as many requests with choices are under way as there are places. So the KV entries of a prompt stay until its
// choices need them.
bool Session::WantsMore() {
  // Formats of requests under way take memory until these have ended.
  if (!active_.empty() && !formats_.HasRoom()) return false;
  const int64_t num_scored = std::ranges::count_if(active_, [](const auto& a) { return a.second->result.is_scored; });
  if (num_scored >= num_places()) return false;
  if (engine_->num_waiting() == 0) return true;
  return engine_->num_running() + engine_->num_waiting() < 2 * num_places() &&
         engine_->num_waiting_tokens() < kReadAheadTokens;
}

absl::Status Session::SubmitAs(Request request, const std::shared_ptr<Active>& active, size_t idx) {
  PENSTOCK_ASSIGN_OR_RETURN(const RequestId id, engine_->Submit(std::move(request)));
  places_.emplace(id, Place{active, idx});
  return absl::OkStatus();
}

absl::Status Session::SubmitAnswers(const std::shared_ptr<Active>& active) {
  PENSTOCK_ASSIGN_OR_RETURN(const PreparedRequest prepared,
                            Prepare(*engine_, prompts_, formats_, active->request, active->sampling, {}));
  active->result.prompt_ids = prepared.request.prompt_ids;
  active->num_left = active->request.num_answers;
  active->result.choices.resize(static_cast<size_t>(active->num_left));
  for (size_t i = 0; i < active->result.choices.size(); ++i) {
    Request answer = prepared.request;
    if (prepared.new_stream) active->parts.push_back(prepared.new_stream());
    // Each further answer has its own random stream.
    if (i > 0) answer.sampling.seed = RequestSeed(active->sampling.seed, -static_cast<int64_t>(i));
    PENSTOCK_RETURN_IF_ERROR(SubmitAs(std::move(answer), active, i));
  }
  return absl::OkStatus();
}

absl::Status Session::SubmitScoring(const std::shared_ptr<Active>& active) {
  PENSTOCK_ASSIGN_OR_RETURN(active->scored, ScoredPromptOf(prompts_, active->request));
  active->result.is_scored = true;
  active->result.prompt_ids = active->scored.prompt;
  return SubmitAs(FirstScoringRequest(active->scored, active->sampling.logprobs), active, kOfPrompt);
}

absl::Status Session::Submit(Ticket ticket, std::string_view line, int64_t number, bool streams) {
  const auto active = std::make_shared<Active>();
  PENSTOCK_ASSIGN_OR_RETURN(active->request, ParseLine(line, number));
  active->ticket = ticket;
  active->result.ticket = ticket;
  active->result.is_chat = active->request.kind == RequestKind::kChat;
  active->sampling = Overlay(engine_->default_sampling(), active->request.sampling);
  if (!active->request.sampling.seed.has_value()) active->sampling.seed = RequestSeed(0, number);
  active->streams = streams;
  const bool is_scored = !active->request.choices.empty();
  active_[ticket] = active;
  const absl::Status status = is_scored ? SubmitScoring(active) : SubmitAnswers(active);
  if (!status.ok()) GiveUp(ticket);
  return status;
}

void Session::GiveUp(Ticket ticket) {
  const auto found = active_.find(ticket);
  if (found == active_.end()) return;
  std::erase_if(further_, [&](const Place& place) { return place.active == found->second; });
  std::vector<RequestId> ids;
  for (const auto& [id, place] : places_) {
    if (place.active == found->second) ids.push_back(id);
  }
  for (const RequestId id : ids) {
    (void)engine_->Cancel(id);
    places_.erase(id);
  }
  active_.erase(found);
}

void Session::End(Active& active, absl::Status status, Events& events) {
  const std::shared_ptr<Active> last = active_.at(active.ticket);  // outlives its entry
  if (!status.ok()) GiveUp(active.ticket);
  active.result.status = std::move(status);
  events.results.push_back(std::move(active.result));
  active_.erase(last->ticket);
}

void Session::SubmitFurther(Events& events) {
  while (!further_.empty() && (engine_->num_waiting() == 0 || engine_->num_waiting() < 2 * num_places())) {
    const auto [active, idx] = further_.front();
    further_.pop_front();
    const absl::Status status =
        SubmitAs(FurtherScoringRequest(active->scored, idx, active->sampling.logprobs), active, idx);
    if (!status.ok()) End(*active, Annotate(status, fmt::format("choices: number {}", idx + 1)), events);
  }
}

void Session::TakeScoredPrompt(const std::shared_ptr<Active>& active, Completion completion, Events& events) {
  active->result.choices =
      FirstScores(active->request.choices, std::move(completion), active->sampling.logprobs >= 0, token_text_);
  for (size_t i = 0; i < active->result.choices.size(); ++i) {
    active->result.choices[i].completion.token_ids = active->scored.choices[i];
    if (active->scored.choices[i].size() == 1) continue;
    further_.push_back({active, i});
    ++active->num_left;
  }
  if (active->num_left == 0) End(*active, absl::OkStatus(), events);
}

void Session::Finish(Completion completion, Events& events) {
  const auto found = places_.find(completion.request_id);
  PENSTOCK_CHECK(found != places_.end());
  const auto [active, idx] = found->second;
  places_.erase(found);
  if (!completion.status.ok()) return End(*active, completion.status, events);
  if (idx == kOfPrompt) return TakeScoredPrompt(active, std::move(completion), events);
  ResultChoice& choice = active->result.choices[idx];
  if (active->result.is_scored) {
    AddScores(std::move(completion), active->sampling.logprobs >= 0, choice);
  } else {
    if (active->result.is_chat) {
      choice.answer = ReadAnswer(*active->parts[idx], completion.token_ids, completion.text);
    }
    choice.completion = std::move(completion);
  }
  if (--active->num_left == 0) End(*active, absl::OkStatus(), events);
}

absl::StatusOr<std::vector<TokenId>> Session::TokenizeChat(const std::string& messages, const std::string& tools,
                                                           const std::string& variables) const {
  PENSTOCK_ASSIGN_OR_RETURN(const Chat chat, Chat::FromJson(messages, tools, variables));
  ChatParts parts = chat.parts();
  parts.date = prompts_.date;
  return engine_->TokenizeChat(Chat(std::move(parts)));
}

absl::StatusOr<Events> Session::Run(const std::atomic<bool>& wake) {
  Events events;
  do {
    SubmitFurther(events);
    if (engine_->idle()) break;
    PENSTOCK_ASSIGN_OR_RETURN(std::vector<Completion> finished, engine_->Step());
    for (Completion& completion : finished) Finish(std::move(completion), events);
  } while (events.results.empty() && pieces_.empty() && !wake.load() && !idle());
  events.pieces = std::exchange(pieces_, {});
  return events;
}

}  // namespace penstock::python
