// Tables of choices: one row for each schedule, predictor, eviction policy, rule ... Names are parsed and listed, and
// documented, from these rows.
//
// A row is a struct with the members `value` (an enumerator, which is the row's place in its table), `name` and
// `summary` (one line for people).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "penstock/base/status.h"

namespace penstock {

// Returns the names of the rows for which `fits` is true: "lru, lfu, fifo".
template <class Row, class Fits>
std::string ChoiceNames(std::span<const Row> rows, const Fits& fits) {
  std::string names;
  for (const Row& row : rows) {
    if (fits(row)) names += (names.empty() ? "" : ", ") + std::string(row.name);
  }
  return names;
}
template <class Row>
std::string ChoiceNames(std::span<const Row> rows) {
  return ChoiceNames(rows, [](const Row&) { return true; });
}

// Returns the row called `name`, or null if there is none.
template <class Row>
const Row* FindChoice(std::string_view name, std::span<const Row> rows) {
  for (const Row& row : rows) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

// Returns the choice called `name`, or nothing for "auto". An unknown name is kUsage; the message lists the names.
template <class Row>
auto ParseChoice(std::string_view what, std::string_view name, std::span<const Row> rows)
    -> absl::StatusOr<std::optional<decltype(Row::value)>> {
  if (name == "auto") return std::nullopt;
  if (const Row* row = FindChoice(name, rows)) return row->value;
  return UsageError("{} '{}' is unknown: expected auto, {}", what, name, ChoiceNames(rows));
}

// Returns the name of a choice; "auto" if there is none.
template <class Row, class Value>
std::string_view ChoiceName(const std::optional<Value>& value, std::span<const Row> rows) {
  return value.has_value() ? rows[static_cast<size_t>(*value)].name : "auto";
}

// Returns a line for each row: its name and what it is.
template <class Row>
std::string ChoiceList(std::span<const Row> rows) {
  size_t width = 0;
  for (const Row& row : rows) width = row.name.size() > width ? row.name.size() : width;
  std::string list;
  for (const Row& row : rows) {
    list += std::string(row.name) + std::string(width - row.name.size() + 2, ' ') + std::string(row.summary) + "\n";
  }
  return list;
}

}  // namespace penstock
