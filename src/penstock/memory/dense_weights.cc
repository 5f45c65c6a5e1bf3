#include "penstock/memory/dense_weights.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "penstock/base/bytes.h"
#include "penstock/base/check.h"
#include "penstock/base/checked.h"
#include "penstock/base/file.h"
#include "penstock/base/status.h"
#include "penstock/checkpoint/packed_index.h"
#include "penstock/checkpoint/tensor_rows.h"
#include "penstock/kernels/checksum.h"

namespace penstock {
namespace {

constexpr uint64_t kMinBounceBytes = kMiB;

uint64_t NumElements(const TensorInfo& tensor) {
  uint64_t count = 1;
  for (const int64_t dim : tensor.shape) count *= static_cast<uint64_t>(dim);
  return count;
}

// Receives each tensor from VisitTensors(), with its format in memory, to count its bytes or to load it. Of matrices
// and vectors it keeps the outputs of `heads`.
struct Visitor {
  virtual void Matrix(const TensorInfo& tensor, WeightFormat format, const HeadRange& heads, WeightView& view) = 0;
  virtual void Rows(const TensorInfo& tensor, Dtype dtype, EmbeddingView& view) = 0;
  virtual void Vector(const TensorInfo& tensor, const HeadRange& heads, std::span<const float>& view) = 0;

 protected:
  ~Visitor() = default;
};

// Lists the fields once, for both counting and loading.
void VisitTensors(const WeightMap& map, ComputeDtype dtype, DensePart part, const HeadRange& heads,
                  std::span<LayerWeights> layers, OuterWeights& outer, Visitor& visitor) {
  const LayerTensors* layer = nullptr;  // the one that is visited
  // Returns the heads of which a tensor is kept. Only tensors with a part for each head are cut.
  const auto heads_of = [&](const TensorInfo* tensor) -> HeadRange {
    if (layer == nullptr) return {};
    const std::array cut = {layer->q_proj, layer->k_proj, layer->v_proj, layer->q_bias,
                            layer->k_bias, layer->v_bias, layer->sinks};
    return std::ranges::find(cut, tensor) != cut.end() ? heads : HeadRange();
  };
  const auto matrix = [&](const TensorInfo* tensor, WeightView& view, MatrixKind kind) {
    const ComputeDtype own = kind == MatrixKind::kRouter ? ComputeDtype::kF32 : dtype;
    if (tensor != nullptr) visitor.Matrix(*tensor, ResidentFormat(*tensor, own), heads_of(tensor), view);
  };
  const auto vector = [&](const TensorInfo* tensor, std::span<const float>& view) {
    if (tensor != nullptr) visitor.Vector(*tensor, heads_of(tensor), view);
  };
  const bool tied = map.lm_head == map.embedding;
  if (tied || part != DensePart::kEmbedding) matrix(map.lm_head, outer.lm_head, MatrixKind::kFfn);
  if (!tied && part != DensePart::kLayers && map.embedding->packed.has_value()) {
    WeightView view;
    visitor.Matrix(*map.embedding, *map.embedding->packed, {}, view);
    outer.embedding = {.data = view.data, .dtype = Dtype::kF32, .packed = view.format};
  } else if (!tied && part != DensePart::kLayers) {
    visitor.Rows(*map.embedding, dtype == ComputeDtype::kBF16 ? Dtype::kBF16 : map.embedding->dtype, outer.embedding);
  }
  vector(map.encoder_bias, outer.encoder_bias);
  vector(map.decoder_bias, outer.decoder_bias);
  if (part == DensePart::kEmbedding) {
    for (size_t layer_idx = 0; layer_idx < map.layers.size(); ++layer_idx) {
      const LayerTensors& from = map.layers[layer_idx];
      LayerWeights& to = layers[layer_idx];
      vector(from.sinks, to.sinks);
      vector(from.conv_weight, to.conv_weight);
      vector(from.conv_k_weight, to.conv_k_weight);
      vector(from.conv_v_weight, to.conv_v_weight);
      vector(from.conv_bias, to.conv_bias);
      vector(from.skip, to.skip);
      if (from.decay_norm != nullptr) {  // kMamba1 projects what the convolution returns
        for (const auto& [tensor, view] :
             {std::pair(from.q_proj, &to.q_proj), std::pair(from.k_proj, &to.k_proj),
              std::pair(from.decay_proj, &to.decay_proj), std::pair(from.decay_a_proj, &to.decay_a_proj)}) {
          matrix(tensor, *view, MatrixKind::kAttention);
        }
        for (const auto& [tensor, view] :
             {std::pair(from.q_norm, &to.q_norm), std::pair(from.k_norm, &to.k_norm),
              std::pair(from.decay_norm, &to.decay_norm), std::pair(from.decay_bias, &to.decay_bias),
              std::pair(from.decay_log, &to.decay_log)}) {
          vector(tensor, *view);
        }
      }
      vector(from.expert_gate_bias, to.expert_gate_bias);
      vector(from.expert_up_bias, to.expert_up_bias);
      vector(from.expert_down_bias, to.expert_down_bias);
    }
    return;
  }
  vector(map.lm_head_bias, outer.lm_head_bias);
  vector(map.final_norm, outer.final_norm);
  vector(map.final_norm_bias, outer.final_norm_bias);
  vector(map.encoder_norm, outer.encoder_norm);
  for (size_t layer_idx = 0; layer_idx < map.layers.size(); ++layer_idx) {
    layer = &map.layers[layer_idx];
    ForEachPart(*layer, layers[layer_idx], vector, matrix);
  }
}

// Returns the bytes of the panels that are kept of a matrix.
uint64_t BytesOfHeads(const TensorInfo& tensor, WeightFormat format, const HeadRange& heads) {
  if (heads.is_all()) return PanelsBytes(tensor, format);
  return PackedBytes(format, heads.NumOf(MatrixRows(tensor)), RowElements(tensor));
}

class Counter final : public Visitor {
 public:
  uint64_t total_bytes() const { return RoundUp(bytes_, kPageBytes); }
  uint64_t bounce_bytes() const { return bounce_bytes_; }

