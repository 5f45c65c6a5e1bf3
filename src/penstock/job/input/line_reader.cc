#include "penstock/job/input/line_reader.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <unistd.h>

#include "penstock/base/file.h"
#include "penstock/base/status.h"

namespace penstock {
namespace {

constexpr size_t kLongLineBytes = 8 * kLineBlockBytes;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

}  // namespace

LineReader::LineReader(int fd, std::string path, uint64_t max_line_bytes)
    : fd_(fd), path_(std::move(path)), max_line_bytes_(max_line_bytes) {}

absl::StatusOr<size_t> LineReader::Read(std::span<char> target) {
  const ssize_t n = PreadUninterrupted(fd_, std::as_writable_bytes(target), file_offset_);
  if (n < 0) return IoError("{}: cannot read at offset {}: {}", path_, file_offset_, ErrnoText(errno));
  file_offset_ += static_cast<uint64_t>(n);
  return static_cast<size_t>(n);
}

absl::StatusOr<bool> LineReader::Fill(size_t num_bytes) {
  if (start_ > 0) {
    buffer_.erase(0, start_);
    start_ = 0;
    // One long line must not keep its memory for the rest of the job.
    if (buffer_.empty() && buffer_.capacity() > kLongLineBytes) buffer_.shrink_to_fit();
  }
  const size_t old_size = buffer_.size();
  buffer_.resize(old_size + num_bytes);
  const absl::StatusOr<size_t> num_read = Read(std::span(buffer_).subspan(old_size));
  buffer_.resize(old_size + num_read.value_or(0));
  if (!num_read.ok()) return num_read.status();
  return *num_read > 0;
}

// Returns the bytes from here to the next newline or the end of the file. Does not move the position.
absl::StatusOr<uint64_t> LineReader::MeasureRest() {
  const uint64_t begin = file_offset_;
  std::string block(kLineBlockBytes, '\0');
  uint64_t num_bytes = 0;
  for (bool at_end = false; !at_end;) {
    absl::StatusOr<size_t> num_read = Read(block);
    if (!num_read.ok()) return num_read.status();
    const size_t newline = std::string_view(block).substr(0, *num_read).find('\n');
    num_bytes += std::min(newline, *num_read);
    at_end = *num_read == 0 || newline != std::string::npos;
  }
  file_offset_ = begin;
  return num_bytes;
}

absl::StatusOr<bool> LineReader::Next(Line& line) {
  line = Line{};
  size_t searched = 0;         // bytes of the present line that hold no newline
  uint64_t dropped_bytes = 0;  // bytes of a too long line that have left the buffer
  line.offset = file_offset_ - (buffer_.size() - start_);
  size_t newline = std::string::npos;
  while (true) {
    newline = buffer_.find('\n', start_ + searched);
    if (newline != std::string::npos) break;
    searched = buffer_.size() - start_;
    size_t num_wanted = kLineBlockBytes;
    if (searched >= kLongLineBytes) {
      // A long line is measured first. Then it gets a buffer of its size, or none when it is too long.
      PENSTOCK_ASSIGN_OR_RETURN(const uint64_t rest, MeasureRest());
      if (searched + rest > max_line_bytes_ + kByteOrderMark.size() + 1) {
        line.too_long = true;
        dropped_bytes = rest;
        file_offset_ += rest;
      } else {
        num_wanted = static_cast<size_t>(rest) + 1;
        buffer_.reserve(buffer_.size() + num_wanted);
      }
    }
    PENSTOCK_ASSIGN_OR_RETURN(const bool more, Fill(num_wanted));
    if (!more) break;
  }
  line.terminated = newline != std::string::npos;
  const size_t end = line.terminated ? newline : buffer_.size();
  std::string_view text = std::string_view(buffer_).substr(start_, end - start_);
  if (!line.terminated && text.empty() && dropped_bytes == 0) return false;
  start_ = line.terminated ? newline + 1 : end;
  line.number = ++line_number_;
  line.num_bytes = text.size() + dropped_bytes;
  if (line.number == 1 && text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  if (line.terminated && !text.empty() && text.back() == '\r') text.remove_suffix(1);
  if (text.size() > max_line_bytes_ || dropped_bytes > 0) {
    line.too_long = true;
    text = text.substr(0, max_line_bytes_);
  }
  line.text = text;
  return true;
}

}  // namespace penstock
