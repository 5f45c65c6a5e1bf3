// Writes all tasks as Chrome's trace JSON, for ui.perfetto.dev and chrome://tracing. There is one track for each lane,
// and a track "steps" for the caller's own spans.
//
// The file is written as tasks end, through a buffer of constant size. It is one JSON document once Close() has
// returned. Its top level is an array of events, because both viewers also open an array without its end. So the file
// of a killed process can be viewed, except for the last events.
//
// All methods may be called from any thread. AddTask() sometimes waits for a write to the file.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "penstock/base/file.h"
#include "penstock/runtime/runtime.h"

namespace penstock {

class ChromeTrace : public TaskSink {
 public:
  // Replaces an existing file. Each rank is a process of its own for viewers, so that the traces of several ranks can
  // be opened as one.
  static absl::StatusOr<std::unique_ptr<ChromeTrace>> Create(const std::string& path, int rank = 0);
  // Calls Close().
  ~ChromeTrace() override;
  ChromeTrace(const ChromeTrace&) = delete;
  ChromeTrace& operator=(const ChromeTrace&) = delete;

  void AddLane(LaneIdx lane, std::string_view name) override;
  void AddTask(LaneIdx lane, const TaskLabel& label, const TaskCost& cost, double begin_s, double end_s) override;

  // Adds a span to the track "steps". Spans come in any order. Two spans either do not overlap, or one contains the
  // other.
  void AddSpan(std::string_view name, double begin_s, double end_s);

  // Ends the document and the file; later tasks and spans are dropped. kIo when anything could not be written. A second
  // call returns the same status.
  absl::Status Close();

 private:
  ChromeTrace(UniqueFd fd, std::string path, int rank);
  // All methods below REQUIRE that mutex_ is held.
  void AppendTrackName(int track, std::string_view name);
  void AppendSlice(int track, std::string_view name, double begin_s, double end_s);
  void EndEvent();
  void Flush();

  const std::string path_;
  const int process_;
  std::mutex mutex_;
  UniqueFd fd_;         // invalid once closed
  std::string buffer_;  // only whole events whenever mutex_ is free
  absl::Status status_;
};

}  // namespace penstock
