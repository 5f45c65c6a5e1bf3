#include "penstock/checkpoint/model_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <memory>
#include <optional>

#include "penstock/base/bytes.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"

namespace penstock {
namespace {

std::optional<std::string> RealPath(const std::string& path) {
  const std::unique_ptr<char, decltype(&std::free)> resolved(::realpath(path.c_str(), nullptr), &std::free);
  if (resolved == nullptr) return std::nullopt;
  return std::string(resolved.get());
}

// Is `path` inside the folder `root`? Both are absolute and without symlinks.
bool IsInside(std::string_view path, std::string_view root) {
  if (root == "/") return true;
  return path.size() > root.size() && path.substr(0, root.size()) == root && path[root.size()] == '/';
}

std::string_view ParentOf(std::string_view path) {
  const size_t slash = path.rfind('/');
  if (slash == 0 || slash == std::string_view::npos) return "/";
  return path.substr(0, slash);
}

// Returns the folder part of a file's path, as written.
std::string FolderOf(std::string_view path) {
  const size_t slash = path.rfind('/');
  return slash == 0 ? "/" : std::string(path.substr(0, slash));
}

std::string_view LastPart(std::string_view path) { return path.substr(path.rfind('/') + 1); }

// Returns the folders that files of the model folder `real_path` may lie in. These are the folder itself and, for a
// snapshot of a Hugging Face cache (CACHE/models--org--name/snapshots/REVISION), the repository's folder and
// CACHE/blobs.
std::vector<std::string> AllowedRoots(std::string_view real_path) {
  std::vector<std::string> roots = {std::string(real_path)};
  for (std::string_view at = real_path; at != "/"; at = ParentOf(at)) {
    const std::string_view repository = ParentOf(at);
    if (LastPart(at) != "snapshots" || LastPart(repository).substr(0, 8) != "models--") continue;
    if (at == real_path) break;  // the folder of all snapshots is not a model
    roots.emplace_back(repository);
    const std::string_view cache = ParentOf(repository);
    roots.push_back(cache == "/" ? "/blobs" : std::string(cache) + "/blobs");
    break;
  }
  return roots;
}

std::string_view KindOf(mode_t mode) {
  if (S_ISREG(mode)) return "a regular file";
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  if (S_ISLNK(mode)) return "a symlink";
  return "something else";
}

// Opens `real_path`, which was resolved a moment ago, without following any symlink that has appeared since. O_NONBLOCK
// keeps the opening from hanging if a FIFO has replaced the file.
int OpenResolved(const std::string& real_path) {
  constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  struct open_how how = {};
  how.flags = kFlags;
  how.resolve = RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
  const long fd = ::syscall(SYS_openat2, AT_FDCWD, real_path.c_str(), &how, sizeof(how));
  if (fd >= 0) return static_cast<int>(fd);
  if (errno != ENOSYS && errno != EPERM) return -1;
  return ::open(real_path.c_str(),
                kFlags | O_NOFOLLOW);  // for kernels before 5.6, and sandboxes that forbid openat2
}

absl::Status OpenFailure(const std::string& path, int error_number) {
  if (error_number == EMFILE || error_number == ENFILE) {
    return ResourceError("{}: cannot open: {}; raise the limit (ulimit -n)", path, ErrnoText(error_number));
  }
  if (error_number == ELOOP || error_number == ENXIO || error_number == ENOTDIR) {
    return ModelError("{}: cannot open: {}", path, ErrnoText(error_number));
  }
  return IoError("{}: cannot open: {}", path, ErrnoText(error_number));
}

// Returns an error that says why `path` does not resolve.
absl::Status MissingFile(const std::string& folder, std::string_view name, const std::string& path, int error_number) {
  struct stat info = {};
  const bool present = ::lstat(path.c_str(), &info) == 0;
  if (present && S_ISLNK(info.st_mode) && error_number == ENOENT) {
    return ModelError("{}: this symlink's target is missing: download the file again", path);
  }
  if (error_number == ELOOP) return ModelError("{}: this symlink leads in a circle", path);
  if (error_number == ENOENT) return ModelError("{}: the model folder has no file '{}'", folder, name);
  return OpenFailure(path, error_number);
}

}  // namespace

bool IsSafeFileName(std::string_view name) {
  if (name.empty() || name.size() > NAME_MAX || name == "." || name == "..") return false;
  if (name.find_first_of(std::string_view("/\\\0", 3)) != std::string_view::npos) return false;
  const bool has_drive = name.size() >= 2 && name[1] == ':' && std::isalpha(static_cast<unsigned char>(name[0])) != 0;
  return !has_drive;
}

absl::StatusOr<ModelFolder> ModelFolder::Open(const std::string& path) {
  if (path.empty()) return UsageError("the model folder's path is empty");
  if (path.find('\0') != std::string::npos) return UsageError("the model folder's path has a NUL byte");
  if (path.size() >= PATH_MAX) {
    return UsageError("the model folder's path has {} bytes, more than the {} that the system allows", path.size(),
                      PATH_MAX - 1);
  }
  const std::optional<std::string> real_path = RealPath(path);
  if (!real_path.has_value()) {
    if (errno == ENAMETOOLONG) return UsageError("{}: {}", path, ErrnoText(errno));
    const absl::Status missing = ModelError("{}: cannot open the model folder: {}", path, ErrnoText(errno));
    // "organisation/name", unless there is a folder of that name here.
    const bool is_hub_name = std::ranges::count(path, '/') == 1 && path.front() != '/' && path.front() != '.';
    if (!is_hub_name || RealPath(path.substr(0, path.find('/'))).has_value()) return missing;
    return ModelError("{}; to download a model of Hugging Face: hf download {} --local-dir DIR", Message(missing),
                      path);
  }
  struct stat info = {};
  if (::stat(real_path->c_str(), &info) != 0) {
    return ModelError("{}: cannot open the model folder: {}", path, ErrnoText(errno));
  }
  // In a Hugging Face cache the file is a symlink out of this folder; the model's folder is the one that holds the
  // symlink.
  if (S_ISREG(info.st_mode) && path.ends_with(".gguf")) {
    PENSTOCK_ASSIGN_OR_RETURN(ModelFolder folder, Open(path.find('/') == std::string::npos ? "." : FolderOf(path)));
    folder.gguf_name_ = std::string(LastPart(path));
    return folder;
  }
  if (!S_ISDIR(info.st_mode)) {
    return ModelError("{}: expected the folder that holds config.json, or a GGUF file, found {}", path,
                      KindOf(info.st_mode));
  }
  const UniqueFd fd(::open(real_path->c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return ModelError("{}: cannot read the model folder: {}", path, ErrnoText(errno));
  ModelFolder folder;
  folder.path_ = path;
  while (folder.path_.size() > 1 && folder.path_.back() == '/') folder.path_.pop_back();
  folder.real_path_ = *real_path;
  folder.roots_ = AllowedRoots(*real_path);
  return folder;
}

bool ModelFolder::Has(std::string_view name) const {
  struct stat info = {};
  return IsSafeFileName(name) && ::lstat((real_path_ + "/" + std::string(name)).c_str(), &info) == 0;
}

absl::StatusOr<OpenedFile> ModelFolder::OpenFile(std::string_view name) const {
  if (!IsSafeFileName(name)) {
    return ModelError("{}: unsafe file name '{}': expected the bare name of a file in the folder", path_,
                      Excerpt(name));
  }
  OpenedFile file;
  file.path = path_ + "/" + std::string(name);
  const std::string entry = real_path_ + "/" + std::string(name);
  const std::optional<std::string> target = RealPath(entry);
  if (!target.has_value()) return MissingFile(path_, name, entry, errno);
  const auto holds = [&](const std::string& root) { return IsInside(*target, root); };
  if (std::none_of(roots_.begin(), roots_.end(), holds)) {
    return ModelError("{}: this symlink leads out of the model folder, to {}: put the file itself into the folder",
                      file.path, *target);
  }
  // Check the type before opening, because opening a device can have side effects.
  struct stat before = {};
  if (::lstat(target->c_str(), &before) != 0) return OpenFailure(file.path, errno);
  if (!S_ISREG(before.st_mode)) {
    return ModelError("{}: expected a regular file, found {}", file.path, KindOf(before.st_mode));
  }
  file.fd = UniqueFd(OpenResolved(*target));
  if (!file.fd.valid()) return OpenFailure(file.path, errno);
  struct stat info = {};
  if (::fstat(file.fd.get(), &info) != 0) return IoError("{}: cannot stat: {}", file.path, ErrnoText(errno));
  // Without openat2, a parent folder could have been replaced by a symlink meanwhile; comparing the identity detects
  // that.
  if (!S_ISREG(info.st_mode) || info.st_dev != before.st_dev || info.st_ino != before.st_ino) {
    return ModelError("{}: the file was replaced while it was being opened", file.path);
  }
  file.size_bytes = static_cast<uint64_t>(info.st_size);
  return file;
}

absl::StatusOr<ModelFolder> ModelFolder::OpenFolder(std::string_view name) const {
  if (!IsSafeFileName(name)) return ModelError("{}: unsafe folder name '{}'", path_, Excerpt(name));
  PENSTOCK_ASSIGN_OR_RETURN(ModelFolder folder, Open(path_ + "/" + std::string(name)));
  if (!IsInside(folder.real_path_, real_path_)) {
    return ModelError("{}: this symlink leads out of the model folder, to {}", folder.path_, folder.real_path_);
  }
  folder.roots_ = roots_;
  return folder;
}

absl::StatusOr<std::string> ModelFolder::Read(std::string_view name, uint64_t max_bytes) const {
  PENSTOCK_ASSIGN_OR_RETURN(const OpenedFile file, OpenFile(name));
  if (file.size_bytes > max_bytes) {
    return ModelError("{}: the file has {}, more than the limit of {}", file.path, FormatBytes(file.size_bytes),
                      FormatBytes(max_bytes));
  }
  std::string content(file.size_bytes, '\0');
  PENSTOCK_RETURN_IF_ERROR(PreadFully(file.fd.get(), std::as_writable_bytes(std::span(content)), 0, file.path));
  return content;
}

std::vector<std::string> ModelFolder::List() const {
  std::vector<std::string> names;
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(::opendir(real_path_.c_str()), &::closedir);
  if (dir == nullptr) return names;
  while (names.size() < static_cast<size_t>(kMaxFolderEntries)) {
    const dirent* entry = ::readdir(dir.get());
    if (entry == nullptr) break;
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace penstock
