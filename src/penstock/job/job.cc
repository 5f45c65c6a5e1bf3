#include "penstock/job/job.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fnmatch.h>
#include <malloc.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/cleanup/cleanup.h"
#include "penstock/base/bytes.h"
#include "penstock/base/clock.h"
#include "penstock/base/file.h"
#include "penstock/base/status.h"
#include "penstock/job/input/input_file.h"
#include "penstock/job/input/line_reader.h"
#include "penstock/job/output_scan.h"
#include "penstock/job/progress.h"
#include "penstock/job/runner.h"

namespace penstock {
namespace {

// Returns the folder for a piped input: beside the output, on a disk that the user chose. /tmp may be in DRAM.
std::string SpoolFolder(const std::string& output_path) {
  const size_t slash = output_path.rfind('/');
  struct stat info = {};
  const bool device = ::stat(output_path.c_str(), &info) == 0 && !S_ISREG(info.st_mode);
  if (output_path.empty() || output_path == "-" || device) return "/var/tmp";
  return slash == std::string::npos ? "." : output_path.substr(0, slash + 1);
}

bool IsSameFile(const std::string& a, const std::string& b) {
  struct stat a_info = {}, b_info = {};
  if (a == b) return true;
  return ::stat(a.c_str(), &a_info) == 0 && ::stat(b.c_str(), &b_info) == 0 && a_info.st_dev == b_info.st_dev &&
         a_info.st_ino == b_info.st_ino;
}

absl::Status CheckNoFileOfTheJob(const JobOptions& options, const std::vector<std::string>& input_names,
                                 const std::string& flag, const std::string& path) {
  const auto is_path = [&](const std::string& name) { return IsSameFile(name, path); };
  const bool is_input = path != "-" && std::ranges::any_of(input_names, is_path);
  if (is_input || IsSameFile(path, options.output_path) || IsSameFile(path, ManifestPath(options.output_path))) {
    return UsageError("{} {}: the job itself uses this file; choose another name", flag, path);
  }
  return absl::OkStatus();
}

SamplingOverrides WithDefaults(const JobOptions& options) {
  SamplingOverrides sampling = options.sampling;
  if (!sampling.max_tokens.has_value()) sampling.max_tokens = options.default_max_tokens;
  return sampling;
}

InputChecks ChecksOf(const JobOptions& options) {
  return {.shard = options.shard, .task = options.task, .max_bytes = options.max_input_bytes};
}

// The file of --stats.
class StatsFile {
 public:
  // Opens the file before anything else happens, so that a wrong path is noticed at once. An empty path means no file.
  static absl::StatusOr<StatsFile> Open(const std::string& path) {
    StatsFile file;
    if (path.empty()) return file;
    file.is_stdout_ = path == "-";
    file.path_ = file.is_stdout_ ? "stdout" : path;
    file.fd_ = UniqueFd(file.is_stdout_ ? ::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3)
                                        : ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
    if (!file.is_open()) {
      return IoError("{}: cannot open the statistics file for writing: {}", path, ErrnoText(errno));
    }
    return file;
  }

  bool is_open() const { return fd_.valid(); }
  // Replaces the numbers of an earlier run, in case this one cannot write its own. A pipe gets only the last text, and
  // so does standard output, which other text may precede.
  absl::Status Begin() {
    if (!is_open() || is_stdout_ || ::ftruncate(fd_.get(), 0) != 0) return absl::OkStatus();
    return WriteFully(fd_.get(), FormatStatsOfError(MakeError(Fault::kStopped, "the run was stopped before its end")),
                      path_);
  }
  // Writes the statistics, or why there are none. Only the first call counts.
  absl::Status Write(const std::string& text) {
    if (!is_open() || std::exchange(is_written_, true)) return absl::OkStatus();
    if (!is_stdout_ && ::ftruncate(fd_.get(), 0) == 0) (void)::lseek(fd_.get(), 0, SEEK_SET);
    return WriteFully(fd_.get(), text, path_);
  }

