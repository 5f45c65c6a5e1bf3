#include "penstock/job/input/input_file.h"

#include <cerrno>
#include <cstdlib>
#include <span>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include "penstock/base/status.h"

namespace penstock {
namespace {

constexpr size_t kCopyBytes = 64 << 10;

absl::StatusOr<UniqueFd> Spool(int pipe_fd, const std::string& name, const std::string& dir,
                               const std::atomic<bool>& stop) {
  absl::StatusOr<UniqueFd> nameless = OpenNamelessFile(dir);
  if (!nameless.ok()) return Annotate(nameless.status(), "copy of the piped input");
  UniqueFd spool = *std::move(nameless);
  std::string block(kCopyBytes, '\0');
  while (true) {
    if (stop.load()) return MakeError(Fault::kStopped, name + ": stopped while reading the piped input");
    const ssize_t n = ::read(pipe_fd, block.data(), block.size());
    if (n == 0) return spool;
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return IoError("{}: cannot read: {}", name, ErrnoText(errno));
    PENSTOCK_RETURN_IF_ERROR(
        Annotate(WriteFully(spool.get(), std::string_view(block.data(), static_cast<size_t>(n)), dir),
                 "copy of the piped input"));
  }
}

absl::Status CheckMagic(int fd, const std::string& name) {
  char head[4] = {};
  const ssize_t n = PreadUninterrupted(fd, std::as_writable_bytes(std::span(head)), 0);
  if (n < 0) return IoError("{}: cannot read: {}", name, ErrnoText(errno));
  const std::string_view magic(head, static_cast<size_t>(n));
  if (magic.starts_with("\x1f\x8b")) {
    return InputError("{}: the file is gzip-compressed, expected JSON lines; try: gunzip -c {} | ... --input -", name,
                      name);
  }
  if (magic.starts_with("\x28\xb5\x2f\xfd")) {
    return InputError("{}: the file is zstd-compressed, expected JSON lines; try: zstdcat {} | ... --input -", name,
                      name);
  }
  if (magic.starts_with("\xff\xfe") || magic.starts_with("\xfe\xff")) {
    return InputError("{}: the file is UTF-16, expected UTF-8; try: iconv -f UTF-16 -t UTF-8 {}", name, name);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<InputFile> InputFile::Open(const std::string& path, const std::string& spool_dir,
                                          const std::atomic<bool>& stop) {
  InputFile file;
  file.name_ = path == "-" ? "standard input" : path;
  do {  // blocks until a pipe has a writer
    file.fd_ = UniqueFd(path == "-" ? ::fcntl(0, F_DUPFD_CLOEXEC, 3) : ::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  } while (!file.fd_.valid() && errno == EINTR && !stop.load());
  if (stop.load()) return MakeError(Fault::kStopped, file.name_ + ": stopped while opening the input");
  if (!file.fd_.valid()) return IoError("{}: cannot open the input: {}", file.name_, ErrnoText(errno));
  if (::fstat(file.fd(), &file.info_) != 0) return IoError("{}: cannot stat: {}", file.name_, ErrnoText(errno));
  if (S_ISDIR(file.info_.st_mode)) return IoError("{}: the input is a directory, expected a JSONL file", file.name_);
  if (!S_ISREG(file.info_.st_mode)) {
    PENSTOCK_ASSIGN_OR_RETURN(file.fd_, Spool(file.fd(), file.name_, spool_dir, stop));
    if (::fstat(file.fd(), &file.info_) != 0) return IoError("{}: cannot stat: {}", file.name_, ErrnoText(errno));
  }
  PENSTOCK_RETURN_IF_ERROR(CheckMagic(file.fd(), file.name_));
  return file;
}

bool InputFile::IsSameFile(const struct stat& info) const {
  return info.st_dev == info_.st_dev && info.st_ino == info_.st_ino;
}

absl::StatusOr<bool> InputFile::LooksChanged() const {
  struct stat now = {};
  if (::fstat(fd(), &now) != 0) return IoError("{}: cannot stat: {}", name_, ErrnoText(errno));
  return now.st_size != info_.st_size || now.st_mtim.tv_sec != info_.st_mtim.tv_sec ||
         now.st_mtim.tv_nsec != info_.st_mtim.tv_nsec;
}

absl::Status InputFile::RefreshTime() {
  struct stat now = {};
  if (::fstat(fd(), &now) != 0) return IoError("{}: cannot stat: {}", name_, ErrnoText(errno));
  if (now.st_size != info_.st_size) {
    return InputError(
        "{}: the input was changed while the job ran (size {} then, {} now); put the old file back and resume", name_,
        info_.st_size, now.st_size);
  }
  info_.st_mtim = now.st_mtim;
  return absl::OkStatus();
}

}  // namespace penstock
