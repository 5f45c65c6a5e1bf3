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

// Finds the end of an object or a list that comes in pieces. Only its brackets are counted, so a whole one need not be
// valid JSON. A "<" or "`" outside of strings breaks it: marks behind a call begin so.
class JsonScanner {
 public:
  // `depth` is the number of brackets that are open before the text.
  explicit JsonScanner(int64_t depth = 0) : depth_(depth) {}

  // Takes the next piece, and returns how many of its bytes belong to the object or list. Until it is whole or broken,
  // these are all. REQUIRES: kCutOff.
  size_t Take(std::string_view piece);
  JsonExtent::Kind kind() const { return kind_; }

 private:
  int64_t depth_;
  bool in_string_ = false;
  bool is_escaped_ = false;  // a backslash stands before the next character
  JsonExtent::Kind kind_ = JsonExtent::Kind::kCutOff;
};

// Finds the end of the object or list with which `text` begins.
JsonExtent FindJsonEnd(std::string_view text);

struct JsonMember {
  std::string_view key;  // with its quotes; empty in a list
  std::string_view value;
};

// Returns the members of an object or a list as they are written. REQUIRES: `text` begins with its bracket. Where the
// text is cut off, the last member may be, too. Of a text that is no JSON the members are any pieces.
std::vector<JsonMember> SplitJson(std::string_view text);

}  // namespace penstock
