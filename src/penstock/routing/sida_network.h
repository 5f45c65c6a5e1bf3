// The network of SiDA: from a token's id and the tokens before it, it says which experts of all layers the token will
// choose, before the model computes anything. tools/train_predictor trains it and writes its file.
//
//   x       = table[token]                               the token's embedding, compressed
//   h1, h2  = two LSTM layers over the x of the sequence
//   scores  = (query h2) . h2 of the last `window` tokens, this one included
//   a       = sum of those h2, weighted by SparseMax(scores)
//   logits  = output (a + x) + bias                      one for each expert of each layer with experts
//
// The file is a safetensors file. Its metadata has `format` "penstock sida 1", `window`, and the model's `fingerprint`.
// Its tensors are f32: table [vocab_size, dim], lstm.0.input, lstm.0.hidden, lstm.1.input and lstm.1.hidden
// [4 dim, dim] with lstm.0.bias and lstm.1.bias [4 dim] (gates in the order input, forget, cell, output),
// attention.query [dim, dim], output.weight [num_layers, num_experts, dim] and output.bias [num_layers, num_experts].
//
// Products of matrices are those of kernels/kernel_table.h, and all other sums have a fixed order. So the same tokens
// give the same logits, in pieces of any size and with any instruction set.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "penstock/checkpoint/safetensors.h"
#include "penstock/kernels/kernel_table.h"

namespace penstock {

struct SidaShape {
  int64_t vocab_size = 0;
  int64_t dim = 0;
  int64_t window = 0;
  int64_t num_layers = 0;  // with experts
  int64_t num_experts = 0;
  std::string fingerprint;  // of the model whose routing it learnt; 32 hexadecimal digits

  // Returns the most memory that a network takes, while it is read and later.
  uint64_t network_bytes() const;
  uint64_t state_bytes() const;    // of a sequence
  uint64_t scratch_bytes() const;  // of SidaNetwork::Scratch
};

// Returns kModel, naming what differs, if the network is of another model. An empty `fingerprint` is unknown and fits.
absl::Status CheckSidaShape(const SidaShape& shape, int64_t vocab_size, int64_t num_layers, int64_t num_experts,
                            std::string_view fingerprint);

// Sets `weights` to the point nearest to `scores` whose entries are not negative and add up to 1. `scratch` is as long.
void SparseMax(std::span<const float> scores, std::span<float> scratch, std::span<float> weights);

class SidaNetwork {
 public:
  // The network's memory of a sequence.
  struct State {
    std::vector<float> cells;    // [2, dim]
    std::vector<float> outputs;  // [2, dim]: h1 and h2 of the last token
    std::vector<float> window;   // [window, dim]: h2 of the last tokens; token i lies at i % window
    int64_t num_tokens = 0;      // since the state is new
  };

  // Reads only the header. kIo if the file cannot be read, kModel if it is not such a network.
  static absl::StatusOr<SidaShape> ReadShape(const std::string& path);
  static absl::StatusOr<std::shared_ptr<const SidaNetwork>> Load(const std::string& path);
  // Returns the checksum (XXH3) of the whole file, once its header has been found good; errors as ReadShape().
  static absl::StatusOr<uint64_t> Checksum(const std::string& path);
  // The same for the bytes of a file; `name` is its name in messages.
  static absl::StatusOr<std::shared_ptr<const SidaNetwork>> OfBytes(std::string_view bytes, const std::string& name);

  const SidaShape& shape() const { return shape_; }
  State NewState() const;

  // The buffers of Run(), which any number of sequences may share.
  struct Scratch {
    const kernels::KernelTable* kernels = nullptr;
    // For each of the rows that are computed at once:
    std::vector<float> x, first, second, asked;  // [num_rows, dim]
    std::vector<float> inputs;                   // [num_rows, 4 dim]
    std::vector<float> queries;                  // [num_rows, dim]
    std::vector<float> logits;                   // [num_rows, num_layers, num_experts]
    std::vector<float> gates, scores, sorted, weights;
  };
  Scratch NewScratch(const kernels::KernelTable& kernels) const;

  // Goes on by these tokens. Calls take(i, logits) for token 0 and every `stride`-th after it, in order; with 0, for
  // none. The logits [num_layers, num_experts] may be overwritten. REQUIRES: all ids are below vocab_size and not
  // negative.
  using Taker = absl::FunctionRef<void(size_t token_idx, std::span<float> logits)>;
  void Run(std::span<const int32_t> token_ids, size_t stride, State& state, Scratch& scratch, Taker take) const;
  // Returns the multiplications and additions of Run() for one token.
  double flops_per_token() const;

 private:
  // Fills `out` with bytes of the file.
  using Reader = absl::FunctionRef<absl::Status(uint64_t offset_bytes, std::span<std::byte> out)>;
  struct Header {
    SidaShape shape;
    std::vector<TensorInfo> tensors;
  };
  // A matrix [num_cols, inner_dim] of outputs and inputs, in the panels of tensor/packed_matrix.h.
  struct Matrix {
    struct alignas(64) Line {
      std::byte bytes[64];
    };
    int64_t num_cols = 0;
    int64_t inner_dim = 0;
    std::vector<Line> panels;
  };
  struct Lstm {
    Matrix input, hidden;     // [4 dim, dim]
    std::vector<float> bias;  // [4 dim]
  };

  SidaNetwork() = default;
  static Matrix Pack(const std::vector<float>& values, int64_t inner_dim);
  static absl::StatusOr<Header> ReadHeader(Reader reader, uint64_t file_bytes);
  static absl::StatusOr<std::shared_ptr<const SidaNetwork>> Read(Reader reader, uint64_t file_bytes);
  // Sets y [num_rows, num_cols] to x [num_rows, inner_dim] times the matrix, plus the bias [num_cols] if there is one.
  static void Multiply(const kernels::KernelTable& kernels, const Matrix& matrix, const float* x, int64_t num_rows,
                       const float* bias, float* y);
  void RunLstm(const Lstm& lstm, const float* x, int64_t num_rows, float* cell, float* output, Scratch& scratch,
               float* outputs) const;
  void Attend(const State& state, const float* query, Scratch& scratch, float* out) const;

  SidaShape shape_;
  std::vector<float> table_;  // [vocab_size, dim]
  Lstm lstm_[2];
  Matrix query_;             // [dim, dim]
  Matrix output_;            // [num_layers * num_experts, dim]
  std::vector<float> bias_;  // [num_layers, num_experts]
};

}  // namespace penstock
