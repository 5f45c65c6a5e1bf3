#include "penstock/cli/output_file.h"

#include <cerrno>
#include <filesystem>
#include <system_error>

#include <fcntl.h>
#include <unistd.h>

#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/cli/commands.h"

namespace penstock::cli {

absl::StatusOr<OutputFile> OutputFile::Open(const std::string& flag, const std::string& path,
                                            const std::string& model_dir) {
  OutputFile output;
  if (path.empty()) return output;
  if (path == "-") return UsageError("{} -: expected a file's name, not standard output", flag);
  PENSTOCK_RETURN_IF_ERROR(CheckNoFileOfTheModel(flag, path, model_dir));
  std::error_code ignored;
  output.is_new_ = !std::filesystem::exists(path, ignored);
  output.path_ = path;
  output.fd_ = UniqueFd(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
  if (!output.fd_.valid()) return IoError("{}: cannot open for writing: {}", Printable(path), ErrnoText(errno));
  return output;
}

OutputFile::~OutputFile() {
  if (fd_.valid() && is_new_) ::unlink(path_.c_str());
}

absl::Status OutputFile::Write(std::string_view text) {
  if (!fd_.valid()) return absl::OkStatus();
  (void)::ftruncate(fd_.get(), 0);  // fails on pipes, which have nothing to cut off
  PENSTOCK_RETURN_IF_ERROR(WriteFully(fd_.get(), text, path_));
  is_new_ = false;
  return absl::OkStatus();
}

}  // namespace penstock::cli
