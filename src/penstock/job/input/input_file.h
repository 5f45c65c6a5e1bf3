// An input file of a job: a regular file, or a pipe that is first copied to a nameless file, to be read twice.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include <sys/stat.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "penstock/base/file.h"

namespace penstock {

class InputFile {
 public:
  // Opens `path` ("-": standard input). A pipe is copied to a nameless file in `spool_dir` until it ends or `stop` is
  // set. kInput for compressed files and UTF-16, kIo for files that cannot be read.
  static absl::StatusOr<InputFile> Open(const std::string& path, const std::string& spool_dir,
                                        const std::atomic<bool>& stop);

  int fd() const { return fd_.get(); }
  const std::string& name() const { return name_; }
  // Returns whether `info` describes this same file, under any name.
  bool IsSameFile(const struct stat& info) const;
  // Returns whether the file's size or time differs from when it was opened, or from the last RefreshTime().
  absl::StatusOr<bool> LooksChanged() const;
  // Takes the present time for unchanged. kInput when the size has changed.
  absl::Status RefreshTime();

 private:
  UniqueFd fd_;
  std::string name_;
  struct stat info_ = {};
};

}  // namespace penstock
