// What this machine does, as a Hardware: its memory and its arithmetic, its kernels with weights in some format, and
// the disk. Measured, and kept so that it need not be measured again.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "penstock/engine.h"
#include "penstock/hardware/hardware.h"
#include "penstock/plan/described_model.h"

namespace penstock {

struct ProbeTarget {
  EngineOptions options = {};             // threads, dtype, device, and how disks are read
  const DescribedModel* model = nullptr;  // its formats and shapes alone; null: all formats, experts of a usual shape
  // Where the disk is measured with a nameless file when there is no model whose files could be read; empty: it is not.
  std::string disk_dir = ".";
  double seconds = 20;  // about so long; kernels in all formats take ten more
};

// With device "auto", "gpu" or "cuda..." also a GPU, where there is one: a processor "gpu", a tier "device" and the
// links to it. kResources when there is no memory to measure with, kIo when a model's files cannot be read. A disk that
// cannot be measured is left out, with a warning.
absl::StatusOr<Hardware> Probe(const ProbeTarget& target);

// What Probe() found earlier on this machine for such a target, or finds now; the disk of a model's files is measured
// again when that was more than ten minutes ago. Kept in $XDG_CACHE_HOME/penstock or
// ~/.cache/penstock; where there is no such folder it is measured every time.
absl::StatusOr<Hardware> CachedProbe(const ProbeTarget& target);

// Measures, and keeps it for CachedProbe().
absl::StatusOr<Hardware> ProbeAndKeep(const ProbeTarget& target);

}  // namespace penstock
