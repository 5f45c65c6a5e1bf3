// Parses JSON as a stream of events: for documents so large that a tree of values would cost many times their size.
//
// As strict as ParseJson, except that the listener has to find duplicate keys. Memory is bounded by the longest string.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "penstock/base/limits.h"
#include "penstock/base/status.h"

namespace penstock {

// Every method may return an error. Parsing then ends with that error, prefixed with the place of the event.
class JsonListener {
 public:
  virtual ~JsonListener() = default;

  virtual absl::Status OnObjectBegin() = 0;
  virtual absl::Status OnObjectEnd() = 0;
  virtual absl::Status OnArrayBegin() = 0;
  virtual absl::Status OnArrayEnd() = 0;
  virtual absl::Status OnKey(std::string_view key) = 0;
  virtual absl::Status OnString(std::string_view text) = 0;
  // `value` is absent for numbers other than integers in [0, 2^64).
  virtual absl::Status OnNumber(std::optional<uint64_t> value) = 0;
  // Called for true, false and null.
  virtual absl::Status OnLiteral() = 0;
};

struct JsonEventOptions {
  int max_depth = kMaxJsonDepth;
  uint64_t max_key_bytes = kMaxTensorNameBytes;
  // How messages give a place: "line 3, column 7", or "byte 120" for text that nobody opens in an editor.
  enum class Place { kLine, kByte } place = Place::kLine;
};

// Feeds one JSON document to `listener`. Errors carry `fault`.
absl::Status ParseJsonEvents(std::string_view text, Fault fault, const JsonEventOptions& options,
                             JsonListener& listener);

}  // namespace penstock
