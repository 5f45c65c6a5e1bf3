// Files: owned descriptors, and reads and writes that either finish or return an error.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <sys/types.h>

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

// pread(), repeated while signals interrupt it.
ssize_t PreadUninterrupted(int fd, std::span<std::byte> out, uint64_t offset);

// Reads exactly `out.size()` bytes at `offset`; retries EINTR and short reads. If the file ends early, returns a kIo
// error that states both sizes.
absl::Status PreadFully(int fd, std::span<std::byte> out, uint64_t offset, std::string_view path);

// Writes all of `data` at the file's position; retries EINTR and short writes.
absl::Status WriteFully(int fd, std::string_view data, std::string_view path);

// Creates or overwrites the file with `content`. Returns kIo when it cannot be written.
absl::Status WriteFile(const std::string& path, std::string_view content);

// Returns the content of the file, which must be a regular file of at most `max_bytes`.
absl::StatusOr<std::string> ReadFile(const std::string& path, uint64_t max_bytes);

// The same, but "-" is standard input.
absl::StatusOr<std::string> ReadFileOrStdin(const std::string& path, uint64_t max_bytes);

// A file that gets its name in one step that survives a power loss, when all of it is written.
class NewFile {
 public:
  // Creates a temporary file beside `path`. kIo when that fails, or when another process has left or uses the temporary
  // file and `replaces_leftover` is false.
  static absl::StatusOr<NewFile> Create(const std::string& path, bool replaces_leftover);
  NewFile(NewFile&& other) noexcept = default;
  ~NewFile();  // removes the temporary file, unless Commit() has renamed it

  absl::Status Write(std::string_view data);
  // Syncs the file, renames it in place of a file of this name, and syncs the folder.
  absl::Status Commit();

 private:
  NewFile(std::string path, std::string temporary, UniqueFd fd)
      : path_(std::move(path)), temporary_(std::move(temporary)), fd_(std::move(fd)) {}

  std::string path_, temporary_;
  UniqueFd fd_;  // valid until the file has its name
};

// Replaces the file in one step that survives a power loss.
absl::Status ReplaceFile(const std::string& path, std::string_view content);

// Returns kIo when ReplaceFile could not work because `path` is a folder or lies in a folder that is not writable.
// Writes nothing.
absl::Status CheckReplaceable(const std::string& path);

// Creates a file without a name in the folder, for reading and writing.
absl::StatusOr<UniqueFd> OpenNamelessFile(const std::string& folder);

// Returns the text of an errno value, such as "No such file or directory".
std::string ErrnoText(int error_number);

}  // namespace penstock
