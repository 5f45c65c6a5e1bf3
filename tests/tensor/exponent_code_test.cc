// Proves that compression keeps its promises on size: usual weights become 1.4 times smaller at least, and no values
// grow by more than headers. A header that does not fit its block is refused. (tests/kernels/decompress_test.cc
// decodes.)
#include "penstock/tensor/exponent_code.h"

#include <cstring>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "penstock/tensor/dtype.h"

namespace penstock {
namespace {

std::vector<std::byte> AsBytes(const std::vector<BF16>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(BF16));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

template <typename Distribution>
std::vector<std::byte> Draw(Distribution distribution) {
  std::mt19937 random(1);
  std::vector<BF16> values(kExponentBlockBytes / 2);
  for (BF16& value : values) value = ToBF16(static_cast<float>(distribution(random)));
  return AsBytes(values);
}

double RatioOf(const std::vector<std::byte>& values) {
  std::vector<std::byte> compressed;
  AppendExponentBlock(values, compressed);
  return static_cast<double>(values.size()) / static_cast<double>(compressed.size());
}

TEST(ExponentCodeTest, UsualWeightsBecomeSmaller) {
  EXPECT_GT(RatioOf(Draw(std::normal_distribution(0.0, 0.02))), 1.49);
  EXPECT_GT(RatioOf(Draw(std::student_t_distribution(3.0))), 1.44);
  EXPECT_GT(RatioOf(Draw(std::uniform_real_distribution(-0.1, 0.1))), 1.50);
}

TEST(ExponentCodeTest, NothingGrowsByMoreThanHeaders) {
  std::mt19937 random(2);
  for (const uint64_t num_groups : {1u, 2u, 7u, 255u, 256u}) {
    std::vector<std::byte> values(num_groups * kExponentGroupBytes);
    for (std::byte& byte : values) byte = static_cast<std::byte>(random());
    std::vector<std::byte> compressed;
    AppendExponentBlock(values, compressed);
    EXPECT_LE(compressed.size(), MaxCompressedBytes(values.size()));
    EXPECT_EQ(compressed.size() % kExponentAlignment, 0u);
    const auto block = ParseExponentBlock(compressed, static_cast<int64_t>(num_groups));
    ASSERT_TRUE(block.has_value());
    EXPECT_EQ(block->block_bytes, compressed.size());
  }
}

TEST(ExponentCodeTest, EveryValueOfAGroupHasItsPlace) {
  std::set<int64_t> places;
  for (int64_t i = 0; i < kExponentGroup; ++i) places.insert(ExponentPlace(i));
  EXPECT_EQ(places.size(), 64u);
  EXPECT_EQ(*places.rbegin(), 63);
}

TEST(ExponentCodeTest, AHeaderThatDoesNotFitIsRefused) {
  const std::vector<std::byte> values = Draw(std::normal_distribution(0.0, 0.02));
  const auto num_groups = static_cast<int64_t>(values.size() / kExponentGroupBytes);
  std::vector<std::byte> good;
  AppendExponentBlock(values, good);
  ASSERT_TRUE(ParseExponentBlock(good, num_groups).has_value());
  for (const size_t size : {size_t{0}, size_t{31}, size_t{32}, good.size() - 1}) {
    EXPECT_FALSE(ParseExponentBlock(std::span(good).first(size), num_groups).has_value()) << size;
  }
  EXPECT_FALSE(ParseExponentBlock(good, num_groups - 1).has_value());
  // Sizes, counts, the form and the unused bytes; not the exponents and the checksum, which the decoder notices.
  for (const size_t byte : {0, 1, 2, 3, 5, 7, 9, 10, 20, 23}) {
    std::vector<std::byte> damaged = good;
    damaged[byte] ^= std::byte{0x80};
    EXPECT_FALSE(ParseExponentBlock(damaged, num_groups).has_value()) << byte;
  }
}

}  // namespace
}  // namespace penstock
