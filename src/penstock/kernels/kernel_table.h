// The arguments of the kernels, and the table through which they are called.
//
// Kernels are arithmetic only: no allocation, no threads, no files, no logs, no checks. The operations above check
// shapes and split work by calling a kernel on a sub-range (rows, columns or heads) with moved pointers.
//
// The law of sums. Every output is summed in an order that depends only on its own inner dimension. So its bits do not
// depend on the other rows, on how the work was split, or on the instruction set:
//   - An output of a GEMM with float weights, or with weights in block formats as floats, is one accumulator that
//     starts at 0. For each pair of inputs (2i, 2i + 1), in increasing i, it takes first k = 2i + 1 and then k = 2i,
//     with one fused multiply-add each; a missing last input is 0 times 0. This is the order that Intel documents for
//     VDPBF16PS, which also takes denormal inputs and results as zero: AVX512-BF16 machines differ there, and only
//     there. A machine whose instruction proves to sum in another order is treated as one without it.
//   - An output of a GEMM with quantised weights is one accumulator that starts at 0 and takes the groups of weights in
//     increasing order: acc = fma(dot, w_scale * x_scale, acc). Here dot is the exact integer sum of code * x over an
//     int8 group, and fma(-w_zero, sum of x, integer sum of code * x) over an HQQ group.
//   - An output of a GEMM with block formats and int8 rows is one accumulator that starts at 0 and takes 128 inputs at
//     a time: acc = fma(part, x_scale, acc). The part starts at 0 and takes the groups of inputs that share a scale, in
//     increasing order: part = fma(dot, w_scale, part), and then, in formats with minima, part = fma(sum of x, w_min,
//     part). Here dot is the exact integer sum of code * x.
//   - A score of attention (q . K) is one accumulator that starts at 0 and takes the dimensions in increasing order.
//   - A sum of squares has 16 lanes; lane j takes k = 16*i + j with one fused multiply-add per step, in increasing i;
//     the tail is padded with zeros. Then lanes j and j+8 are added, then j and j+4, j+2, j+1.
//   - A sum of values, which LayerNorm needs for its mean, has the same lanes and tree, with additions.
// NaNs have the same places everywhere, but their payloads are not guaranteed. The rounding mode is to nearest and
// denormals are kept (the C++ default; -ffast-math sets neither here).
//
// This header is compiled with the flags of every instruction set, so it includes and defines as little as possible.
// The linker might keep an inline function compiled for AVX-512 as the copy for all callers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "penstock/model/rules.h"
#include "penstock/tensor/dtype.h"
#include "penstock/tensor/kv_block.h"
#include "penstock/tensor/packed_matrix.h"

