#include "penstock/plan/formats.h"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "penstock/base/check.h"
#include "penstock/base/status.h"
#include "penstock/checkpoint/tensor_rows.h"
#include "penstock/model/family.h"

namespace penstock {
namespace {

constexpr ComputeDtypeTraits kComputeDtypes[] = {
    {ComputeDtype::kF32, "f32", "f32 arithmetic on the weights as they are stored"},
    {ComputeDtype::kBF16, "bf16", "weights and inputs of the FFNs rounded to bf16: faster with AVX512-BF16"},
};
constexpr ActivationFormatTraits kActivationFormats[] = {
    {ActivationFormat::kF32, "f32", "weights in codes are multiplied as floats, exactly as the file means them"},
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

// Returns the shares of the formats of a kind of matrix, that with the most bytes first. If the kind has experts, only
// theirs count.
std::vector<FormatShare> FormatsOf(const WeightMap& map, MatrixKind kind, ComputeDtype dtype) {
  FormatShare sums[std::size(kWeightFormats)], total;
  const auto add = [&](const TensorInfo& tensor) {
    for (FormatShare* sum : {&sums[static_cast<size_t>(ResidentFormat(tensor, dtype))], &total}) {
      sum->bytes += static_cast<double>(StoredBytes(tensor));
      sum->weights += static_cast<double>(NumRows(tensor) * RowElements(tensor));
    }
  };
  const auto has_experts = [](const LayerTensors& layer) { return !layer.experts.empty(); };
  const bool of_experts = kind == MatrixKind::kFfn && std::ranges::any_of(map.layers, has_experts);
  for (const LayerTensors& layer : map.layers) {
    for (const FfnTensors& expert : layer.experts) {
      if (of_experts) expert.ForEach(add);
    }
    if (of_experts) continue;
    layer.ForEachDense([](const TensorInfo&) {},
                       [&](const TensorInfo& tensor, MatrixKind its) {
                         if (its == kind) add(tensor);
                       });
  }
  std::vector<FormatShare> formats;
  for (const WeightFormatTraits& format : kWeightFormats) {
    const FormatShare& sum = sums[static_cast<size_t>(format.value)];
    if (sum.bytes > 0) formats.push_back({format.value, sum.weights / total.weights, sum.bytes / total.bytes});
  }
  std::ranges::stable_sort(formats, std::greater<>(), &FormatShare::bytes);
  PENSTOCK_CHECK(!formats.empty());
  return formats;
}

std::string_view NameOf(std::span<const FormatShare> formats) {
  const bool is_mixed = formats.size() > 1 && std::ranges::all_of(formats, IsCodes, &FormatShare::format);
  return is_mixed ? "mixed" : TraitsOf(formats[0].format).name;
}

// Returns an up projection whose gate has another format: devices compute both together. nullptr when there is none.
const TensorInfo* FindMixedFfn(const WeightMap& map, ComputeDtype dtype) {
  const auto differ = [&](const TensorInfo* a, const TensorInfo* b) {
    return a != nullptr && b != nullptr && ResidentFormat(*a, dtype) != ResidentFormat(*b, dtype);
  };
  for (const LayerTensors& layer : map.layers) {
    for (const FfnParts<const TensorInfo*>& ffn : {layer.dense_ffn, layer.shared_ffn}) {
      if (differ(ffn.gate_proj, ffn.up_proj)) return ffn.up_proj;
    }
    for (const FfnTensors& expert : layer.experts) {
      if (differ(expert.gate_proj, expert.up_proj)) return expert.up_proj;
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
  if (config.indexer.is_on()) {
    return ResourceError(
        "--device {}: {} models, which choose positions by an indexer, are not computed on GPUs yet; use --device cpu",
        device, config.family->name);
  }
  constexpr std::string_view kCure = "pack the model with --quantize hqq4 or int8, or use --device cpu";
  const auto format_of = [&](const TensorInfo& tensor) -> const WeightFormatTraits& {
    return TraitsOf(ResidentFormat(tensor, dtype));
  };
  if (const TensorInfo* found =
          FindMatrix(map, [&](const TensorInfo& tensor) { return !format_of(tensor).is_of_gpus; })) {
    return ResourceError("--device {}: weights in {} ('{}') are not computed on GPUs yet: {}", device,
                         format_of(*found).name, found->name, kCure);
  }
  if (const TensorInfo* found = FindMixedFfn(map, dtype)) {
    return ResourceError("--device {}: '{}' is {}, and its gate, which GPUs compute together with it, is not: {}",
                         device, found->name, format_of(*found).name, kCure);
  }
  return absl::OkStatus();
}

std::string_view StoredFormatName(const WeightMap& map) {
  return NameOf(FormatsOf(map, MatrixKind::kAttention, ComputeDtype::kF32));
}

std::string_view ComputationName(const Formats& formats, const WeightMap& map) {
  if (formats.rows.ffn == kernels::RowFormat::kInt8) return NameOf(FormatsOf(map, MatrixKind::kFfn, formats.dtype));
  return formats.dtype == ComputeDtype::kBF16 ? "bf16" : "f32";
}

Arithmetic RowArithmetic(kernels::RowFormat format) {
  switch (format) {
    case kernels::RowFormat::kInt8: return Arithmetic::kInt8;
    case kernels::RowFormat::kBF16: return Arithmetic::kBf16;
    default: return Arithmetic::kF32;
  }
}

ModelFormats ModelFormatsOf(const WeightMap& map, const Formats& formats) {
  std::vector<FormatShare> attention = FormatsOf(map, MatrixKind::kAttention, formats.dtype);
  std::vector<FormatShare> ffn = FormatsOf(map, MatrixKind::kFfn, formats.dtype);
  ModelFormats found = {.attention = attention[0].format,
                        .ffn = ffn[0].format,
                        .lm_head = ResidentFormat(*map.lm_head, formats.dtype),
                        .kv = formats.kv};
  if (attention.size() > 1) found.attention_shares = std::move(attention);
  if (ffn.size() > 1) found.ffn_shares = std::move(ffn);
  return found;
}

}  // namespace penstock
