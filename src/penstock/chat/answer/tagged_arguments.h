// Arguments that a model writes as tags: their marks, and how they become JSON with the types of the tool's schema.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "penstock/base/json.h"
#include "penstock/chat/answer/answer_format.h"

namespace penstock {

// JSON's types as bits.
using JsonTypes = uint32_t;
inline constexpr JsonTypes kNullType = 1 << 0, kBooleanType = 1 << 1, kIntegerType = 1 << 2, kNumberType = 1 << 3,
                           kStringType = 1 << 4, kArrayType = 1 << 5, kObjectType = 1 << 6;

// Returns the types that a schema may allow, or 0 if they are unknown. `root` is the schema to which references refer.
JsonTypes TypesOf(const json::value& schema, const json::object& root);

// A request's tools and the types of their parameters: 16 bytes for each parameter, however large its schema is.
class ToolTypes {
 public:
  ToolTypes() = default;
  explicit ToolTypes(const json::value& tools);

  // Returns whether a parameter may have a value's type. One without a schema may be anything but a string.
  bool Allows(std::string_view tool, std::string_view parameter, const json::value& value) const;
  bool IsBoolean(std::string_view tool, std::string_view parameter) const;
  bool HasTool(std::string_view name) const;
  uint64_t num_bytes() const { return types_.size() * sizeof(types_[0]) + tools_.size() * sizeof(tools_[0]); }

 private:
  // Returns the bits of the types; 0 if they are unknown.
  JsonTypes Find(std::string_view tool, std::string_view parameter) const;

  std::vector<std::pair<uint64_t, JsonTypes>> types_;  // a hash of tool and parameter, and the bits; sorted
  std::vector<uint64_t> tools_;                        // hashes of their names
};

struct TaggedArgument {
  // The tag may say that the value is a text, or that it is JSON.
  enum class Kind : uint8_t { kUnknown, kText, kJson };

  std::string key, text;
  Kind kind = Kind::kUnknown;
};

// Returns {"key": value, ...}. A value of unknown kind that is JSON of a type that the schema allows stays as it is
// written, and so does JSON; any other value becomes a string. The last of equal keys counts.
std::string JsonOfTags(const ToolTypes& types, std::string_view tool, const std::vector<TaggedArgument>& arguments);

// How a family writes arguments as tags.
struct TagMarks {
  std::string before_key, behind_key, before_text, before_json, behind_value, behind_argument;
};

TagMarks TagsOf(const AnswerFormat& format);

// Returns a pattern of the texts that JsonOfTags() takes for JSON of one of these types.
std::string JsonPattern(JsonTypes types);

}  // namespace penstock
