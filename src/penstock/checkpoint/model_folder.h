// A model folder as untrusted data: files are opened by bare name, inside the folder only. A GGUF file stands for the
// folder that it lies in.
//
// Hugging Face cache snapshots are folders of symlinks into `../../blobs`. A symlink is followed if its target stays
// inside the cache's repository folder (`models--org--name`) or its shared `blobs` folder. Any other symlink out of the
// folder is refused.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/base/file.h"
#include "penstock/base/limits.h"
#include "penstock/checkpoint/safetensors.h"

namespace penstock {

class Mirror;

// A copy of a file, in a mirror. It has the size of the file, and all or some of its bytes.
struct FileCopy {
  std::shared_ptr<Mirror> mirror;
  UniqueFd fd;
  std::string path;
  std::vector<FileExtent> held;  // whole pages, sorted, apart from each other

  bool Holds(const FileExtent& extent) const;
};

// A regular file opened for reading, with its size at the time of opening.
struct OpenedFile {
  UniqueFd fd;
  std::string path;
  uint64_t size_bytes = 0;
  std::vector<FileCopy> copies = {};  // at most one in each mirror
};

// Says whether `name` is a bare file name: not empty, no slash or backslash, no NUL byte, no drive letter, not "." or
// "..".
bool IsSafeFileName(std::string_view name);

class ModelFolder {
 public:
  // Fails with kModel when `path` is neither a folder that can be read nor a file called *.gguf (kUsage when the path
  // is empty or too long).
  static absl::StatusOr<ModelFolder> Open(const std::string& path);

  const std::string& path() const { return path_; }
  // Returns the name of the GGUF file that the user gave; empty when the user gave the folder.
  const std::string& gguf_name() const { return gguf_name_; }

  // Says whether there is an entry of this name, not whether it may be opened.
  bool Has(std::string_view name) const;

  // Opens the regular file `name`. Returns kModel for an unsafe name, a missing file, a symlink out of the folder, and
  // anything other than a regular file (a FIFO never blocks). Returns kIo when the system refuses to read it.
  absl::StatusOr<OpenedFile> OpenFile(std::string_view name) const;

  // Opens the subfolder `name`; the same rules decide which files it may open.
  absl::StatusOr<ModelFolder> OpenFolder(std::string_view name) const;

  // Returns the content of a file of at most `max_bytes`.
  absl::StatusOr<std::string> Read(std::string_view name, uint64_t max_bytes) const;

  // Returns the names of the entries (the first kMaxFolderEntries that the system lists), sorted.
  std::vector<std::string> List() const;

 private:
  std::string path_;  // as given
  std::string gguf_name_;
  std::string real_path_;           // without symlinks
  std::vector<std::string> roots_;  // the folders that files may lie in, without symlinks
};

}  // namespace penstock