  void Matrix(const TensorInfo& tensor, WeightFormat format, const HeadRange& heads, WeightView&) override {
    Add(BytesOfHeads(tensor, format, heads));
    bounce_bytes_ = std::max({bounce_bytes_, RoundUp(StoredPanelBytes(tensor), kCacheLineBytes),
                              RoundUp(PanelBytes(format, RowElements(tensor)), kCacheLineBytes)});
  }
  void Rows(const TensorInfo& tensor, Dtype dtype, EmbeddingView&) override {
    Add(NumElements(tensor) * SizeOf(dtype));
  }
  void Vector(const TensorInfo& tensor, const HeadRange& heads, std::span<const float>&) override {
    Add(static_cast<uint64_t>(heads.NumOf(static_cast<int64_t>(NumElements(tensor)))) * 4);
  }

 private:
  void Add(uint64_t bytes) { bytes_ += RoundUp(bytes, kCacheLineBytes); }

  uint64_t bytes_ = 0;
  uint64_t bounce_bytes_ = kMinBounceBytes;
};

// Gives each tensor its place, and leaves the bytes as they are.
class Placer final : public Visitor {
 public:
  explicit Placer(const Arena& arena) : allocator_(arena) {}

  void Matrix(const TensorInfo& tensor, WeightFormat format, const HeadRange& heads, WeightView& view) override {
    view = {allocator_.TakeBytes(BytesOfHeads(tensor, format, heads)), format};
  }
  void Rows(const TensorInfo& tensor, Dtype dtype, EmbeddingView& view) override {
    view = {.data = allocator_.TakeBytes(NumElements(tensor) * SizeOf(dtype)), .dtype = dtype, .packed = std::nullopt};
  }
  void Vector(const TensorInfo& tensor, const HeadRange& heads, std::span<const float>& view) override {
    const auto count = static_cast<size_t>(heads.NumOf(static_cast<int64_t>(NumElements(tensor))));
    view = {reinterpret_cast<const float*>(allocator_.TakeBytes(count * 4)), count};
  }

