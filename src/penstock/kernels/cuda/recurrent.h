// Kernels of recurrent layers on a device, launched on a stream. Results have the host's bits (kernels/kernel_table.h).
#pragma once

#include "penstock/kernels/cuda/stream.h"
#include "penstock/kernels/kernel_table.h"

namespace penstock::cuda {

// Runs of neighbouring rows, each of one sequence, and the places of their states: those of a layer's matrices or those
// of its convolution. Each sequence's state lies in parts. All pointers are to device memory.
struct StateRuns {
  int64_t num_runs = 0;
  int64_t num_parts = 0;               // of each state
  const int64_t* begins = nullptr;     // [num_runs + 1]: run i has rows [begins[i], begins[i + 1])
  float* const* parts = nullptr;       // [num_runs, num_parts]
  int64_t num_copies = 0;              // of states as they are after a row
  const int64_t* copy_rows = nullptr;  // [num_copies]: these rows, in increasing order
  float* const* copy_parts = nullptr;  // [num_copies, num_parts]
};

// Convolves rows as described at ShortConvArgs. A part of a state holds the inputs of `part_channels` channels, the
// last part those of the others. The channels lie in up to three buffers, one after another.
struct ShortConvLaunch {
  StateRuns runs = {};
  int64_t num_channels = 0, part_channels = 0, width = 0;
  struct Input {
    float* x = nullptr;  // [rows, count]
    int64_t count = 0;
    const float* weight = nullptr;  // [width, count]
    int64_t weight_stride = 0;
  } inputs[3] = {};
  const float* bias = nullptr;  // [num_channels] or null
  float* out = nullptr;         // [rows, count] of the first buffer; null: in place
  bool has_silu = true;
};
void ShortConv(const ShortConvLaunch& launch, Stream stream);

// Computes the gates of rows that follow each other; `first` describes the first row.
void RecurrentGates(const kernels::RecurrentGatesArgs& first, int64_t num_rows, Stream stream);

// Divides vectors by the root of their mean square, in place, and multiplies them by weights or by one factor.
struct NormVectorsLaunch {
  int64_t num_vectors = 0;
  int64_t dim = 0;
  float* x = nullptr;             // [num_vectors, dim]
  const float* weight = nullptr;  // [dim] or null
  float factor = 1;               // without weights
  float eps = 0;
};
void NormVectors(const NormVectorsLaunch& launch, Stream stream);

// Advances states as described at StateRuleArgs. A part holds `part_cols` columns of the matrix of a head
// [key_dim, value_dim]; the parts of a head follow each other.
struct StateRuleLaunch {
  StateRuns runs = {};
  int64_t num_key_heads = 0, num_value_heads = 0, key_dim = 0, value_dim = 0, part_cols = 0;
  bool heads_alternate = false;  // Recurrent (model/model_config.h)
  const float* q = nullptr;      // [rows, num_key_heads, key_dim], like k
  const float* k = nullptr;
  const float* v = nullptr;        // [rows, num_value_heads, value_dim]
  const float* decay = nullptr;    // [rows, num_value_heads], or like k with decays_dims
  bool decay_is_constant = false;  // `decay` has one row for all
  const float* beta = nullptr;     // [rows, num_value_heads]; null: 1
  bool decays_dims = false, has_delta = true;
  const float* skip = nullptr;  // [num_value_heads] or null
  float* out = nullptr;         // like v
};
void StateRule(const StateRuleLaunch& launch, Stream stream);

// Advances states as described at SelectiveScanArgs, with one key head. A part holds `part_cols` of num_cols columns.
struct SelectiveScanLaunch {
  StateRuns runs = {};
  int64_t key_dim = 0, num_cols = 0, part_cols = 0;
  const float* q = nullptr;  // [rows, key_dim], like k
  const float* k = nullptr;
  const float* v = nullptr;          // [rows, num_cols]
  const float* step = nullptr;       // [rows, num_cols]
  const float* decay_log = nullptr;  // [key_dim, num_cols]
  const float* skip = nullptr;       // [num_cols]
  float* out = nullptr;              // [rows, num_cols]
};
void SelectiveScan(const SelectiveScanLaunch& launch, Stream stream);

// How a gate g changes x.
enum class GateRule : uint8_t {
  kSigmoid,   // x / (1 + exp(-g))
  kSilu,      // x * g / (1 + exp(-g))
  kSoftplus,  // x * log(1 + exp(g))
  kProduct,   // x * g
};

// Changes rows of x by gates, in place. `dims_of_gate` neighbours have one gate.
struct GateLaunch {
  int64_t num_rows = 0;
  int64_t dim = 0;
  float* x = nullptr;                     // [num_rows, dim]
  const float* gate = nullptr;            // [num_rows, dim / dims_of_gate]
  int64_t x_stride = 0, gate_stride = 0;  // from one row to the next
  GateRule rule = GateRule::kSigmoid;
  int64_t dims_of_gate = 1;
};
void Gate(const GateLaunch& launch, Stream stream);

// Norms vectors of `norm_dim` of each row, before or after the gates change them, and prepares the rows.
struct GateRowsLaunch {
  int64_t num_rows = 0;
  int64_t dim = 0;
  const float* x = nullptr;     // [num_rows, dim]
  const float* gate = nullptr;  // [num_rows, dim]
  GateRule rule = GateRule::kSigmoid;
  int64_t norm_dim = 0;                // 0: no norm
  const float* norm_weight = nullptr;  // [dim], or [norm_dim] for all vectors
  bool norm_weight_is_shared = false;
  bool norms_last = false;
  float eps = 0;
  kernels::RowFormat format = kernels::RowFormat::kF32;
  std::byte* prepared = nullptr;  // [num_rows]
  int64_t prepared_stride_bytes = 0;
};
void GateRows(const GateRowsLaunch& launch, Stream stream);

}  // namespace penstock::cuda
