// Reads a multipart/form-data body (RFC 7578) piece by piece, so that uploaded files need no memory.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace penstock::server {

struct MultipartField {
  std::string name;
  std::optional<std::string> file_name = {};
};

class MultipartReader {
 public:
  struct Sink {
    std::function<absl::Status(const MultipartField&)> begin;   // a field begins
    std::function<absl::Status(std::string_view bytes)> write;  // the next bytes of its value
    std::function<absl::Status()> end;                          // it is complete
  };
  // Returns the boundary of a Content-Type "multipart/form-data; boundary=..."; nothing for other types.
  static std::optional<std::string> BoundaryOf(std::string_view content_type);

  MultipartReader(std::string boundary, Sink sink);

  // Takes the next bytes of the body. kInput if they are not a form; errors of the sink.
  absl::Status Write(std::string_view bytes);
  // kInput if the body has ended too early.
  absl::Status Finish() const;

 private:
  enum class Place : uint8_t { kPreamble, kAfterBoundary, kHeaders, kValue, kEnd };
  // Takes what it can of buffer_; returns whether it took something.
  absl::StatusOr<bool> Advance();
  absl::StatusOr<bool> TakeValue();
  absl::Status BeginField(std::string_view headers);

  std::string delimiter_;  // "\r\n--" and the boundary
  Sink sink_;
  std::string buffer_ = "\r\n";  // the first boundary may have no line before it
  Place place_ = Place::kPreamble;
};

}  // namespace penstock::server
