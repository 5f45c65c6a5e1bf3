// How fast a processor's kernels are with weights and KV entries in some format, in a model's shape. The weights are no
// model's: what they hold makes no difference.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "penstock/base/thread_pool.h"
#include "penstock/device/device.h"
#include "penstock/hardware/hardware.h"
#include "penstock/memory/weights.h"
#include "penstock/model/model_config.h"
#include "penstock/tensor/kv_block.h"

namespace penstock {

// The host, or a device.
struct MeasuredProcessor {
  Memory& memory;       // that it computes from
  int num_workers = 0;  // whose scratch memory its activations have
  int num_threads = 1;  // as the rates name it
  std::function<absl::StatusOr<std::unique_ptr<Operations>>(const Device::OperationsArgs&)> make_operations;
  std::function<absl::Status()> wait;  // until what was computed is there
};
// `pool` outlives it.
MeasuredProcessor MeasureHost(ThreadPool& pool);
// REQUIRES: its lanes have been added, and nobody uses them.
MeasuredProcessor MeasureDevice(Device& device);

struct KernelProbe {
  const ModelConfig& config;  // for the shapes of experts and heads
  const kernels::KernelTable& kernels;
  const MeasuredProcessor& processor;
  uint64_t most_bytes = 0;  // of memory; one expert more when that is too little
  double seconds = 0.1;     // for each number of rows
};

// By rows per expert, 1 to 256; about a second. kResources when there is no memory for it.
absl::StatusOr<GemmRates> MeasureGemm(const KernelProbe& probe, WeightFormat weights, ComputeDtype dtype);

// Of sequences that decode. kResources as above.
absl::StatusOr<AttentionRates> MeasureAttention(const KernelProbe& probe, KvFormat kv);

}  // namespace penstock
