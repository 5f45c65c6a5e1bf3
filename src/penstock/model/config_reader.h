// Typed, range-checked access to the fields of a JSON object from a model folder.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "penstock/base/json.h"

namespace penstock {

// Another name that a family's config.json has for a field; `other` may be a path (`ffn_config.moe_top_k`).
struct FieldName {
  std::string_view field;
  std::string_view other;
  bool may_be_list = false;  // an integer, or a list that says the same one for each layer
};

// Reads fields and remembers the first error, so that a family's file lists its fields without a check after each.
// A field that is absent or null takes its default; a required one is an error.
class ConfigReader {
 public:
  // `file_name` is for messages. `object` must outlive the reader.
  ConfigReader(std::string file_name, const json::object& object)
      : file_name_(std::move(file_name)), object_(&object) {}

  // Fields that are not there are looked for by their other names from now on, in this order.
  void SetNames(std::span<const FieldName> names) { names_ = names; }

  int64_t Int(std::string_view field, int64_t min, int64_t max);
  int64_t IntOr(std::string_view field, int64_t default_value, int64_t min, int64_t max);
  double NumberOr(std::string_view field, double default_value, double min, double max);
  bool BoolOr(std::string_view field, bool default_value);
  std::string StringOr(std::string_view field, std::string default_value);

  bool Has(std::string_view field) const;  // also when it is null
  // nullptr when the field is absent or null.
  const json::value* Find(std::string_view field) const;

  // Records an error about `field` unless one was recorded before.
  void Fail(std::string_view field, std::string_view expected, std::string_view found);
  void FailRelation(std::string_view text);
  // An error of a reader of a part of the same file.
  void FailStatus(const absl::Status& status);

  const absl::Status& status() const { return status_; }
  const std::string& file_name() const { return file_name_; }

 private:
  // What the file calls a field, for messages.
  std::string_view ShownName(std::string_view field) const;
  const json::value* FindPath(std::string_view path) const;
  // The integer that a list stands for, or the value itself.
  const json::value* WithoutList(std::string_view field, const json::value* value) const;
  void FailType(std::string_view field, std::string_view expected, const json::value& found);

  std::string file_name_;
  const json::object* object_;
  std::span<const FieldName> names_;
  absl::Status status_;
};

}  // namespace penstock
