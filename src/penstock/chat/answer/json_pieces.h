// Finds where JSON values begin and end in a text, so that a piece can be kept as it was written.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace penstock {

struct JsonExtent {
  enum class Kind : uint8_t { kWhole, kCutOff, kBroken } kind = Kind::kBroken;
  size_t num_bytes = 0;  // if whole
};

// Finds the end of the object or list with which `text` begins. A whole one need not be valid: only its brackets match
// in number. It is broken if a character comes that JSON does not have there.
JsonExtent FindJsonEnd(std::string_view text);

struct JsonMember {
  std::string_view key;  // with its quotes; empty in a list
  std::string_view value;
};

// Returns the members of an object or a list as they are written. REQUIRES: ParseJson accepts `text`, which has no
// space around it.
std::vector<JsonMember> SplitJson(std::string_view text);

}  // namespace penstock
