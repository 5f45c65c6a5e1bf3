// Shared by the tests of the kernels: seeded data, comparison of bits, rounding of f32 data to stored types.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "penstock/base/check.h"
#include "penstock/kernels/kernels.h"
#include "penstock/tensor/block_formats.h"
#include "penstock/tensor/block_panels.h"

namespace penstock::kernels {

inline constexpr Dtype kAllDtypes[] = {Dtype::kF32, Dtype::kF16, Dtype::kBF16};

// Returns normal deviates whose scale changes from one to the next: sums cancel, and each order of a sum gives other
// bits.
inline std::vector<float> RandomFloats(int64_t count, uint32_t seed) {
  struct Sequence {
    std::mt19937 generator;
    std::normal_distribution<float> normal;
    std::vector<float> values;
  };
  // Drawing them takes a third of a GEMM's test under sanitizers, so each sequence is drawn only once.
  static std::map<uint32_t, Sequence> sequences;
  const auto [found, is_new] = sequences.try_emplace(seed);
  Sequence& s = found->second;
  if (is_new) s.generator.seed(seed);
  while (std::ssize(s.values) < count) {
    const float value = s.normal(s.generator);
    s.values.push_back(value * (s.generator() % 4 == 0 ? 8.0f : 0.5f));
  }
  return {s.values.begin(), s.values.begin() + count};
}

// The values as bytes of `dtype`, starting `misalignment` bytes after an aligned address. widened() returns the stored
// values as floats.
class StoredValues {
 public:
  StoredValues(Dtype dtype, std::span<const float> values, int64_t misalignment) : misalignment_(misalignment) {
    const int64_t size = static_cast<int64_t>(SizeOf(dtype));
    bytes_.resize(misalignment + size * static_cast<int64_t>(values.size()));
    widened_.resize(values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      std::byte* target = bytes_.data() + misalignment + static_cast<int64_t>(i) * size;
      if (dtype == Dtype::kF32) {
        std::memcpy(target, &values[i], 4);
      } else {
        const uint16_t bits = dtype == Dtype::kBF16 ? ToBF16(values[i]).bits : ToHalfBits(values[i]);
        std::memcpy(target, &bits, 2);
      }
    }
    ToFloats(dtype, data(), widened_);
  }

  const std::byte* data() const { return bytes_.data() + misalignment_; }
  const std::vector<float>& widened() const { return widened_; }  // exactly the stored values

 private:
  // Returns an f16 close to `x`: its sign, exponent and upper mantissa. Values here are far from the limits of the
  // type.
  static uint16_t ToHalfBits(float x) {
    const uint32_t bits = std::bit_cast<uint32_t>(x);
    const int32_t exponent = static_cast<int32_t>(bits >> 23 & 0xFF) - 112;
    const uint32_t sign = bits >> 16 & 0x8000;
    if (exponent <= 0) return static_cast<uint16_t>(sign);
    return static_cast<uint16_t>(sign | static_cast<uint32_t>(exponent) << 10 | (bits >> 13 & 0x3FF));
  }

  int64_t misalignment_;
  std::vector<std::byte> bytes_;
  std::vector<float> widened_;
};

inline std::vector<BF16> ToBf16s(std::span<const float> values) {
  std::vector<BF16> result;
  for (const float value : values) result.push_back(ToBF16(value));
  return result;
}

struct alignas(64) CacheLine {
  std::byte bytes[64];
};

// Memory aligned as the kernels' weights are.
class AlignedBytes {
 public:
  explicit AlignedBytes(uint64_t size) : lines_((size + 63) / 64) {}
  std::byte* data() { return lines_[0].bytes; }
  const std::byte* data() const { return lines_[0].bytes; }

 private:
  std::vector<CacheLine> lines_;
};

// A copy of bytes in front of a page that allows no access, so an access behind them crashes. Their size is rounded up
// to `alignment`.
class GuardedBytes {
 public:
  GuardedBytes(const void* bytes, uint64_t size, uint64_t alignment) {
    const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
    const uint64_t aligned_size = (size + alignment - 1) / alignment * alignment;
    const uint64_t usable = (aligned_size + page - 1) / page * page;
    size_ = usable + page;
    void* pages = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    PENSTOCK_CHECK(pages != MAP_FAILED);
    pages_ = static_cast<std::byte*>(pages);
    PENSTOCK_CHECK(::mprotect(pages_ + usable, page, PROT_NONE) == 0);
    data_ = pages_ + usable - aligned_size;
    std::memcpy(data_, bytes, size);
  }
  ~GuardedBytes() { ::munmap(pages_, size_); }
  GuardedBytes(const GuardedBytes&) = delete;
  GuardedBytes& operator=(const GuardedBytes&) = delete;
  std::byte* data() const { return data_; }
  float* floats() const { return reinterpret_cast<float*>(data_); }

