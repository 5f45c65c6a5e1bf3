// Asynchronous reads from disk into memory.
//
// Reads go past the page cache (O_DIRECT) where the file system allows it, through io_uring where the kernel allows it,
// and through a few reading threads otherwise. Used by one thread, but for Wake().
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
  FileExtent extent;            // wanted bytes
  std::byte* target = nullptr;  // page-aligned, with room for PaddedBytes(extent.size_bytes)
  uint64_t tag = 0;             // given back on completion
};

// What became of a read: kIo when a part of it could not be read, twice.
struct DiskCompletion {
  uint64_t tag = 0;
  absl::Status status;
};

class DiskReader {
 public:
  // `files` must outlive the reader.
  static absl::StatusOr<std::unique_ptr<DiskReader>> Create(std::span<const OpenedFile> files,
                                                            const DiskReaderOptions& options);
  // Waits for the reads under way; those not begun are dropped.
  virtual ~DiskReader() = default;

  // Room that a read of `size_bytes` at any offset may touch.
  static uint64_t PaddedBytes(uint64_t size_bytes);
  // Where the first wanted byte of `extent` lies after the read.
  static std::byte* Landing(const DiskRead& read);

  // Queues a read. Each ends in one completion; these come in any order.
  virtual void Submit(const DiskRead& read) = 0;
  // Waits for a read that has ended. nullopt: Wake() came first, or none is under way.
  virtual std::optional<DiskCompletion> NextCompleted() = 0;
  // Ends a NextCompleted that waits, or the next one that would. From any thread.
  virtual void Wake() = 0;

  // "io_uring, O_DIRECT"
  virtual std::string Description() const = 0;
};

}  // namespace penstock
