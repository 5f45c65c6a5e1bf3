// How fast this machine's kernels are with weights and KV entries in some format, in a model's shape. The weights are
// no model's: what they hold makes no difference.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "penstock/base/thread_pool.h"
#include "penstock/hardware/hardware.h"
#include "penstock/kernels/kernels.h"
#include "penstock/memory/weights.h"
#include "penstock/model/model_config.h"
#include "penstock/tensor/kv_block.h"

namespace penstock {

struct KernelProbe {
  const ModelConfig& config;  // for the shapes of experts and heads
  const kernels::KernelTable& kernels;
  ThreadPool& pool;
  uint64_t most_bytes = 0;  // of memory; one expert more when that is too little
  double seconds = 0.1;     // for each number of rows
};

// By rows per expert, 1 to 256; about a second. kResources when there is no memory for it.
absl::StatusOr<GemmRates> MeasureGemm(const KernelProbe& probe, WeightFormat weights, ComputeDtype dtype);

// Of sequences that decode. kResources as above.
absl::StatusOr<AttentionRates> MeasureAttention(const KernelProbe& probe, KvFormat kv);

}  // namespace penstock
