// Sizes, also as people write them: `512MiB`, `16GiB`, `24GB`.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace penstock {

inline constexpr uint64_t kKiB = 1ull << 10;
inline constexpr uint64_t kMiB = 1ull << 20;
inline constexpr uint64_t kGiB = 1ull << 30;

inline constexpr uint64_t kPageBytes = 4096;  // memory pages; also the alignment that O_DIRECT asks for
inline constexpr uint64_t kCacheLineBytes = 64;

// Parses a positive number (decimals allowed: `1.5GiB`) with one of the units B, kB, KB, MB, GB, TB (powers
// of 1000) or KiB, MiB, GiB, TiB (powers of 1024). A number without a unit is refused, so that nobody asks
// for 16 bytes.
absl::StatusOr<uint64_t> ParseBytes(std::string_view text);

// Parses a rate such as "4GB/s" and returns it in bytes per second.
absl::StatusOr<double> ParseRate(std::string_view text);

// Formats as "11.3 MiB": three significant digits (four from 1000 to 1023), binary units.
std::string FormatBytes(uint64_t bytes);

}  // namespace penstock
