// The operations on the host: each checks shapes, splits its work over the pool and calls kernels on the parts.
//
// Results do not depend on the split: every output's bits depend only on its own row (kernels/kernel_table.h).
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "penstock/base/thread_pool.h"
#include "penstock/kernels/kernel_table.h"
#include "penstock/memory/dense_weights.h"
#include "penstock/model/model_config.h"
#include "penstock/ops/operations.h"
#include "penstock/ops/pass_observer.h"

namespace penstock {

// The context that all operations of a pass share. The references outlive it.
struct OpContext {
  const ModelConfig& config;
  const kernels::KernelTable& kernels;
  ThreadPool& pool;
  RowFormats row_formats;
  const DenseWeights& weights;
  Activations& activations;
  IndexRange expert_cols = {};       // of each expert, if ranks cut them; empty: all
  PassObserver* observer = nullptr;  // null: nobody looks
};

class HostOperations : public Operations {
 public:
  explicit HostOperations(const OpContext& context);

  Activations& activations() override { return context_.activations; }
  void Embed(const RowBatch& batch, RowRange rows) override;
  void PreAttention(RowRange rows, int64_t layer_idx) override;
  void SetAngles(const RowBatch& batch, RowRange rows) override;
  void NormForAttention(RowRange rows, int64_t layer_idx) override;
  void ProjectQkv(RowRange rows, int64_t layer_idx) override;
  void StoreKv(const RowBatch& batch, RowRange rows, const KvView& kv) override;
  void Attend(const RowBatch& batch, RowRange rows, int64_t layer_idx, const KvView& kv) override;
  void PostAttention(RowRange rows, int64_t layer_idx) override;
  void PreCross(RowRange rows, int64_t layer_idx) override;
  void AttendCross(const RowBatch& batch, RowRange rows, int64_t layer_idx, const KvView& kv) override;
  void PostCross(RowRange rows, int64_t layer_idx) override;
  void NormEncoded(RowRange rows) override;
  void ProjectCross(RowRange rows, int64_t layer_idx) override;
  void Route(RowRange rows, int64_t layer_idx) override;
  void RouteByTable(RowRange rows, int64_t layer_idx, const ExpertTable& table) override;
  void LimitExperts(const RowBatch& batch, RowRange rows) override;
  void RouteAhead(RowRange rows, int64_t target_idx, int64_t ahead) override;
  std::span<const int32_t> Choices(RowRange rows) override;
  void Group(RowRange rows) override;
  void GroupRanks(const RankAssignments& ranks) override;
  void GatherInputs(std::span<const ExpertToRun> experts) override;
  void PlaceOutputs(RowRange rows, std::span<const int64_t> places) override;
  void SumOutputs(int64_t first, std::span<const int64_t> places, std::span<const float> weights) override;
  void AddSums(RowRange rows, int64_t layer_idx, std::span<const int64_t> sums, int num_sums) override;
  void SharedFfn(RowRange rows, int64_t layer_idx) override;
  void Experts(int64_t layer_idx, std::span<const ExpertToRun> experts) override;
  void RoundOutputs(IndexRange places, CommFormat format) override;
  std::vector<int64_t> ClearExpert(int64_t expert_idx) override;
  void Combine(RowRange rows, int64_t layer_idx) override;
  void DenseFfn(RowRange rows, int64_t layer_idx) override;
  void Logits(std::span<const int64_t> rows) override;

