// Reads a file line by line in constant memory: one buffer, which grows up to the longest line within the limit.
//
// It reads with pread from its own position, so several readers may share a descriptor. `\n`
// and `\r\n` end a line; the last line may lack its end. A UTF-8 byte-order mark at the start of the file is skipped.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace penstock {

// The bytes that are read at once. Lines across the end of a block need a second one.
inline constexpr size_t kLineBlockBytes = 128 << 10;

struct Line {
  // Without the line end. Of a too long line, some bytes of its beginning. Valid until the next call of Next().
  std::string_view text;
  int64_t number = 0;       // from 1
  uint64_t offset = 0;      // position of the line's first byte in the file
  uint64_t num_bytes = 0;   // the line's whole length, without its line end
  bool terminated = false;  // ended by a newline
  bool too_long = false;
};

class LineReader {
 public:
  // `fd` must outlive the reader and be seekable.
  LineReader(int fd, std::string path, uint64_t max_line_bytes);

  // Returns false at the end of the file.
  absl::StatusOr<bool> Next(Line& line);

  uint64_t buffer_bytes() const { return buffer_.capacity(); }

 private:
  absl::StatusOr<size_t> Read(std::span<char> target);
  absl::StatusOr<bool> Fill(size_t num_bytes);  // returns false at the end of the file
  absl::StatusOr<uint64_t> MeasureRest();

  int fd_;
  std::string path_;
  uint64_t max_line_bytes_;
  std::string buffer_;  // bytes [start_, buffer_.size()) are unread
  size_t start_ = 0;
  uint64_t file_offset_ = 0;  // position of the next byte to read
  int64_t line_number_ = 0;
};

}  // namespace penstock
