#include "penstock/model/config_reader.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace penstock {
namespace {

// Returns the value as written in the file, shortened for a message.
std::string Shown(const json::value& value) {
  std::string text = json::serialize(value);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return fmt::format("{} {}", JsonTypeName(value), text);
}

std::optional<int64_t> AsInteger(const json::value& value) {
  if (value.is_int64()) return value.get_int64();
  return std::nullopt;  // also for integers from 2^63 on, which Boost parses as uint64
}

}  // namespace

// Returns nullptr when there is nothing at the path; returns a null value as it is.
const json::value* ConfigReader::FindPath(std::string_view path) const {
  const json::object* object = object_;
  while (true) {
    const size_t dot = path.find('.');
    const std::string_view name = path.substr(0, dot);
    const json::value* value = object->if_contains(json::string_view(name.data(), name.size()));
    if (dot == std::string_view::npos || value == nullptr) return value;
    if (!value->is_object()) return nullptr;
    object = &value->get_object();
    path.remove_prefix(dot + 1);
  }
}

bool ConfigReader::Has(std::string_view field) const { return FindPath(field) != nullptr; }

const json::value* ConfigReader::Find(std::string_view field) const {
  const auto present = [](const json::value* value) { return value != nullptr && !value->is_null(); };
  const json::value* value = FindPath(field);
  for (const FieldName& name : names_) {
    if (present(value)) break;
    if (name.field == field) value = FindPath(name.other);
  }
  return present(value) ? value : nullptr;
}

std::string_view ConfigReader::ShownName(std::string_view field) const {
  if (Has(field)) return field;
  std::string_view shown = field;
  for (const FieldName& name : names_) {
    if (name.field != field) continue;
    if (FindPath(name.other) != nullptr) return name.other;
    if (shown == field) shown = name.other;
  }
  return shown;
}

void ConfigReader::Fail(std::string_view field, std::string_view expected, std::string_view found) {
  if (!status_.ok()) return;
  status_ = ModelError("{}: field '{}': expected {}, found {}", file_name_, ShownName(field), expected, found);
}

void ConfigReader::FailRelation(std::string_view text) {
  if (status_.ok()) status_ = ModelError("{}: {}", file_name_, text);
}

void ConfigReader::FailStatus(const absl::Status& status) {
  if (status_.ok()) status_ = status;
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

const json::value* ConfigReader::WithoutList(std::string_view field, const json::value* value) const {
  const json::array* list = value->if_array();
  const auto may_be_list = [&](const FieldName& name) { return name.field == field && name.may_be_list; };
  if (list == nullptr || list->empty() || std::none_of(names_.begin(), names_.end(), may_be_list)) return value;
  const bool are_equal = std::all_of(list->begin(), list->end(), [&](const json::value& v) { return v == (*list)[0]; });
  return are_equal ? &(*list)[0] : value;
}

int64_t ConfigReader::IntOr(std::string_view field, int64_t default_value, int64_t min, int64_t max) {
  const json::value* value = Find(field);
  if (value == nullptr) return default_value;
  value = WithoutList(field, value);
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