 private:
  ArenaAllocator allocator_;
};

class Loader final : public Visitor {
 public:
  // `bounce` [2, bounce bytes]: one part for bytes that were read, and one for bytes on their way into memory that the
  // host cannot write.
  Loader(const Checkpoint& checkpoint, Memory& memory, const Arena& arena, std::span<std::byte> bounce)
      : checkpoint_(&checkpoint),
        memory_(&memory),
        allocator_(arena),
        bounce_(bounce.first(bounce.size() / 2)),
        outgoing_(bounce.last(bounce.size() / 2)) {}

  const absl::Status& status() const { return status_; }

  void Matrix(const TensorInfo& tensor, WeightFormat format, const HeadRange& heads, WeightView& view) override {
    const int64_t num_cols = MatrixRows(tensor), inner_dim = RowElements(tensor);
    const int64_t first = heads.FirstOf(num_cols), end = first + heads.NumOf(num_cols);
    std::byte* target = allocator_.TakeBytes(BytesOfHeads(tensor, format, heads));
    view = {target, format};
    if (IsReady(tensor)) return ReadPacked(tensor, format, heads, target);
    const absl::StatusOr<ReadScales> scales = ReadScales::Of(checkpoint_->files(), tensor);
    status_.Update(scales.status());
    kernels::RunningChecksum checksum;
    const uint64_t panel_bytes = PanelBytes(format, inner_dim), row_bytes = RowBytes(tensor);
    for (int64_t matrix = 0; matrix < NumMatrices(tensor); ++matrix) {
      for (int64_t col = first; col < end && status_.ok(); col += kPanelCols) {
        const int64_t count = std::min(kPanelCols, end - col);
        const int64_t row = matrix * num_cols + col;
        ReadRowsOf(tensor, row, count);
        if (tensor.xxh3.has_value() && heads.is_all()) {
          checksum.Add(bounce_.first(static_cast<uint64_t>(count) * row_bytes));
        }
        Put(target, panel_bytes, [&](std::byte* panel) {
          PackRows(tensor, bounce_.data(), scales->bytes(), row, count, format, bounce_.data() + kPanelCols * row_bytes,
                   panel);
        });
        target += panel_bytes;
      }
    }
    if (!heads.is_all()) return CheckRows(tensor);
    if (status_.ok()) status_ = CheckSum(tensor, checksum.value());
  }
  void Rows(const TensorInfo& tensor, Dtype dtype, EmbeddingView& view) override {
    std::byte* target = allocator_.TakeBytes(NumElements(tensor) * SizeOf(dtype));
    view = {.data = target, .dtype = dtype, .packed = std::nullopt};
    ReadConverted(tensor, dtype, target);
  }
  void Vector(const TensorInfo& tensor, const HeadRange& heads, std::span<const float>& view) override {
    const auto count = static_cast<int64_t>(NumElements(tensor));
    std::byte* target = allocator_.TakeBytes(static_cast<uint64_t>(heads.NumOf(count)) * 4);
    view = {reinterpret_cast<const float*>(target), static_cast<size_t>(heads.NumOf(count))};
    if (heads.is_all()) return ReadConverted(tensor, Dtype::kF32, target);
    std::vector<float> all(static_cast<size_t>(count));
    ReadConverted(tensor, Dtype::kF32, reinterpret_cast<std::byte*>(all.data()));
    std::copy_n(all.begin() + heads.FirstOf(count), heads.NumOf(count), reinterpret_cast<float*>(target));
  }

