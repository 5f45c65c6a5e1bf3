// In which formats a model computes.
#pragma once

#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "penstock/engine.h"
#include "penstock/hardware/hardware.h"
#include "penstock/model/cost.h"
#include "penstock/model/weight_map.h"
#include "penstock/ops/activations.h"

namespace penstock {

// Fixed when a model is opened.
struct Formats {
  ComputeDtype dtype = ComputeDtype::kF32;
  RowFormats rows;
  KvFormat kv = KvFormat::kF32;
};

// Rows of the tables of formats that people choose from (include/penstock/formats.h).
struct ComputeDtypeTraits {
  ComputeDtype value;
  std::string_view name;     // "f32"
  std::string_view summary;  // one line for people
};
struct KvFormatTraits {
  KvFormat value;
  std::string_view name;     // "f32"
  std::string_view summary;  // one line for people
};
std::span<const ComputeDtypeTraits> ComputeDtypes();
std::span<const KvFormatTraits> KvFormats();

// kUsage for a packed store that cannot be rounded any more.
absl::StatusOr<Formats> ChooseFormats(const EngineOptions& options, const WeightMap& map);

// kResources when GPUs do not compute this attention, or some matrix is in a format that they do not multiply.
absl::Status CheckComputedOnGpus(std::string_view device, const ModelConfig& config, const WeightMap& map,
                                 ComputeDtype dtype);

// "f32", "bf16", or how the weights are quantised.
std::string_view ComputationName(const Formats& formats, const WeightMap& map);

// How the matrices are stored: "bf16", or how experts and attention are quantised: "int8".
std::string_view StoredFormatName(const WeightMap& map);

// In which the rows of a GEMM are multiplied.
Arithmetic RowArithmetic(kernels::RowFormat format);

// How weights and KV entries lie in memory.
ModelFormats ModelFormatsOf(const WeightMap& map, const Formats& formats);

}  // namespace penstock
