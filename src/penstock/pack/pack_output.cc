#include "penstock/pack/pack_output.h"

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <vector>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "penstock/base/checked.h"
#include "penstock/base/status.h"
#include "penstock/checkpoint/packed_index.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;

// Removes the files of a folder that is empty or a leftover of packing. Removes nothing else: fails at any entry that
// is not a file.
absl::Status RemoveFiles(const std::string& folder) {
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (!it->is_regular_file(error)) {
      return IoError("{}: cannot be a leftover of packing, as it is no file: remove it", it->path().string());
    }
    fs::remove(it->path(), error);
  }
  return error ? IoError("{}: cannot be emptied: {}", folder, error.message()) : absl::OkStatus();
}

absl::Status SyncFolder(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid() || ::fsync(fd.get()) != 0) return IoError("{}: cannot be synced: {}", path, ErrnoText(errno));
  return absl::OkStatus();
}

std::string ParentOf(const std::string& path) {
  const std::string parent = fs::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

}  // namespace

std::string PackOutput::PartialPath(std::string_view name) const { return fmt::format("{}/{}", partial_, name); }

absl::StatusOr<PackOutput> PackOutput::Create(const std::string& path) {
  if (path.empty()) return UsageError("--output: expected a folder's path");
  PackOutput output;
  output.path_ = path;
  while (output.path_.size() > 1 && output.path_.back() == '/') output.path_.pop_back();
  output.partial_ = output.path_ + ".partial";
  std::error_code error;
  if (fs::exists(output.path_, error) &&
      !(fs::is_directory(output.path_, error) && fs::is_empty(output.path_, error))) {
    return IoError("{}: the output exists and is no empty folder; choose another name, or remove it", output.path_);
  }
  if (::mkdir(output.partial_.c_str(), 0777) != 0 && errno != EEXIST) {
    return IoError("{}: cannot be made: {}", output.partial_, ErrnoText(errno));
  }
  output.folder_ = UniqueFd(::open(output.partial_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!output.folder_.valid()) return IoError("{}: cannot be opened: {}", output.partial_, ErrnoText(errno));
  if (::flock(output.folder_.get(), LOCK_EX | LOCK_NB) != 0) {
    output.is_committed_ = true;  // the folder belongs to the other process
    return IoError("{}: another process packs to it", output.partial_);
  }
  PENSTOCK_RETURN_IF_ERROR(RemoveFiles(output.partial_));
  return output;
}

absl::StatusOr<UniqueFd> PackOutput::NewFile(std::string_view name) const {
  const std::string path = PartialPath(name);
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!fd.valid()) return IoError("{}: cannot be made: {}", path, ErrnoText(errno));
  return fd;
}

PackOutput::~PackOutput() {
  if (!folder_.valid() || is_committed_) return;
  (void)RemoveFiles(partial_);
  ::rmdir(partial_.c_str());
}

absl::Status PackOutput::Append(std::span<const std::byte> bytes) {
  if (!weights_.valid()) {
    PENSTOCK_ASSIGN_OR_RETURN(weights_, NewFile(kPackedWeightsFile));
  }
  weights_bytes_ += bytes.size();
  return WriteFully(weights_.get(), {reinterpret_cast<const char*>(bytes.data()), bytes.size()},
                    PartialPath(kPackedWeightsFile));
}

absl::Status PackOutput::Align(uint64_t alignment) {
  return Append(std::vector<std::byte>(RoundUp(weights_bytes_, alignment) - weights_bytes_));
}

absl::Status PackOutput::WriteFile(std::string_view name, std::string_view content) const {
  const std::string path = PartialPath(name);
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!fd.valid()) return IoError("{}: cannot be made: {}", path, ErrnoText(errno));
  PENSTOCK_RETURN_IF_ERROR(WriteFully(fd.get(), content, path));
  if (::fsync(fd.get()) != 0) return IoError("{}: cannot be synced: {}", path, ErrnoText(errno));
  return absl::OkStatus();
}

absl::Status PackOutput::Commit() {
  if (weights_.valid() && ::fsync(weights_.get()) != 0) {
    return IoError("{}: cannot be synced: {}", PartialPath(kPackedWeightsFile), ErrnoText(errno));
  }
  PENSTOCK_RETURN_IF_ERROR(SyncFolder(partial_));
  if (::rename(partial_.c_str(), path_.c_str()) != 0) {
    return IoError("{}: cannot be renamed to {}: {}", partial_, path_, ErrnoText(errno));
  }
  is_committed_ = true;
  return SyncFolder(ParentOf(path_));
}

}  // namespace penstock
