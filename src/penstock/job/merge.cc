#include "penstock/job/merge.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <span>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "penstock/base/bytes.h"
#include "penstock/base/file.h"
#include "penstock/base/status.h"
#include "penstock/job/manifest.h"
#include "penstock/job/output_file.h"
#include "penstock/job/output_scan.h"

namespace penstock {
namespace {

// The output of a shard.
struct Part {
  std::string path;
  UniqueFd fd;
  Shard shard;
  int64_t num_requests = 0;  // that the shard has
  int64_t num_found = 0;     // results in the output
};

struct Parts {
  std::vector<Part> all;  // once they are checked: in the order of their shards
  Manifest manifest;      // of the first part that was named; the others have the same job and model
  int64_t num_lines = 0;  // of the input
  int64_t num_requests = 0;
};

// Says where the result of each input line lies, in a nameless file with an entry per line.
class ResultIndex {
 public:
  struct Entry {
    uint32_t part = 0;  // its shard; 0: there is no result
    uint32_t num_bytes = 0;
    uint64_t offset = 0;
  };
  static_assert(kMaxResultLineBytes <= UINT32_MAX);

  static absl::StatusOr<ResultIndex> Create(const std::string& folder) {
    PENSTOCK_ASSIGN_OR_RETURN(UniqueFd fd, OpenNamelessFile(folder));
    return ResultIndex(folder, std::move(fd));
  }
  absl::StatusOr<Entry> At(int64_t line) const {
    Entry entry;
    const ssize_t n = PreadUninterrupted(fd_.get(), std::as_writable_bytes(std::span(&entry, 1)), OffsetOf(line));
    if (n < 0) return IoError("{}: cannot read the index of results: {}", folder_, ErrnoText(errno));
    return n == sizeof(Entry) ? entry : Entry();  // the file ends with the last entry that was set
  }
  absl::Status Set(int64_t line, const Entry& entry) {
    ssize_t n = 0;
    do {
      n = ::pwrite(fd_.get(), &entry, sizeof(entry), static_cast<off_t>(OffsetOf(line)));
    } while (n < 0 && errno == EINTR);
    if (n == sizeof(entry)) return absl::OkStatus();
    return IoError("{}: cannot write the index of results: {}", folder_, ErrnoText(n < 0 ? errno : ENOSPC));
  }

 private:
  ResultIndex(std::string folder, UniqueFd fd) : folder_(std::move(folder)), fd_(std::move(fd)) {}
  static uint64_t OffsetOf(int64_t line) { return static_cast<uint64_t>(line - 1) * sizeof(Entry); }

  std::string folder_;
  UniqueFd fd_;
};

absl::Status CheckStop(const std::atomic<bool>& stop) {
  return stop.load() ? MakeError(Fault::kStopped, "stopped while merging; no output was written") : absl::OkStatus();
}

absl::Status CheckOutput(const std::string& path) {
  if (path == "-") return UsageError("--output -: merge writes a file, not standard output");
  struct stat info = {};
  if (::lstat(path.c_str(), &info) == 0 && !S_ISDIR(info.st_mode)) {
    return IoError("{}: the output exists; choose another name", path);
  }
  return OutputFile::Check(path, Inputs(), /*resume=*/false);
}

absl::StatusOr<UniqueFd> OpenPart(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid() && errno == EMFILE) {
    return ResourceError("{}: cannot open: {}; raise the limit (ulimit -n)", path, ErrnoText(errno));
  }
  struct stat info = {};
  if (!fd.valid() || ::fstat(fd.get(), &info) != 0) return IoError("{}: cannot open: {}", path, ErrnoText(errno));
  if (!S_ISREG(info.st_mode)) return IoError("{}: expected the output of a shard, a regular file", path);
  // A running job holds an exclusive lock; this one keeps jobs from beginning.
  if (::flock(fd.get(), LOCK_SH | LOCK_NB) == 0) return fd;
  if (errno == EWOULDBLOCK) return IoError("{}: the job of this shard still runs; wait for it", path);
  return IoError("{}: cannot lock: {}", path, ErrnoText(errno));
}

// Returns "shard 2 of 8 is", or "shards 2, 5 of 8 are"; names the first ten.
std::string ShardsAre(const std::vector<int64_t>& shards, int64_t count) {
  constexpr size_t kMaxNamed = 10;
  std::string names;
  for (const int64_t shard : std::span(shards).first(std::min(shards.size(), kMaxNamed))) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", shard);
  }
  if (shards.size() == 1) return fmt::format("shard {} of {} is", names, count);
  if (shards.size() > kMaxNamed) names += fmt::format(" and {} more", shards.size() - kMaxNamed);
  return fmt::format("shards {} of {} are", names, count);
}

