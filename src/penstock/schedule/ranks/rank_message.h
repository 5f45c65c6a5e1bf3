// Messages of experts' outputs between ranks: rows of outputs, then a trailer that names experts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "penstock/base/check.h"

namespace penstock {

// Appends to a message in a buffer.
class MessageWriter {
 public:
  explicit MessageWriter(std::span<std::byte> buffer) : buffer_(buffer) {}

  void Add(const void* data, size_t num_bytes) {
    std::byte* const to = Take(num_bytes);
    if (num_bytes > 0) std::memcpy(to, data, num_bytes);
  }
  // Returns room for bytes that the caller writes.
  std::byte* Take(size_t num_bytes) {
    PENSTOCK_CHECK(size_ + num_bytes <= buffer_.size());
    size_ += num_bytes;
    return buffer_.data() + size_ - num_bytes;
  }
  template <typename T>
  void Add(std::span<const T> values) {
    Add(values.data(), values.size_bytes());
  }
  std::span<const std::byte> message() const { return buffer_.first(size_); }

 private:
  std::span<std::byte> buffer_;
  size_t size_ = 0;
};

// The end of a message. It has at most RankTrailerBytes() (ops/activations.h).
struct OutputsTrailer {
  std::vector<int32_t> experts;  // whose outputs the message holds
  std::vector<int32_t> failed;   // experts without outputs
  absl::Status why;              // of a failure
};
void AddTrailer(const OutputsTrailer& trailer, MessageWriter& writer);

// Reads the trailer of a message from a rank, and returns it with the bytes of the outputs before it.
struct OutputsMessage {
  OutputsTrailer trailer;
  size_t outputs_bytes = 0;
};
OutputsMessage ReadTrailer(std::span<const std::byte> message, int64_t num_experts);

}  // namespace penstock
