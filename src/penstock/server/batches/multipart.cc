#include "penstock/server/batches/multipart.h"

#include <algorithm>
#include <utility>

#include "penstock/base/status.h"

namespace penstock::server {
namespace {

constexpr size_t kMaxBoundaryBytes = 70;  // RFC 2046
constexpr size_t kMaxHeaderBytes = 8 << 10;

bool EqualsIgnoringCase(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  return std::ranges::equal(a, b, [&](char x, char y) { return lower(x) == lower(y); });
}

std::string_view Trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

// Returns the value of a parameter in a header's value such as `form-data; name="file"`.
std::optional<std::string> ParameterOf(std::string_view value, std::string_view name) {
  size_t at = std::min(value.find(';'), value.size());
  while (at < value.size()) {
    const size_t equals = value.find('=', at);
    if (equals == std::string_view::npos) return std::nullopt;
    const std::string_view key = Trimmed(value.substr(at + 1, equals - at - 1));
    std::string text;
    at = equals + 1;
    if (at < value.size() && value[at] == '"') {
      for (++at; at < value.size() && value[at] != '"'; ++at) {
        if (value[at] == '\\' && at + 1 < value.size()) ++at;
        text += value[at];
      }
      at = std::min(value.find(';', at), value.size());
    } else {
      const size_t end = std::min(value.find(';', at), value.size());
      text = Trimmed(value.substr(at, end - at));
      at = end;
    }
    if (EqualsIgnoringCase(key, name)) return text;
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> MultipartReader::BoundaryOf(std::string_view content_type) {
  const std::string_view type = Trimmed(content_type.substr(0, content_type.find(';')));
  if (!EqualsIgnoringCase(type, "multipart/form-data")) return std::nullopt;
  std::optional<std::string> boundary = ParameterOf(content_type, "boundary");
  if (!boundary.has_value() || boundary->empty() || boundary->size() > kMaxBoundaryBytes) return std::nullopt;
  return boundary;
}

MultipartReader::MultipartReader(std::string boundary, Sink sink)
    : delimiter_("\r\n--" + std::move(boundary)), sink_(std::move(sink)) {}

absl::Status MultipartReader::Write(std::string_view bytes) {
  buffer_ += bytes;
  while (true) {
    PENSTOCK_ASSIGN_OR_RETURN(const bool advanced, Advance());
    if (!advanced) return absl::OkStatus();
  }
}

absl::StatusOr<bool> MultipartReader::Advance() {
  switch (place_) {
    case Place::kPreamble: {
      const size_t found = buffer_.find(delimiter_);
      if (found == std::string::npos) {
        buffer_.erase(0, buffer_.size() - std::min(buffer_.size(), delimiter_.size()));
        return false;
      }
      buffer_.erase(0, found + delimiter_.size());
      place_ = Place::kAfterBoundary;
      return true;
    }
    case Place::kAfterBoundary:
      if (buffer_.size() < 2) return false;
      if (buffer_.starts_with("--")) {
        place_ = Place::kEnd;
      } else if (buffer_.starts_with("\r\n")) {
        place_ = Place::kHeaders;  // the line's end stays, as headers end with an empty line
      } else {
        return InputError("the form's boundary is not followed by a new line");
      }
      return true;
    case Place::kHeaders: {
      const size_t end = buffer_.find("\r\n\r\n");
      if (end == std::string::npos && buffer_.size() > kMaxHeaderBytes) {
        return InputError("a field of the form has headers of more than {} bytes", kMaxHeaderBytes);
      }
      if (end == std::string::npos) return false;
      PENSTOCK_RETURN_IF_ERROR(BeginField(std::string_view(buffer_).substr(0, end)));
      buffer_.erase(0, end + 4);
      place_ = Place::kValue;
      return true;
    }
    case Place::kValue: return TakeValue();
    case Place::kEnd: buffer_.clear(); return false;
  }
  return false;
}

absl::StatusOr<bool> MultipartReader::TakeValue() {
  const size_t found = buffer_.find(delimiter_);
  const size_t kept = found == std::string::npos ? std::min(buffer_.size(), delimiter_.size() - 1) : 0;
  const size_t num_bytes = found == std::string::npos ? buffer_.size() - kept : found;
  if (num_bytes > 0) PENSTOCK_RETURN_IF_ERROR(sink_.write(std::string_view(buffer_).substr(0, num_bytes)));
  if (found == std::string::npos) {
    buffer_.erase(0, num_bytes);
    return false;
  }
  PENSTOCK_RETURN_IF_ERROR(sink_.end());
  buffer_.erase(0, found + delimiter_.size());
  place_ = Place::kAfterBoundary;
  return true;
}

absl::Status MultipartReader::BeginField(std::string_view headers) {
  MultipartField field;
  bool has_name = false;
  while (!headers.empty()) {
    const size_t end = std::min(headers.find("\r\n"), headers.size());
    const std::string_view line = headers.substr(0, end);
    headers.remove_prefix(std::min(end + 2, headers.size()));
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos || !EqualsIgnoringCase(Trimmed(line.substr(0, colon)), "content-disposition")) {
      continue;
    }
    const std::string_view value = line.substr(colon + 1);
    const std::optional<std::string> name = ParameterOf(value, "name");
    has_name = name.has_value();
    field.name = name.value_or("");
    field.file_name = ParameterOf(value, "filename");
  }
  if (!has_name) return InputError("a field of the form has no name");
  return sink_.begin(field);
}

absl::Status MultipartReader::Finish() const {
  return place_ == Place::kEnd ? absl::OkStatus() : InputError("the form ends too early");
}

}  // namespace penstock::server
