// Kernels on a device, launched on a stream. Pointers are to device memory unless noted.
//
// They follow the law of sums of kernels/kernel_table.h. Results from f32 rows, from int8 rows, and from attention's q,
// K and V have the host's bits. The matrix units sum products of bf16 rows and weights in their own order, 16 inputs at
// a time. Like the law's order, it depends only on the inner dimension.
#pragma once

#include "penstock/kernels/cuda/stream.h"
#include "penstock/kernels/kernel_table.h"

namespace penstock::cuda {

// The matrices of one launch, each multiplied by its own rows.
inline constexpr int kMaxGroups = 64;
struct Matrices {
  const std::byte* w[kMaxGroups] = {};  // panels (tensor/packed_matrix.h), aligned to 64 bytes
};
// The rows of each matrix: those of its expert among the assignments, or, without offsets, all rows.
struct RowGroups {
  int32_t num_groups = 1;
  const int64_t* offsets = nullptr;  // [num_experts + 1]: expert e has rows [offsets[e], offsets[e + 1])
  int32_t expert_idx[kMaxGroups] = {};
  int64_t max_rows = 0;      // maximum rows of a group
  int64_t typical_rows = 0;  // about how many rows most groups have, which chooses a kernel; 0: max_rows
  // Without offsets, a group's rows of x and of y lie so far behind those of the group before it.
  int64_t x_step_bytes = 0, y_step = 0;