 private:
  // Computes y [num_rows, num_cols] from gemm_input. A projection without weights is left out.
  struct Projection {
    const WeightView& w;
    std::span<const float> bias;
    std::span<float> y;
    int64_t num_cols;
    int64_t stride = num_cols;
  };
  void Project(RowRange rows, std::initializer_list<Projection> projections) {
    Project(rows, context_.config.model_dim, projections);
  }
  void Project(RowRange rows, int64_t inner_dim, std::initializer_list<Projection> projections);
  // Rows of `source` [num_rows, stride], of which `dim` floats count.
  struct AttendedRows {
    std::span<const float> source;
    int64_t dim;
    int64_t stride = dim;
  };
  // Computes residual += o_proj(attended), or its norm.
  void AddAttended(RowRange rows, const AttendedRows& attended, const WeightView& o_proj, std::span<const float> o_bias,
                   std::span<const float> output_norm = {});
  // The positions that rows of a sequence see in a layer, and their biases: AttentionArgs::first, end and bias.
  struct Sight {
    int64_t first = 0;
    int64_t end = 0;
    const float* bias = nullptr;  // of all heads
  };
  Sight SightOf(const RowBatch& batch, int64_t row_idx, int64_t layer_idx) const;
  void AttendRuns(const RowBatch& batch, RowRange rows, int64_t layer_idx, const KvView& kv,
                  absl::FunctionRef<Sight(int64_t row_idx)> sight_of);
  void AttendHeads(int64_t layer_idx, const KvLayer& layer, std::span<std::byte* const> pages, int64_t pos,
                   RowRange rows, int64_t part_idx, const Sight& sight, int worker_idx);
  void NormForExperts(RowRange rows, int64_t layer_idx);
  // Computes residual = factor * normed, if that is what attention and FFNs are added to (NormedResidual).
  void KeepNormed(RowRange rows, float factor);
  // Norms the input of a dense or shared FFN to gemm_input.
  void NormForFfn(RowRange rows, int64_t layer_idx);
  // Multiplies ffn_input by the weights of the choices, which then become 1. REQUIRES: num_topk is 1.
  void ScaleInputs(RowRange rows);
  void ProjectGate(RowRange rows, int64_t layer_idx);
  void ProjectMla(RowRange rows, int64_t layer_idx);
  void RotateMla(RowRange rows, int64_t layer_idx);
  // The parts of a layer with an indexer (host_indexer.cc): what follows the projections, and Attend() where rows
  // attend to chosen positions.
  void FinishIndexer(RowRange rows, int64_t layer_idx);
  void AttendSelected(const RowBatch& batch, RowRange rows, int64_t layer_idx, const KvView& kv);
  void SelectPositions(const RowBatch& batch, RowRange rows, RowRange at_once, const KvView& kv);
  KvLayer GatherSelected(const RowBatch& batch, RowRange rows, RowRange at_once, const KvView& kv,
                         std::vector<std::vector<std::byte*>>& blocks);
  // The parts of a recurrent layer (host_recurrent.cc): what PreAttention() and Attend() are in others, and what comes
  // before the output projection.
  void PrepareState(RowRange rows, int64_t layer_idx);
  void AdvanceState(const RowBatch& batch, RowRange rows, int64_t layer_idx, const RecurrentState& states);
  void FinishState(RowRange rows, int64_t layer_idx);
  // Projects q, k and the steps of these rows from the values that went through the convolution (kMamba1).
  void ProjectValues(RowRange rows, int64_t layer_idx);
  std::span<const float> ValuesOfHeads(RowRange rows, const LayerWeights& layer);
  void AddBranch(RowRange rows);
  // y = w x of the rows [num_rows, inner_dim] in gemm_input, in the format of FFNs.
  void ProjectFfnRows(RowRange rows, const WeightView& w, int64_t inner_dim, std::span<float> y, int64_t num_cols);
  // Sums up outputs [rows.size(), num_outputs] of experts, and adds the sum and what goes with it to the residual.
  void AddOutputs(RowRange rows, int64_t layer_idx, int64_t num_outputs, const int64_t* places, const float* weights);
  // The end of AddOutputs(), where `normed` has what a norm or a projection makes of the sums.
  void AddSummed(RowRange part, const LayerWeights& layer);
  // Computes expert_output of identity experts, which have these places.
  void ReturnInputs(IndexRange places);
  // Copies the inputs of these places of assigned_row to expert_input.
  void GatherPlaces(IndexRange places);

  OpContext context_;
  std::vector<float> encoder_bias_, decoder_bias_;  // BiasOfDistances()
  std::vector<float> unit_norm_;                    // [head_dim]: the weights of QkNorm::kUnitAfterRope
};

}  // namespace penstock
