#include "penstock/memory/prefixes/prefix_folder.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "penstock/base/bytes.h"
#include "penstock/base/checked.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kEntriesSuffix = ".kv", kStateSuffix = ".state", kTemporarySuffix = ".tmp";
constexpr size_t kDigits = 32;
constexpr mode_t kFileMode = 0600;  // entries tell what prompts say
constexpr mode_t kFolderMode = 0700;

bool IsHex(std::string_view text) {
  return text.size() == kDigits && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

bool IsTemporary(std::string_view name) { return name.ends_with(kTemporarySuffix); }

// Whether a file is one of those that Write() makes.
bool IsOurs(std::string_view name) {
  if (IsTemporary(name)) name.remove_suffix(kTemporarySuffix.size());
  return IsHex(name.substr(0, kDigits)) &&
         (name.substr(kDigits) == kEntriesSuffix || name.substr(kDigits) == kStateSuffix);
}

uint64_t Nanoseconds(const timespec& time) {
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(time.tv_nsec);
}

// Returns the times of access and of modification for calls that change the latter.
std::pair<timespec, timespec> TimesOf(uint64_t time_ns) {
  return {{.tv_sec = 0, .tv_nsec = UTIME_OMIT},
          {.tv_sec = static_cast<time_t>(time_ns / 1'000'000'000u),
           .tv_nsec = static_cast<long>(time_ns % 1'000'000'000u)}};
}

struct FoundFile {
  uint64_t time_ns;
  uint64_t size_bytes;
  std::string path;
};

// Removes a temporary file that no process is writing. Whoever writes one holds its lock.
bool RemoveLeftover(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  return fd.valid() && ::flock(fd.get(), LOCK_EX | LOCK_NB) == 0 && ::unlink(path.c_str()) == 0;
}

// Calls visit(path, stat) for each file that Write() has made. Files that vanish meanwhile are passed over.
void VisitFiles(const std::string& folder, const std::function<void(const std::string&, const struct stat&)>& visit) {
  std::error_code error;
  for (fs::directory_iterator models(folder, error), end; !error && models != end; models.increment(error)) {
    if (!IsHex(models->path().filename().string())) continue;
    std::error_code of_files;
    for (fs::directory_iterator files(models->path(), of_files); !of_files && files != end; files.increment(of_files)) {
      struct stat info = {};
      const std::string path = files->path().string();
      if (!IsOurs(files->path().filename().string())) continue;
      if (::lstat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode)) visit(path, info);
    }
  }
}

absl::Status MakeFolder(const std::string& path) {
  if (::mkdir(path.c_str(), kFolderMode) == 0) return absl::OkStatus();
  const int error_number = errno;
  struct stat info = {};
  if (error_number == EEXIST && ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) {
    if (info.st_uid == ::geteuid()) return absl::OkStatus();
    return IoError("{}: the folder belongs to another user, who could put entries into it", Printable(path));
  }
  return IoError("{}: cannot create the folder: {}", Printable(path), ErrnoText(error_number));
}

}  // namespace

absl::StatusOr<PrefixFolder> PrefixFolder::Open(const std::string& folder, std::string_view identity,
                                                uint64_t max_bytes) {
  PENSTOCK_RETURN_IF_ERROR(MakeFolder(folder));
  const XXH128_hash_t hash = XXH3_128bits(identity.data(), identity.size());
  std::string own = folder + "/" + PrefixName{.high = hash.high64, .low = hash.low64}.Hex();
  PENSTOCK_RETURN_IF_ERROR(MakeFolder(own));
  if (::access(own.c_str(), R_OK | W_OK | X_OK) != 0) {
    return IoError("{}: cannot write there: {}", Printable(own), ErrnoText(errno));
  }
  PrefixFolder opened(folder, std::move(own), max_bytes);
  PENSTOCK_RETURN_IF_ERROR(opened.Limit(max_bytes));
  return opened;
}

uint64_t PrefixFolder::Now() {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
          .count());
}

std::string PrefixFolder::PathOf(const PrefixName& name, PrefixPart part) const {
  std::string path = own_ + "/" + name.Hex();
  return path += part == PrefixPart::kEntries ? kEntriesSuffix : kStateSuffix;
}

bool PrefixFolder::MarkUsed(const std::string& path, uint64_t time_ns) const {
  const auto [access, modification] = TimesOf(time_ns);
  const timespec times[] = {access, modification};
  return ::utimensat(AT_FDCWD, path.c_str(), times, AT_SYMLINK_NOFOLLOW) == 0;
}

UniqueFd PrefixFolder::OpenFile(const std::string& path) const {
  return UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
}

bool PrefixFolder::Has(const std::string& path) const { return ::access(path.c_str(), R_OK) == 0; }

void PrefixFolder::Remove(const std::string& path) const { ::unlink(path.c_str()); }

absl::Status PrefixFolder::Write(const std::string& path, std::span<const std::byte> file, uint64_t time_ns) {
  // Other processes write, too, so the files are counted again now and then.
  constexpr uint64_t kCountsInBudget = 16;
  const uint64_t size_bytes = RoundUp(file.size(), kPageBytes);
  if (size_bytes > max_bytes_) return absl::OkStatus();
  if (counted_bytes_ + uncounted_bytes_ + size_bytes > max_bytes_ || uncounted_bytes_ > max_bytes_ / kCountsInBudget) {
    PENSTOCK_RETURN_IF_ERROR(Limit(max_bytes_ - size_bytes));
  }
  const std::string temporary = path + std::string(kTemporarySuffix);
  const auto create = [&] {
    return UniqueFd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, kFileMode));
  };
  UniqueFd fd = create();
  if (!fd.valid() && errno == EEXIST) {
    if (!RemoveLeftover(temporary)) return absl::OkStatus();
    fd = create();
    if (!fd.valid() && errno == EEXIST) return absl::OkStatus();
  }
  if (!fd.valid()) return IoError("{}: cannot create: {}", temporary, ErrnoText(errno));
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) return absl::OkStatus();  // taken for a leftover
  absl::Status status = WriteFully(fd.get(), {reinterpret_cast<const char*>(file.data()), file.size()}, temporary);
  if (status.ok() && ::fdatasync(fd.get()) != 0) status = IoError("{}: cannot sync: {}", temporary, ErrnoText(errno));
  const auto [access, modification] = TimesOf(time_ns);
  const timespec times[] = {access, modification};
  ::futimens(fd.get(), times);
  // Another process may have removed the file to make room.
  if (status.ok() && ::rename(temporary.c_str(), path.c_str()) != 0 && errno != ENOENT) {
    status = IoError("{}: cannot rename to: {}", path, ErrnoText(errno));
  }
  if (!status.ok()) ::unlink(temporary.c_str());
  if (status.ok()) uncounted_bytes_ += size_bytes;
  return status;
}

