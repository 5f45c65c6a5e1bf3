#include "penstock/model/config_reader.h"

#include <cmath>
#include <utility>

namespace penstock {
namespace {

// The value as it stands in the file, short enough for a message.
std::string Shown(const json::value& value) {
  std::string text = json::serialize(value);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return fmt::format("{} {}", JsonTypeName(value), text);
}

std::optional<int64_t> AsInteger(const json::value& value) {
  if (value.is_int64()) return value.get_int64();
  if (value.is_uint64()) return std::nullopt;  // above 2^63
  return std::nullopt;
}

}  // namespace

bool ConfigReader::Has(std::string_view field) const {
  return object_->contains(json::string_view(field.data(), field.size()));
}

const json::value* ConfigReader::Find(std::string_view field) const {
  const json::value* value = object_->if_contains(json::string_view(field.data(), field.size()));
  return value == nullptr || value->is_null() ? nullptr : value;
}

void ConfigReader::Fail(std::string_view field, std::string_view expected, std::string_view found) {
  if (!status_.ok()) return;
  status_ = ModelError("{}: field '{}': expected {}, found {}", file_name_, field, expected, found);
}

void ConfigReader::FailRelation(std::string_view text) {
  if (status_.ok()) status_ = ModelError("{}: {}", file_name_, text);
}

void ConfigReader::FailType(std::string_view field, std::string_view expected, const json::value& found) {
  Fail(field, expected, Shown(found));
}

int64_t ConfigReader::Int(std::string_view field, int64_t min, int64_t max) {
  if (Find(field) == nullptr) {
    Fail(field, fmt::format("an integer from {} to {}", min, max), "nothing");
    return min;
  }
  return IntOr(field, min, min, max);
}

int64_t ConfigReader::IntOr(std::string_view field, int64_t default_value, int64_t min, int64_t max) {
  const json::value* value = Find(field);
  if (value == nullptr) return default_value;
  const std::optional<int64_t> number = AsInteger(*value);
  if (!number.has_value() || *number < min || *number > max) {
    FailType(field, fmt::format("an integer from {} to {}", min, max), *value);
    return default_value;
  }
  return *number;
}

double ConfigReader::NumberOr(std::string_view field, double default_value, double min, double max) {
  const json::value* value = Find(field);
  if (value == nullptr) return default_value;
  double number = std::nan("");
  if (value->is_int64()) number = static_cast<double>(value->get_int64());
  if (value->is_uint64()) number = static_cast<double>(value->get_uint64());
  if (value->is_double()) number = value->get_double();
  if (!(number >= min && number <= max)) {
    FailType(field, fmt::format("a number from {} to {}", min, max), *value);
    return default_value;
  }
  return number;
}

bool ConfigReader::BoolOr(std::string_view field, bool default_value) {
  const json::value* value = Find(field);
  if (value == nullptr) return default_value;
  if (!value->is_bool()) {
    FailType(field, "true or false", *value);
    return default_value;
  }
  return value->get_bool();
}

std::string ConfigReader::StringOr(std::string_view field, std::string default_value) {
  const json::value* value = Find(field);
  if (value == nullptr) return default_value;
  if (!value->is_string()) {
    FailType(field, "a string", *value);
    return default_value;
  }
  return std::string(value->get_string());
}

}  // namespace penstock
