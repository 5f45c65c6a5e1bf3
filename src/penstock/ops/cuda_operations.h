// The operations on a CUDA device. Each launches kernels on a stream and returns. Weights, activations and KV pages lie
// in the device's memory. kernels/cuda/cuda_kernels.h says which results have the same bits as the host's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "penstock/kernels/cuda/cuda_kernels.h"
#include "penstock/kernels/cuda/recurrent.h"
#include "penstock/memory/dense_weights.h"
#include "penstock/model/model_config.h"
#include "penstock/ops/operations.h"

namespace penstock {

// Copies small tables to and from the device, in the stream's order.
class DeviceTables {
 public:
  virtual ~DeviceTables() = default;
  // Returns the maximum bytes of one Upload(): at least RowTableBytes() of the longest row, and MinStateTableBytes().
  virtual size_t max_bytes() const = 0;
  // Returns the bytes' address on the device. It is valid for work that is given to the stream before the next
  // Upload().
  virtual const std::byte* Upload(std::span<const std::byte> bytes) = 0;
  // Copies bytes from the device to the host, and waits for the stream.
  virtual void Download(void* target, const void* source, size_t num_bytes) = 0;
};

class CudaOperations : public Operations {
 public:
  struct Args {
    const ModelConfig& config;  // outlives the operations, like all references
    RowFormats row_formats;
    const DenseWeights& weights;        // on the device
    Activations& activations;           // on the device
    std::span<float> attention_scores;  // on the device: at least CudaScoresFloats() of the longest row
    DeviceTables& tables;
    cuda::Stream stream = {};
    cuda::GemmTuning tuning = {};
  };
  explicit CudaOperations(const Args& args) : args_(args) {}

  Activations& activations() override { return args_.activations; }
  // Never called: the host embeds.
  void Embed(const RowBatch& batch, RowRange rows) override;
  void PreAttention(RowRange rows, int64_t layer_idx) override;
  void StoreKv(const RowBatch& batch, RowRange rows, const KvView& kv) override;
  void Attend(const RowBatch& batch, RowRange rows, int64_t layer_idx, const KvView& kv) override;
  void PostAttention(RowRange rows, int64_t layer_idx) override;
  void Route(RowRange rows, int64_t layer_idx) override;
  void RouteAhead(RowRange rows, int64_t target_idx, int64_t ahead) override;
  std::span<const int32_t> Choices(RowRange rows) override;
  void Group(RowRange rows) override;
  void SharedFfn(RowRange rows, int64_t layer_idx) override;
  void Experts(int64_t layer_idx, std::span<const ExpertToRun> experts) override;
  std::vector<int64_t> ClearExpert(int64_t expert_idx) override;
  void Combine(RowRange rows, int64_t layer_idx) override;
  void DenseFfn(RowRange rows, int64_t layer_idx) override;
  void Logits(std::span<const int64_t> rows) override;
  bool picks_best() const override { return true; }
  void PickBest(int64_t num_rows) override {
    cuda::ArgMax(args_.activations.logits.data(), num_rows, args_.config.vocab_size, args_.activations.best.data(),
                 args_.stream);
  }

 private:
  // y[rows] = x[rows] w^T + bias, where x and y are buffers of all rows of the pass.
  struct Projection {
    WeightView w;
    std::span<const float> bias = {};
    std::span<float> y;
    int64_t num_cols = 0;
    int64_t inner_dim = 0;
    int64_t stride = 0;  // from one row of y to the next; 0: num_cols

