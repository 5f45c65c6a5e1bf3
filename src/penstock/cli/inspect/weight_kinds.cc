#include "penstock/cli/inspect/weight_kinds.h"

#include <utility>

#include "penstock/checkpoint/tensor_rows.h"

namespace penstock::cli {
namespace {

std::string_view StoredAs(const TensorInfo& tensor) {
  if (tensor.is_compressed) return "bf16, compressed";
  if (tensor.packed.has_value()) return TraitsOf(*tensor.packed).name;
  if (tensor.scales.has_value()) return TraitsOf(tensor.scales->format).name;
  return DtypeName(tensor.dtype);
}

}  // namespace

void Kind::Add(const TensorInfo* tensor) {
  if (tensor == nullptr) return;
  formats[std::string(StoredAs(*tensor))] += StoredBytes(*tensor);
  ++num_tensors;
  num_weights += static_cast<uint64_t>(NumRows(*tensor) * RowElements(*tensor));
}

uint64_t Kind::bytes() const {
  uint64_t sum = 0;
  for (const auto& [format, own] : formats) sum += own;
  return sum;
}

std::vector<Kind> KindsOf(const WeightMap& map) {
  Kind embedding{"embedding"}, lm_head{"lm_head"}, attention{"attention"}, routers{"routers"}, dense{"dense FFNs"},
      shared{"shared FFNs"}, experts{"experts"}, vectors{"norms and biases"};
  embedding.Add(map.embedding);
  if (map.lm_head != map.embedding) lm_head.Add(map.lm_head);
  for (const TensorInfo* tensor :
       {map.lm_head_bias, map.final_norm, map.final_norm_bias, map.encoder_norm, map.encoder_bias, map.decoder_bias}) {
    vectors.Add(tensor);
  }
  for (const LayerTensors& layer : map.layers) {
    const auto is_of = [](const FfnParts<const TensorInfo*>& ffn, const TensorInfo& tensor) {
      return &tensor == ffn.gate_proj || &tensor == ffn.up_proj || &tensor == ffn.down_proj;
    };
    layer.ForEachDense([&](const TensorInfo& tensor) { vectors.Add(&tensor); },
                       [&](const TensorInfo& tensor, MatrixKind kind) {
                         if (kind == MatrixKind::kAttention) return attention.Add(&tensor);
                         if (kind == MatrixKind::kRouter) return routers.Add(&tensor);
                         is_of(layer.dense_ffn, tensor) ? dense.Add(&tensor) : shared.Add(&tensor);
                       });
    for (const FfnTensors& expert : layer.experts) {
      expert.ForEach([&](const TensorInfo& tensor) { experts.Add(&tensor); });
    }
  }
  std::vector<Kind> kinds;
  for (Kind* kind : {&embedding, &attention, &routers, &dense, &shared, &experts, &lm_head, &vectors}) {
    if (kind->num_tensors > 0) kinds.push_back(std::move(*kind));
  }
  return kinds;
}

}  // namespace penstock::cli
