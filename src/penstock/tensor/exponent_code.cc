#include "penstock/tensor/exponent_code.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

#include "penstock/base/check.h"

namespace penstock {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers in files are little-endian");

constexpr size_t kNumExponents = 256;

struct Value {
  uint8_t exponent;
  uint8_t sign;  // with the mantissa
};

Value SplitValue(uint16_t bits) {
  return {static_cast<uint8_t>(bits >> 7), static_cast<uint8_t>((bits >> 8 & 0x80) | (bits & 0x7F))};
}

// The words of one tier.
class Tier {
 public:
  void Append(unsigned code) {
    if (num_codes_ % kExponentGroup == 0) words_.insert(words_.end(), 2, 0);
    const auto bit = static_cast<unsigned>(num_codes_++ % kExponentGroup);
    words_[words_.size() - 2] |= uint64_t{code & 1} << bit;
    words_[words_.size() - 1] |= uint64_t{code >> 1} << bit;
  }
  uint16_t num_codes() const { return static_cast<uint16_t>(num_codes_); }
  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(words_)); }

 private:
  std::vector<uint64_t> words_;
  int64_t num_codes_ = 0;
};

// Numbers the exponents by frequency; equally frequent ones by value.
std::array<uint8_t, kNumExponents> ExponentsByFrequency(std::span<const uint16_t> values) {
  std::array<uint32_t, kNumExponents> counts = {};
  for (const uint16_t value : values) ++counts[SplitValue(value).exponent];
  std::array<uint8_t, kNumExponents> order;
  std::iota(order.begin(), order.end(), uint8_t{0});
  std::stable_sort(order.begin(), order.end(), [&](uint8_t a, uint8_t b) { return counts[a] > counts[b]; });
  return order;
}

template <typename T>
T Load(const std::byte* source) {
  T value;
  std::memcpy(&value, source, sizeof(value));
  return value;
}

void Append(std::span<const std::byte> bytes, std::vector<std::byte>& target) {
  target.insert(target.end(), bytes.begin(), bytes.end());
}

template <typename T>
void AppendNumber(T number, std::vector<std::byte>& target) {
  Append(std::as_bytes(std::span(&number, 1)), target);
}

void AppendHeader(const ExponentBlock& block, std::vector<std::byte>& target) {
  AppendNumber(block.block_bytes, target);
  AppendNumber(block.num_second, target);
  AppendNumber(block.num_third, target);
  AppendNumber(block.num_escapes, target);
  AppendNumber(block.is_coded, target);
  Append(std::as_bytes(std::span(block.exponents)), target);
  AppendNumber(block.zero, target);
  AppendNumber(block.xxh3, target);
}

}  // namespace

std::optional<ExponentBlock> ParseExponentBlock(std::span<const std::byte> bytes, int64_t num_groups) {
  if (bytes.size() < kExponentHeaderBytes) return std::nullopt;
  const std::byte* from = bytes.data();
  ExponentBlock block = {.block_bytes = Load<uint32_t>(from),
                         .num_second = Load<uint16_t>(from + 4),
                         .num_third = Load<uint16_t>(from + 6),
                         .num_escapes = Load<uint16_t>(from + 8),
                         .is_coded = Load<uint8_t>(from + 10),
                         .exponents = Load<std::array<uint8_t, kExponentCodes>>(from + 11),
                         .zero = Load<uint32_t>(from + 20),
                         .xxh3 = Load<uint64_t>(from + 24)};
  const uint64_t value_bytes = static_cast<uint64_t>(num_groups) * kExponentGroupBytes;
  if (block.block_bytes > bytes.size() || block.is_coded > 1 || block.zero != 0) return std::nullopt;
  if (block.is_coded == 0) {
    const bool is_right = block.block_bytes == kExponentHeaderBytes + value_bytes;
    return is_right ? std::optional(block) : std::nullopt;
  }
  const uint64_t end = RoundUp(block.escapes_offset(num_groups) + block.num_escapes, kExponentAlignment);
  const bool are_nested = block.num_second <= num_groups * kExponentGroup && block.num_third <= block.num_second &&
                          block.num_escapes <= block.num_third;
  if (!are_nested || block.block_bytes != end || end > kExponentHeaderBytes + value_bytes) return std::nullopt;
  return block;
}

void AppendExponentBlock(std::span<const std::byte> values, std::vector<std::byte>& target) {
  PENSTOCK_CHECK(!values.empty() && values.size() % kExponentGroupBytes == 0 && values.size() <= kExponentBlockBytes);
  std::vector<uint16_t> bits(values.size() / 2);
  std::memcpy(bits.data(), values.data(), values.size());
  const auto num_groups = static_cast<int64_t>(values.size() / kExponentGroupBytes);
  const std::array<uint8_t, kNumExponents> order = ExponentsByFrequency(bits);
  std::array<uint8_t, kNumExponents> code_of;
  code_of.fill(kExponentCodes);
  for (uint8_t code = 0; code < kExponentCodes; ++code) code_of[order[code]] = code;

  Tier first, second, third;
  std::vector<std::byte> signs, escapes;
  signs.reserve(bits.size());
  std::array<Value, kExponentGroup> group;
  for (int64_t group_idx = 0; group_idx < num_groups; ++group_idx) {
    for (int64_t i = 0; i < kExponentGroup; ++i) {
      group[ExponentPlace(i)] = SplitValue(bits[group_idx * kExponentGroup + i]);
    }
    for (const Value& value : group) {
      const unsigned code = code_of[value.exponent];
      signs.push_back(std::byte{value.sign});
      first.Append(std::min(code, 3U));
      if (code < 3) continue;
      second.Append(std::min(code - 3, 3U));
      if (code < 6) continue;
      third.Append(code - 6);
      if (code == kExponentCodes) escapes.push_back(std::byte{value.exponent});
    }
  }

  ExponentBlock block = {.num_second = second.num_codes(),
                         .num_third = third.num_codes(),
                         .num_escapes = static_cast<uint16_t>(escapes.size()),
                         .is_coded = 1,
                         .xxh3 = XXH3_64bits(values.data(), values.size())};
  std::copy_n(order.begin(), kExponentCodes, block.exponents.begin());
  const uint64_t coded_bytes = RoundUp(block.escapes_offset(num_groups) + escapes.size(), kExponentAlignment);
  if (coded_bytes >= kExponentHeaderBytes + values.size()) {
    block = {.block_bytes = static_cast<uint32_t>(kExponentHeaderBytes + values.size()), .xxh3 = block.xxh3};
    AppendHeader(block, target);
    return Append(values, target);
  }
  block.block_bytes = static_cast<uint32_t>(coded_bytes);
  const size_t begin = target.size();
  AppendHeader(block, target);
  for (const std::span<const std::byte> part : {first.bytes(), std::span<const std::byte>(signs), second.bytes(),
                                                third.bytes(), std::span<const std::byte>(escapes)}) {
    Append(part, target);
  }
  target.resize(begin + coded_bytes);
}

}  // namespace penstock
