#include "penstock/cli/quality/checked_requests.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include "absl/functional/function_ref.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/grammar/constraint.h"
#include "penstock/job/format_cache.h"
#include "penstock/job/prepared_request.h"

namespace penstock::cli {
namespace {

// Calls visit(request, place) for each line. A request without a format must call its tools.
absl::Status ForEachRequest(const ValidatedJob& job,
                            absl::FunctionRef<absl::Status(JobRequest& request, const std::string& place)> visit) {
  InputReader reader(job.inputs);
  Line line;
  while (true) {
    PENSTOCK_ASSIGN_OR_RETURN(const bool more, reader.Next(line));
    if (!more) return absl::OkStatus();
    if (!line.too_long && IsBlank(line.text)) continue;
    RequestLine parsed = line.too_long ? TooLongLine(line.num_bytes) : ParseRequestLine(line.text, line.number);
    const std::string place = Printable(reader.place().FullText());
    if (parsed.error.has_value()) return InputError("--requests {}: {}", place, parsed.error->message);
    JobRequest& request = parsed.request;
    if (request.kind == RequestKind::kTurns || !request.choices.empty()) {
      return InputError("--requests {}: turns and choices have no form to check", place);
    }
    const json::array* const tools = request.chat.tools.if_array();
    if (!request.format.has_value() && (tools == nullptr || tools->empty())) {
      return InputError("--requests {}: the request has neither an output format nor tools", place);
    }
    request.rule.must_call = !request.format.has_value();
    PENSTOCK_RETURN_IF_ERROR(visit(request, place));
  }
}

absl::StatusOr<Completion> Answer(Engine& engine, Request request) {
  PENSTOCK_RETURN_IF_ERROR(engine.Submit(std::move(request)).status());
  std::vector<Completion> finished;
  while (finished.empty()) {
    PENSTOCK_ASSIGN_OR_RETURN(finished, engine.Step());
  }
  PENSTOCK_RETURN_IF_ERROR(finished[0].status);
  return std::move(finished[0]);
}

// Returns whether the answer that the model gives freely has the form.
absl::StatusOr<bool> AnswerHasForm(Engine& engine, FormatCache& formats, JobRequest& request) {
  SamplingParams sampling = Overlay({}, request.sampling);
  sampling.temperature = 0;
  sampling.logprobs = sampling.prompt_logprobs = -1;
  PENSTOCK_ASSIGN_OR_RETURN(PreparedRequest prepared,
                            Prepare(engine, MakerOf(engine, std::nullopt, ""), formats, request, sampling, {}));
  const std::shared_ptr<const Constraint> form = std::exchange(prepared.request.constraint, nullptr);
  PENSTOCK_ASSIGN_OR_RETURN(const Completion answer, Answer(engine, prepared.request));
  ConstraintState state(form, /*begins_text=*/!prepared.request.continues_text);
  return std::ranges::all_of(answer.token_ids, [&](TokenId id) { return state.Accept(id); }) && state.is_complete();
}

}  // namespace

absl::StatusOr<ValidatedJob> ReadCheckedRequests(const std::string& path) {
  const std::atomic<bool> stop{false};
  JobOptions options;
  options.input_paths = {path};
  PENSTOCK_ASSIGN_OR_RETURN(ValidatedJob job, ValidateJob(options, stop));
  if (job.report.num_requests == 0) return InputError("--requests {}: there are no requests", Printable(path));
  PENSTOCK_RETURN_IF_ERROR(ForEachRequest(job, [](JobRequest&, const std::string&) { return absl::OkStatus(); }));
  job.report.has_formats = true;  // tools have some, too
  return job;
}

absl::StatusOr<ValidAnswers> AnswerFreely(Engine& engine, const ValidatedJob& job) {
  FormatCache formats;
  ValidAnswers valid;
  const auto answer = [&](JobRequest& request, const std::string& place) -> absl::Status {
    const bool must_call = request.rule.must_call;
    const absl::StatusOr<bool> has_form = AnswerHasForm(engine, formats, request);
    if (!has_form.ok()) return Annotate(has_form.status(), "--requests " + place);
    (must_call ? valid.num_calls : valid.num_formats) += 1;
    if (*has_form) (must_call ? valid.num_valid_calls : valid.num_valid_formats) += 1;
    return absl::OkStatus();
  };
  PENSTOCK_RETURN_IF_ERROR(ForEachRequest(job, answer));
  return valid;
}

}  // namespace penstock::cli
