// Measures this machine as a Hardware: its memory and arithmetic, its kernels with weights of some format, and the
// disk. Results are kept, so that they need not be measured again.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "penstock/engine.h"
#include "penstock/hardware/hardware.h"
#include "penstock/plan/described_model.h"

namespace penstock {

struct ProbeTarget {
  EngineOptions options = {};             // threads, dtype, device, and how disks are read
  const DescribedModel* model = nullptr;  // measures only its formats and shapes; null: all formats, in a usual shape
  // The folder of a nameless file that measures the disk when no model's files can be read. Empty: the disk is left
  // out.
  std::string disk_dir = ".";
  double seconds = 20;     // approximate; kernels in all formats take ten more
  uint64_t max_bytes = 0;  // of memory to measure with; 0: a share of what is free. Not for the GPU's own memory
};

// Measures the machine. With device "auto", "gpu" or "cuda..." it also measures the GPU, if there is one: a processor
// "gpu", a tier "device" and the links to it. Returns kResources when there is no memory to measure with, and kIo when
// a model's files cannot be read. A GPU or other disk that cannot be measured is left out, with a warning.
absl::StatusOr<Hardware> Probe(const ProbeTarget& target);

// Measures the machine and keeps the result for CachedProbe().
absl::StatusOr<Hardware> ProbeAndKeep(const ProbeTarget& target);

// Returns what was found last on this machine for such a target; nothing if it was not measured.
absl::StatusOr<std::optional<Hardware>> KeptProbe(const ProbeTarget& target);

// Returns what was found earlier on this machine for such a target, or else measures it now. A look of 0.1 s finds the
// CPU's pace; its kernels are measured for each pace. If the disk of a model's files was measured more than two minutes
// ago, it is measured again. Results are kept in $XDG_CACHE_HOME/penstock or ~/.cache/penstock; without such a folder
// everything is measured every time.
absl::StatusOr<Hardware> CachedProbe(const ProbeTarget& target);

}  // namespace penstock
