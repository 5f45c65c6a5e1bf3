#include "penstock/job/input/inputs.h"

#include <algorithm>
#include <memory>

#include <fmt/format.h>
#include <glob.h>
#include <sys/stat.h>

#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/job/input/input_digest.h"

namespace penstock {
namespace {

// Returns the files that a path stands for.
absl::StatusOr<std::vector<std::string>> FilesOf(const std::string& path) {
  struct stat info = {};
  const bool is_pattern = path.find_first_of("*?[") != std::string::npos;
  if (!is_pattern || ::stat(path.c_str(), &info) == 0) return std::vector<std::string>{path};
  glob_t found = {};
  const int result = ::glob(path.c_str(), GLOB_ERR, nullptr, &found);
  const std::unique_ptr<glob_t, decltype(&::globfree)> owner(&found, &::globfree);
  if (result == GLOB_NOMATCH) return IoError("{}: no file has such a name", Printable(path));
  if (result != 0) return IoError("{}: cannot read a folder of this pattern", Printable(path));
  return std::vector<std::string>(found.gl_pathv, found.gl_pathv + found.gl_pathc);
}

}  // namespace

absl::StatusOr<std::vector<std::string>> InputNames(const std::vector<std::string>& paths) {
  std::vector<std::string> names;
  for (const std::string& path : paths) {
    PENSTOCK_ASSIGN_OR_RETURN(const std::vector<std::string> files, FilesOf(path));
    names.insert(names.end(), files.begin(), files.end());
  }
  if (std::ranges::count(names, "-") > 1) return UsageError("--input -: standard input is named twice");
  if (names.empty()) return UsageError("--input: expected a file name, found nothing");
  return names;
}

absl::StatusOr<Inputs> Inputs::Open(const std::vector<std::string>& names, const std::string& spool_dir,
                                    const std::atomic<bool>& stop) {
  Inputs inputs;
  for (const std::string& name : names) {
    PENSTOCK_ASSIGN_OR_RETURN(InputFile file, InputFile::Open(name, spool_dir, stop));
    struct stat info = {};
    if (::fstat(file.fd(), &info) == 0 && inputs.HasFile(info)) {
      return UsageError("--input {}: the file is named twice", Printable(name));
    }
    inputs.files_.push_back(std::move(file));
  }
  return inputs;
}

std::string Inputs::name() const {
  return files_.size() == 1 ? files_[0].name() : fmt::format("{} inputs", files_.size());
}

bool Inputs::HasFile(const struct stat& info) const {
  for (const InputFile& file : files_) {
    if (file.IsSameFile(info)) return true;
  }
  return false;
}

absl::Status Inputs::CheckUnchanged(const std::string& digest) {
  bool looks_changed = false;
  for (const InputFile& file : files_) {
    PENSTOCK_ASSIGN_OR_RETURN(const bool changed, file.LooksChanged());
    looks_changed = looks_changed || changed;
  }
  if (!looks_changed) return absl::OkStatus();
  for (InputFile& file : files_) PENSTOCK_RETURN_IF_ERROR(file.RefreshTime());
  PENSTOCK_ASSIGN_OR_RETURN(const std::string now, DigestOf(*this));
  if (now == digest) return absl::OkStatus();
  return InputError("{}: the input was changed while the job ran; put the old content back and resume", name());
}

std::string LinePlace::Text() const {
  return is_only_file ? fmt::format("line {}", number) : fmt::format("{}, line {}", file, number);
}
std::string LinePlace::FullText() const { return fmt::format("{}: line {}", file, number); }

InputReader::InputReader(const Inputs& inputs, uint64_t max_line_bytes)
    : inputs_(inputs), max_line_bytes_(max_line_bytes) {
  OpenFile();
}

void InputReader::OpenFile() { reader_.emplace(file().fd(), file().name(), max_line_bytes_); }

absl::StatusOr<bool> InputReader::Next(Line& line) {
  while (true) {
    PENSTOCK_ASSIGN_OR_RETURN(const bool more, reader_->Next(line));
    if (more) break;
    if (file_idx_ + 1 == inputs_.files().size()) return false;
    ++file_idx_;
    first_number_ = number_;
    OpenFile();
  }
  line.number += first_number_;
  number_ = line.number;
  return true;
}

LinePlace InputReader::place() const {
  return {.file = file().name(), .number = number_ - first_number_, .is_only_file = inputs_.files().size() == 1};
}

}  // namespace penstock
