// The files that a DiskReader reads, with their copies in mirrors: which copy a part of a read comes from, and what
// happens when it does not arrive. Any thread may use it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <sys/types.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "penstock/base/clock.h"
#include "penstock/base/file.h"
#include "penstock/checkpoint/mirror.h"
#include "penstock/checkpoint/model_folder.h"
#include "penstock/runtime/disk_reader.h"
#include "penstock/runtime/read_shares.h"

namespace penstock {

// How often a request is repeated that the kernel refuses for the moment, and after which pause.
inline constexpr int kMaxRefusals = 100;
inline constexpr auto kRefusalPause = std::chrono::milliseconds(10);

// Returns whether an operation may succeed when it is repeated: it was interrupted, or the kernel was short of memory.
bool IsTransient(int error);

// A page-aligned part of a read, on its way.
struct PartRead {
  int file_idx = 0;
  uint64_t read_id = 0;
  uint64_t offset = 0;
  uint64_t size = 0;
  std::byte* target = nullptr;
  uint64_t needed = 0;         // bytes that must arrive; padding after the end of the file does not count
  uint64_t done = 0;           // bytes that have arrived
  DirectorySet holders = 0;    // the copies that have the part and did not fail to deliver it
  DirectorySet announced = 0;  // see ReadShares::Begin()
  int directory = 0;           // the copy that is read
  int num_errors = 0;          // of the model's own copy
  int num_refusals = 0;
};

class ReadSources {
 public:
  // `files` must outlive the object. Opens each file and copy again with O_DIRECT, if `direct_io` and where that works.
  ReadSources(std::span<const OpenedFile> files, bool direct_io);

  int num_directories() const { return static_cast<int>(mirrors_.size()) + 1; }
  bool all_direct() const { return all_direct_; }

  // Splits a read into parts, so that one expert keeps several requests and all its disks busy.
  std::vector<PartRead> Split(const DiskRead& read, uint64_t read_id);
  // Chooses the copy from which the part, or its rest, is read next. Returns the copy's file descriptor.
  int Begin(PartRead& read);
  // Accounts for the result of a read that began: its bytes, or a negative errno. Returns whether the part is whole; if
  // not, it must begin again. Returns the error when no copy can deliver it.
  absl::StatusOr<bool> End(PartRead& read, int64_t result);
  // Ends a part that began and was never read.
  void GiveUp(const PartRead& read);

  std::vector<DirectoryReads> ReadsByDirectory() const;

 private:
  struct Copy {
    UniqueFd direct_fd;
    int fd = -1;
    std::string path;
    const FileCopy* of_mirror = nullptr;  // null: the model's own
  };

  Copy OpenCopy(int fd, const std::string& path, bool direct_io);
  DirectorySet HoldersOf(int file_idx, const FileExtent& extent) const;
  // Takes mirrors that are left out from the set, unless no other copy remains.
  DirectorySet Usable(DirectorySet holders) const;
  absl::StatusOr<bool> Retry(PartRead& read, absl::Status failure, bool is_error);

  std::string model_path_;
  std::vector<std::shared_ptr<Mirror>> mirrors_;  // directory i + 1
  std::vector<std::vector<Copy>> copies_;         // [file][directory]; fd is -1 where there is none
  bool all_direct_ = true;
  std::unique_ptr<ReadShares> shares_;
  Clock::time_point epoch_ = Clock::now();
  std::atomic<bool> has_warned_ = false;  // that the model's own disk failed
};

}  // namespace penstock
