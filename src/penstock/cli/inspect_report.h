// The report of penstock inspect, as JSON and as a table.
#pragma once

#include <string>

#include "penstock/base/json.h"
#include "penstock/plan/described_model.h"

namespace penstock::cli {

// Reports family, dims, bytes by kind of weight and by layer with their formats, tokenizer and template. Also reports
// which parts of the model would lie in which memory, for budgets of round sizes. A model from a config alone has
// no format, files, tokenizer or template.
json::object InspectReport(const DescribedModel& model);

std::string InspectTable(const json::object& report);

}  // namespace penstock::cli
