// What tests put between the engine and the machine, and benchmarks between it and the work.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "penstock/engine.h"
#include "penstock/runtime/disk_reader.h"

namespace penstock {

struct EngineHooks {
  // Takes the disk and gives what the engine should take for it.
  std::function<std::unique_ptr<DiskReader>(std::unique_ptr<DiskReader>)> wrap_disk = {};
  // The KV entries of all prompt tokens but the last are zeros that nobody computed: steps of decoding are timed
  // without waiting for long prompts. Answers mean nothing.
  bool empty_prompts = false;
};

absl::StatusOr<std::unique_ptr<Engine>> OpenEngine(const EngineOptions& options, const EngineHooks& hooks);

}  // namespace penstock
