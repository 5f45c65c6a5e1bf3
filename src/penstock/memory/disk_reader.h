// Asynchronous reads from disk into memory: the disk->dram lane.
//
// Reads go past the page cache (O_DIRECT) where the file system allows it, through io_uring where the kernel allows it,
// and through a few reading threads otherwise. Used by one thread.
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

class DiskReader {
 public:
  // `files` must outlive the reader.
  static absl::StatusOr<std::unique_ptr<DiskReader>> Create(std::span<const OpenedFile> files,
                                                            const DiskReaderOptions& options);
  virtual ~DiskReader() = default;

  // Room that a read of `size_bytes` at any offset may touch.
  static uint64_t PaddedBytes(uint64_t size_bytes);
  // Where the first wanted byte of `extent` lies after the read.
  static std::byte* Landing(const DiskRead& read);

  // Queues a read. Completions come in any order.
  virtual absl::Status Submit(const DiskRead& read) = 0;
  // Tag of a read that has completed; blocks when `wait`. nullopt when none is ready (or none is under way). A read
  // that fails is reported as an error once for each of its failed parts, and has no tag.
  enum class Wait : uint8_t { kNo, kYes };
  virtual absl::StatusOr<std::optional<uint64_t>> NextCompleted(Wait wait) = 0;

  // Bytes that were asked for (without padding), so far.
  uint64_t bytes_read() const { return bytes_read_; }
  // "io_uring, O_DIRECT"
  virtual std::string Description() const = 0;

 protected:
  uint64_t bytes_read_ = 0;
};

}  // namespace penstock
