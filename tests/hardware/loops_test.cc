// Proves that the loops that measure memory touch each word once: sums, fills and copies are right at every size, and
// nothing beside the target changes. Proves that this processor runs every loop that is listed as supported.
#include <gmock/gmock.h>

#include <cstring>
#include <memory>
#include <numeric>

#include "penstock/hardware/supported_loops.h"
#include "penstock/hardware/write_loops.h"

namespace penstock {
namespace {

class MemoryLoops : public ::testing::TestWithParam<size_t> {
 protected:
  // Leaves 64 bytes more than the size on each side.
  struct alignas(64) Line {
    uint64_t words[8];
  };
  static std::span<std::byte> Inner(std::vector<Line>& lines) {
    return std::as_writable_bytes(std::span(lines)).subspan(64, lines.size() * 64 - 128);
  }
  static std::span<uint64_t> Words(std::vector<Line>& lines) { return {lines[0].words, lines.size() * 8}; }
  static std::vector<Line> Numbered(size_t num_bytes, uint64_t first) {
    std::vector<Line> lines(num_bytes / 64 + 2);
    const std::span<uint64_t> words = Words(lines);
    std::iota(words.begin(), words.end(), first);
    return lines;
  }
};

TEST_P(MemoryLoops, SumHasEachWordOnce) {
  std::vector<Line> lines = Numbered(GetParam(), uint64_t{1} << 62);
  const std::span<const uint64_t> words = Words(lines).subspan(8, GetParam() / 8);
  const uint64_t expected = std::accumulate(words.begin(), words.end(), uint64_t{0});
  for (const ReadLoop read : SupportedReadLoops()) EXPECT_EQ(read(Inner(lines).data(), GetParam()), expected);
}

TEST_P(MemoryLoops, FillSetsAllAndNothingElse) {
  std::vector<Line> lines = Numbered(GetParam(), 100);
  FillMemory(Inner(lines), 7);
  const std::span<const uint64_t> words = Words(lines);
  for (size_t i = 0; i < words.size(); ++i) {
    ASSERT_EQ(words[i], i < 8 || i >= words.size() - 8 ? 100 + i : 7) << "word " << i;
  }
}

TEST_P(MemoryLoops, CopyIsEqualAndTouchesNothingElse) {
  std::vector<Line> from = Numbered(GetParam(), 100);
  std::vector<Line> to = Numbered(GetParam(), 1'000'000);
  CopyMemory(Inner(from), Inner(to));
  const std::span<const uint64_t> words = Words(to);
  for (size_t i = 0; i < words.size(); ++i) {
    ASSERT_EQ(words[i], i < 8 || i >= words.size() - 8 ? 1'000'000 + i : 100 + i) << "word " << i;
  }
}

TEST(SupportedPeakLoops, AllRunAndHaveNamesOfTheirOwn) {
  std::vector<std::string> names;
  for (const Arithmetic arithmetic : kAllArithmetics) {
    for (const PeakLoop* loop : SupportedPeakLoops(arithmetic)) {
      loop->run(1000);
      EXPECT_GT(loop->ops_per_step, 0);
      EXPECT_THAT(names, ::testing::Not(::testing::Contains(loop->instructions)));
      names.emplace_back(loop->instructions);
    }
  }
  EXPECT_FALSE(names.empty());
}

INSTANTIATE_TEST_SUITE_P(Sizes, MemoryLoops, ::testing::Values(0, 512, 1024, 4096, 512 * 1001));

}  // namespace
}  // namespace penstock
