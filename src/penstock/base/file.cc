#include "penstock/base/file.h"

#include <cerrno>
#include <system_error>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "penstock/base/bytes.h"
#include "penstock/base/status.h"

namespace penstock {

UniqueFd& UniqueFd::operator=(UniqueFd&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

UniqueFd::~UniqueFd() {
  if (fd_ >= 0) ::close(fd_);
}

std::string ErrnoText(int error_number) { return std::generic_category().message(error_number); }

absl::Status PreadFully(int fd, std::span<std::byte> out, uint64_t offset, std::string_view path) {
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t n = ::pread(fd, out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
    if (n > 0) {
      done += static_cast<size_t>(n);
    } else if (n == 0) {
      return IoError("{}: the file ended early: expected {} bytes at offset {}, found {}; was it changed while in use?",
                     path, out.size(), offset, done);
    } else if (errno != EINTR && errno != EAGAIN) {
      return IoError("{}: cannot read {} bytes at offset {}: {}", path, out.size() - done, offset + done,
                     ErrnoText(errno));
    }
  }
  return absl::OkStatus();
}

absl::Status WriteFully(int fd, std::string_view data, std::string_view path) {
  size_t done = 0;
  while (done < data.size()) {
    const ssize_t n = ::write(fd, data.data() + done, data.size() - done);
    if (n >= 0) {
      done += static_cast<size_t>(n);
    } else if (errno != EINTR && errno != EAGAIN) {
      return IoError("{}: cannot write: {}", path, ErrnoText(errno));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadFile(const std::string& path, uint64_t max_bytes) {
  // O_NONBLOCK: opening a FIFO must not hang.
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return IoError("{}: cannot open: {}", path, ErrnoText(errno));
  struct stat info = {};
  if (::fstat(fd.get(), &info) != 0) return IoError("{}: cannot stat: {}", path, ErrnoText(errno));
  if (!S_ISREG(info.st_mode)) return IoError("{}: expected a regular file", path);
  const uint64_t size = static_cast<uint64_t>(info.st_size);
  if (size > max_bytes) {
    return IoError("{}: the file has {}, more than the limit of {}", path, FormatBytes(size), FormatBytes(max_bytes));
  }
  std::string content(size, '\0');
  PENSTOCK_RETURN_IF_ERROR(PreadFully(fd.get(), std::as_writable_bytes(std::span(content)), 0, path));
  return content;
}

}  // namespace penstock
