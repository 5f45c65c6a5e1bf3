// Little-endian fields of the files that this folder reads and writes.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "penstock/base/status.h"

namespace penstock {

static_assert(std::endian::native == std::endian::little, "fields are copied as they lie in memory");

inline constexpr size_t kChecksumBytes = 8;  // XXH3, behind each part of a file

template <typename T>
requires std::is_unsigned_v<T>
void AppendField(std::string& out, T value) { out.append(reinterpret_cast<const char*>(&value), sizeof(value)); }

inline absl::Status CheckField(std::string_view field, int64_t value, int64_t min, int64_t max) {
  if (value >= min && value <= max) return absl::OkStatus();
  return InputError("{}: expected {} to {}, found {}", field, min, max, value);
}

// Takes fields from the front of `bytes`. When too few bytes are left, it returns zeros and ok() becomes false.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : rest_(bytes) {}

  template <typename T>
  requires std::is_unsigned_v<T> T Take() {
    T value = 0;
    const std::string_view bytes = TakeBytes(sizeof(value));
    if (bytes.size() == sizeof(value)) std::memcpy(&value, bytes.data(), sizeof(value));
    return value;
  }

  std::string_view TakeBytes(size_t num_bytes) {
    ok_ = ok_ && rest_.size() >= num_bytes;
    if (!ok_) return {};
    const std::string_view bytes = rest_.substr(0, num_bytes);
    rest_.remove_prefix(num_bytes);
    return bytes;
  }

  bool ok() const { return ok_; }
  size_t num_left() const { return rest_.size(); }

 private:
  std::string_view rest_;
  bool ok_ = true;
};

}  // namespace penstock
