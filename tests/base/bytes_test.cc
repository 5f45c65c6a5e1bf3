// Proves that sizes are read and printed as bytes.h says, and that all other text is a usage error.
#include "penstock/base/bytes.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "penstock/base/status.h"

namespace penstock {
namespace {

TEST(ParseBytes, ReadsEveryUnit) {
  const std::vector<std::pair<std::string, uint64_t>> cases = {
      {"1B", 1},
      {"16MiB", 16 * kMiB},
      {"8309644", 8309644},
      {"3K", 3 * kKiB},
      {"12G", 12 * kGiB},
      {"512KiB", 512 * kKiB},
      {"1.5GiB", 3 * kGiB / 2},
      {"2TiB", 2048 * kGiB},
      {"24GB", 24'000'000'000},
      {"3kB", 3000},
      {"3KB", 3000},
      {"7MB", 7'000'000},
      {"1TB", 1'000'000'000'000},
      {"0.001kB", 1},
      {"16gb", 16'000'000'000},
      {"16g", 16 * kGiB},
      {"2gib", 2 * kGiB},
      {"5KIB", 5 * kKiB},
      {"7b", 7},
  };
  for (const auto& [text, expected] : cases) {
    const auto bytes = ParseBytes(text);
    ASSERT_TRUE(bytes.ok()) << text;
    EXPECT_EQ(*bytes, expected) << text;
  }
}

TEST(ParseBytes, RefusesEverythingElse) {
  for (const std::string text :
       {"",      "0.5",    "MiB",    "-1MiB",  "0MiB",  "0B",    "1 MiB",   " 1MiB",
        "1MiB ", "1mi",    "1e3MB",  "0x10MB", "nanMB", "infMB", "1e999MB", "99999999999999999999TiB",
        "0.1B",  "1MiB\n", "1,5GiB", "+1GiB",  "1GiBB"}) {
    const auto bytes = ParseBytes(text);
    ASSERT_FALSE(bytes.ok()) << text;
    EXPECT_EQ(FaultOf(bytes.status()), Fault::kUsage) << text;
  }
}

TEST(ParseRate, TakesBytesAndNoBits) {
  EXPECT_EQ(*ParseRate("4GB/s"), 4e9);
  EXPECT_EQ(*ParseRate("1GiB/s"), static_cast<double>(kGiB));
  for (const std::string text : {"10Gb/s", "10gb/s", "4GB", "/s", ""}) EXPECT_FALSE(ParseRate(text).ok()) << text;
}

TEST(FormatBytes, ThreeDigits) {
  const std::vector<std::pair<uint64_t, std::string>> cases = {
      {0, "0 B"},
      {1023, "1023 B"},
      {1024, "1.00 KiB"},
      {10234, "9.99 KiB"},
      {10239, "10.0 KiB"},
      {11 * kMiB + 300 * kKiB, "11.3 MiB"},
      {102'350, "100 KiB"},
      {1000 * kKiB, "1000 KiB"},
      {kMiB - 1, "1.00 MiB"},
      {kGiB, "1.00 GiB"},
      {3 * 1024 * kGiB, "3.00 TiB"},
      {~0ull, "16777216 TiB"},
  };
  for (const auto& [bytes, expected] : cases) EXPECT_EQ(FormatBytes(bytes), expected);
}

}  // namespace
}  // namespace penstock
