// Proves that random weights have the bits that tools/golden/weights.py gives them (random_weights.json holds what it
// gave), and that halves are rounded to nearest, ties to even.
#include "penstock/testing/golden/random_weights.h"

#include <xxhash.h>

#include <cmath>
#include <limits>

#include <gmock/gmock.h>

#include "penstock/base/file.h"
#include "penstock/base/json.h"

namespace penstock::golden {
namespace {

std::string Hex(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

Dtype DtypeOf(std::string_view name) {
  return name == "F32" ? Dtype::kF32 : name == "F16" ? Dtype::kF16 : Dtype::kBF16;
}

TEST(RandomWeightsTest, HaveTheBitsThatPythonGivesThem) {
  const auto text = ReadFile(PENSTOCK_SOURCE_DIR "/tests/testing/random_weights.json", 1 << 20);
  const auto cases = ParseJson(text.value(), Fault::kInput);
  ASSERT_TRUE(cases.ok()) << cases.status();
  EXPECT_EQ(cases->as_array().size(), 10u);
  for (const json::value& one : cases->as_array()) {
    RandomTensor tensor{.name = std::string(one.at("name").as_string()),
                        .dtype = DtypeOf(one.at("dtype").as_string()),
                        .shape = {12},
                        .mean_millionths = one.at("mean").as_int64(),
                        .std_millionths = one.at("std").as_int64()};
    const uint64_t seed = std::stoull(std::string(one.at("seed").as_string()));
    EXPECT_EQ(Hex(RandomBytes(seed, tensor)), one.at("first_12").as_string()) << json::serialize(one);
    tensor.shape = {100, 50};
    const std::string bytes = RandomBytes(seed, tensor);
    EXPECT_EQ(fmt::format("{:016x}", XXH3_64bits(bytes.data(), bytes.size())), one.at("xxh3_of_5000").as_string())
        << json::serialize(one);
  }
}

TEST(RandomWeightsTest, DependOnSeedNameAndIndexAlone) {
  const RandomTensor small{.name = "w", .shape = {3, 5}, .std_millionths = 250'000};
  const RandomTensor large{.name = "w", .shape = {40}, .std_millionths = 250'000};
  const RandomTensor other{.name = "v", .shape = {3, 5}, .std_millionths = 250'000};
  EXPECT_EQ(RandomBytes(1, large).substr(0, 15 * sizeof(float)), RandomBytes(1, small));
  EXPECT_NE(RandomBytes(2, small), RandomBytes(1, small));
  EXPECT_NE(RandomBytes(1, other), RandomBytes(1, small));
}

TEST(RandomWeightsTest, HaveTheirMeanAndStandardDeviation) {
  const std::string bytes =
      RandomBytes(7, {.name = "w", .shape = {100'000}, .mean_millionths = 1'000'000, .std_millionths = 200'000});
  std::vector<float> values(100'000);
  ToFloats(Dtype::kF32, reinterpret_cast<const std::byte*>(bytes.data()), values);
  double sum = 0, squares = 0;
  for (const float value : values) sum += value, squares += static_cast<double>(value) * value;
  const double mean = sum / 1e5;
  EXPECT_NEAR(mean, 1.0, 0.004);
  EXPECT_NEAR(std::sqrt(squares / 1e5 - mean * mean), 0.2, 0.004);
}

// Every half is its own rounding, and between two neighbours the nearer one is, or the even one.
TEST(RandomWeightsTest, HalvesAreRoundedToNearestEven) {
  for (uint32_t bits = 0; bits < 0x7C00; ++bits) {
    const F16 low{static_cast<uint16_t>(bits)}, high{static_cast<uint16_t>(bits + 1)};
    const float value = ToFloat(low);
    ASSERT_EQ(ToF16(value).bits, low.bits);
    ASSERT_EQ(ToF16(-value).bits, low.bits | 0x8000);
    const float next = bits + 1 < 0x7C00 ? ToFloat(high) : 65536.0f;  // where the next finite half would be
    const float middle = (value + next) / 2;
    ASSERT_EQ(ToF16(middle).bits, (bits & 1) == 0 ? low.bits : high.bits) << value;
    ASSERT_EQ(ToF16(std::nextafter(middle, 0.0f)).bits, low.bits) << value;
    ASSERT_EQ(ToF16(std::nextafter(middle, 1e9f)).bits, high.bits) << value;
  }
  EXPECT_EQ(ToF16(1e9f).bits, 0x7C00);
  EXPECT_EQ(ToF16(std::numeric_limits<float>::max()).bits, 0x7C00);
}

}  // namespace
}  // namespace penstock::golden
