// Files: owned descriptors, reads and writes that finish or say why.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace penstock {

// Owns a file descriptor. Move-only.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept;
  ~UniqueFd();

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// Reads exactly `out.size()` bytes at `offset`; retries EINTR and short reads. An early end of file is kIo with both
// sizes.
absl::Status PreadFully(int fd, std::span<std::byte> out, uint64_t offset, std::string_view path);

// Writes all of `data` at the file's position; retries EINTR and short writes.
absl::Status WriteFully(int fd, std::string_view data, std::string_view path);

// A file with this content, new or in place of what it held. kIo when it cannot be written.
absl::Status WriteFile(const std::string& path, std::string_view content);

// The whole file, which must be a regular file of at most `max_bytes`.
absl::StatusOr<std::string> ReadFile(const std::string& path, uint64_t max_bytes);

// Replaces the file in one step that survives a power loss: a temporary file beside it, synced, renamed, and the folder
// synced.
absl::Status ReplaceFile(const std::string& path, std::string_view content);

// kIo when ReplaceFile could not work: `path` is a folder, or one in which nothing can be written. Writes nothing.
absl::Status CheckReplaceable(const std::string& path);

// "No such file or directory" for an errno value.
std::string ErrnoText(int error_number);

}  // namespace penstock
