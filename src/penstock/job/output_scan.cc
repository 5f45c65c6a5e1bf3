#include "penstock/job/output_scan.h"

#include <optional>
#include <string_view>

#include "penstock/base/json.h"
#include "penstock/base/status.h"
#include "penstock/job/input/line_reader.h"
#include "penstock/job/output_file.h"
#include "penstock/job/result_line.h"

namespace penstock {
namespace {

struct ScannedResult {
  std::string id;
  bool failed = false;
};

// Returns nullopt when the line is not a whole JSON object, as after a torn write.
std::optional<ScannedResult> ScanResult(const Line& line) {
  if (line.too_long || !line.terminated) return std::nullopt;
  const absl::StatusOr<json::value> value = ParseJson(line.text, Fault::kIo);
  if (!value.ok() || !value->is_object()) return std::nullopt;
  ScannedResult result;
  const json::object& object = value->get_object();
  if (const json::value* id = object.if_contains("id"); id != nullptr && id->is_string()) {
    result.id = std::string(id->get_string().data(), id->get_string().size());
  }
  const json::value* error = object.if_contains("error");
  result.failed = error != nullptr && !error->is_null();
  return result;
}

}  // namespace

absl::StatusOr<OutputScan> ScanOutput(int fd, const std::string& path, uint64_t job_digest, int64_t num_lines) {
  OutputScan scan;
  scan.done.assign(static_cast<size_t>(num_lines) + 1, false);
  LineReader reader(fd, path, kMaxResultLineBytes);
  Line line;
  int64_t first_torn = 0;
  while (true) {
    PENSTOCK_ASSIGN_OR_RETURN(const bool more, reader.Next(line));
    if (!more) return scan;
    const std::optional<ScannedResult> result = ScanResult(line);
    if (!result.has_value() && first_torn == 0) first_torn = line.number;
    if (first_torn != 0 && ++scan.num_torn_lines > kMaxUnsyncedLines + 1) {
      return IoError(
          "{}: line {}: not a result, and {} more lines follow, so no crash did this; restore the file or choose "
          "another --output",
          path, first_torn, kMaxUnsyncedLines);
    }
    if (!result.has_value()) continue;
    const std::optional<int64_t> input_line = LineOfResultId(result->id, job_digest);
    if (!input_line.has_value() || *input_line > num_lines) {
      return IoError("{}: line {}: id '{}' does not belong to this job; restore the file or choose another --output",
                     path, line.number, result->id);
    }
    if (first_torn != 0) continue;
    if (scan.done[*input_line]) {
      return IoError("{}: line {}: a second result of input line {}; remove one of the two", path, line.number,
                     *input_line);
    }
    scan.done[*input_line] = true;
    ++scan.num_done;
    if (result->failed) {
      ++scan.num_failed;
      scan.failed_lines.push_back(line.number);
    }
    scan.good_bytes = line.offset + line.num_bytes + 1;
  }
}

}  // namespace penstock
