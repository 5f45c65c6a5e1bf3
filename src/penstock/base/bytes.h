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

// Parses a positive number (decimals allowed: `1.5GiB`) with one of the units kB, MB, GB, TB (powers of 1000) or KiB,
// MiB, GiB, TiB (powers of 1024; also K, M, G, T), in any case. A number without a unit, or with B, counts bytes.
absl::StatusOr<uint64_t> ParseBytes(std::string_view text);

// Parses a rate such as "4GB/s" and returns it in bytes per second. "4Gb/s" is refused: it may mean bits.
absl::StatusOr<double> ParseRate(std::string_view text);

// Formats as "11.3 MiB": three significant digits (four from 1000 to 1023), binary units.
std::string FormatBytes(uint64_t bytes);

}  // namespace penstock
