// Chooses the formats in which a model computes.
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

// The formats of an engine, fixed when its model is opened.
struct Formats {
  ComputeDtype dtype = ComputeDtype::kF32;
  ActivationFormat activations = ActivationFormat::kInt8;
  RowFormats rows;
  KvFormat kv = KvFormat::kF32;
  CommFormat comm = CommFormat::kF32;
};

// Rows of the tables of formats that people choose from (include/penstock/formats.h).
struct ComputeDtypeTraits {
  ComputeDtype value;
  std::string_view name;     // "f32"
  std::string_view summary;  // one line for people
};
struct ActivationFormatTraits {
  ActivationFormat value;
  std::string_view name;     // "int8"
  std::string_view summary;  // one line for people
};
struct KvFormatTraits {
  KvFormat value;
  std::string_view name;     // "f32"
  std::string_view summary;  // one line for people
};
struct CommFormatTraits {
  CommFormat value;
  std::string_view name;     // "f32"
  std::string_view summary;  // one line for people
};
std::span<const ComputeDtypeTraits> ComputeDtypes();
std::span<const ActivationFormatTraits> ActivationFormats();
std::span<const KvFormatTraits> KvFormats();
std::span<const CommFormatTraits> CommFormats();

// Returns the formats that the options ask for; f32 by default. kUsage when a packed store would have to be rounded.
absl::StatusOr<Formats> ChooseFormats(const EngineOptions& options, const WeightMap& map);

// Returns kResources when GPUs cannot compute the model's attention, or cannot multiply the format of some matrix.
absl::Status CheckComputedOnGpus(std::string_view device, const ModelConfig& config, const WeightMap& map,
                                 ComputeDtype dtype);

// Returns "f32", "bf16", or the format of weights that are multiplied by codes ("int8", "q4_k"; "mixed": several of
// int8 and hqq).
std::string_view ComputationName(const Formats& formats, const WeightMap& map);

// Returns the format in which the matrices of attention are stored ("bf16", "int8"; "mixed": several of int8 and hqq).
std::string_view StoredFormatName(const WeightMap& map);

// Returns the arithmetic in which a GEMM multiplies rows of this format.
Arithmetic RowArithmetic(kernels::RowFormat format);

// Returns the formats of weights and KV entries in memory.
ModelFormats ModelFormatsOf(const WeightMap& map, const Formats& formats);

}  // namespace penstock
