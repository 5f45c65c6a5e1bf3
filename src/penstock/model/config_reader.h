// Typed, range-checked access to the fields of a JSON object from a model folder.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "penstock/base/json.h"

namespace penstock {

// Reads fields and remembers the first error, so that a family's file lists its fields without a check after each.
// A field that is absent or null takes its default; a required one is an error.
class ConfigReader {
 public:
  // `file_name` is for messages. `object` must outlive the reader.
  ConfigReader(std::string file_name, const json::object& object)
      : file_name_(std::move(file_name)), object_(&object) {}

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

  const absl::Status& status() const { return status_; }
  const std::string& file_name() const { return file_name_; }

 private:
  void FailType(std::string_view field, std::string_view expected, const json::value& found);

  std::string file_name_;
  const json::object* object_;
  absl::Status status_;
};

}  // namespace penstock
