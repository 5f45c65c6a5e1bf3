// Asynchronous reads from disk into memory.
//
// Reads bypass the page cache (O_DIRECT) where the file system allows it. They use io_uring where the kernel allows it,
// and a few reading threads otherwise. All methods but Wake() and ReadsByDirectory() are called by one thread.
//
// If files have copies in mirrors, each part of a read comes from the copy that would deliver it first
// (runtime/read_shares.h). A part that a copy cannot deliver is read from another one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "penstock/checkpoint/model_folder.h"
#include "penstock/checkpoint/safetensors.h"

namespace penstock {

struct DiskReaderOptions {
  bool direct_io = true;
  bool io_uring = true;
};

// A read of whole pages that covers an extent.
struct DiskRead {
  int file_idx = 0;
  FileExtent extent;            // the wanted bytes
  std::byte* target = nullptr;  // page-aligned, with room for WrittenBytes()
  uint64_t tag = 0;             // returned with the completion
};

// The end of a read. The status is kIo when a part of it failed twice.
struct DiskCompletion {
  uint64_t tag = 0;
  absl::Status status;
};

// Bytes that the model's own directory, or a mirror, delivered.
struct DirectoryReads {
  std::string path;
  uint64_t bytes = 0;
  double bytes_per_s = 0;  // while it was read; 0: it was not yet
  bool is_left_out = false;
};

class DiskReader {
 public:
  // `files` must outlive the reader.
  static absl::StatusOr<std::unique_ptr<DiskReader>> Create(std::span<const OpenedFile> files,
                                                            const DiskReaderOptions& options);
  // Waits for the reads under way and drops the others.
  virtual ~DiskReader() = default;

  // Returns the bytes of memory that a read of `size_bytes` at any offset may touch.
  static uint64_t PaddedBytes(uint64_t size_bytes);
  // Returns the bytes from `read.target` on that the read writes: whole pages.
  static uint64_t WrittenBytes(const DiskRead& read);
  // Returns where the first wanted byte of `extent` lies after the read.
  static std::byte* Landing(const DiskRead& read);

  // Queues a read. Each read ends in one completion; completions come in any order.
  virtual void Submit(const DiskRead& read) = 0;
  // Waits for a read to end. Returns nullopt when Wake() came first, or when no read is under way.
  virtual std::optional<DiskCompletion> NextCompleted() = 0;
  // Ends a waiting NextCompleted(), or else the next call of it. May be called from any thread.
  virtual void Wake() = 0;

  // Whether the disk writes into targets itself, and no CPU copies from the page cache.
  virtual bool is_direct() const { return false; }
  // Returns "io_uring, O_DIRECT", for example.
  virtual std::string Description() const = 0;
  // Returns the model's own directory and the mirrors; nothing without mirrors. May be called from any thread.
  virtual std::vector<DirectoryReads> ReadsByDirectory() const { return {}; }
};

}  // namespace penstock