 private:
  void Read(const TensorInfo& tensor, uint64_t offset, std::span<std::byte> target) {
    if (!status_.ok()) return;
    const OpenedFile& file = checkpoint_->files()[tensor.file_idx];
    status_ = PreadFully(file.fd.get(), target, tensor.extent.offset_bytes + offset, file.path);
  }
  // Reads rows into the bounce buffer.
  void ReadRowsOf(const TensorInfo& tensor, int64_t first, int64_t count) {
    if (!status_.ok()) return;
    status_ = ReadRows(checkpoint_->files(), tensor, first, count,
                       bounce_.first(static_cast<uint64_t>(count) * RowBytes(tensor)));
  }
  // Calls fill(bytes), which writes `size_bytes`, and puts them at `target`. REQUIRES: they fit into a bounce buffer.
  template <typename Fill>
  void Put(std::byte* target, uint64_t size_bytes, const Fill& fill) {
    if (!status_.ok()) return;
    if (memory_->is_host()) return fill(target);
    fill(outgoing_.data());
    status_ = memory_->Write(target, outgoing_.first(size_bytes));
  }
  // Compares the checksum of all rows, of which only some are kept.
  void CheckRows(const TensorInfo& tensor) {
    if (!tensor.xxh3.has_value()) return;
    kernels::RunningChecksum checksum;
    const int64_t num_rows = NumRows(tensor);
    for (int64_t row = 0; row < num_rows && status_.ok(); row += kPanelCols) {
      const int64_t count = std::min(kPanelCols, num_rows - row);
      ReadRowsOf(tensor, row, count);
      checksum.Add(bounce_.first(static_cast<uint64_t>(count) * RowBytes(tensor)));
    }
    if (status_.ok()) status_ = CheckSum(tensor, checksum.value());
  }
  // Reads the whole tensor for its checksum, and keeps the panels of `heads`.
  void ReadPacked(const TensorInfo& tensor, WeightFormat format, const HeadRange& heads, std::byte* target) {
    uint64_t kept_begin = 0, kept_end = tensor.extent.size_bytes;
    if (!heads.is_all()) {
      const int64_t first = heads.FirstOf(MatrixRows(tensor));
      PENSTOCK_CHECK(first % kPanelCols == 0);  // CheckCutsHeads()
      kept_begin = PackedBytes(format, first, RowElements(tensor));
      kept_end = kept_begin + BytesOfHeads(tensor, format, heads);
    }
    kernels::RunningChecksum checksum;
    for (uint64_t begin = 0; begin < tensor.extent.size_bytes && status_.ok(); begin += bounce_.size()) {
      const uint64_t end = std::min<uint64_t>(begin + bounce_.size(), tensor.extent.size_bytes);
      if (heads.is_all()) {
        Put(target + begin, end - begin, [&](std::byte* part) {
          Read(tensor, begin, {part, end - begin});
          checksum.Add({part, end - begin});
        });
        continue;
      }
      Read(tensor, begin, bounce_.first(end - begin));
      checksum.Add(bounce_.first(end - begin));
      const uint64_t from = std::max(begin, kept_begin), to = std::min(end, kept_end);
      if (from >= to) continue;
      Put(target + (from - kept_begin), to - from,
          [&](std::byte* part) { std::copy_n(bounce_.data() + (from - begin), to - from, part); });
    }
    if (status_.ok()) status_ = CheckSum(tensor, checksum.value());
  }
  void ReadConverted(const TensorInfo& tensor, Dtype target_dtype, std::byte* target) {
    const uint64_t element_bytes = SizeOf(tensor.dtype), target_bytes = SizeOf(target_dtype);
    const uint64_t row_elements = static_cast<uint64_t>(RowElements(tensor));
    const uint64_t rows_at_once = bounce_.size() / (row_elements * std::max(element_bytes, target_bytes));
    kernels::RunningChecksum checksum;
    const auto all_rows = static_cast<uint64_t>(NumRows(tensor));
    for (uint64_t row = 0; row < all_rows && status_.ok(); row += rows_at_once) {
      const uint64_t num_rows = std::min(rows_at_once, all_rows - row);
      const uint64_t first = row * row_elements, count = num_rows * row_elements;
      ReadRowsOf(tensor, static_cast<int64_t>(row), static_cast<int64_t>(num_rows));
      if (tensor.xxh3.has_value()) checksum.Add(bounce_.first(count * element_bytes));
      Put(target + first * target_bytes, count * target_bytes, [&](std::byte* part) {
        Convert(tensor.dtype, bounce_.data(), count, target_dtype, part);
        if (tensor.form == VectorForm::kPlain) return;
        for (float& value : std::span(reinterpret_cast<float*>(part), count)) {
          value = tensor.form == VectorForm::kOffset ? value + 1 : std::log(-value);
        }
      });
    }
    if (status_.ok()) status_ = CheckSum(tensor, checksum.value());
  }
  static void Convert(Dtype source_dtype, const std::byte* source, uint64_t count, Dtype target_dtype,
                      std::byte* target) {
    if (target_dtype == source_dtype) {
      std::copy_n(source, count * SizeOf(source_dtype), target);
    } else if (target_dtype == Dtype::kF32) {
      ToFloats(source_dtype, source, {reinterpret_cast<float*>(target), count});
    } else {
      ToBF16s(source_dtype, source, static_cast<int64_t>(count), target);
    }
  }