namespace penstock::kernels {

// Strides are in elements of the pointed-to type unless they say bytes. Sizes may be anything from 1 on. Activations
// are best aligned to 64 bytes (any alignment of their type works); KV blocks are aligned to 64 bytes.

// The storage of the rows of x for a GEMM. prepare_rows makes it, and a row takes RowBytes(format, dim) bytes.
enum class RowFormat : uint8_t {
  kF32,   // floats
  kBF16,  // rounded to bf16: pairs if the machine multiplies them, else floats with these values
  kInt8,  // codes [dim rounded up to 128] (s8), then an Int8RowGroup for each 128 of them, then the sums of each 16
          // codes (s16)
};

// 128 inputs of a row: x = code * scale, code = round(x * (127 / max |x|)), ties to even. A group below 2^-100 counts
// as zeros. A group with an infinity or a NaN has codes 0 and the scale NaN, which turns the whole row of outputs into
// NaN.
struct Int8RowGroup {
  float scale;          // max |x| / 127
  int32_t code_offset;  // -128 times the sum of the codes: corrects for unsigned weight codes, which are 128 too large
  float code_sums[2];   // sums of the first and of the second 64 codes; exact
};

// 128 codes, their Int8RowGroup and 8 sums.
constexpr int64_t kInt8RowGroupBytes = kInt8Group + static_cast<int64_t>(sizeof(Int8RowGroup)) + 8 * 2;

// Writes inputs [first, first + count) of target[row] = source[row] in `format`.
struct PrepareRowsArgs {
  int64_t num_rows;
  int64_t dim;
  int64_t first;        // a multiple of 128
  int64_t count;        // a multiple of 128, or up to `dim`
  const float* source;  // [num_rows, count]
  int64_t source_stride;
  RowFormat format;
  std::byte* target;  // [num_rows], aligned to 4 bytes
  int64_t target_stride_bytes;
};

// Who asks for the weights of few rows before tiles read them. It changes only the speed. Which way is faster depends
// on the processor, the format and the number of rows.
enum class Prefetching : uint8_t {
  kProcessor,  // the processor, which notices that the reads are consecutive
  kTwoPages,   // the kernel, from two pages by turns
  kFar,        // the kernel, far ahead into the L2 cache, one page after another
};
constexpr int kNumPrefetchings = 3;

// y[row, col] = sum over k of x[row, k] * w[col, k], + bias[col] after the sum when bias is not null. kInt8 rows go
// only with weights for which MultipliesInt8Rows holds. kBF16 rows go with kBF16 weights, and with codes and
// blocks, which are rounded to bf16 for them. For kF32 rows, weights in any format give the same bits as if stored as
// f32.
struct GemmArgs {
  int64_t num_rows;   // M
  int64_t num_cols;   // N
  int64_t inner_dim;  // K
  RowFormat x_format;
  const std::byte* x;  // [num_rows]
  int64_t x_stride_bytes;
  WeightFormat w_format;
  const std::byte* w;   // panels of w [num_cols, inner_dim] (tensor/packed_matrix.h), aligned to 64 bytes
  int64_t panel_bytes;  // PanelBytes(w_format, inner_dim)
  const float* bias;    // [num_cols] or null
  float* y;             // [num_rows, num_cols]
  int64_t y_stride;
  Prefetching prefetching = Prefetching::kProcessor;
};

// kRms: out = x * (1 / sqrt(mean(x^2) + eps)) * weight, multiplied in this order. kLayer: the same with x - mean(x) for
// x, then + bias when that is not null. `out` may be `x`.
struct NormArgs {
  int64_t num_rows;
  int64_t dim;
  const float* x;  // [num_rows, dim]
  int64_t x_stride;
  const float* weight;  // [dim], or null: ones
  float eps;
  float* out;  // [num_rows, dim]
  int64_t out_stride;
  Norm norm = Norm::kRms;
  const float* bias = nullptr;  // [dim] or null
};

// Rotates one row in place, for each head: (a, b) = (x[d], x[d + rotary_dim/2]), or interleaved (x[2d], x[2d + 1]),
// becomes (a*cos - b*sin, b*cos + a*sin).
struct RopeArgs {
  int64_t num_heads;
  int64_t rotary_dim;  // even; head_dim, or less when only a part of a head rotates
  float* x;            // [num_heads, rotary_dim]: the part that rotates
  int64_t head_stride;
  const float* cos;  // [rotary_dim / 2]
  const float* sin;  // [rotary_dim / 2]
  bool is_interleaved = false;
};

// Chooses one row's experts by the rule (model/rules.h), in decreasing order of their keys; ties go to the lower index.
// The sum of renormalised weights is taken in that order. One NaN among the logits turns all scores and weights into
// NaN, but every index is valid and occurs once.
struct RouterTopkArgs {
  int64_t num_experts;
  int64_t num_topk;  // 1..num_experts
  float* scores;     // [num_experts]: logits in, scores out (kSparsemixer: softmax)
  RouterRule rule = {};
  const float* selection_bias = nullptr;  // [num_experts] or null
  int32_t* topk_idx;                      // [num_topk]
  float* topk_weights;                    // [num_topk]
};

// Computes a GluRule (model/rules.h). `out` may be `gate` or `up`.
struct SwigluArgs {
  int64_t num_rows;
  int64_t dim;
  const float* gate;  // [num_rows, dim]
  int64_t gate_stride;
  const float* up;  // [num_rows, dim]
  int64_t up_stride;
  float* out;  // [num_rows, dim]
  int64_t out_stride;
  GluRule rule = {};
};

// Stores the K and V of one token and one KV head, rounded to nearest, in its block.
struct StoreKvArgs {
  KvFormat format;
  int64_t head_dim;
  int64_t values_in_key = 0;  // KvBlock, like the next two
  bool is_by_token = false;
  int64_t value_dim = 0;
  const float* k;    // [head_dim]
  const float* v;    // [value_dim or head_dim]; not read if values_in_key > 0
  std::byte* block;  // KvBlock (tensor/kv_block.h)
  int64_t token;     // its index in the page
};

// In one call of attention, several rows have at most this many query heads together. A single row may have more.
constexpr int64_t kAttentionHeads = 12;

// Attends for rows at consecutive positions of one sequence and one KV head, with each row's `group` query heads that
// share it:
//   out[g] = sum over pos of p[g, pos] * V[pos] / sum over pos of p[g, pos],
//   p[g, pos] = exp(scale * (q[g] . K[pos]) - max over pos),
// over the row's own position and those before it, at most `window` of them. The sum of p has 16 lanes from the first
// position on; p . V is accumulated in increasing position. For an int8 K, q is rounded to codes and a scale as K was.
// Then q . K is the exact sum of products of codes, times (scale of q * scale of K). The scale of a V multiplies p in p
// . V. A head's sink takes part in the maximum, and its exp is added to the sum of p after all positions. A relative
// bias is added to q . K, before the scale.
struct AttentionArgs {
  int64_t num_rows;
  int64_t group;  // num_heads / num_kv_heads
  int64_t head_dim;
  int64_t values_in_key = 0;  // KvBlock, like the next
  int64_t value_dim = 0;
  const float* q;    // [num_rows, group, head_dim]
  int64_t q_stride;  // from row to row
  // pages[i] holds positions [i * kKvPageTokens, (i + 1) * kKvPageTokens). Pages without an attended position are not
  // read and may be null.
  const std::byte* const* pages;
  KvFormat kv_format;
  int64_t head_offset_bytes;  // of this KV head's block in a page
  int64_t pos;                // of the first row
  int64_t window;             // of sliding-window attention; 0: everything from `first` on
  int64_t first = 0;          // the first position that is seen; without a window
  int64_t end = 0;            // above 0: all rows see the positions [first, end), whatever their own are
  float scale;
  const float* sinks = nullptr;  // [group] or null
  // [group, 2 * bias_reach + 1] or null: biases of the distances -bias_reach to bias_reach from a row to a position it
  // sees. Greater distances have the bias of the nearest of these.
  const float* bias = nullptr;
  int64_t bias_reach = 0;
  float* scratch;  // AttentionScratchFloats(num_rows * group, head_dim, max(end, pos + num_rows))
  float* out;      // [num_rows, group, KvBlock::value_dim()]
  int64_t out_stride;
};

// The scores of one row's index queries (Indexer in model/model_config.h) with the index keys of whole pages:
//   scores[pos] = sum over heads of weights[h] * max(0, q[h] . k[pos]),
// in increasing h. A page's block of index keys is a KvBlock of head_dim dimensions, all of them also V. For int8 keys
// q . k is computed as in attention.
struct IndexScoresArgs {
  int64_t num_heads;
  int64_t head_dim;
  const float* q;        // [num_heads, head_dim]
  const float* weights;  // [num_heads]
  const std::byte* const* pages;
  int64_t num_pages;
  KvFormat format;
  int64_t block_offset_bytes;  // in a page
  float* scratch;              // IndexScratchFloats(num_heads, head_dim)
  float* scores;               // [num_pages * kKvPageTokens]
};

// Chooses the positions of the num_topk largest scores, in increasing order. Of equal scores the first positions are
// chosen; -0 equals 0. A NaN is below all numbers.
struct SelectTopkArgs {
  const float* scores;  // [count]
  int64_t count;
  int64_t num_topk;   // 1..count
  int32_t* selected;  // [num_topk]
};

// Copies K of chosen positions from blocks by token into blocks that attention takes, one after another.
struct GatherKvArgs {
  KvFormat format;
  int64_t head_dim;
  int64_t values_in_key;
  const std::byte* const* pages;
  int64_t block_offset_bytes;  // in a page
  const int32_t* positions;    // [count]
  int64_t count;
  std::byte* blocks;  // [ceil(count / kKvPageTokens)]
};

// y[row] = residual[row] + scale * sum over j of weights[row, j] * z[assignments[row, j]], in increasing j. `y` may be
// `residual`.
struct CombineArgs {
  int64_t num_rows;
  int64_t dim;
  int64_t num_topk;
  const float* residual;  // [num_rows, dim]
  int64_t residual_stride;
  const float* z;  // [num_assignments, dim]
  int64_t z_stride;
  const int64_t* assignments;  // [num_rows, num_topk], rows of z
  const float* weights;        // [num_rows, num_topk]
  float* y;                    // [num_rows, dim]
  int64_t y_stride;
  float scale = 1;
};

// The convolutions see at most this many positions.
inline constexpr int64_t kMaxConvWidth = 16;

// A convolution of each channel over the positions of one sequence:
//   sum = sum over i < width of weight[i] * x[row - width + 1 + i],   out[row] = sum / (1 + exp(-sum)), or the sum,
// summed from the oldest position on, from the bias on. `state` holds the inputs before the first row, the oldest
// first, and then those before the row that follows the last. `out` may be `x`.
struct ShortConvArgs {
  int64_t num_rows;
  int64_t num_channels;
  int64_t width;   // 2..kMaxConvWidth
  const float* x;  // [num_rows, num_channels]
  int64_t x_stride;
  const float* weight;  // [width, num_channels]
  int64_t weight_stride;
  const float* bias = nullptr;  // [num_channels] or null
  float* state;                 // [width - 1, num_channels]
  int64_t state_stride;
  float* out;  // [num_rows, num_channels]
  int64_t out_stride;
  bool has_silu = true;
};

// The gates of a row of a recurrent layer, in place:
//   step = log(1 + exp(decay + decay_bias)),
//   decay = exp(-exp(decay_log) * step), or the step where decay_log is null, or with a floor
//   decay = exp(decay_floor / (1 + exp(-exp(decay_log) * (decay + decay_bias)))),
//   beta = the step, or 1 / (1 + exp(-beta)).
struct RecurrentGatesArgs {
  int64_t num_decays;
  int64_t decays_of_log = 1;  // neighbouring decays with one decay_log
  const float* decay_bias;    // [num_decays]
  const float* decay_log;     // [num_decays / decays_of_log] or null
  float decay_floor = 0;      // below 0 if there is one; needs decay_log
  float* decay;               // [num_decays]
  int64_t num_betas;          // num_decays if they are steps
  bool beta_is_step = false;
  float* beta;  // [num_betas]
};

// A rule of recurrent layers (RecurrentKind in model/model_config.h) on the state of one value head, for rows of one
// sequence. The sums S^T k and S^T q are one accumulator for each column, which takes the key's dims in increasing
// order. k . q is summed as a sum of squares is. Then
//   delta = (v - decay * S^T k) * beta,   out = fma(k . q, delta, decay * S^T q),   S = fma(k, delta, decay * S).
// If each of the key's dims has a decay, the sums multiply it with k or q first. Rules without has_delta have
// delta = v * beta, and add skip * v to the output.
struct StateRuleArgs {
  int64_t num_rows;
  int64_t key_dim;
  int64_t value_dim;
  const float* q;    // [num_rows, key_dim]
  const float* k;    // [num_rows, key_dim]
  int64_t k_stride;  // of q, too
  const float* v;    // [num_rows, value_dim]
  int64_t v_stride;
  const float* decay;  // [num_rows], or [num_rows, key_dim]
  int64_t decay_stride;
  const float* beta;  // [num_rows]
  int64_t beta_stride;
  bool decays_dims = false;  // REQUIRES: has_delta
  bool has_delta = true;
  float skip = 0;
  float* state;  // [key_dim, value_dim]
  float* out;    // [num_rows, value_dim]
  int64_t out_stride;
};

// The rule of Mamba on some columns of the state, for rows of one sequence:
//   S[d] = fma(k[d], step * v, exp(-exp(decay_log[d]) * step) * S[d]),   out = fma(skip, v, S^T q),
// summed over d in increasing order.
struct SelectiveScanArgs {
  int64_t num_rows;
  int64_t key_dim;  // up to kMaxScanDim
  int64_t value_dim;
  const float* q;          // [num_rows, key_dim]
  const float* k;          // [num_rows, key_dim]
  int64_t k_stride;        // of q, too
  const float* v;          // [num_rows, value_dim]
  const float* step;       // [num_rows, value_dim]
  int64_t v_stride;        // of `step` and `out`, too
  const float* decay_log;  // [key_dim, value_dim]
  int64_t log_stride;
  const float* skip;  // [value_dim]
  float* state;       // [key_dim, value_dim]
  float* out;         // [num_rows, value_dim]
};

// Values of a softmax are taken in blocks of this size.
inline constexpr int64_t kSoftmaxBlock = 64;

// weights = exp((logits - max) * scale). `block_sums` and `block_maxima` are those of the weights in each block.
struct SoftmaxBlocksArgs {
  const float* logits;  // [count], none above max, no NaN
  int64_t count;
  float max;
  float scale;        // finite and above 0
  float* weights;     // [count]
  float* block_sums;  // [ceil(count / kSoftmaxBlock)], like block_maxima
  float* block_maxima;
};

// Compressed bf16 values (tensor/exponent_code.h): the parts of a block, which is coded. The kernel follows its bits
// wherever they lead: it may read up to kExponentScratchBytes from the start of the block.
struct DecodeExponentsArgs {
  int64_t num_groups;
  const uint8_t* exponents;  // [kExponentCodes]
  const std::byte* first;
  const std::byte* signs;
  const std::byte* second;
  const std::byte* third;
  const std::byte* escapes;
  uint16_t* target;  // [num_groups, 64] bf16 values
};
// The numbers of codes that the kernel took from each part. The caller compares them with those of the block.
struct DecodedExponents {
  uint64_t num_second = 0;
  uint64_t num_third = 0;
  uint64_t num_escapes = 0;
};

struct KernelTable {
  void (*prepare_rows)(const PrepareRowsArgs& args);
  void (*gemm)(const GemmArgs& args);
  void (*norm)(const NormArgs& args);
  void (*rope)(const RopeArgs& args);
  void (*router_topk)(const RouterTopkArgs& args);
  void (*swiglu)(const SwigluArgs& args);
  void (*store_kv)(const StoreKvArgs& args);
  void (*attention)(const AttentionArgs& args);
  void (*index_scores)(const IndexScoresArgs& args);
  void (*select_topk)(const SelectTopkArgs& args);
  void (*gather_kv)(const GatherKvArgs& args);
  void (*combine)(const CombineArgs& args);
  void (*short_conv)(const ShortConvArgs& args);
  void (*recurrent_gates)(const RecurrentGatesArgs& args);
  void (*state_rule)(const StateRuleArgs& args);
  void (*selective_scan)(const SelectiveScanArgs& args);
  // Computes target *= 1 / (1 + exp(-gate)).
  void (*scale_by_sigmoid)(const float* gate, int64_t count, float* target);
  // Computes target = exp(source) within 2 ulp; exp(-inf) = 0, exp(inf) = inf, NaN stays NaN. `target` may be `source`.
  void (*exp)(const float* source, int64_t count, float* target);
  // Computes x = cap * tanh(x / cap), as cap - 2 cap / (1 + exp(2 x / cap)); NaN stays NaN.
  void (*soft_cap)(float cap, int64_t count, float* x);
  // Writes the largest value of each block of kSoftmaxBlock. Returns whether all values are finite; if not, maxima may
  // be wrong.
  bool (*block_maxima)(const float* values, int64_t count, float* maxima);
  void (*softmax_blocks)(const SoftmaxBlocksArgs& args);
  // Computes target += scale * source; the product is rounded first.
  void (*add)(const float* source, float scale, int64_t count, float* target);
  // Rounds to nearest, ties to even; NaN stays NaN. The same as ToBF16 of tensor/dtype.h for each element.
  void (*to_bf16)(const float* source, int64_t count, BF16* target);
  // Exact. The source needs no alignment. REQUIRES: IsFloat(dtype).
  void (*to_f32)(Dtype dtype, const std::byte* source, int64_t count, float* target);
  DecodedExponents (*decode_exponents)(const DecodeExponentsArgs& args);
};

}  // namespace penstock::kernels