absl::Status PrefixFolder::Limit(uint64_t max_bytes) {
  constexpr size_t kFilesAtOnce = 4096;  // whose names are in memory
  const std::string lock_path = folder_ + "/lock";
  const UniqueFd lock(::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, kFileMode));
  if (!lock.valid()) return IoError("{}: cannot open the lock: {}", Printable(lock_path), ErrnoText(errno));
  while (::flock(lock.get(), LOCK_EX) != 0) {
    if (errno != EINTR) return IoError("{}: cannot lock: {}", Printable(lock_path), ErrnoText(errno));
  }
  uncounted_bytes_ = 0;
  for (bool has_removed = true; has_removed;) {
    counted_bytes_ = 0;
    std::vector<FoundFile> oldest;  // a heap: the newest of them is first
    VisitFiles(folder_, [&](const std::string& path, const struct stat& info) {
      if (IsTemporary(path) && RemoveLeftover(path)) return;
      const FoundFile found{.time_ns = Nanoseconds(info.st_mtim),
                            .size_bytes = RoundUp(static_cast<uint64_t>(info.st_size), kPageBytes),
                            .path = path};
      counted_bytes_ += found.size_bytes;
      if (oldest.size() == kFilesAtOnce) {
        if (found.time_ns >= oldest.front().time_ns) return;
        std::ranges::pop_heap(oldest, {}, &FoundFile::time_ns);
        oldest.pop_back();
      }
      oldest.push_back(found);
      std::ranges::push_heap(oldest, {}, &FoundFile::time_ns);
    });
    if (counted_bytes_ <= max_bytes) break;
    // Some more make room for the next files.
    const uint64_t target_bytes = max_bytes - max_bytes / 16;
    std::ranges::sort_heap(oldest, {}, &FoundFile::time_ns);
    has_removed = false;
    for (const FoundFile& file : oldest) {
      if (counted_bytes_ <= target_bytes) return absl::OkStatus();
      if (::unlink(file.path.c_str()) != 0 && errno != ENOENT) continue;
      counted_bytes_ -= file.size_bytes;
      has_removed = true;
    }
  }
  return absl::OkStatus();
}

}  // namespace penstock
