#include "penstock/job/output_file.h"

#include <cerrno>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "penstock/base/bytes.h"
#include "penstock/base/check.h"
#include "penstock/base/clock.h"
#include "penstock/base/status.h"

namespace penstock {
namespace {

constexpr char kStdout[] = "-";

// Returns the error for an output that cannot be created or opened.
absl::Status CannotOpen(const std::string& path, int error_number) {
  if (error_number == EISDIR) return IoError("{}: the output is a directory, expected a file name", path);
  if (error_number == ENOENT) return IoError("{}: the output's folder does not exist; create it first", path);
  return IoError("{}: cannot open the output for writing: {}", path, ErrnoText(error_number));
}

}  // namespace

ssize_t OutputCalls::Write(int fd, const void* data, size_t num_bytes) { return ::write(fd, data, num_bytes); }
int OutputCalls::Sync(int fd) { return ::fdatasync(fd); }
int OutputCalls::Truncate(int fd, off_t num_bytes) { return ::ftruncate(fd, num_bytes); }

absl::Status OutputFile::Check(const std::string& path, const Inputs& inputs, bool resume) {
  if (path == kStdout) {
    return resume ? IoError("standard output is not a regular file, --resume needs one") : absl::OkStatus();
  }
  if (path.empty()) return UsageError("--output: expected a file name, found nothing");
  struct stat info = {};
  if (::stat(path.c_str(), &info) != 0) {
    if (errno != ENOENT) return CannotOpen(path, errno);
    const size_t slash = path.rfind('/');
    const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
    if (::access(folder.c_str(), W_OK | X_OK) != 0) return CannotOpen(path, errno);
    return absl::OkStatus();
  }
  if (S_ISDIR(info.st_mode)) return CannotOpen(path, EISDIR);
  if (inputs.HasFile(info)) return IoError("{}: the output is the input; choose another --output", path);
  if (::access(path.c_str(), W_OK) != 0) return CannotOpen(path, errno);
  if (S_ISREG(info.st_mode) && info.st_size > 0 && !resume) {
    return IoError("{}: the output exists; use --resume to continue its job, or choose another name", path);
  }
  if (!S_ISREG(info.st_mode) && resume) return IoError("{}: is not a regular file, --resume needs one", path);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<OutputFile>> OutputFile::Open(const std::string& path, OutputCalls& calls) {
  if (path == kStdout) {
    UniqueFd fd(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3));
    if (!fd.valid()) return CannotOpen("standard output", errno);
    return std::unique_ptr<OutputFile>(new OutputFile(std::move(fd), "standard output", calls));
  }
  struct stat info = {};
  const bool is_named = ::lstat(path.c_str(), &info) == 0;  // perhaps a link to a file that does not exist yet
  const bool exists = ::stat(path.c_str(), &info) == 0;
  const bool regular = !exists || S_ISREG(info.st_mode);
  // Pipes and devices are opened for writing only. Opening a pipe without a reader then fails.
  const int flags = regular ? O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC : O_WRONLY | O_CLOEXEC;
  UniqueFd fd(::open(path.c_str(), flags, 0666));
  if (!fd.valid()) return CannotOpen(path, errno);
  std::unique_ptr<OutputFile> file(new OutputFile(std::move(fd), path, calls));
  if (::fstat(file->fd(), &info) != 0) return IoError("{}: cannot stat: {}", path, ErrnoText(errno));
  file->is_regular_ = S_ISREG(info.st_mode);
  file->is_new_ = !is_named;
  if (!file->is_regular_) return file;
  PENSTOCK_RETURN_IF_ERROR(file->Lock());
  // The size is valid only from here on: the previous holder of the lock may have written.
  if (::fstat(file->fd(), &info) != 0) return IoError("{}: cannot stat: {}", path, ErrnoText(errno));
  file->num_bytes_ = static_cast<uint64_t>(info.st_size);
  return file;
}

// flock() excludes other processes. The record lock is there only because it tells the holder's pid.
absl::Status OutputFile::Lock() {
  struct flock record = {};
  record.l_type = F_WRLCK;
  record.l_whence = SEEK_SET;
  if (::flock(fd(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return IoError("{}: cannot lock: {}", path_, ErrnoText(errno));
    const bool known = ::fcntl(fd(), F_GETLK, &record) == 0 && record.l_type != F_UNLCK && record.l_pid > 0;
    return IoError("{}: locked by {}; wait for it or choose another --output", path_,
                   known ? fmt::format("pid {}", record.l_pid) : "another job");
  }
  (void)::fcntl(fd(), F_SETLK, &record);
  // Another job may have replaced the file between our opening and locking it.
  struct stat ours = {}, named = {};
  if (::fstat(fd(), &ours) != 0 || ::stat(path_.c_str(), &named) != 0 || ours.st_ino != named.st_ino ||
      ours.st_dev != named.st_dev) {
    return IoError("{}: another job has replaced the file; try again", path_);
  }
  return absl::OkStatus();
}

void OutputFile::RemoveIfUnused() {
  if (is_new_ && is_regular_ && num_bytes_ == 0 && CheckUnchanged().ok()) (void)::unlink(path_.c_str());
}

absl::Status OutputFile::RenameTo(const std::string& path) {
  PENSTOCK_RETURN_IF_ERROR(Sync());
  if (::rename(path_.c_str(), path.c_str()) != 0) {
    return IoError("{}: cannot rename to {}: {}", path_, path, ErrnoText(errno));
  }
  path_ = path;
  const size_t slash = path.rfind('/');
  const UniqueFd folder(
      ::open(slash == std::string::npos ? "." : path.substr(0, slash + 1).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.valid() || calls_.Sync(folder.get()) != 0) {
    return IoError("{}: cannot sync its folder: {}", path_, ErrnoText(errno));
  }
  return absl::OkStatus();
}

absl::Status OutputFile::CheckUnchanged() const {
  if (!is_regular_) return absl::OkStatus();
  struct stat ours = {}, named = {};
  if (::fstat(fd(), &ours) != 0) return IoError("{}: cannot stat: {}", path_, ErrnoText(errno));
  const bool is_there =
      ::stat(path_.c_str(), &named) == 0 && named.st_dev == ours.st_dev && named.st_ino == ours.st_ino;
  const char* const what = !is_there                                          ? "removed or replaced"
                           : static_cast<uint64_t>(ours.st_size) < num_bytes_ ? "cut"
                           : static_cast<uint64_t>(ours.st_size) > num_bytes_ ? "appended to"
                                                                              : nullptr;
  if (what == nullptr) return absl::OkStatus();
  return IoError("{}: another program has {} the output; restore it if you can, then continue with --resume", path_,
                 what);
}

absl::Status OutputFile::Truncate(uint64_t num_bytes) {
  PENSTOCK_CHECK(is_regular_ && num_bytes <= num_bytes_);
  if (calls_.Truncate(fd(), static_cast<off_t>(num_bytes)) != 0) {
    return IoError("{}: cannot cut the file to {} bytes: {}", path_, num_bytes, ErrnoText(errno));
  }
  num_bytes_ = num_bytes;
  ++num_unsynced_;  // the new size is not on disk, and perhaps not the results of an earlier run
  oldest_unsynced_ = Clock::now();
  return absl::OkStatus();
}

absl::Status OutputFile::WriteFailed(int error_number) {
  if (error_number == EPIPE) return IoError("{}: the reader of the output has gone away", path_);
  if (!is_regular_) return IoError("{}: cannot write: {}", path_, ErrnoText(error_number));
  PENSTOCK_RETURN_IF_ERROR(Truncate(num_bytes_));  // part of the line may have been written
  PENSTOCK_RETURN_IF_ERROR(Sync());
  return MakeError(
      Fault::kStopped,
      fmt::format("{}: cannot write a result: {}; the file ends with the last whole line ({}); make room, then "
                  "continue with --resume",
                  path_, ErrnoText(error_number), FormatBytes(num_bytes_)));
}

absl::Status OutputFile::Append(std::string_view line) {
  PENSTOCK_RETURN_IF_ERROR(CheckUnchanged());
  std::string bytes;
  bytes.reserve(line.size() + 1);
  bytes.append(line);
  bytes.push_back('\n');
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = calls_.Write(fd(), bytes.data() + done, bytes.size() - done);
    if (n > 0) {
      done += n;
    } else if (n == 0 || errno != EINTR) {
      return WriteFailed(n == 0 ? ENOSPC : errno);
    }
  }
  num_bytes_ += bytes.size();
  if (num_unsynced_++ == 0) oldest_unsynced_ = Clock::now();
  return num_unsynced_ >= kMaxUnsyncedLines ? Sync() : SyncIfDue();
}

absl::Status OutputFile::SyncIfDue() {
  if (num_unsynced_ == 0 || Clock::now() - oldest_unsynced_ < kMaxUnsyncedTime) return absl::OkStatus();
  return Sync();
}

absl::Status OutputFile::Sync() {
  if (!is_regular_) return absl::OkStatus();
  if (sync_failed_) return IoError("{}: an earlier sync failed", path_);
  if (num_unsynced_ > 0 && calls_.Sync(fd()) != 0) {
    sync_failed_ = true;
    return IoError("{}: cannot sync results to disk: {}; up to {} of the last lines may be lost", path_,
                   ErrnoText(errno), num_unsynced_);
  }
  num_unsynced_ = 0;
  return absl::OkStatus();
}

}  // namespace penstock
