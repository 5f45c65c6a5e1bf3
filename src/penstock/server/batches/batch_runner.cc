#include "penstock/server/batches/batch_runner.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <utility>

#include <fcntl.h>

#include "penstock/base/bytes.h"
#include "penstock/base/logging.h"
#include "penstock/base/status.h"
#include "penstock/job/output_scan.h"
#include "penstock/server/batches/guest_engine.h"

namespace penstock::server {
namespace {

using Kind = BatchStore::Kind;

constexpr std::array kEndedStates = {"completed", "failed", "cancelled", "expired"};

bool HasEnded(const json::object& batch) {
  return std::ranges::find(kEndedStates, TextField(batch, "status")) != kEndedStates.end();
}

json::object CountsOf(int64_t total, int64_t done, int64_t failed) {
  return {{"total", total}, {"completed", done - failed}, {"failed", failed}};
}

// Returns what a client may know: its own faults, and files by their ids.
std::string PublicMessage(const absl::Status& status, const BatchStore& store) {
  const Fault fault = FaultOf(status);
  if (fault != Fault::kInput && fault != Fault::kResources) return "the server cannot continue the batch";
  std::string message = Message(status);
  const std::string folder = store.FilePath("");
  for (size_t at = message.find(folder); at != std::string::npos; at = message.find(folder)) {
    message.erase(at, folder.size());
  }
  return message;
}

json::object ErrorList(const std::string& message) {
  return {{"object", "list"},
          {"data", json::array{json::object{
                       {"code", "invalid_request"}, {"message", message}, {"param", nullptr}, {"line", nullptr}}}}};
}

}  // namespace

BatchRunner::BatchRunner(Args args) : args_(std::move(args)), thread_([this] { Run(); }) {}

void BatchRunner::Wake() {
  const std::lock_guard lock(mutex_);
  wake_.notify_one();
}

void BatchRunner::Stop() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
    stops_job_ = true;
    wake_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

absl::StatusOr<json::object> BatchRunner::Cancel(const std::string& id) {
  const std::lock_guard lock(mutex_);
  const std::optional<json::object> batch = args_.store.Find(Kind::kBatch, id);
  if (!batch.has_value()) return InputError("there is no such batch");
  if (HasEnded(*batch)) return InputError("the batch has ended with status {}", TextField(*batch, "status"));
  PENSTOCK_RETURN_IF_ERROR(Update(id, {{"status", "cancelling"}, {"cancelling_at", UnixSeconds()}}));
  if (running_ == id) stops_job_ = true;
  blocked_.erase(id);
  wake_.notify_one();
  return *args_.store.Find(Kind::kBatch, id);
}

absl::Status BatchRunner::Update(const std::string& id, const json::object& fields) {
  json::object batch = args_.store.Find(Kind::kBatch, id).value_or(json::object());
  for (const auto& [key, value] : fields) batch[key] = value;
  return args_.store.Put(Kind::kBatch, batch);
}

std::optional<json::object> BatchRunner::Next() {
  std::vector<json::object> batches = args_.store.List(Kind::kBatch);
  for (auto batch = batches.rbegin(); batch != batches.rend(); ++batch) {
    if (!HasEnded(*batch) && !blocked_.contains(TextField(*batch, "id"))) return *batch;
  }
  return std::nullopt;
}

void BatchRunner::Run() {
  while (true) {
    std::optional<json::object> batch;
    {
      std::unique_lock lock(mutex_);
      running_.clear();
      wake_.wait(lock, [&] {
        if (is_stopping_) return true;
        batch = Next();
        return batch.has_value();
      });
      if (is_stopping_) return;
      running_ = TextField(*batch, "id");
      stops_job_ = TextField(*batch, "status") == "cancelling";
    }
    RunBatch(*std::move(batch));
  }
}

uint64_t BatchRunner::MemoryBesideEngine(const InputReport& report) const {
  const Engine& engine = args_.service.engine();
  const MemoryPlan& plan = engine.memory_plan();
  const CallerMemory memory = JobMemory(report, engine.model());
  InputReport plain = report;
  plain.max_logprobs = -1;
  // The server's budget counts what each place and each position takes, but no log-probabilities.
  const CallerMemory without = JobMemory(plain, engine.model());
  const auto num_places = static_cast<uint64_t>(std::min(plan.batch_size, report.num_requests));
  const auto num_positions =
      num_places * static_cast<uint64_t>(std::min(plan.context_length, report.max_logprob_tokens));
  return memory.bytes + num_places * (memory.bytes_per_sequence - without.bytes_per_sequence) +
         num_positions * (memory.bytes_per_position - without.bytes_per_position);
}

absl::StatusOr<JobSummary> BatchRunner::RunJobOf(const json::object& batch) {
  const std::string id = TextField(batch, "id");
  const ModelInfo& model = args_.service.engine().model();
  JobOptions options;
  options.input_paths = {args_.store.FilePath(TextField(batch, "input_file_id"))};
  options.output_path = args_.store.JobPath(id);
  options.resume = true;
  options.drain_s = 0;  // what is under way runs again later
  options.quiet = true;
  options.max_input_bytes = args_.memory_bytes;
  options.system = args_.system;
  options.sampling = args_.sampling;
  options.default_max_tokens = args_.service.engine().default_sampling().max_tokens;
  options.engine_settings = args_.settings;
  options.engine_settings.emplace_back("dtype", model.dtype);
  options.engine_settings.emplace_back("context_length", std::to_string(model.context_length));
  Clock::time_point last_write = {};
  options.on_progress = [&, id](const ProgressCounts& counts) {
    constexpr double kSecondsBetween = 1;
    if (std::chrono::duration<double>(Clock::now() - last_write).count() < kSecondsBetween) return;
    last_write = Clock::now();
    const std::lock_guard lock(mutex_);
    (void)Update(id, {{"request_counts", CountsOf(counts.num_requests, counts.num_done, counts.num_failed)}});
  };
  const auto open_engine = [&](const InputReport& report) -> absl::StatusOr<OpenedEngine> {
    if (const uint64_t needed = MemoryBesideEngine(report); needed > args_.memory_bytes) {
      return ResourceError(
          "the batch needs {} beside the engine, and the server has {} for that; cut the file, or give "
          "the server more --memory",
          FormatBytes(needed), FormatBytes(args_.memory_bytes));
    }
    return OpenedEngine(std::make_unique<GuestEngine>(args_.service, args_.model_name));
  };
  return RunJob(options, open_engine, stops_job_);
}

void BatchRunner::RunBatch(json::object batch) {
  const std::string id = TextField(batch, "id");
  const bool is_new = TextField(batch, "status") == "validating";
  if (is_new) {
    const std::lock_guard lock(mutex_);
    if (TextField(*args_.store.Find(Kind::kBatch, id), "status") == "validating") {
      (void)Update(id, {{"status", "in_progress"}, {"in_progress_at", UnixSeconds()}});
    }
  }
  const absl::StatusOr<JobSummary> summary = RunJobOf(batch);
  const std::lock_guard lock(mutex_);
  batch = *args_.store.Find(Kind::kBatch, id);
  const bool is_cancelled = TextField(batch, "status") == "cancelling";
  if (is_stopping_ && !summary.ok()) return;
  absl::Status status = summary.status();
  if (status.ok() || is_cancelled) {
    if (status.ok()) {
      const JobNumbers& numbers = summary->numbers;
      batch["request_counts"] = CountsOf(numbers.num_resumed + numbers.num_requests,
                                         numbers.num_resumed + numbers.num_requests, numbers.num_failed);
    }
    status = Finalize(batch);
  }
  if (status.ok()) return;
  LogWarning("batch {}: {}", id, Message(status));
  const json::object errors = ErrorList(PublicMessage(status, args_.store));
  if (is_new && FaultOf(status) == Fault::kInput) {
    (void)Update(id, {{"status", "failed"}, {"failed_at", UnixSeconds()}, {"errors", errors}});
  } else {
    (void)Update(id, {{"errors", errors}});
    blocked_.insert(id);
  }
}

absl::Status BatchRunner::Finalize(json::object& batch) {
  const std::string id = TextField(batch, "id");
  const bool is_cancelled = TextField(batch, "status") == "cancelling";
  batch["errors"] = nullptr;  // of servers that refused to continue
  if (!is_cancelled) {
    batch["status"] = "finalizing";
    batch["finalizing_at"] = UnixSeconds();
    PENSTOCK_RETURN_IF_ERROR(args_.store.Put(Kind::kBatch, batch));
  }
  // The ids follow from the batch's, so that a server that was killed here does not leave files without a batch.
  const std::string number = id.substr(id.find('_') + 1);
  struct Part {
    std::string id, name, field;
    int64_t num_lines = 0;
    std::string path = {};
    UniqueFd fd = {};
  };
  std::array<Part, 2> parts = {Part{"file-" + number + "-output", id + "_output.jsonl", "output_file_id"},
                               Part{"file-" + number + "-errors", id + "_error.jsonl", "error_file_id"}};
  for (Part& part : parts) {
    part.path = args_.store.UploadPath();
    part.fd = UniqueFd(::open(part.path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    if (!part.fd.valid()) return IoError("{}: {}", part.path, ErrnoText(errno));
  }
  const std::string job_path = args_.store.JobPath(id);
  if (const UniqueFd job(::open(job_path.c_str(), O_RDONLY | O_CLOEXEC)); job.valid()) {
    LineReader reader(job.get(), job_path, kMaxResultLineBytes);
    Line line;
    while (true) {
      PENSTOCK_ASSIGN_OR_RETURN(const bool more, reader.Next(line));
      if (!more) break;
      Part& part = parts[line.text.ends_with(R"("error":null})") ? 0 : 1];
      PENSTOCK_RETURN_IF_ERROR(WriteFully(part.fd.get(), line.text, part.path));
      PENSTOCK_RETURN_IF_ERROR(WriteFully(part.fd.get(), "\n", part.path));
      ++part.num_lines;
    }
  }
  for (Part& part : parts) {
    if (part.num_lines == 0) {
      std::error_code ignored;
      std::filesystem::remove(part.path, ignored);
      continue;
    }
    if (::fdatasync(part.fd.get()) != 0) return IoError("{}: {}", part.path, ErrnoText(errno));
    PENSTOCK_RETURN_IF_ERROR(args_.store.AddFile(part.path, part.id, part.name, "batch_output").status());
    batch[part.field] = part.id;
  }
  const int64_t done = parts[0].num_lines + parts[1].num_lines;
  const json::value* counts = batch.if_contains("request_counts");
  const int64_t total = counts != nullptr && counts->is_object() ? IntegerField(counts->get_object(), "total") : 0;
  batch["request_counts"] = CountsOf(std::max(total, done), done, parts[1].num_lines);
  batch["status"] = is_cancelled ? "cancelled" : "completed";
  batch[is_cancelled ? "cancelled_at" : "completed_at"] = UnixSeconds();
  return args_.store.Put(Kind::kBatch, batch);
}

}  // namespace penstock::server
