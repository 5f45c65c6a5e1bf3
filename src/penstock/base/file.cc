#include "penstock/base/file.h"

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "penstock/base/bytes.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"

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

ssize_t PreadUninterrupted(int fd, std::span<std::byte> out, uint64_t offset) {
  ssize_t n = 0;
  do {
    n = ::pread(fd, out.data(), out.size(), static_cast<off_t>(offset));
  } while (n < 0 && errno == EINTR);
  return n;
}

absl::Status PreadFully(int fd, std::span<std::byte> out, uint64_t offset, std::string_view path) {
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t n = PreadUninterrupted(fd, out.subspan(done), offset + done);
    if (n > 0) {
      done += n;
    } else if (n == 0) {
      return IoError("{}: the file ended early: expected {} bytes at offset {}, found {}; was it changed while in use?",
                     path, out.size(), offset, done);
    } else if (errno != EAGAIN) {
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
      done += n;
    } else if (errno != EAGAIN) {
      return IoError("{}: cannot write: {}", path, ErrnoText(errno));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadFile(const std::string& path, uint64_t max_bytes) {
  // O_NONBLOCK keeps the opening of a FIFO from hanging.
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

absl::StatusOr<std::string> ReadFileOrStdin(const std::string& path, uint64_t max_bytes) {
  if (path != "-") return ReadFile(path, max_bytes);
  constexpr char kName[] = "standard input";
  constexpr size_t kBlockBytes = 64 << 10;
  std::string content;
  while (true) {
    const size_t old_size = content.size();
    content.resize(old_size + kBlockBytes);
    const ssize_t n = ::read(STDIN_FILENO, content.data() + old_size, kBlockBytes);
    content.resize(old_size + static_cast<size_t>(std::max<ssize_t>(0, n)));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return IoError("{}: cannot read: {}", kName, ErrnoText(errno));
    if (content.size() > max_bytes) return IoError("{}: has more than {}", kName, FormatBytes(max_bytes));
    if (n == 0) return content;
  }
}

absl::Status CheckReplaceable(const std::string& path) {
  const std::filesystem::path file(path);
  const std::string folder = file.has_parent_path() ? file.parent_path().string() : ".";
  std::error_code ignored;
  if (std::filesystem::is_directory(file, ignored)) return IoError("{}: is a folder, expected a file", path);
  if (::access(folder.c_str(), W_OK | X_OK) != 0) return IoError("{}: cannot write there: {}", path, ErrnoText(errno));
  return absl::OkStatus();
}

absl::Status ReplaceFile(const std::string& path, std::string_view content) {
  const auto sync = [](const UniqueFd& fd, const std::string& name) -> absl::Status {
    if (::fsync(fd.get()) == 0) return absl::OkStatus();
    return IoError("{}: cannot sync: {}", name, ErrnoText(errno));
  };
  const std::string temporary = path + ".tmp";
  {
    const UniqueFd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
    if (!fd.valid()) return IoError("{}: cannot create: {}", temporary, ErrnoText(errno));
    PENSTOCK_RETURN_IF_ERROR(WriteFully(fd.get(), content, temporary));
    PENSTOCK_RETURN_IF_ERROR(sync(fd, temporary));
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) {
    return IoError("{}: cannot rename to: {}", path, ErrnoText(errno));
  }
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
  const UniqueFd folder_fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder_fd.valid()) return IoError("{}: cannot open: {}", folder, ErrnoText(errno));
  return sync(folder_fd, folder);
}

absl::Status WriteFile(const std::string& path, std::string_view content) {
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!file.valid()) return IoError("{}: cannot open for writing: {}", Printable(path), ErrnoText(errno));
  return WriteFully(file.get(), content, path);
}

}  // namespace penstock
