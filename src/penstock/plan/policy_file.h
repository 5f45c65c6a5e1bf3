// The --policy file: a JSON object that sets some of the engine's choices.
//
//   {"schedule": "klotski", "eviction": "static", "batch_size": 64, "micro_batch_size": 32, "prefill_chunk": 256,
//    "streaming_slots": 8, "hot_experts": 2, "path_length": 1, "correlation_table": "warm.bin", "multi_batch": true,
//    "hot_prefetch": true, "reorder": true, "kv_tier": "dram", "disk_window": 2, "memory_bytes": 17179869184,
//    "context_length": 2048, "planned_positions": 512, "kv_dtype": "int8"}
//
// Every key may be absent. Ranges are checked where the choices are used.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "penstock/base/json.h"
#include "penstock/engine.h"

namespace penstock {

// Copies the choices of `text` into `options`. kUsage, naming `name` and the key, when something is wrong.
absl::Status ApplyPolicy(std::string_view text, const std::string& name, EngineOptions& options);

// Does the same with the text of a file.
absl::Status ApplyPolicyFile(const std::string& path, EngineOptions& options);

// Returns the object of a policy file that makes these choices. It holds only those that differ from the defaults.
json::object PolicyJson(const EngineOptions& options);

}  // namespace penstock
