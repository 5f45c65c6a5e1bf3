// Precompiled character maps: the replacements of SentencePiece's normalizers (nmt_nfkc and others), stored as a trie
// of byte strings and the texts that replace them.
//
// Format: the trie's size in bytes (little-endian u32), the trie (a double array of u32 units), then the replacements,
// each ended by a zero byte.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace penstock {

// A replacement has at most this many bytes; NFKC's longest has 33 (U+FDFA).
inline constexpr size_t kMaxReplacementBytes = 64;

class Charsmap {
 public:
  struct Match {
    size_t num_bytes = 0;  // 0: nothing is replaced here
    std::string_view to;
  };

  // Returns kModel, naming `where`, if the map is truncated or a replacement is too long, unterminated or not UTF-8.
  static absl::StatusOr<Charsmap> Parse(std::string_view bytes, std::string_view where);

  // Return the longest and the shortest prefix of `text` that the map replaces.
  Match Longest(std::string_view text) const { return Find(text, /*shortest=*/false); }
  Match Shortest(std::string_view text) const { return Find(text, /*shortest=*/true); }

  uint64_t memory_bytes() const { return units_.capacity() * sizeof(uint32_t) + replacements_.capacity(); }

 private:
  Match Find(std::string_view text, bool shortest) const;

  std::vector<uint32_t> units_;
  std::string replacements_;
};

}  // namespace penstock