 private:
  UniqueFd fd_;
  std::string path_;
  bool is_stdout_ = false;
  bool is_written_ = false;
};

// The files of a job, checked and locked.
struct OpenJob {
  Inputs inputs;
  InputReport report;
  std::unique_ptr<OutputFile> output;
  OutputScan scan;
  Manifest manifest;  // this run's manifest; `model` is still empty
  bool has_old_manifest = false;
  Manifest old_manifest;  // the manifest of the job to continue
};

absl::StatusOr<OutputScan> Scan(const JobOptions& options, const OpenJob& job) {
  return ScanOutput({.fd = job.output->fd(),
                     .path = options.output_path,
                     .job_digest = job.manifest.job_digest,
                     .num_lines = job.report.num_lines},
                    [&job](int64_t input_line) { return job.report.Has(input_line); });
}

absl::Status LoadOldJob(const JobOptions& options, OpenJob& job) {
  const std::string manifest_path = ManifestPath(options.output_path);
  struct stat info = {};
  const bool exists = ::stat(manifest_path.c_str(), &info) == 0;
  if (!exists && job.output->num_bytes() > 0) {
    return IoError("{}: cannot resume: {} is missing; put it back or choose another --output", options.output_path,
                   manifest_path);
  }
  if (!exists) return absl::OkStatus();  // the job was killed before it began, or never started
  PENSTOCK_ASSIGN_OR_RETURN(job.old_manifest, ReadManifest(manifest_path));
  PENSTOCK_RETURN_IF_ERROR(CompareJob(job.old_manifest, job.manifest));
  job.has_old_manifest = true;
  if (!options.date.empty() && options.date != job.old_manifest.date) {
    return InputError("cannot resume with --date {}: the job began with {}", options.date, job.old_manifest.date);
  }
  job.manifest.date = job.old_manifest.date;
  job.manifest.model_name = job.old_manifest.model_name;
  PENSTOCK_ASSIGN_OR_RETURN(job.scan, Scan(options, job));
  PENSTOCK_RETURN_IF_ERROR(job.output->Truncate(job.scan.good_bytes));
  return job.output->Sync();
}

absl::StatusOr<OpenJob> PrepareJob(const JobOptions& options, const std::vector<std::string>& input_names,
                                   OutputCalls& calls, const std::atomic<bool>& stop) {
  OpenJob job;
  PENSTOCK_ASSIGN_OR_RETURN(job.inputs, Inputs::Open(input_names, SpoolFolder(options.output_path), stop));
  PENSTOCK_RETURN_IF_ERROR(OutputFile::Check(options.output_path, job.inputs, options.resume));
  const std::string manifest_path = ManifestPath(options.output_path);
  if (struct stat info = {}; ::stat(manifest_path.c_str(), &info) == 0 && job.inputs.HasFile(info)) {
    return IoError("{}: the input would be overwritten by the output's manifest; choose another --output",
                   manifest_path);
  }
  PENSTOCK_ASSIGN_OR_RETURN(job.report, ValidateInput(job.inputs, WithDefaults(options), stop, ChecksOf(options)));
  PENSTOCK_ASSIGN_OR_RETURN(job.output, OutputFile::Open(options.output_path, calls));
  job.manifest.job = DescribeJob(job.report, options.seed, options.sampling, options.engine_settings);
  job.manifest.job_digest = JobDigest(job.manifest.job);
  job.manifest.shard = options.shard;
  job.manifest.num_requests = job.report.num_requests;
  job.manifest.checkpoints = job.report.checkpoints;
  job.manifest.date = options.date.empty() ? Today() : options.date;
  job.scan.done.assign(static_cast<size_t>(job.report.num_lines) + 1, false);
  if (!job.output->is_regular()) return job;
  if (options.resume) {
    PENSTOCK_RETURN_IF_ERROR(LoadOldJob(options, job));
  } else {
    // Checks the output again, now that no other process can write to it.
    PENSTOCK_RETURN_IF_ERROR(OutputFile::Check(options.output_path, job.inputs, options.resume));
  }
  return job;
}

absl::Status AgreeOnModel(const JobOptions& options, const Engine& engine, OpenJob& job) {
  // A resumed job keeps the name, also if the folder has another one now.
  if (job.manifest.model_name.empty()) job.manifest.model_name = engine.model().name;
  if (!job.output->is_regular()) return absl::OkStatus();
  job.manifest.model = DescribeModel(engine);
  if (job.has_old_manifest) return CompareModel(job.old_manifest, job.manifest);
  return WriteManifest(job.manifest, ManifestPath(options.output_path));
}

// Compares the model with that of a job that has nothing left to do.
absl::Status CheckSameModel(const JobOptions& options, const OpenJob& job) {
  if (!options.fingerprint) return absl::OkStatus();
  Manifest now = job.old_manifest;
  PENSTOCK_ASSIGN_OR_RETURN(const std::string fingerprint, options.fingerprint());
  now.model["fingerprint"] = fingerprint;
  return CompareModel(job.old_manifest, now);
}

// Refuses a job of which the model can answer no request. Single requests get error records instead. All shards of a
// job are refused alike.
absl::Status CheckAnswerable(const InputReport& report, const Engine& engine) {
  if (report.all_need_template) PENSTOCK_RETURN_IF_ERROR(engine.chat_status());
  if (report.all_need_tokenizer) PENSTOCK_RETURN_IF_ERROR(engine.text_status());
  return absl::OkStatus();
}

// Takes the error records out of the output, so that their requests run again. The other results are copied into a new
// file, which then takes the output's name.
absl::Status DropFailed(const JobOptions& options, OutputCalls& calls, OpenJob& job) {
  std::error_code error;
  const std::string path = std::filesystem::canonical(options.output_path, error), new_path = path + ".retry";
  struct stat info = {};
  if (error || ::lstat(new_path.c_str(), &info) == 0) {
    return IoError("{}: exists, perhaps because a run was killed; remove it, then try again", new_path);
  }
  PENSTOCK_ASSIGN_OR_RETURN(std::unique_ptr<OutputFile> kept, OutputFile::Open(new_path, calls));
  LineReader reader(job.output->fd(), options.output_path, kMaxResultLineBytes);
  Line line;
  while (true) {
    PENSTOCK_ASSIGN_OR_RETURN(const bool more, reader.Next(line));
    if (!more) break;
    if (std::ranges::binary_search(job.scan.failed_lines, line.number)) continue;
    PENSTOCK_RETURN_IF_ERROR(kept->Append(line.text));
  }
  PENSTOCK_RETURN_IF_ERROR(kept->RenameTo(path));
  job.output = std::move(kept);
  PENSTOCK_ASSIGN_OR_RETURN(job.scan, Scan(options, job));
  return absl::OkStatus();
}

absl::StatusOr<OpenedEngine> OpenFor(const OpenJob& job, absl::FunctionRef<EngineOpener> open_engine) {
  ::malloc_trim(0);  // returns the memory of the validation to the system, for the engine
  absl::StatusOr<OpenedEngine> opened = open_engine(job.report);
  if (!opened.ok() && FaultOf(opened.status()) == Fault::kResources && job.report.parse_bytes > kMiB) {
    return Annotate(opened.status(), fmt::format("{} takes {}", job.report.costliest_line.FullText(),
                                                 FormatBytes(job.report.parse_bytes)));
  }
  return opened;
}

// Opens an engine that can go on with the job. If there is none, no empty output is left.
absl::StatusOr<OpenedEngine> OpenAgreed(const JobOptions& options, OpenJob& job,
                                        absl::FunctionRef<EngineOpener> open_engine) {
  absl::Cleanup refused = [&job] { job.output->RemoveIfUnused(); };
  PENSTOCK_ASSIGN_OR_RETURN(OpenedEngine opened, OpenFor(job, open_engine));
  PENSTOCK_RETURN_IF_ERROR(CheckAnswerable(job.report, *opened.engine));
  PENSTOCK_RETURN_IF_ERROR(AgreeOnModel(options, *opened.engine, job));
  std::move(refused).Cancel();
  return opened;
}

// Refuses other files of the command that would overwrite a file of the job, and an output that the pattern of an input
// stands for: a resumed job would read it.
absl::Status CheckOtherFiles(const JobOptions& options, const std::vector<std::string>& input_names) {
  const bool writes_files = options.output_path != "-";
  for (const std::string& path : writes_files ? options.input_paths : std::vector<std::string>()) {
    for (const std::string& written : {options.output_path, ManifestPath(options.output_path)}) {
      if (path == written || ::fnmatch(path.c_str(), written.c_str(), FNM_PATHNAME) != 0) continue;
      return UsageError("--input {}: the output {} has such a name, too; choose another --output", path, written);
    }
  }
  if (!options.stats_path.empty()) {
    PENSTOCK_RETURN_IF_ERROR(CheckNoFileOfTheJob(options, input_names, "--stats", options.stats_path));
  }
  for (const auto& [flag, path] : options.other_files) {
    if (path.empty()) continue;
    PENSTOCK_RETURN_IF_ERROR(CheckNoFileOfTheJob(options, input_names, flag, path));
    if (IsSameFile(path, options.stats_path)) return UsageError("{} {}: --stats names the same file", flag, path);
  }
  return absl::OkStatus();
}

std::string NothingToDo(const JobOptions& options, const OutputScan& scan) {
  const std::string failed =
      scan.num_failed > 0 ? fmt::format(" ({} failed; --retry-failed runs them again, which helps after a model_error)",
                                        scan.num_failed)
                          : "";
  return fmt::format("{}: all {} requests{} are done{}, nothing to do\n", options.output_path, scan.num_done,
                     options.shard.Suffix(), failed);
}

std::string NoteOfTornLines(const JobOptions& options, const OutputScan& scan) {
  if (scan.num_torn_lines == 0) return "";
  return fmt::format("cut off {} torn line(s) at the end of {}; their requests run again\n", scan.num_torn_lines,
                     options.output_path);
}

// Returns what people may not expect of a job that has something to do.
std::string NotesAtStart(const JobOptions& options, const OpenJob& job) {
  std::string notes;
  if (options.resume && !job.has_old_manifest && options.output_path != "-") {
    notes += fmt::format("{} holds no job yet: a new one begins\n", options.output_path);
  }
  if (const std::string ignored = FormatIgnoredFields(job.report); !ignored.empty()) {
    notes += fmt::format("ignored fields of the input: {}\n", ignored);
  }
  if (job.report.num_requests == 0) notes += fmt::format("the input holds no requests{}\n", options.shard.Suffix());
  return notes;
}

// Adds what a run answered, and what its engine counted.
void AddRun(JobNumbers& numbers, const ProgressCounts& counts, const Engine& engine) {
  numbers.num_requests = counts.num_done - counts.num_resumed;
  numbers.num_failed = counts.num_failed;
  numbers.failures = counts.failures;
  numbers.labels = counts.labels;
  numbers.model = engine.model().name;
  numbers.engine = engine.stats();
  numbers.plan = engine.memory_plan();
}

}  // namespace

absl::StatusOr<ValidatedJob> ValidateJob(const JobOptions& options, const std::atomic<bool>& stop) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<std::string> names, InputNames(options.input_paths));
  ValidatedJob job;
  PENSTOCK_ASSIGN_OR_RETURN(job.inputs, Inputs::Open(names, SpoolFolder(options.output_path), stop));
  PENSTOCK_ASSIGN_OR_RETURN(job.report, ValidateInput(job.inputs, WithDefaults(options), stop, ChecksOf(options)));
  return job;
}

