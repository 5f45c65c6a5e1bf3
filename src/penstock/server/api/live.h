// The numbers of the live page, as JSON.
#pragma once

#include "penstock/base/json.h"
#include "penstock/engine.h"
#include "penstock/server/engine_service.h"

namespace penstock::server {

// Totals since the engine was opened; a viewer shows the differences between two looks. Experts have a letter each,
// layer after layer: d on disk, a arriving, m in DRAM, p pinned in DRAM, g on the device.
json::object LiveObject(const LiveView& view, const EngineSnapshot& engine, const MemoryPlan& plan);

}  // namespace penstock::server