  const Checkpoint* checkpoint_;
  Memory* memory_;
  ArenaAllocator allocator_;
  std::span<std::byte> bounce_, outgoing_;
  absl::Status status_;
};

}  // namespace

absl::Status CheckCutsHeads(const WeightMap& map, const ModelConfig& config, int num_ranks) {
  PENSTOCK_RETURN_IF_ERROR(CheckSharesHeads(config, num_ranks));
  for (const LayerTensors& layer : map.layers) {
    for (const TensorInfo* tensor : {layer.q_proj, layer.k_proj, layer.v_proj}) {
      if (tensor == nullptr || !IsReady(*tensor)) continue;
      for (int rank = 1; rank < num_ranks; ++rank) {
        const HeadRange heads = HeadsOf(config, {.rank = rank, .num_ranks = num_ranks, .by_heads = true});
        const int64_t first = heads.FirstOf(MatrixRows(*tensor));
        if (first % kPanelCols == 0) continue;
        return UsageError(
            "--parallel attention=tp: {}: rank {} would begin with row {}, within a packed panel of {}; "
            "use attention=dp",
            tensor->name, rank, first, kPanelCols);
      }
    }
  }
  return absl::OkStatus();
}

uint64_t DenseWeights::Bytes(const WeightMap& map, ComputeDtype dtype, DensePart part, const HeadRange& heads) {
  std::vector<LayerWeights> layers(map.layers.size());
  OuterWeights outer;
  Counter counter;
  VisitTensors(map, dtype, part, heads, layers, outer, counter);
  // When loading to a device, the host's buffer is freed before anything else needs its memory.
  return counter.total_bytes() + (part == DensePart::kLayers ? 0 : counter.bounce_bytes());
}

void OuterWeights::TieEmbedding(const WeightMap& map) {
  if (map.lm_head == map.embedding) {
    embedding = {.data = lm_head.data, .dtype = Dtype::kF32, .packed = lm_head.format};
  }
}

DenseWeights DenseWeights::Over(Arena arena, const WeightMap& map, ComputeDtype dtype) {
  DenseWeights w;
  w.layers_.resize(map.layers.size());
  w.arena_ = std::move(arena);
  Placer placer(w.arena_);
  VisitTensors(map, dtype, DensePart::kAll, {}, w.layers_, w.outer_, placer);
  w.outer_.TieEmbedding(map);
  return w;
}

absl::StatusOr<DenseWeights> DenseWeights::Load(Memory& memory, const Checkpoint& checkpoint, const WeightMap& map,
                                                ComputeDtype dtype, DensePart part, const HeadRange& heads) {
  DenseWeights w;
  w.layers_.resize(map.layers.size());
  Counter counter;
  VisitTensors(map, dtype, part, heads, w.layers_, w.outer_, counter);
  PENSTOCK_ASSIGN_OR_RETURN(w.arena_, memory.Map(counter.total_bytes()));
  PENSTOCK_ASSIGN_OR_RETURN(const Arena bounce, HostMemory().Map(2 * counter.bounce_bytes()));
  Loader loader(checkpoint, memory, w.arena_, {bounce.data(), 2 * counter.bounce_bytes()});
  VisitTensors(map, dtype, part, heads, w.layers_, w.outer_, loader);
  PENSTOCK_RETURN_IF_ERROR(loader.status());
  w.outer_.TieEmbedding(map);
  return w;
}

}  // namespace penstock