static absl::StatusOr<JobSummary> RunWithStats(const JobOptions& options, const std::vector<std::string>& input_names,
                                               absl::FunctionRef<EngineOpener> open_engine,
                                               const std::atomic<bool>& stop, StatsFile& stats) {
  const Clock::time_point start = Clock::now();
  OutputCalls default_calls;
  OutputCalls& calls = options.output_calls != nullptr ? *options.output_calls : default_calls;
  PENSTOCK_ASSIGN_OR_RETURN(OpenJob job, PrepareJob(options, input_names, calls, stop));
  Progress progress(ChooseProgressMode(options.quiet), STDERR_FILENO);

  JobSummary summary;
  summary.num_blank = job.report.num_blank;
  summary.num_torn_lines = job.scan.num_torn_lines;
  summary.numbers.num_resumed = job.scan.num_done;
  summary.numbers.num_failed = job.scan.num_failed;
  progress.Print(NoteOfTornLines(options, job.scan));
  const int64_t num_retried = options.retry_failed ? job.scan.num_failed : 0;
  if (job.has_old_manifest && job.scan.num_done - num_retried >= job.report.num_requests) {
    PENSTOCK_RETURN_IF_ERROR(CheckSameModel(options, job));
    summary.nothing_to_do = true;
    progress.Print(NothingToDo(options, job.scan) + FormatAccuracy(job.scan.labels));
    summary.numbers.total_s = SecondsSince(start);
    return summary;  // the statistics of the run that answered the requests stay
  }
  progress.Print(NotesAtStart(options, job));
  PENSTOCK_RETURN_IF_ERROR(stats.Begin());

  PENSTOCK_ASSIGN_OR_RETURN(OpenedEngine opened, OpenAgreed(options, job, open_engine));
  const std::unique_ptr<Engine> engine = std::move(opened.engine);
  progress.Predict(opened.predicted_tokens_per_s);
  if (num_retried > 0) {
    PENSTOCK_RETURN_IF_ERROR(DropFailed(options, calls, job));
    summary.numbers.num_resumed = job.scan.num_done;
  }

  const Clock::time_point run_start = Clock::now();
  Runner runner({.engine = *engine,
                 .inputs = job.inputs,
                 .report = job.report,
                 .output = *job.output,
                 .scan = job.scan,
                 .job_digest = job.manifest.job_digest,
                 .model_name = job.manifest.model_name,
                 .system = options.system,
                 .date = job.manifest.date,
                 .seed = options.seed,
                 .sampling = Overlay(engine->default_sampling(), options.sampling),
                 .task = options.task,
                 .drain_s = options.drain_s,
                 .on_progress = [&](const ProgressCounts& counts) {
                   summary.numbers.memory.Update(SecondsSince(run_start));
                   progress.Update(counts, engine->stats(), SecondsSince(run_start));
                   if (options.on_progress) options.on_progress(counts);
                 }});
  const absl::Status status = runner.Run(stop);

  JobNumbers& numbers = summary.numbers;
  numbers.total_s = SecondsSince(start);
  numbers.predicted_tokens_per_s = opened.predicted_tokens_per_s;
  const absl::Status traces_status = engine->CloseTraces();
  AddRun(numbers, runner.counts(), *engine);
  progress.Finish(runner.counts(), engine->stats(), SecondsSince(run_start));
  if (stats.is_open() && status.ok()) numbers.rates = engine->MeasureRates();
  progress.Print(FormatSummary(numbers));
  const absl::Status stats_status = stats.Write(FormatStats(numbers));
  PENSTOCK_RETURN_IF_ERROR(status);
  PENSTOCK_RETURN_IF_ERROR(stats_status);
  PENSTOCK_RETURN_IF_ERROR(traces_status);
  return summary;
}

absl::StatusOr<JobSummary> RunJob(const JobOptions& options, absl::FunctionRef<EngineOpener> open_engine,
                                  const std::atomic<bool>& stop) {
  const absl::StatusOr<std::vector<std::string>> input_names = InputNames(options.input_paths);
  if (input_names.ok()) PENSTOCK_RETURN_IF_ERROR(CheckOtherFiles(options, *input_names));
  PENSTOCK_ASSIGN_OR_RETURN(StatsFile stats, StatsFile::Open(options.stats_path));
  absl::StatusOr<JobSummary> summary = input_names.ok() ? RunWithStats(options, *input_names, open_engine, stop, stats)
                                                        : absl::StatusOr<JobSummary>(input_names.status());
  // The error of the run counts. Standard output stays empty when a command fails.
  if (!summary.ok() && options.stats_path != "-") (void)stats.Write(FormatStatsOfError(summary.status()));
  return summary;
}

}  // namespace penstock
