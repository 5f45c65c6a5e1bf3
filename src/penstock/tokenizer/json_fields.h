// Reads the parts of tokenizer.json; its errors name the part and the field.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "penstock/base/json.h"

namespace penstock {

// The most parts in a chain of normalizers, pre-tokenizers or decoders.
inline constexpr size_t kMaxComponents = 32;
// The most bytes in a string of a part ("content", "prepend", "pattern" ...).
inline constexpr size_t kMaxComponentTextBytes = 64;
// The most bytes in a split pattern. The longest published one has 900.
inline constexpr size_t kMaxPatternBytes = 4096;
// The largest factor by which a normalizer may lengthen a text.
inline constexpr size_t kMaxNormalizedGrowth = 64;

// A JSON object, together with its place in the file (`where`) for error messages.
class JsonFields {
 public:
  JsonFields(const json::object& object, std::string where) : object_(&object), where_(std::move(where)) {}

  // Returns nullptr if the field is absent or null.
  const json::value* Find(std::string_view key) const;

  absl::StatusOr<std::string> String(std::string_view key) const;
  absl::StatusOr<bool> Bool(std::string_view key, bool if_absent) const;
  absl::StatusOr<const json::array*> Array(std::string_view key) const;
  absl::StatusOr<const json::object*> Object(std::string_view key) const;
  absl::StatusOr<int64_t> Integer(std::string_view key) const;

  const std::string& where() const { return where_; }

 private:
  absl::StatusOr<const json::value*> Require(std::string_view key, std::string_view type) const;

  const json::object* object_;
  std::string where_;
};

// An object with a "type": a normalizer, pre-tokenizer, post-processor or decoder.
class Component : public JsonFields {
 public:
  static absl::StatusOr<Component> From(const json::value& value, std::string_view where);

  std::string_view type() const { return type_; }
  // Returns the text of a pattern {"String": text} of 1 to kMaxComponentTextBytes bytes. Refuses {"Regex": ...} by
  // name.
  absl::StatusOr<std::string> LiteralPattern(std::string_view key) const;
  absl::Status NotImplemented() const;

 private:
  Component(const json::object& object, std::string where, std::string type)
      : JsonFields(object, std::move(where)), type_(std::move(type)) {}

  std::string type_;
};

}  // namespace penstock
