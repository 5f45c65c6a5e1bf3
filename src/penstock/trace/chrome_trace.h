// A trace of all tasks as Chrome's trace JSON, for ui.perfetto.dev and chrome://tracing: a track for each lane, and one
// named "steps" for what the caller did meanwhile.
//
// The file is written as tasks end, through a buffer of constant size, and is one JSON document once Close() has
// returned. It is an array of events, not an object that holds one, because both viewers also open an array without
// its end: what a killed process leaves can be looked at, but for the last events.
//
// All methods may be called from any thread. AddTask now and then waits for a write into the file.
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
  // Replaces a file of this name.
  static absl::StatusOr<std::unique_ptr<ChromeTrace>> Create(const std::string& path);
  // Closes.
  ~ChromeTrace() override;
  ChromeTrace(const ChromeTrace&) = delete;
  ChromeTrace& operator=(const ChromeTrace&) = delete;

  void AddLane(LaneIdx lane, std::string_view name) override;
  void AddTask(LaneIdx lane, const TaskLabel& label, const TaskCost& cost, double begin_s, double end_s) override;

  // A span on the track "steps". Spans come in any order; of any two, one holds the other or they do not overlap.
  void AddSpan(std::string_view name, double begin_s, double end_s);

  // Ends the document and the file; what comes later is dropped. kIo when any of it could not be written. May be called
  // again, with the same answer.
  absl::Status Close();

 private:
  ChromeTrace(UniqueFd fd, std::string path);
  // REQUIRES of all below: mutex_ is held.
  void AppendTrackName(int track, std::string_view name);
  void AppendSlice(int track, std::string_view name, double begin_s, double end_s);
  void EndEvent();
  void Flush();

  const std::string path_;
  std::mutex mutex_;
  UniqueFd fd_;         // invalid once closed
  std::string buffer_;  // of events; whole ones whenever mutex_ is free
  absl::Status status_;
};

}  // namespace penstock
