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

static absl::Status SyncToDisk(const UniqueFd& fd, const std::string& name) {
  if (::fsync(fd.get()) == 0) return absl::OkStatus();
  return IoError("{}: cannot sync: {}", name, ErrnoText(errno));
}

absl::StatusOr<NewFile> NewFile::Create(const std::string& path, bool replaces_leftover) {
  std::string temporary = path + ".tmp";
  const int flags = O_WRONLY | O_CREAT | O_CLOEXEC | (replaces_leftover ? O_TRUNC : O_EXCL);
  UniqueFd fd(::open(temporary.c_str(), flags, 0666));
  if (!fd.valid() && errno == EEXIST) {
    return IoError("{}: exists, perhaps because a process was killed; remove it, then try again", temporary);
  }
  if (!fd.valid()) return IoError("{}: cannot create: {}", temporary, ErrnoText(errno));
  return NewFile(path, std::move(temporary), std::move(fd));
}

NewFile::~NewFile() {
  if (fd_.valid()) ::unlink(temporary_.c_str());
}

absl::Status NewFile::Write(std::string_view data) { return WriteFully(fd_.get(), data, temporary_); }

absl::Status NewFile::Commit() {
  PENSTOCK_RETURN_IF_ERROR(SyncToDisk(fd_, temporary_));
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
    return IoError("{}: cannot rename to: {}", path_, ErrnoText(errno));
  }
  fd_ = UniqueFd();
  const size_t slash = path_.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : slash == 0 ? "/" : path_.substr(0, slash);
  const UniqueFd folder_fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder_fd.valid()) return IoError("{}: cannot open: {}", folder, ErrnoText(errno));
  return SyncToDisk(folder_fd, folder);
}

absl::Status ReplaceFile(const std::string& path, std::string_view content) {
  PENSTOCK_ASSIGN_OR_RETURN(NewFile file, NewFile::Create(path, /*replaces_leftover=*/true));
  PENSTOCK_RETURN_IF_ERROR(file.Write(content));
  return file.Commit();
}

absl::StatusOr<UniqueFd> OpenNamelessFile(const std::string& folder) {
  UniqueFd fd(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (fd.valid()) return fd;
  std::string path = folder + "/.penstock-XXXXXX";
  fd = UniqueFd(::mkostemp(path.data(), O_CLOEXEC));
  if (!fd.valid()) return IoError("{}: cannot make a temporary file: {}", folder, ErrnoText(errno));
  ::unlink(path.c_str());
  return fd;
}

absl::Status WriteFile(const std::string& path, std::string_view content) {
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!file.valid()) return IoError("{}: cannot open for writing: {}", Printable(path), ErrnoText(errno));
  return WriteFully(file.get(), content, path);
}

}  // namespace penstock