    int64_t y_stride() const { return stride > 0 ? stride : num_cols; }
  };
  void Project(RowRange rows, kernels::RowFormat format, const std::byte* x, const Projection& projection);
  void ProjectInputs(RowRange rows, const Projection& projection);
  // target[rows] = x, prepared. `x` is of the first of these rows, and `stride` floats lie from one to the next.
  void PrepareRows(RowRange rows, kernels::RowFormat format, const float* x, int64_t dim, int64_t stride,
                   std::span<std::byte> target);
  void PrepareInputs(RowRange rows, const float* x, int64_t dim, int64_t stride) {
    PrepareRows(rows, args_.row_formats.attention, x, dim, stride, args_.activations.gemm_input);
  }
  void AddOutputs(RowRange rows, const LayerWeights& layer, int64_t inner_dim);
  void KeepNormed(RowRange rows, float factor);
  // y[row, head] = x[row, head] w[head]^T for each head. x and y are those of the first row; w holds one matrix for
  // each head, one after another.
  struct HeadsProjection {
    WeightView w;
    int64_t num_cols = 0;
    int64_t inner_dim = 0;
    const float* x = nullptr;
    int64_t x_head_stride = 0;
    float* y = nullptr;
    int64_t y_head_stride = 0;
  };
  void ProjectHeads(RowRange rows, const HeadsProjection& heads);
  void ProjectQkv(RowRange rows, int64_t layer_idx);
  void ProjectMla(RowRange rows, int64_t layer_idx);
  struct NormOf {
    std::span<const float> source;  // [num_rows, model_dim]
    std::span<const float> weight;
    std::span<const float> bias;
  };
  // normed[rows] = norm(source[rows]), or source[rows] without weights. Unless `buffer` is null, also prepares these
  // rows at their places in it.
  void NormRows(RowRange rows, const NormOf& norm, kernels::RowFormat format, std::byte* buffer);
  NormOf FfnNorm(const LayerWeights& layer) const;
  void NormForFfn(RowRange rows, const LayerWeights& layer);
  void NormForExperts(RowRange rows, const LayerWeights& layer);
  void NormOutputs(RowRange rows, std::span<const float> weight, std::span<const float> x, std::span<float> out);
  void GateOf(RowRange rows, const WeightView& w, std::span<const float> bias, int64_t num_cols, float* y);
  template <typename Launch>
  void ForEachLaunch(std::span<const ExpertToRun> experts, WeightView FfnWeights::*matrix, const Launch& launch);
  cuda::RowGroups GroupsOf(std::span<const ExpertToRun* const> experts) const;
  struct FfnRule {
    int64_t ffn_dim;
    GluRule glu;
  };
  void RunFfn(RowRange rows, const FfnWeights& ffn, const FfnRule& rule);
  void AddSummed(RowRange rows, const LayerWeights& layer);
  void AddBranch(RowRange rows);
  // Computes the router's scores of normed rows, and the experts that they choose.
  void ApplyGate(RowRange rows, const LayerWeights& layer, std::span<float> scores, std::span<int32_t> topk_idx,
                 std::span<float> topk_weights);
  // The parts of a recurrent layer, in cuda_recurrent.cc.
  void PrepareState(RowRange rows, int64_t layer_idx);
  void AdvanceState(const RowBatch& batch, RowRange rows, int64_t layer_idx, const RecurrentState& states);
  void Convolve(const cuda::StateRuns& runs, const LayerWeights& layer);
  void NormaliseKeys(RowRange rows);
  void ProjectValues(RowRange rows, const LayerWeights& layer);
  void AdvanceMatrices(const cuda::StateRuns& runs, const LayerWeights& layer, const float* decays, int64_t part_cols);
  void FinishState(RowRange rows, int64_t layer_idx);
  // Calls visit(first_row, cuda::KvRows) for parts of `rows` whose tables fit into one upload. The KvRows point to the
  // tables on the device. `firsts`: KvRows::firsts of the rows, or empty.
  template <typename Visit>
  void ForEachKvPart(const RowBatch& batch, RowRange rows, const KvView& kv, std::span<const int64_t> firsts,
                     const Visit& visit);
  void AttendPart(const RowBatch& batch, int64_t first_row, int64_t layer_idx, cuda::KvRows part, bool share_pages);

  Args args_;
  RowRange grouped_;
  std::vector<int32_t> choices_;
};

}  // namespace penstock
