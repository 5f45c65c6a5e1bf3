// A tiny precompiled character map: A becomes a, AB becomes <ab>.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace penstock::testing_tokenizers {

inline std::string SmallCharsmap() {
  std::vector<uint32_t> units(512, 0);
  // A unit holds its label, where its children lie (offset << 10), and 0x100 if one of them, at offset 0, is a value.
  const uint32_t root_offset = 0x100, a_offset = 0x80, ab_offset = 0x10;
  units[0] = root_offset << 10;
  const uint32_t a = root_offset ^ 'A';
  units[a] = a_offset << 10 | 0x100 | 'A';
  units[a ^ a_offset] = 0x80000000u | 0;  // "a"
  const uint32_t ab = a ^ a_offset ^ 'B';
  units[ab] = ab_offset << 10 | 0x100 | 'B';
  units[ab ^ ab_offset] = 0x80000000u | 2;  // "<ab>"
  std::string bytes;
  const auto append = [&bytes](uint32_t value) {
    for (int shift = 0; shift < 32; shift += 8) bytes.push_back(static_cast<char>(value >> shift));
  };
  append(static_cast<uint32_t>(units.size() * 4));
  for (const uint32_t unit : units) append(unit);
  bytes += std::string("a\0<ab>\0", 7);
  return bytes;
}

}  // namespace penstock::testing_tokenizers
