// Reads the fields of a JSON object from a model folder, checking types and ranges.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "penstock/base/json.h"

namespace penstock {

// Another name for a field in a family's config.json; `other` may be a path (`ffn_config.moe_top_k`).
struct FieldName {
  std::string_view field;
  std::string_view other;
  bool may_be_list = false;  // an integer, or a list that repeats it for each layer
};

// Reads fields and remembers the first error, so that a family's file lists its fields without a check after each. A
// field that is absent or null takes its default, or is an error if it is required.
class ConfigReader {
 public:
  // `file_name` is used in messages. `object` must outlive the reader.
  ConfigReader(std::string file_name, const json::object& object)
      : file_name_(std::move(file_name)), object_(&object) {}

  // From now on, looks up missing fields under their other names, in this order.
  void SetNames(std::span<const FieldName> names) { names_ = names; }

  int64_t Int(std::string_view field, int64_t min, int64_t max);
  int64_t IntOr(std::string_view field, int64_t default_value, int64_t min, int64_t max);
  double NumberOr(std::string_view field, double default_value, double min, double max);
  bool BoolOr(std::string_view field, bool default_value);
  std::string StringOr(std::string_view field, std::string default_value);

  bool Has(std::string_view field) const;  // true for a null, too
  // Returns nullptr when the field is absent or null.
  const json::value* Find(std::string_view field) const;

  // Records an error about `field` unless an earlier one was recorded.
  void Fail(std::string_view field, std::string_view expected, std::string_view found);
  void FailRelation(std::string_view text);
  // Records an error from the reader of another part of the same file.
  void FailStatus(const absl::Status& status);

  const absl::Status& status() const { return status_; }
  const std::string& file_name() const { return file_name_; }

 private:
  // Returns the name of a field in the file, for messages.
  std::string_view ShownName(std::string_view field) const;
  const json::value* FindPath(std::string_view path) const;
  // Returns the integer that a list repeats, or the value itself.
  const json::value* WithoutList(std::string_view field, const json::value* value) const;
  void FailType(std::string_view field, std::string_view expected, const json::value& found);

  std::string file_name_;
  const json::object* object_;
  std::span<const FieldName> names_;
  absl::Status status_;
};

}  // namespace penstock
