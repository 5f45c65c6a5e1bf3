// Hooks that tests put between the engine and the machine, and functions that benchmarks need beyond the public API.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/engine.h"
#include "penstock/hardware/hardware.h"
#include "penstock/runtime/disk_reader.h"

namespace penstock {

struct EngineHooks {
  // Takes the disk reader and returns the one that the engine uses in its place.
  std::function<std::unique_ptr<DiskReader>(std::unique_ptr<DiskReader>)> wrap_disk = {};
  // Sets the KV entries of all prompt tokens but the last to zero without computing them. So decoding can be timed
  // without waiting for long prompts. Answers mean nothing.
  bool empty_prompts = false;
  // Replaces sampled tokens by random ones. A model with random weights falls into loops: a sequence chooses the same
  // few experts again and again, and a cache of them looks better than it is.
  bool random_answers = false;
};

// Returns the seconds that each step of a recorded run (EngineOptions::routing_path) would take with this engine's
// policy on `hardware`; see simulate/simulated_run.h.
absl::StatusOr<std::vector<double>> SimulateTrace(const Engine& engine, const Hardware& hardware,
                                                  const std::string& trace_path);

absl::StatusOr<std::unique_ptr<Engine>> OpenEngine(const EngineOptions& options, const EngineHooks& hooks);

}  // namespace penstock
