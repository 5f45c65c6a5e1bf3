// What tests put between the engine and the machine, and what benchmarks ask of it beyond the public API.
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
  // Takes the disk and gives what the engine should take for it.
  std::function<std::unique_ptr<DiskReader>(std::unique_ptr<DiskReader>)> wrap_disk = {};
  // The KV entries of all prompt tokens but the last are zeros that nobody computed: steps of decoding are timed
  // without waiting for long prompts. Answers mean nothing.
  bool empty_prompts = false;
  // Tokens of the vocabulary at random instead of those that were sampled. A random model falls into loops, in which
  // one sequence chooses the same few experts again and again, and a cache of them looks better than it is.
  bool random_answers = false;
};

// Seconds that each step of a recorded run (EngineOptions::routing_path) would take with this engine's policy on
// `hardware`; see simulation.h.
absl::StatusOr<std::vector<double>> SimulateTrace(const Engine& engine, const Hardware& hardware,
                                                  const std::string& trace_path);

absl::StatusOr<std::unique_ptr<Engine>> OpenEngine(const EngineOptions& options, const EngineHooks& hooks);

}  // namespace penstock
