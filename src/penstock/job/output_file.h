// The output of a job: whole result lines, each appended by one write(), by one process at a time.
//
// The results are the only record of progress. A line that ends in a newline is done; anything after the last newline
// is torn and is cut off. A failed write leaves the file as it was before that line. Results are synced to disk in
// groups. A failed sync is final, because the kernel forgets which pages it lost.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <sys/types.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "penstock/base/file.h"
#include "penstock/job/input/inputs.h"

namespace penstock {

// The system calls that can fail while a job runs. Tests make them fail.
class OutputCalls {
 public:
  virtual ~OutputCalls() = default;
  virtual ssize_t Write(int fd, const void* data, size_t num_bytes);
  virtual int Sync(int fd);
  virtual int Truncate(int fd, off_t num_bytes);
};

inline constexpr int64_t kMaxUnsyncedLines = 64;
inline constexpr std::chrono::milliseconds kMaxUnsyncedTime{1000};

class OutputFile {
 public:
  // Changes nothing. Returns kIo for an output that is the input or a directory, cannot be written, or lies in no
  // folder. Without `resume`, the same for an output that already has results.
  static absl::Status Check(const std::string& path, const Inputs& inputs, bool resume);

  // Creates or opens the file ("-": standard output) and locks it until destruction. kIo "locked by pid N" when another
  // process has locked it. `calls` must outlive the file.
  static absl::StatusOr<std::unique_ptr<OutputFile>> Open(const std::string& path, OutputCalls& calls);

  int fd() const { return fd_.get(); }
  const std::string& path() const { return path_; }
  uint64_t num_bytes() const { return num_bytes_; }
  bool is_regular() const { return is_regular_; }  // only regular files can be resumed

  // Removes the file if Open() created it and nothing was written to it.
  void RemoveIfUnused();

  // Gives the file another name, in place of the file that has it now. Survives a power loss.
  absl::Status RenameTo(const std::string& path);

  // Cuts off a torn tail. REQUIRES: is_regular(), num_bytes <= num_bytes().
  absl::Status Truncate(uint64_t num_bytes);

  // Returns kIo when another program removed, replaced, cut or appended to the file.
  absl::Status CheckUnchanged() const;

  // Checks that nobody changed the file, appends `line` and a newline; syncs when 64 lines, or the lines of a second,
  // are not yet on disk. kStopped when there is no room or the disk refuses (the job can be resumed). kIo when the
  // reader of a pipe has gone away or the sync fails.
  absl::Status Append(std::string_view line);

  // Writes everything to disk. After a failure every further call fails.
  absl::Status Sync();
  // Calls Sync() when the oldest unsynced line has waited long enough.
  absl::Status SyncIfDue();

 private:
  OutputFile(UniqueFd fd, std::string path, OutputCalls& calls)
      : fd_(std::move(fd)), path_(std::move(path)), calls_(calls) {}
  absl::Status Lock();
  absl::Status WriteFailed(int error_number);

  UniqueFd fd_;
  std::string path_;
  OutputCalls& calls_;
  bool is_regular_ = false;
  bool is_new_ = false;
  bool sync_failed_ = false;
  uint64_t num_bytes_ = 0;
  int64_t num_unsynced_ = 0;
  std::chrono::steady_clock::time_point oldest_unsynced_;
};

}  // namespace penstock
