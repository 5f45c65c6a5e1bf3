// What penstock inspect says of a model, as JSON and as a table.
#pragma once

#include <string>

#include "penstock/base/json.h"
#include "penstock/plan/described_model.h"

namespace penstock::cli {

// Family, dims, bytes by kind of weight and by layer with their formats, tokenizer, template, and what of the model
// would lie where with budgets of round sizes. `model`: of a folder.
json::object InspectReport(const DescribedModel& model);

std::string InspectTable(const json::object& report);

}  // namespace penstock::cli
