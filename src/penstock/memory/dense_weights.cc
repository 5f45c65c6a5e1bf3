#include "penstock/memory/dense_weights.h"

#include <algorithm>

#include "penstock/base/bytes.h"
#include "penstock/base/checked.h"
#include "penstock/base/file.h"
#include "penstock/base/status.h"

namespace penstock {
namespace {

constexpr uint64_t kBounceBytes = kMiB;

// How a tensor lies in memory: matrices keep their dtype or become bf16, vectors become f32.
Dtype ResidentDtype(const TensorInfo& tensor, ComputeDtype dtype) {
  return dtype == ComputeDtype::kBF16 ? Dtype::kBF16 : tensor.dtype;
}

uint64_t NumElements(const TensorInfo& tensor) { return tensor.extent.size_bytes / SizeOf(tensor.dtype); }

// Calls visit(tensor, resident dtype, target) for every dense tensor, where target is the WeightView or span to be set.
// One list of the fields serves both the counting and the loading.
template <typename Visitor>
void VisitTensors(const WeightMap& map, ComputeDtype dtype, std::span<LayerWeights> layers, WeightView& embedding,
                  WeightView& lm_head, std::span<const float>& final_norm, Visitor&& visit) {
  const auto matrix = [&](const TensorInfo* tensor, WeightView& view) {
    if (tensor != nullptr)
      visit(*tensor, ResidentDtype(*tensor, dtype), [&view](std::byte* data, const TensorInfo&, Dtype d) {
        view = {data, d};
      });
  };
  const auto vector = [&](const TensorInfo* tensor, std::span<const float>& view) {
    if (tensor != nullptr)
      visit(*tensor, Dtype::kF32, [&view](std::byte* data, const TensorInfo& t, Dtype) {
        view = {reinterpret_cast<const float*>(data), NumElements(t)};
      });
  };
  matrix(map.embedding, embedding);
  vector(map.final_norm, final_norm);
  if (map.lm_head != map.embedding) matrix(map.lm_head, lm_head);
  for (size_t layer_idx = 0; layer_idx < map.layers.size(); ++layer_idx) {
    const LayerTensors& from = map.layers[layer_idx];
    LayerWeights& to = layers[layer_idx];
    vector(from.attention_norm, to.attention_norm);
    matrix(from.q_proj, to.q_proj);
    matrix(from.k_proj, to.k_proj);
    matrix(from.v_proj, to.v_proj);
    matrix(from.o_proj, to.o_proj);
    vector(from.q_bias, to.q_bias);
    vector(from.k_bias, to.k_bias);
    vector(from.v_bias, to.v_bias);
    vector(from.o_bias, to.o_bias);
    vector(from.q_norm, to.q_norm);
    vector(from.k_norm, to.k_norm);
    vector(from.ffn_norm, to.ffn_norm);
    if (from.router_proj != nullptr) {
      visit(*from.router_proj, from.router_proj->dtype, [&to](std::byte* data, const TensorInfo&, Dtype d) {
        to.router_proj = {data, d};
      });
    }
    matrix(from.dense_ffn.gate_proj, to.dense_ffn.gate_proj);
    matrix(from.dense_ffn.up_proj, to.dense_ffn.up_proj);
    matrix(from.dense_ffn.down_proj, to.dense_ffn.down_proj);
  }
}

void Convert(Dtype source_dtype, const std::byte* source, uint64_t count, Dtype target_dtype, std::byte* target) {
  if (target_dtype == source_dtype) {
    std::copy_n(source, count * SizeOf(source_dtype), target);
  } else if (target_dtype == Dtype::kF32) {
    ToFloats(source_dtype, source, {reinterpret_cast<float*>(target), count});
  } else {
    ToBF16s(source_dtype, source, static_cast<int64_t>(count), target);
  }
}

absl::Status ReadTensor(const Checkpoint& checkpoint, const TensorInfo& tensor, Dtype target_dtype,
                        std::span<std::byte> bounce, std::byte* target) {
  const OpenedFile& file = checkpoint.files()[tensor.file_idx];
  const uint64_t element_bytes = SizeOf(tensor.dtype);
  uint64_t done = 0;
  while (done < tensor.extent.size_bytes) {
    const uint64_t size = std::min<uint64_t>(bounce.size(), tensor.extent.size_bytes - done);
    PENSTOCK_RETURN_IF_ERROR(
        PreadFully(file.fd.get(), bounce.first(size), tensor.extent.offset_bytes + done, file.path));
    const uint64_t first = done / element_bytes;
    Convert(tensor.dtype, bounce.data(), size / element_bytes, target_dtype, target + first * SizeOf(target_dtype));
    done += size;
  }
  return absl::OkStatus();
}

}  // namespace

uint64_t DenseWeights::Bytes(const WeightMap& map, ComputeDtype dtype) {
  std::vector<LayerWeights> layers(map.layers.size());
  WeightView embedding, lm_head;
  std::span<const float> final_norm;
  uint64_t bytes = kBounceBytes;
  VisitTensors(map, dtype, layers, embedding, lm_head, final_norm,
               [&](const TensorInfo& tensor, Dtype resident, const auto&) {
                 bytes += RoundUp(NumElements(tensor) * SizeOf(resident), kCacheLineBytes);
               });
  return bytes;
}

absl::StatusOr<DenseWeights> DenseWeights::Load(const Checkpoint& checkpoint, const WeightMap& map,
                                                ComputeDtype dtype) {
  DenseWeights weights;
  weights.layers_.resize(map.layers.size());
  PENSTOCK_ASSIGN_OR_RETURN(weights.arena_, Arena::Map(Bytes(map, dtype)));
  ArenaAllocator allocator(weights.arena_);
  const std::span<std::byte> bounce(allocator.TakeBytes(kBounceBytes), kBounceBytes);
  absl::Status status;
  VisitTensors(map, dtype, weights.layers_, weights.embedding_, weights.lm_head_, weights.final_norm_,
               [&](const TensorInfo& tensor, Dtype resident, const auto& set) {
                 if (!status.ok()) return;
                 std::byte* data = allocator.TakeBytes(NumElements(tensor) * SizeOf(resident));
                 status = ReadTensor(checkpoint, tensor, resident, bounce, data);
                 set(data, tensor, resident);
               });
  PENSTOCK_RETURN_IF_ERROR(status);
  if (map.lm_head == map.embedding) weights.lm_head_ = weights.embedding_;
  return weights;
}

}  // namespace penstock