// Returns why the lines of a part may differ from those of the whole job; empty if they do not.
std::string NoteOf(const Manifest& first, const Part& part, const Manifest& manifest) {
  if (manifest.date != first.date) {
    return fmt::format("{} began on {}, the first part on {}: chat templates that print the date saw both (see --date)",
                       part.path, manifest.date, first.date);
  }
  if (manifest.model_name == first.model_name) return "";
  return fmt::format("{} names the model '{}', the first part '{}'", part.path, manifest.model_name, first.model_name);
}

// Opens the parts, and checks that they are all shards of one job.
absl::StatusOr<Parts> OpenParts(const std::vector<std::string>& paths, MergeSummary& summary) {
  Parts parts;
  for (const std::string& path : paths) {
    Part part;
    part.path = path;
    PENSTOCK_ASSIGN_OR_RETURN(part.fd, OpenPart(path));
    PENSTOCK_ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(ManifestPath(path)));
    if (manifest.num_requests < 0) {
      return IoError("{}: an older version of Penstock wrote this; run the job anew", ManifestPath(path));
    }
    part.shard = manifest.shard;
    part.num_requests = manifest.num_requests;
    parts.num_requests += part.num_requests;
    if (parts.all.empty()) {
      parts.manifest = std::move(manifest);
    } else {
      PENSTOCK_RETURN_IF_ERROR(CompareParts(parts.all.front().path, parts.manifest, path, manifest));
      if (summary.note.empty()) summary.note = NoteOf(parts.manifest, part, manifest);
    }
    parts.all.push_back(std::move(part));
  }
  PENSTOCK_ASSIGN_OR_RETURN(parts.num_lines, NumInputLines(parts.manifest, ManifestPath(paths.front())));
  std::ranges::stable_sort(parts.all, {}, [](const Part& part) { return part.shard.index; });
  std::vector<int64_t> missing;
  int64_t next = 1;
  for (size_t i = 0; i < parts.all.size(); ++i) {
    const Part& part = parts.all[i];
    if (part.shard.index < next) {
      return InputError("{} and {} are both shard {}; give each shard once", parts.all[i - 1].path, part.path,
                        part.shard.Text());
    }
    for (; next < part.shard.index; ++next) missing.push_back(next);
    ++next;
  }
  const int64_t count = parts.manifest.shard.count;
  for (; next <= count; ++next) missing.push_back(next);
  if (missing.empty()) return parts;
  return InputError("{} missing; give the outputs of all shards", ShardsAre(missing, count));
}

// Enters the results of the part into the index.
absl::Status FindResults(const Parts& parts, const std::atomic<bool>& stop, Part& part, ResultIndex& index,
                         MergeSummary& summary) {
  const auto take = [&](const FoundResult& result) -> absl::Status {
    PENSTOCK_RETURN_IF_ERROR(CheckStop(stop));
    PENSTOCK_ASSIGN_OR_RETURN(const ResultIndex::Entry before, index.At(result.input_line));
    if (before.part == static_cast<uint32_t>(part.shard.index)) return SecondResult(part.path, result);
    if (before.part != 0) {
      return IoError("input line {} has a result in {} and in {}; remove the one that is not of its shard",
                     result.input_line, parts.all[before.part - 1].path, part.path);
    }
    ++part.num_found;
    if (result.failed) ++summary.num_failed;
    if (result.labels.has_value()) summary.labels.Add(*result.labels);
    return index.Set(result.input_line, {.part = static_cast<uint32_t>(part.shard.index),
                                         .num_bytes = static_cast<uint32_t>(result.line.text.size()),
                                         .offset = result.line.offset});
  };
  const OutputToScan output = {
      .fd = part.fd.get(), .path = part.path, .job_digest = parts.manifest.job_digest, .num_lines = parts.num_lines};
  return ForEachResult(output, take).status();
}