  int64_t typical() const { return typical_rows > 0 ? typical_rows : max_rows; }
};

// How a GEMM is computed; the bits do not depend on it.
struct GemmTuning {
  int max_blocks = 0;       // blocks at once, each of which takes several tiles; 0: one block for each tile
  int64_t tiled_from = 64;  // from this number of rows of a group on, tiles of many rows (tiled_product.cuh) are faster
  // Fewer blocks than this leave multiprocessors idle, or with too few loads under way to keep the memory busy: three
  // for each multiprocessor of an H200.
  int64_t few_blocks = 384;
};

// Biases that are added to the outputs of each matrix after the sums; null: nothing.
struct Biases {
  const float* values = nullptr;  // [num_cols], or [num_experts, num_cols]
  bool is_per_expert = false;     // indexed by RowGroups::expert_idx
};

// y[row, col] = sum over k of x[row, k] * w[col, k] + bias[col].
struct GemmLaunch {
  kernels::RowFormat x_format = kernels::RowFormat::kF32;
  WeightFormat w_format = WeightFormat::kF32;
  int64_t num_cols = 0;
  int64_t inner_dim = 0;
  const std::byte* x = nullptr;  // [rows] prepared: bf16 in pairs, with zeros up to a multiple of 16 inputs
  int64_t x_stride_bytes = 0;    // a multiple of 16
  Matrices weights = {};
  Biases bias = {};
  float* y = nullptr;
  int64_t y_stride = 0;
  RowGroups groups = {};
  GemmTuning tuning = {};
};
void Gemm(const GemmLaunch& launch, Stream stream);

// hidden[row] = GluRule of gate(x[row]) and up(x[row]), prepared in `x_format`. Without gates it is max(0, up(x[row]))
// or the square of that.
struct GateUpLaunch {
  kernels::RowFormat x_format = kernels::RowFormat::kF32;  // of x and of hidden
  WeightFormat w_format = WeightFormat::kF32;
  int64_t ffn_dim = 0;
  int64_t inner_dim = 0;
  const std::byte* x = nullptr;
  int64_t x_stride_bytes = 0;
  Matrices gate = {}, up = {};
  Biases gate_bias = {}, up_bias = {};
  GluRule rule = {};
  bool is_gated = true;
  bool squares_relu = false;
  std::byte* hidden = nullptr;  // [rows]
  int64_t hidden_stride_bytes = 0;
  RowGroups groups = {};
  GemmTuning tuning = {};
};
void GateUp(const GateUpLaunch& launch, Stream stream);

// Normalises as described at NormArgs, and prepares the result. Without weights, the result is x. Either output may be
// null, or x itself.
struct NormLaunch {
  int64_t num_rows = 0;
  int64_t dim = 0;
  const float* x = nullptr;  // [num_rows, dim]
  const float* weight = nullptr;
  float eps = 0;
  Norm norm = Norm::kRms;
  const float* bias = nullptr;
  float* normed = nullptr;  // [num_rows, dim]
  kernels::RowFormat format = kernels::RowFormat::kF32;
  std::byte* prepared = nullptr;  // [num_rows]
  int64_t prepared_stride_bytes = 0;
};
void NormRows(const NormLaunch& launch, Stream stream);
// Prepares rows as described at PrepareRowsArgs, with all inputs.
struct PrepareLaunch {
  int64_t num_rows = 0;
  int64_t dim = 0;
  const float* x = nullptr;  // [num_rows, dim]
  int64_t x_stride = 0;      // from one row to the next
  kernels::RowFormat format = kernels::RowFormat::kF32;
  std::byte* prepared = nullptr;
  int64_t prepared_stride_bytes = 0;
};
void PrepareRows(const PrepareLaunch& launch, Stream stream);

// Changes rows of q, k and v in place, in this order. All steps are optional:
// - v = k, in layers where K's projection is V, too; a norm of each head of v, without weights; v *= value_scale.
// - QK norm, clamp of all three to +-clip, RoPE of q and k. Some kinds of QK norm come after RoPE.
// - q *= query_scales.
struct QkvLaunch {
  int64_t num_rows = 0;
  int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0, value_dim = 0;
  float* q = nullptr;                                // [num_rows, num_heads, head_dim]
  float* k = nullptr;                                // [num_rows, num_kv_heads, head_dim]
  float* v = nullptr;                                // [num_rows, num_kv_heads, value_dim]
  int64_t q_stride = 0, k_stride = 0, v_stride = 0;  // from one row to the next
  bool keys_are_values = false;
  bool norms_v = false;
  float value_scale = 1;
  // Normalises all heads of a row together, or each head: norm_dim inputs at a time, and none if that is 0. Without
  // weights, they are 1.
  const float* q_norm = nullptr;
  const float* k_norm = nullptr;
  int64_t q_norm_dim = 0, k_norm_dim = 0;
  float eps = 0;
  float clip = 0;
  int64_t rotary_dim = 0;      // the first dims of head_dim
  const float* cos = nullptr;  // [num_rows, rotary_dim / 2]
  const float* sin = nullptr;
  int64_t angles_stride = 0;            // from one row to the next
  bool is_interleaved = false;          // see RopeArgs
  bool norms_after_rope = false;        // otherwise before the clamp
  const float* query_scales = nullptr;  // [num_rows] or null
};
void FinishQkv(const QkvLaunch& launch, Stream stream);

// Completes q and k of MLA, whose heads have a compressed part and then a part that rotates: copies the latter from
// q_heads, norms the compressed part of k, and applies RoPE.
struct MlaLaunch {
  int64_t num_rows = 0;
  int64_t num_heads = 0;
  int64_t nope_dim = 0, rope_dim = 0, kv_lora_rank = 0;
  const float* q_heads = nullptr;  // [num_rows, num_heads, nope_dim + rope_dim]
  float* q = nullptr;              // [num_rows, num_heads, kv_lora_rank + rope_dim]
  float* k = nullptr;              // [num_rows, kv_lora_rank + rope_dim]
  const float* k_norm = nullptr;   // [kv_lora_rank]
  float eps = 0;
  float k_scale = 1;           // factor of the compressed part behind its norm
  int64_t rotary_dim = 0;      // rope_dim, or 0 where nothing rotates
  const float* cos = nullptr;  // [num_rows, rotary_dim / 2]
  const float* sin = nullptr;
  int64_t angles_stride = 0;
  bool is_interleaved = false;
  const float* query_scales = nullptr;  // [num_rows] or null: factors of q
};
void FinishMla(const MlaLaunch& launch, Stream stream);

// Routes each row as described at RouterTopkArgs.
struct RouterLaunch {
  int64_t num_rows = 0;
  int64_t num_experts = 0;
  int64_t num_topk = 0;
  RouterRule rule = {};
  float logit_scale = 1;
  const float* selection_bias = nullptr;  // [num_experts] or null
  const float* expert_scales = nullptr;   // [num_experts] or null: factors of the weights; not with kSparsemixer
  float* scores = nullptr;                // [num_rows, num_experts]: logits in, scores out
  int32_t* topk_idx = nullptr;            // [num_rows, num_topk]
  float* topk_weights = nullptr;          // [num_rows, num_topk]
};
void RouterTopk(const RouterLaunch& launch, Stream stream);

// Sorts assignments [begin, end) by expert, stable in rows. Gives the offsets of the experts, the place of each
// assignment and the row of each place, and gathers the experts' inputs into these places.
struct GroupLaunch {
  int64_t begin = 0, end = 0;
  int64_t num_experts = 0;
  int64_t num_topk = 0;
  const int32_t* topk_idx = nullptr;  // [rows, num_topk]
  int64_t* offsets = nullptr;         // [num_experts + 1]
  int64_t* assignments = nullptr;     // [rows, num_topk]
  int64_t* assigned_row = nullptr;    // [rows * num_topk]
  const std::byte* input = nullptr;   // [rows]
  std::byte* gathered = nullptr;      // [rows * num_topk]
  int64_t input_bytes = 0;            // bytes of a row, a multiple of 16
};
void Group(const GroupLaunch& launch, Stream stream);

// Copies the rows that chose experts [first_expert, num_experts) to their places among the experts' outputs. `offsets`
// and `assigned_row` are those of Group().
struct ReturnInputsLaunch {
  int64_t begin = 0, end = 0;  // of all assignments
  int64_t first_expert = 0;
  const int64_t* offsets = nullptr;
  const int64_t* assigned_row = nullptr;
  const float* input = nullptr;  // [rows, dim]
  float* output = nullptr;       // [rows * num_topk, dim]
  int64_t dim = 0;
};
void ReturnInputs(const ReturnInputsLaunch& launch, Stream stream);

// Combines as described at CombineArgs.
void Combine(const kernels::CombineArgs& args, Stream stream);
// Computes target += scale * source.
void Add(const float* source, float scale, int64_t count, float* target, Stream stream);
// Computes target = scale * source.
void CopyScaled(const float* source, float scale, int64_t count, float* target, Stream stream);
// Computes target[row] += scale / (1 + exp(-gates[row])) * source[row].
struct AddGatedLaunch {
  int64_t num_rows = 0;
  int64_t dim = 0;
  const float* source = nullptr;  // [num_rows, dim]
  const float* gates = nullptr;   // [num_rows]
  float scale = 1;
  float* target = nullptr;  // [num_rows, dim]
};
void AddGated(const AddGatedLaunch& launch, Stream stream);
// Computes target *= scale, or *= a number on the device.
void Scale(float scale, int64_t count, float* target, Stream stream);
void ScaleBy(const float* scale, int64_t count, float* target, Stream stream);
// Multiplies row i of x [num_rows, dim] by weights[i], which becomes 1.
void MoveWeights(int64_t num_rows, int64_t dim, float* x, float* weights, Stream stream);
// Computes x = cap * tanh(x / cap) as kernels::KernelTable::soft_cap does.
void SoftCap(float cap, int64_t count, float* x, Stream stream);

// best[row] = the index of the largest of x[row], the first among equals; -1 when one is NaN or infinite, or all are
// -infinity.
void ArgMax(const float* x, int64_t num_rows, int64_t dim, int32_t* best, Stream stream);

void Clear(float* target, int64_t count, Stream stream);

// The pages of each row's sequence on the device.
struct KvRows {
  KvFormat format = KvFormat::kF32;
  int64_t head_dim = 0;
  int64_t values_in_key = 0;  // KvBlock (tensor/kv_block.h), like own_values
  int64_t own_values = 0;
  int64_t num_kv_heads = 0;
  int64_t first_block_bytes = 0;  // offset of the layer in a page
  int64_t block_bytes = 0;        // bytes of one head
  int64_t num_rows = 0;
  std::byte* const* pages = nullptr;    // the lists of all rows
  const int64_t* first_page = nullptr;  // [num_rows]: where a row's list begins
  const int64_t* positions = nullptr;   // [num_rows]: position within its pages
  const int64_t* firsts = nullptr;      // [num_rows] or null: the first position that a row attends to, at least
};
// Stores K [num_rows, num_kv_heads, head_dim] and V of each row in its page. `v` is not read if values_in_key > 0.
struct StoreKvLaunch {
  KvRows rows = {};
  const float* k = nullptr;
  const float* v = nullptr;
  int64_t k_stride = 0, v_stride = 0;  // from one row to the next
};
void StoreKv(const StoreKvLaunch& launch, Stream stream);

// Attends as described at AttentionArgs, for every row and head.
struct AttentionLaunch {
  KvRows rows = {};
  int64_t num_heads = 0;
  int64_t window = 0;
  float scale = 0;
  const float* sinks = nullptr;          // [num_heads] or null
  const float* q = nullptr;              // [num_rows, num_heads, head_dim]
  float* out = nullptr;                  // [num_rows, num_heads, dims of V]
  int64_t q_stride = 0, out_stride = 0;  // from one row to the next
  int64_t max_positions = 0;             // maximum positions that a row attends to, in whole pages
  float* scores = nullptr;               // [num_rows, num_heads, max_positions]
  float* totals = nullptr;               // [num_rows, num_heads]
  // Neighbouring rows see the same pages, as rows of a prompt do, so a block handles several. REQUIRES: their positions
  // increase.
  bool rows_share_pages = false;
};
void Attention(const AttentionLaunch& launch, Stream stream);

// For measuring the device. Peak() computes many products of registers in `num_blocks` blocks, as for rows of `format`;
// PeakOps() returns how many multiplications and additions they are. ReadAll() reads memory. `results`:
// kPeakResultBytes, hardly ever written.
inline constexpr size_t kPeakResultBytes = 1024;
double PeakOps(kernels::RowFormat format, int num_blocks);
void Peak(kernels::RowFormat format, int num_blocks, float* results, Stream stream);
void ReadAll(const std::byte* bytes, int64_t num_bytes, float* results, Stream stream);

}  // namespace penstock::cuda
