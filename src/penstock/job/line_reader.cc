#include "penstock/job/line_reader.h"

#include <cerrno>
#include <utility>

#include <unistd.h>

#include "penstock/base/file.h"
#include "penstock/base/status.h"

namespace penstock {
namespace {

constexpr size_t kBlockBytes = 128 << 10;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

}  // namespace

LineReader::LineReader(int fd, std::string path, uint64_t max_line_bytes)
    : fd_(fd), path_(std::move(path)), max_line_bytes_(max_line_bytes) {}

absl::StatusOr<bool> LineReader::Fill() {
  if (start_ > 0) {
    buffer_.erase(0, start_);
    start_ = 0;
    // One long line must not hold its memory for the rest of the job.
    if (buffer_.empty() && buffer_.capacity() > 8 * kBlockBytes) buffer_.shrink_to_fit();
  }
  const size_t old_size = buffer_.size();
  buffer_.resize(old_size + kBlockBytes);
  ssize_t n = 0;
  do {
    n = ::pread(fd_, buffer_.data() + old_size, kBlockBytes, static_cast<off_t>(file_offset_));
  } while (n < 0 && errno == EINTR);
  const int read_error = errno;
  buffer_.resize(old_size + static_cast<size_t>(n > 0 ? n : 0));
  if (n < 0) return IoError("{}: cannot read at offset {}: {}", path_, file_offset_, ErrnoText(read_error));
  file_offset_ += static_cast<uint64_t>(n);
  return n > 0;
}

absl::StatusOr<bool> LineReader::Next(Line& line) {
  line = Line{};
  size_t searched = 0;         // bytes of the present line known to hold no newline
  uint64_t dropped_bytes = 0;  // bytes of a too long line that are no longer in the buffer
  line.offset = file_offset_ - (buffer_.size() - start_);
  size_t newline = std::string::npos;
  while (true) {
    newline = buffer_.find('\n', start_ + searched);
    if (newline != std::string::npos) break;
    searched = buffer_.size() - start_;
    if (searched > max_line_bytes_ + kByteOrderMark.size() + 1) {
      // Keep the head for messages, forget the rest.
      line.too_long = true;
      dropped_bytes += searched - max_line_bytes_;
      buffer_.resize(start_ + max_line_bytes_);
      searched = max_line_bytes_;
    }
    PENSTOCK_ASSIGN_OR_RETURN(const bool more, Fill());
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