// Returns kInput when requests have no result.
absl::Status CheckComplete(const Parts& parts, const ResultIndex& index) {
  std::vector<int64_t> unfinished;
  int64_t num_missing = 0;
  for (const Part& part : parts.all) {
    if (part.num_found > part.num_requests) {
      return IoError("{}: has {} results, but shard {} has {} requests", part.path, part.num_found, part.shard.Text(),
                     part.num_requests);
    }
    if (part.num_found == part.num_requests) continue;
    num_missing += part.num_requests - part.num_found;
    unfinished.push_back(part.shard.index);
  }
  if (unfinished.empty()) return absl::OkStatus();
  int64_t first = 1;  // line without a result; blank lines have none either
  for (; first < parts.num_lines; ++first) {
    PENSTOCK_ASSIGN_OR_RETURN(const ResultIndex::Entry entry, index.At(first));
    if (entry.part == 0) break;
  }
  return InputError(
      "{} of {} requests have no result, the first {} input line {}; {} not finished: continue with run --resume",
      num_missing, parts.num_requests, parts.num_lines == parts.num_requests ? "in" : "in or after", first,
      ShardsAre(unfinished, parts.manifest.shard.count));
}

// Writes all results in the order of the input.
absl::Status WriteResults(const Parts& parts, const ResultIndex& index, const std::atomic<bool>& stop, NewFile& file) {
  std::string buffer;
  int64_t num_written = 0;
  for (int64_t line = 1; line <= parts.num_lines && num_written < parts.num_requests; ++line) {
    PENSTOCK_RETURN_IF_ERROR(CheckStop(stop));
    PENSTOCK_ASSIGN_OR_RETURN(const ResultIndex::Entry entry, index.At(line));
    if (entry.part == 0) continue;  // a blank line
    const Part& part = parts.all[entry.part - 1];
    if (!part.shard.Has(num_written)) {
      return IoError("{}: the result of input line {} is not of shard {}; remove it", part.path, line,
                     part.shard.Text());
    }
    const size_t begin = buffer.size();
    buffer.resize(begin + entry.num_bytes);
    PENSTOCK_RETURN_IF_ERROR(
        PreadFully(part.fd.get(), std::as_writable_bytes(std::span(buffer).subspan(begin)), entry.offset, part.path));
    buffer += '\n';
    ++num_written;
    if (buffer.size() < kMiB) continue;
    PENSTOCK_RETURN_IF_ERROR(file.Write(buffer));
    buffer.clear();
  }
  return file.Write(buffer);
}

}  // namespace

absl::StatusOr<MergeSummary> MergeShards(const MergeOptions& options, const std::atomic<bool>& stop) {
  MergeSummary summary;
  PENSTOCK_RETURN_IF_ERROR(CheckOutput(options.output_path));
  if (options.part_paths.empty()) return UsageError("merge needs the outputs of the shards");
  PENSTOCK_ASSIGN_OR_RETURN(Parts parts, OpenParts(options.part_paths, summary));
  const std::filesystem::path folder = std::filesystem::path(options.output_path).parent_path();
  PENSTOCK_ASSIGN_OR_RETURN(ResultIndex index, ResultIndex::Create(folder.empty() ? "." : folder.string()));
  for (Part& part : parts.all) PENSTOCK_RETURN_IF_ERROR(FindResults(parts, stop, part, index, summary));
  PENSTOCK_RETURN_IF_ERROR(CheckComplete(parts, index));
  summary.num_results = parts.num_requests;

  PENSTOCK_ASSIGN_OR_RETURN(NewFile file, NewFile::Create(options.output_path, /*replaces_leftover=*/false));
  PENSTOCK_RETURN_IF_ERROR(WriteResults(parts, index, stop, file));
  PENSTOCK_RETURN_IF_ERROR(CheckOutput(options.output_path));  // somebody may have written it meanwhile
  parts.manifest.shard = {};
  parts.manifest.num_requests = parts.num_requests;
  PENSTOCK_RETURN_IF_ERROR(WriteManifest(parts.manifest, ManifestPath(options.output_path)));
  PENSTOCK_RETURN_IF_ERROR(file.Commit());
  return summary;
}

}  // namespace penstock
