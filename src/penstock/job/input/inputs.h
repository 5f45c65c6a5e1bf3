// The input of a job: one file or several, read line by line as if they were one.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "penstock/base/limits.h"
#include "penstock/job/input/input_file.h"
#include "penstock/job/input/line_reader.h"

namespace penstock {

// Returns the names of the files that `paths` stand for. A path may be a pattern, such as "shards/*.jsonl", which
// stands for the files that it matches, in the order of their names. kIo when there is none.
absl::StatusOr<std::vector<std::string>> InputNames(const std::vector<std::string>& paths);

class Inputs {
 public:
  // Opens the files. kUsage when one is named twice. Otherwise as InputFile::Open().
  static absl::StatusOr<Inputs> Open(const std::vector<std::string>& names, const std::string& spool_dir,
                                     const std::atomic<bool>& stop);

  const std::vector<InputFile>& files() const { return files_; }
  // Returns the name of the file, or "3 inputs".
  std::string name() const;
  // Returns whether `info` describes one of the files, under any name.
  bool HasFile(const struct stat& info) const;
  // kInput when the content is no longer that of `digest` (see DigestOf). Reads files only when the size or time of
  // one has changed, as after `touch`.
  absl::Status CheckUnchanged(const std::string& digest);

 private:
  std::vector<InputFile> files_;
};

// The place of a line in its file.
struct LinePlace {
  std::string file;
  int64_t number = 0;         // in the file, from 1
  bool is_only_file = false;  // the job has no other input

  std::string Text() const;      // "line 7" or "b.jsonl, line 7"
  std::string FullText() const;  // "b.jsonl: line 7"
};

// Numbers the lines of all files in a row.
class InputReader {
 public:
  // `inputs` must outlive the reader.
  explicit InputReader(const Inputs& inputs, uint64_t max_line_bytes = kMaxRequestLineBytes);

  // Reads the next line; false at the end of the last file. `line.number` counts the lines of all files.
  absl::StatusOr<bool> Next(Line& line);
  // REQUIRES: Next() has returned true.
  LinePlace place() const;
  // The file that holds the last line.
  const InputFile& file() const { return inputs_.files()[file_idx_]; }
  uint64_t buffer_bytes() const { return reader_->buffer_bytes(); }

 private:
  void OpenFile();

  const Inputs& inputs_;
  uint64_t max_line_bytes_;
  size_t file_idx_ = 0;
  std::optional<LineReader> reader_;
  int64_t first_number_ = 0;  // lines of the files before this one
  int64_t number_ = 0;        // of the last line, in a row
};

}  // namespace penstock
