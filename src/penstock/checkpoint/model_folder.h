// A model folder as untrusted data: files are opened by bare name, inside the folder only. A GGUF file stands for the
// folder that it lies in.
//
// Hugging Face cache snapshots are folders of symlinks into `../../blobs`; those are followed as long as the
// target stays inside the cache's repository folder (`models--org--name`) or its shared `blobs` folder. Any
// other way out is refused.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/base/file.h"
#include "penstock/base/limits.h"

namespace penstock {

// A regular file opened for reading; its size was taken once, at opening.
struct OpenedFile {
  UniqueFd fd;
  std::string path;
  uint64_t size_bytes = 0;
};

// A bare file name: not empty, no slash or backslash, no NUL byte, no drive letter, not "." or "..".
bool IsSafeFileName(std::string_view name);

class ModelFolder {
 public:
  // Fails with kModel when `path` is neither a folder that can be read nor a file called *.gguf (kUsage when the path
  // is empty or too long).
  static absl::StatusOr<ModelFolder> Open(const std::string& path);

  const std::string& path() const { return path_; }
  // Of the GGUF file that was asked for; empty when the folder was.
  const std::string& gguf_name() const { return gguf_name_; }

  // Is there an entry of this name? Says nothing of whether it may be opened.
  bool Has(std::string_view name) const;

  // Opens the regular file `name`. kModel for an unsafe name, a missing file, a way out of the folder, and
  // anything that is no regular file (a FIFO never blocks); kIo when the system refuses to read it.
  absl::StatusOr<OpenedFile> OpenFile(std::string_view name) const;

  // The folder `name` in this one, with the same rules for what it may be.
  absl::StatusOr<ModelFolder> OpenFolder(std::string_view name) const;

  // The whole file, at most `max_bytes`.
  absl::StatusOr<std::string> Read(std::string_view name, uint64_t max_bytes) const;

  // Names of the entries (the first kMaxFolderEntries that the system tells), sorted.
  std::vector<std::string> List() const;

 private:
  std::string path_;  // as given
  std::string gguf_name_;
  std::string real_path_;           // without symlinks
  std::vector<std::string> roots_;  // folders that files may lie in, without symlinks
};

}  // namespace penstock
