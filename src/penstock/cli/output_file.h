// A file that a command writes when its work is done.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "penstock/base/file.h"

namespace penstock::cli {

class OutputFile {
 public:
  // Opens the file before the work, so that a wrong path is noticed at once. Its content stays until Write(). With an
  // empty path nothing is wanted. kUsage when the file of `flag` is a file of the model or "-", kIo when it cannot be
  // opened.
  static absl::StatusOr<OutputFile> Open(const std::string& flag, const std::string& path,
                                         const std::string& model_dir);
  OutputFile(OutputFile&&) = default;
  // Removes a new file that nobody wrote.
  ~OutputFile();

  bool is_wanted() const { return fd_.valid(); }
  // Replaces the content; does nothing unless the file is wanted.
  absl::Status Write(std::string_view text);

 private:
  OutputFile() = default;

  std::string path_;
  UniqueFd fd_;
  bool is_new_ = false;  // and not written yet
};

}  // namespace penstock::cli
