// Choices by their names, as tests list them; nothing for "auto".
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "penstock/base/choices.h"
#include "penstock/plan/formats.h"
#include "penstock/plan/policy.h"
#include "penstock/routing/expert_predictor.h"
#include "penstock/schedule/schedule.h"

namespace penstock {

inline std::optional<ScheduleKind> ScheduleCalled(std::string_view name) {
  return ParseChoice("schedule", name, Schedules()).value();
}
inline std::optional<ComputeDtype> DtypeCalled(std::string_view name) {
  return ParseChoice("dtype", name, ComputeDtypes()).value();
}
inline std::optional<KvFormat> KvFormatCalled(std::string_view name) {
  return ParseChoice("kv-dtype", name, KvFormats()).value();
}

// Every choice of a table, and nothing, which leaves the choice to the engine.
template <class Row>
std::vector<std::optional<decltype(Row::value)>> ChoicesAndNone(std::span<const Row> rows) {
  std::vector<std::optional<decltype(Row::value)>> choices = {std::nullopt};
  for (const Row& row : rows) choices.emplace_back(row.value);
  return choices;
}

}  // namespace penstock
