#include "penstock/kernels/checksum.h"

#include <gtest/gtest.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <string>

namespace penstock::kernels {
namespace {

std::string Text(size_t size) {
  std::string text(size, '\0');
  for (size_t i = 0; i < size; ++i) text[i] = static_cast<char>(i * 2654435761u >> 13);
  return text;
}

TEST(ChecksumTest, IsXxh3WholeAndInParts) {
  for (const size_t size : {0, 1, 240, 241, 1024, 5000, 100'000}) {
    const std::string text = Text(size);
    const uint64_t expected = XXH3_64bits(text.data(), text.size());
    const auto bytes = std::as_bytes(std::span(text));
    EXPECT_EQ(Checksum(bytes), expected) << size;
    for (const size_t part : {1, 300, 64'000}) {
      RunningChecksum running;
      for (size_t begin = 0; begin < size; begin += part) {
        running.Add(bytes.subspan(begin, std::min(part, size - begin)));
      }
      EXPECT_EQ(running.value(), expected) << size << " in parts of " << part;
    }
  }
}

#if defined(__x86_64__)
// Returns whether the upper parts of vector registers hold values; false where the processor does not say it.
[[gnu::target("xsave")]] bool UpperPartsAreUsed() {
  constexpr unsigned kSaysWhatIsUsed = 1 << 2;
  constexpr unsigned kUpperParts = 1 << 2 | 1 << 6;  // of ymm0 to ymm15, and of zmm0 to zmm15
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(0xD, 1, &a, &b, &c, &d) == 0 || (a & kSaysWhatIsUsed) == 0) return false;
  return (_xgetbv(1) & kUpperParts) != 0;
}

// With values there, SSE instructions are many times as slow on Intel's processors.
TEST(ChecksumTest, LeavesNothingInTheUpperPartsOfRegisters) {
  const std::string text = Text(100'000);
  const auto bytes = std::as_bytes(std::span(text));
  uint64_t checksum = Checksum(bytes);
  EXPECT_FALSE(UpperPartsAreUsed());
  RunningChecksum running;
  running.Add(bytes);
  EXPECT_FALSE(UpperPartsAreUsed());
  checksum ^= running.value();
  EXPECT_FALSE(UpperPartsAreUsed());
  EXPECT_EQ(checksum, 0);
}
#endif

}  // namespace
}  // namespace penstock::kernels
