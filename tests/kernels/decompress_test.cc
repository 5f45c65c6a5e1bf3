// Proves that compressed values come back bit for bit with every instruction set, also in place, whatever the values
// are, and that a flipped bit anywhere gives no wrong values.
#include "penstock/kernels/decompress.h"

#include <algorithm>
#include <cstring>
#include <random>

#include <gmock/gmock.h>
#include <xxhash.h>

#include "penstock/kernels/kernels.h"
#include "penstock/tensor/dtype.h"
#include "penstock/tensor/exponent_code.h"

namespace penstock::kernels {
namespace {

std::vector<std::byte> Compress(std::span<const std::byte> values) {
  std::vector<std::byte> compressed;
  while (!values.empty()) {
    const auto block = values.first(std::min<size_t>(values.size(), kExponentBlockBytes));
    AppendExponentBlock(block, compressed);
    values = values.subspan(block.size());
  }
  return compressed;
}

// Values of `spread` exponents around 1; all bits are random if it is 256.
std::vector<std::byte> RandomValues(uint64_t num_groups, unsigned spread, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<uint16_t> values(num_groups * kExponentGroup);
  for (uint16_t& value : values) {
    // Squares make small exponents more frequent.
    const unsigned a = random() % 1024, exponent = spread == 256 ? random() % 256 : 127 - a * a * spread / (1 << 20);
    value = static_cast<uint16_t>((random() & 0x807F) | exponent << 7);
  }
  std::vector<std::byte> bytes(values.size() * 2);
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

class DecompressTest : public testing::TestWithParam<Isa> {
 protected:
  // Decodes from and to memory without a byte to spare.
  std::optional<std::vector<std::byte>> Decode(std::span<const std::byte> compressed, uint64_t value_bytes) {
    const std::vector<std::byte> source(compressed.begin(), compressed.end());
    std::vector<std::byte> values(value_bytes), scratch(kExponentScratchBytes);
    const std::optional<uint64_t> xxh3 = Decompress(table_, source, scratch, values);
    if (!xxh3.has_value()) return std::nullopt;
    EXPECT_EQ(*xxh3, XXH3_64bits(source.data(), source.size()));
    return values;
  }

  const KernelTable& table_ = KernelsFor(GetParam());
};

TEST_P(DecompressTest, ValuesComeBackBitForBit) {
  for (const unsigned spread : {1u, 2u, 3u, 4u, 6u, 7u, 9u, 10u, 12u, 40u, 256u}) {
    for (const uint64_t num_groups : {1u, 2u, 3u, 255u, 256u, 257u, 700u}) {
      const std::vector<std::byte> values = RandomValues(num_groups, spread, spread);
      EXPECT_EQ(Decode(Compress(values), values.size()), values) << spread << " " << num_groups;
    }
  }
}

TEST_P(DecompressTest, ValuesComeBackInPlace) {
  for (const unsigned spread : {1u, 9u, 30u, 256u}) {
    // The middle part cannot be compressed, so its blocks are larger than their values.
    std::vector<std::byte> values = RandomValues(700, spread, 1);
    for (const auto& more : {RandomValues(600, 256, 2), RandomValues(401, spread, 3)}) {
      values.insert(values.end(), more.begin(), more.end());
    }
    const std::vector<std::byte> compressed = Compress(values);
    ASSERT_LE(compressed.size(), MaxCompressedBytes(values.size()));
    const uint64_t distance = InPlaceDistance(values.size(), compressed.size());
    std::vector<std::byte> memory(distance + compressed.size()), scratch(kExponentScratchBytes);
    std::copy(compressed.begin(), compressed.end(), memory.begin() + static_cast<int64_t>(distance));
    const std::optional<uint64_t> xxh3 =
        Decompress(table_, std::span(memory).subspan(distance), scratch, std::span(memory).first(values.size()));
    ASSERT_EQ(xxh3, XXH3_64bits(compressed.data(), compressed.size()));
    EXPECT_TRUE(std::equal(values.begin(), values.end(), memory.begin()));
  }
}

TEST_P(DecompressTest, FlippedBitsGiveNoWrongValues) {
  std::mt19937 random(4);
  for (const unsigned spread : {9u, 12u, 256u}) {
    const std::vector<std::byte> values = RandomValues(300, spread, spread), good = Compress(values);
    for (int trial = 0; trial < 400; ++trial) {
      std::vector<std::byte> damaged = good;
      for (unsigned flips = 1 + random() % 3; flips > 0; --flips) {
        damaged[random() % damaged.size()] ^= static_cast<std::byte>(1 << random() % 8);
      }
      const auto decoded = Decode(damaged, values.size());
      EXPECT_EQ(decoded.value_or(values), values);  // some bits are used by no value
    }
  }
}

TEST_P(DecompressTest, WhatIsMissingOrTooMuchIsNoticed) {
  const std::vector<std::byte> values = RandomValues(300, 9, 5), good = Compress(values);
  for (const size_t missing : {size_t{1}, size_t{32}, good.size() / 2, good.size()}) {
    EXPECT_FALSE(Decode(std::span(good).first(good.size() - missing), values.size()).has_value());
  }
  std::vector<std::byte> longer = good;
  longer.resize(good.size() + 32);
  EXPECT_FALSE(Decode(longer, values.size()).has_value());
  EXPECT_FALSE(Decode(good, values.size() - kExponentGroupBytes).has_value());
  EXPECT_FALSE(Decode(good, values.size() + kExponentGroupBytes).has_value());
}

TEST_P(DecompressTest, BlocksStandAlone) {
  const std::vector<std::byte> values = RandomValues(900, 9, 6), compressed = Compress(values);
  size_t begin = 0;
  for (size_t done = 0; done < values.size(); done += kExponentBlockBytes) {
    const size_t size = std::min<size_t>(kExponentBlockBytes, values.size() - done);
    const auto block =
        ParseExponentBlock(std::span(compressed).subspan(begin), static_cast<int64_t>(size / kExponentGroupBytes));
    ASSERT_TRUE(block.has_value());
    const auto decoded = Decode(std::span(compressed).subspan(begin, block->block_bytes), size);
    ASSERT_TRUE(decoded.has_value());
    EXPECT_TRUE(std::equal(decoded->begin(), decoded->end(), values.begin() + static_cast<int64_t>(done)));
    begin += block->block_bytes;
  }
  EXPECT_EQ(begin, compressed.size());
}

INSTANTIATE_TEST_SUITE_P(Isas, DecompressTest, testing::ValuesIn(SupportedIsas()),
                         [](const auto& isa) { return std::string(IsaName(isa.param)); });

}  // namespace
}  // namespace penstock::kernels