 private:
  uint64_t size_ = 0;
  std::byte* pages_ = nullptr;
  std::byte* data_ = nullptr;
};

// Fills random blocks whose scales are of medium size.
inline void FillBlocks(WeightFormat format, std::span<std::byte> target, std::mt19937& generator) {
  for (std::byte& byte : target) byte = static_cast<std::byte>(generator());
  for (size_t block = 0; block < target.size(); block += static_cast<size_t>(BlockBytes(format))) {
    const auto put_half = [&](size_t offset) {
      const auto bits = static_cast<uint16_t>(0x1C00 + generator() % 0x0C00);
      std::memcpy(target.data() + block + offset, &bits, 2);
    };
    if (format == WeightFormat::kFp8) {
      const float scale = 0.001f * static_cast<float>(1 + generator() % 100);
      std::memcpy(target.data() + block, &scale, 4);
      for (size_t i = 4; i < 132; ++i) target[block + i] &= std::byte{0xF7};  // no NaN
    } else if (format == WeightFormat::kIq1_M) {  // its scale lies in the upper 4 bits of four halves
      const auto bits = static_cast<uint32_t>(0x1C00 + generator() % 0x0C00);
      for (size_t i = 0; i < 4; ++i) {
        std::byte& byte = target[block + 49 + 2 * i];
        byte = (byte & std::byte{15}) | static_cast<std::byte>((bits >> 4 * i & 15) << 4);
      }
    } else if (format == WeightFormat::kMxfp4) {
      target[block] = static_cast<std::byte>(118 + generator() % 6);
    } else if (format == WeightFormat::kNvfp4) {
      const float scale = 0.001f * static_cast<float>(1 + generator() % 100);
      std::memcpy(target.data() + block, &scale, 4);
      for (size_t i = 4; i < 20; ++i) target[block + i] = static_cast<std::byte>(0x28 + generator() % 0x20);
    } else {
      const size_t scale_offset = format == WeightFormat::kQ6_K    ? 208
                                  : format == WeightFormat::kQ2_K  ? 80
                                  : format == WeightFormat::kQ3_K  ? 108
                                  : format == WeightFormat::kTq1_0 ? 52
                                  : format == WeightFormat::kTq2_0 ? 64
                                                                   : 0;
      put_half(scale_offset);
      const bool has_minima = format == WeightFormat::kQ4_K || format == WeightFormat::kQ5_K ||
                              format == WeightFormat::kQ4_1 || format == WeightFormat::kQ5_1;
      if (has_minima) put_half(2);
      if (format == WeightFormat::kQ2_K) put_half(82);
      if (format == WeightFormat::kU4) target[block + 2] &= std::byte{15};
    }
  }
}

// Returns a packed matrix [num_cols, inner_dim] of any format: random values, or random codes with sensible scales.
inline AlignedBytes RandomPacked(WeightFormat format, int64_t num_cols, int64_t inner_dim, uint32_t seed) {
  const auto panel_bytes = static_cast<int64_t>(PanelBytes(format, inner_dim));
  AlignedBytes packed(PackedBytes(format, num_cols, inner_dim));
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  for (int64_t panel = 0; panel < NumPanels(num_cols); ++panel) {
    std::byte* target = packed.data() + panel * panel_bytes;
    if (IsFloat(format)) {
      const int64_t cols = std::min(kPanelCols, num_cols - panel * kPanelCols);
      const StoredValues values(DtypeOf(format), RandomFloats(cols * inner_dim, seed + static_cast<uint32_t>(panel)),
                                1);
      PackPanel(DtypeOf(format), values.data(), cols, inner_dim, format, target);
      continue;
    }
    if (IsBlocks(format)) {
      const int64_t cols = std::min(kPanelCols, num_cols - panel * kPanelCols);
      std::vector<std::byte> rows(static_cast<size_t>(cols * panel_bytes / kPanelCols));
      FillBlocks(format, rows, generator);
      InterleaveBlocks(format, rows.data(), cols, inner_dim, target);
      continue;
    }
    for (int64_t i = 0; i < panel_bytes; ++i) target[i] = static_cast<std::byte>(generator());
    const auto put_float = [&](int64_t offset, float value) { std::memcpy(target + offset, &value, 4); };
    if (format == WeightFormat::kInt8) {
      for (int64_t end = kInt8Group * kPanelCols; end < panel_bytes; end += kInt8Group * kPanelCols + 2 * kPanelCols) {
        for (int64_t col = 0; col < kPanelCols; ++col) {
          const BF16 scale = ToBF16(0.01f * std::abs(normal(generator)));
          std::memcpy(target + end + 2 * col, &scale, 2);
        }
      }
    } else {
      const int64_t block_bytes = kHqqHeaderBytes + (kHqqBlock / 64 * HqqGroupBytes(format));
      for (int64_t header = 0; header < panel_bytes; header += block_bytes) {
        put_float(header, 1e-4f * std::abs(normal(generator)));
        put_float(header + 4, 0.01f);
        put_float(header + 8, 0.05f);
        put_float(header + 12, -2 + normal(generator));
      }
    }
  }
  return packed;
}

// Returns a message about the first difference in bits, or an empty string.
inline std::string BitDifference(std::span<const float> actual, std::span<const float> expected) {
  if (actual.size() != expected.size()) return "sizes differ";
  for (size_t i = 0; i < actual.size(); ++i) {
    const uint32_t a = std::bit_cast<uint32_t>(actual[i]), b = std::bit_cast<uint32_t>(expected[i]);
    const bool are_both_nan = actual[i] != actual[i] && expected[i] != expected[i];
    if (a != b && !are_both_nan) {
      return "element " + std::to_string(i) + ": " + std::to_string(actual[i]) + " (bits " + std::to_string(a) +
             ") but expected " + std::to_string(expected[i]) + " (bits " + std::to_string(b) + ")";
    }
  }
  return "";
}

inline void ExpectSameBits(std::span<const float> actual, std::span<const float> expected) {
  EXPECT_EQ(BitDifference(actual, expected), "");
}

}  // namespace penstock::kernels
