#include "penstock/job/output_scan.h"

#include <optional>
#include <string_view>

#include "penstock/base/json.h"
#include "penstock/base/status.h"
#include "penstock/job/output_file.h"
#include "penstock/job/result_line.h"

namespace penstock {
namespace {

struct ScannedResult {
  std::string id;
  bool failed = false;
  std::optional<LabelCounts> labels;
};

// Returns the object in a field; null if there is none.
const json::object* Member(const json::object* object, std::string_view name) {
  const json::value* value =
      object == nullptr ? nullptr : object->if_contains(json::string_view(name.data(), name.size()));
  return value == nullptr ? nullptr : value->if_object();
}

// Reads whether a scored result has the right choice.
std::optional<LabelCounts> LabelsOf(const json::object& result) {
  const json::object* body = Member(Member(&result, "response"), "body");
  for (const std::string_view name : {"scores", "classification"}) {
    const json::object* scores = Member(body, name);
    if (scores == nullptr || !scores->contains("correct") || !scores->contains("correct_per_char")) continue;
    const auto count = [&](std::string_view field) {
      return scores->at(json::string_view(field.data(), field.size())) == json::value(true) ? 1 : 0;
    };
    return LabelCounts{
        .num_labelled = 1, .num_correct = count("correct"), .num_correct_per_char = count("correct_per_char")};
  }
  return std::nullopt;
}

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
  result.labels = LabelsOf(object);
  return result;
}

}  // namespace

absl::StatusOr<OutputTail> ForEachResult(const OutputToScan& output,
                                         absl::FunctionRef<absl::Status(const FoundResult&)> on_result) {
  OutputTail tail;
  LineReader reader(output.fd, output.path, kMaxResultLineBytes);
  Line line;
  int64_t first_torn = 0;
  while (true) {
    PENSTOCK_ASSIGN_OR_RETURN(const bool more, reader.Next(line));
    if (!more) return tail;
    const std::optional<ScannedResult> result = ScanResult(line);
    if (!result.has_value() && first_torn == 0) first_torn = line.number;
    if (first_torn != 0 && ++tail.num_torn_lines > kMaxUnsyncedLines + 1) {
      return IoError(
          "{}: line {}: not a result, and {} more lines follow, so no crash did this; restore the file or choose "
          "another output",
          output.path, first_torn, kMaxUnsyncedLines);
    }
    if (!result.has_value()) continue;
    const std::optional<int64_t> input_line = LineOfResultId(result->id, output.job_digest);
    if (!input_line.has_value() || *input_line > output.num_lines) {
      return IoError("{}: line {}: id '{}' does not belong to this job; restore the file or choose another output",
                     output.path, line.number, result->id);
    }
    if (first_torn != 0) continue;
    PENSTOCK_RETURN_IF_ERROR(
        on_result({.input_line = *input_line, .failed = result->failed, .labels = result->labels, .line = line}));
    tail.good_bytes = line.offset + line.num_bytes + 1;
  }
}

absl::Status SecondResult(const std::string& path, const FoundResult& result) {
  return IoError("{}: line {}: a second result of input line {}; remove one of the two", path, result.line.number,
                 result.input_line);
}

absl::StatusOr<OutputScan> ScanOutput(const OutputToScan& output, absl::FunctionRef<bool(int64_t)> has_line) {
  OutputScan scan;
  scan.done.assign(static_cast<size_t>(output.num_lines) + 1, false);
  const auto take = [&](const FoundResult& result) -> absl::Status {
    if (!has_line(result.input_line)) {
      return IoError("{}: line {}: the result of input line {}, which is in another shard; remove it", output.path,
                     result.line.number, result.input_line);
    }
    if (scan.done[static_cast<size_t>(result.input_line)]) return SecondResult(output.path, result);
    scan.done[static_cast<size_t>(result.input_line)] = true;
    ++scan.num_done;
    if (result.labels.has_value()) scan.labels.Add(*result.labels);
    if (!result.failed) return absl::OkStatus();
    ++scan.num_failed;
    scan.failed_lines.push_back(result.line.number);
    return absl::OkStatus();
  };
  PENSTOCK_ASSIGN_OR_RETURN(const OutputTail tail, ForEachResult(output, take));
  scan.good_bytes = tail.good_bytes;
  scan.num_torn_lines = tail.num_torn_lines;
  return scan;
}

}  // namespace penstock
