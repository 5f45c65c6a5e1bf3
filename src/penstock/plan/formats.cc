#include "penstock/plan/formats.h"

#include <string>

#include "penstock/base/status.h"
#include "penstock/model/family.h"

namespace penstock {
namespace {

constexpr ComputeDtypeTraits kComputeDtypes[] = {
    {ComputeDtype::kF32, "f32", "f32 arithmetic on the weights as they are stored"},
    {ComputeDtype::kBF16, "bf16", "weights and inputs of the FFNs rounded to bf16: faster with AVX512-BF16"},
};
constexpr ActivationFormatTraits kActivationFormats[] = {
    {ActivationFormat::kF32, "f32", "GGUF and MXFP4 weights are multiplied as floats, exactly as the file means them"},
    {ActivationFormat::kInt8, "int8", "their codes are multiplied by codes of the activations: several times as fast"},
};
constexpr KvFormatTraits kKvFormats[] = {
    {KvFormat::kF32, "f32", "exact"},
    {KvFormat::kBF16, "bf16", "half the memory per token"},
    {KvFormat::kInt8, "int8", "about a quarter of the memory per token"},
};

constexpr CommFormatTraits kCommFormats[] = {
    {CommFormat::kF32, "f32", "exact"},
    {CommFormat::kBF16, "bf16", "outputs of experts rounded: half the bytes between ranks"},
    {CommFormat::kInt8, "int8", "outputs of experts rounded, each with its own scale: about a quarter of the bytes"},
};

// Returns the first matrix for which fits(tensor) is true, except routers; nullptr when there is none.
template <typename Fits>
const TensorInfo* FindMatrix(const WeightMap& map, const Fits& fits) {
  const TensorInfo* found = fits(*map.lm_head) ? map.lm_head : nullptr;
  const auto look = [&](const TensorInfo& tensor) {
    if (found == nullptr && fits(tensor)) found = &tensor;
  };
  for (const LayerTensors& layer : map.layers) {
    layer.ForEachDense([](const TensorInfo&) {},
                       [&](const TensorInfo& tensor, MatrixKind kind) {
                         if (kind != MatrixKind::kRouter) look(tensor);
                       });
    for (const FfnTensors& e : layer.experts) {
      e.ForEach(look);
    }
  }
  return found;
}

// Returns the first up projection whose gate has another format; nullptr when there is none.
const TensorInfo* FindMixedFfn(const WeightMap& map, ComputeDtype dtype) {
  const auto is_mixed = [&](const FfnParts<const TensorInfo*>& ffn) {
    return ffn.gate_proj != nullptr && ffn.up_proj != nullptr &&
           ResidentFormat(*ffn.gate_proj, dtype) != ResidentFormat(*ffn.up_proj, dtype);
  };
  for (const LayerTensors& layer : map.layers) {
    for (const FfnParts<const TensorInfo*>& ffn : {layer.dense_ffn, layer.shared_ffn}) {
      if (is_mixed(ffn)) return ffn.up_proj;
    }
    for (const FfnTensors& expert : layer.experts) {
      if (is_mixed(expert)) return expert.up_proj;
    }
  }
  return nullptr;
}

// Returns kUsage when panels are f32 or f16, because panels can no longer be rounded. Routers may be f32: they compute
// in their own dtype.
absl::Status CheckPackedForBf16(const WeightMap& map) {
  const TensorInfo* found = FindMatrix(map, [](const TensorInfo& tensor) {
    return tensor.packed == WeightFormat::kF32 || tensor.packed == WeightFormat::kF16;
  });
  if (found == nullptr) return absl::OkStatus();
  return UsageError("--dtype bf16: the model was packed in {} ('{}'): pack it with --dtype bf16",
                    TraitsOf(*found->packed).name, found->name);
}

}  // namespace

std::span<const ComputeDtypeTraits> ComputeDtypes() { return kComputeDtypes; }
std::span<const ActivationFormatTraits> ActivationFormats() { return kActivationFormats; }
std::span<const KvFormatTraits> KvFormats() { return kKvFormats; }
std::span<const CommFormatTraits> CommFormats() { return kCommFormats; }

absl::StatusOr<Formats> ChooseFormats(const EngineOptions& options, const WeightMap& map) {
  Formats formats;
  // f32 is exact for bf16 and f16 checkpoints, too: their weights stay as stored.
  formats.dtype = options.dtype.value_or(ComputeDtype::kF32);
  formats.kv = options.kv_dtype.value_or(KvFormat::kF32);
  if (formats.dtype == ComputeDtype::kBF16) PENSTOCK_RETURN_IF_ERROR(CheckPackedForBf16(map));
  formats.activations = options.activations.value_or(ActivationFormat::kInt8);
  formats.comm = options.comm_dtype.value_or(CommFormat::kF32);
  formats.rows = RowFormatsOf(map, formats.dtype, formats.activations);
  return formats;
}

absl::Status CheckComputedOnGpus(std::string_view device, const ModelConfig& config, const WeightMap& map,
                                 ComputeDtype dtype) {
  if (config.encoder.is_on()) {
    return ResourceError(
        "--device {}: {} models, which have an encoder, are not computed on GPUs yet; use --device cpu", device,
        config.family->name);
  }
  const TensorInfo* found =
      FindMatrix(map, [&](const TensorInfo& tensor) { return TraitsOf(ResidentFormat(tensor, dtype)).is_slow; });
  if (found == nullptr) found = FindMixedFfn(map, dtype);
  if (found == nullptr) return absl::OkStatus();
  const std::string_view format = TraitsOf(ResidentFormat(*found, dtype)).name;
  if (!TraitsOf(ResidentFormat(*found, dtype)).is_slow) {
    return ResourceError(
        "--device {}: '{}' is {}, and its gate projection is not: GPUs compute both together; use --device cpu", device,
        found->name, format);
  }
  return ResourceError(
      "--device {}: weights in {} ('{}') are not computed on GPUs yet: pack the model with --quantize hqq4 or int8, or "
      "use --device cpu",
      device, format, found->name);
}

std::string_view StoredFormatName(const WeightMap& map) {
  return TraitsOf(ResidentFormat(*map.layers[0].q_proj, ComputeDtype::kF32)).name;
}

std::string_view ComputationName(const Formats& formats, const WeightMap& map) {
  if (formats.rows.ffn == kernels::RowFormat::kInt8) return TraitsOf(ModelFormatsOf(map, formats).ffn).name;
  return formats.dtype == ComputeDtype::kBF16 ? "bf16" : "f32";
}

Arithmetic RowArithmetic(kernels::RowFormat format) {
  switch (format) {
    case kernels::RowFormat::kInt8: return Arithmetic::kInt8;
    case kernels::RowFormat::kBF16: return Arithmetic::kBf16;
    default: return Arithmetic::kF32;
  }
}

// All families have one format for each kind of matrix, so layer 0 stands for all layers.
ModelFormats ModelFormatsOf(const WeightMap& map, const Formats& formats) {
  const LayerTensors& layer = map.layers[0];
  const TensorInfo& ffn = *(layer.experts.empty() ? layer.dense_ffn : layer.experts[0]).up_proj;
  return {.attention = ResidentFormat(*layer.q_proj, formats.dtype),
          .ffn = ResidentFormat(ffn, formats.dtype),
          .lm_head = ResidentFormat(*map.lm_head, formats.dtype),
          .kv = formats.kv};
}

}  // namespace penstock
