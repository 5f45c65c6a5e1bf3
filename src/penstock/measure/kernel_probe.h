// Measures how fast a processor's kernels are with weights and KV entries of some format, in a model's shape. It needs
// no model's weights, because their values make no difference.
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

// The processor to measure: the host or a device.
struct MeasuredProcessor {
  Memory& memory;        // the memory that it computes from
  int num_workers = 0;   // workers for which its activations hold scratch memory
  int num_threads = 1;   // written into the rates
  int64_t max_rows = 0;  // maximum rows of an expert that are measured
  std::function<absl::StatusOr<std::unique_ptr<Operations>>(const Device::OperationsArgs&)> make_operations;
  std::function<absl::Status()> wait;  // waits until the results are there
};
// Returns the host with the threads of `pool`, which must outlive the result.
MeasuredProcessor MeasureHost(ThreadPool& pool);
// Returns a device, which must outlive the result. REQUIRES: its lanes have been added, and nothing else uses the
// device.
MeasuredProcessor MeasureDevice(Device& device);

struct KernelProbe {
  const ModelConfig& config;  // for the shapes of experts and heads
  const kernels::KernelTable& kernels;
  const MeasuredProcessor& processor;
  uint64_t max_bytes = 0;  // for experts or KV entries; at least one expert or sequence is measured
  double seconds = 0.1;    // for each number of rows, or phase of attention
};

// Returns the rates for 1 to MeasuredProcessor::max_rows rows per expert, after about a second. `slots` holds the
// experts. It may be empty at first, and the next call uses it again. kResources when there is no memory for it.
absl::StatusOr<GemmRates> MeasureGemm(const KernelProbe& probe, WeightFormat weights, ComputeDtype dtype,
                                      ActivationFormat activation_format, Arena& slots);

// Returns the rates of sequences that decode and of prompts. kResources as above.
absl::StatusOr<AttentionRates> MeasureAttention(const KernelProbe& probe, KvFormat kv);

// Returns the seconds in which a thread makes panels of a byte of weights that arrived as rows. `slots` is as for
// MeasureGemm(). 0: they arrive as panels, or have checksums, which made-up numbers do not pass.
absl::StatusOr<double> MeasurePacking(const KernelProbe& probe, const WeightMap& weights, ComputeDtype dtype,
                                      Arena& slots);

// How fast the host's threads are at this moment. Within minutes a virtual machine's CPUs come to lie nearer to each
// other or farther apart, and its memory gets faster or slower.
struct HostPace {
  double call_s = 0;  // seconds of the shortest call, which is mostly the way from thread to thread
  double byte_s = 0;  // seconds for a byte of an expert's weights, with one row

  // Whether rates that were measured at the other pace hold at this one.
  bool IsNear(const HostPace& other) const;
};

// Measures them in about 0.1 s. REQUIRES: the probe is of the host. kResources as above.
absl::StatusOr<HostPace> MeasurePace(const KernelProbe& probe, WeightFormat weights, ComputeDtype dtype,
                                     ActivationFormat activation_format);

// The forms in which a model's rows and dense weights are multiplied.
struct DenseFormats {
  WeightFormat weights = WeightFormat::kF32;  // of attention
  ComputeDtype dtype = ComputeDtype::kF32;
  ActivationFormat activations = ActivationFormat::kInt8;
};

// Returns the seconds of work beside products and attention: what is left of the time of a layer's operations after
// products have been counted as `gemm` says, and each task as `call_s`. All are 0, except for draws, if not even one
// layer fits into max_bytes. REQUIRES: the probe is of the host with this pool. kResources as above.
absl::StatusOr<RowRates> MeasureRows(const KernelProbe& probe, ThreadPool& pool, const DenseFormats& formats,
                                     const GemmRates& gemm, double call_s);

}  // namespace penstock
