// Proves that the kernels of recurrent layers match the oracle, give the same bits on every instruction set, and the
// same bits whether rows come together or one by one.
#include <algorithm>
#include <cmath>

#include "kernels/kernel_testing.h"
#include "penstock/testing/reference/reference.h"

namespace penstock::kernels {
namespace {

constexpr float kPadding = 77;  // around what a kernel may touch

// Compares with a tolerance relative to the value, but at least to 1.
void ExpectNear(std::span<const float> actual, std::span<const float> expected, double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], tolerance * std::max(1.0f, std::abs(expected[i]))) << "element " << i;
  }
}

class RecurrentTest : public ::testing::TestWithParam<Isa> {
 protected:
  const KernelTable& table_ = KernelsFor(GetParam());
  const KernelTable& scalar_ = KernelsFor(Isa::kScalar);
};

struct ConvBuffers {
  std::vector<float> x, state, out;
};

// With bias and SiLU in place, and without both into another buffer.
TEST_P(RecurrentTest, ShortConv) {
  constexpr int64_t kRows = 7;
  for (const int64_t channels : {1, 15, 16, 33, 128}) {
    for (const int64_t width : {int64_t{2}, int64_t{3}, int64_t{4}, kMaxConvWidth}) {
      for (const bool is_plain : {false, true}) {
        const int64_t stride = channels + 5;
        const std::vector<float> weight = RandomFloats(width * stride, 3), bias = RandomFloats(channels, 4);
        const ConvBuffers start = {RandomFloats(kRows * stride, 1), RandomFloats((width - 1) * stride, 2),
                                   std::vector<float>(kRows * stride, kPadding)};
        const auto args = [&](ConvBuffers& buffers, int64_t first, int64_t num_rows) {
          return ShortConvArgs{.num_rows = num_rows,
                               .num_channels = channels,
                               .width = width,
                               .x = buffers.x.data() + first * stride,
                               .x_stride = stride,
                               .weight = weight.data(),
                               .weight_stride = stride,
                               .bias = is_plain ? nullptr : bias.data(),
                               .state = buffers.state.data(),
                               .state_stride = stride,
                               .out = (is_plain ? buffers.out : buffers.x).data() + first * stride,
                               .out_stride = stride,
                               .has_silu = !is_plain};
        };
        ConvBuffers all = start, scalar = start, expected = start, alone = start;
        table_.short_conv(args(all, 0, kRows));
        scalar_.short_conv(args(scalar, 0, kRows));
        reference::ShortConv(args(expected, 0, kRows));
        for (int64_t row = 0; row < kRows; ++row) table_.short_conv(args(alone, row, 1));
        ExpectNear(all.x, expected.x, 1e-5);
        ExpectNear(all.out, expected.out, 1e-5);
        ExpectSameBits(all.state, expected.state);
        for (const ConvBuffers* other : {&scalar, &alone}) {
          ExpectSameBits(all.x, other->x);
          ExpectSameBits(all.out, other->out);
          ExpectSameBits(all.state, other->state);
        }
      }
    }
  }
}

// A decay of each head, of each dim of a head, the steps as beta, the steps alone, and decays with a floor.
TEST_P(RecurrentTest, Gates) {
  struct Case {
    int64_t decays_of_log;  // 0: there are no logs
    bool beta_is_step;
    float floor = 0;
  };
  for (const int64_t heads : {1, 16, 21, 48}) {
    for (const Case& c : {Case{1, false}, Case{1, true}, Case{19, false}, Case{0, false}, Case{19, false, -5}}) {
      const int64_t num_decays = heads * std::max<int64_t>(1, c.decays_of_log);
      const std::vector<float> bias = RandomFloats(num_decays, 1), log = RandomFloats(heads, 2);
      std::vector<float> decay = RandomFloats(num_decays, 3), beta = RandomFloats(heads, 4);
      for (float& x : decay) x *= 40;  // both ends of softplus
      std::vector<float> expected_decay = decay, expected_beta = beta, scalar_decay = decay, scalar_beta = beta;
      const auto args = [&](std::vector<float>& b, std::vector<float>& d) {
        return RecurrentGatesArgs{.num_decays = num_decays,
                                  .decays_of_log = std::max<int64_t>(1, c.decays_of_log),
                                  .decay_bias = bias.data(),
                                  .decay_log = c.decays_of_log == 0 ? nullptr : log.data(),
                                  .decay_floor = c.floor,
                                  .decay = d.data(),
                                  .num_betas = heads,
                                  .beta_is_step = c.beta_is_step,
                                  .beta = b.data()};
      };
      table_.recurrent_gates(args(beta, decay));
      scalar_.recurrent_gates(args(scalar_beta, scalar_decay));
      reference::RecurrentGates(args(expected_beta, expected_decay));
      ExpectNear(decay, expected_decay, 1e-5);
      ExpectNear(beta, expected_beta, 1e-6);
      ExpectSameBits(decay, scalar_decay);
      ExpectSameBits(beta, scalar_beta);
    }
  }
}

struct RuleBuffers {
  std::vector<float> state, out;
};

// Computes the columns of a state in two pieces, as RecurrentState may keep them: run(buffers, first, count) takes
// `buffers` with a state that has only these columns.
template <typename Run>
RuleBuffers InPieces(const RuleBuffers& start, int64_t key_dim, int64_t value_dim, const Run& run) {
  RuleBuffers whole = start;
  for (const auto& [first, count] :
       {std::pair(int64_t{0}, value_dim / 2), {value_dim / 2, value_dim - value_dim / 2}}) {
    RuleBuffers piece = {{}, std::move(whole.out)};
    for (int64_t dim = 0; dim < key_dim; ++dim) {
      const auto begin = whole.state.begin() + dim * value_dim + first;
      piece.state.insert(piece.state.end(), begin, begin + count);
    }
    if (count > 0) run(piece, first, count);
    for (int64_t dim = 0; dim < key_dim; ++dim) {
      std::copy_n(piece.state.begin() + dim * count, count, whole.state.begin() + dim * value_dim + first);
    }
    whole.out = std::move(piece.out);
  }
  return whole;
}

// Computes `num_rows` rows by the oracle and by the kernel: all together, on the scalar instruction set, row by row,
// and in pieces of columns. args(buffers, first_row, num_rows, first_col, num_cols) makes a kernel's arguments.
template <typename Kernel, typename Oracle, typename Args>
void ExpectRightInAllForms(Kernel kernel, Kernel scalar_kernel, Oracle oracle, const RuleBuffers& start,
                           int64_t num_rows, int64_t key_dim, int64_t value_dim, const Args& args) {
  RuleBuffers all = start, scalar = start, expected = start, alone = start;
  kernel(args(all, 0, num_rows, 0, value_dim));
  scalar_kernel(args(scalar, 0, num_rows, 0, value_dim));
  oracle(args(expected, 0, num_rows, 0, value_dim));
  for (int64_t row = 0; row < num_rows; ++row) kernel(args(alone, row, 1, 0, value_dim));
  const RuleBuffers pieces = InPieces(start, key_dim, value_dim, [&](RuleBuffers& piece, int64_t col, int64_t count) {
    kernel(args(piece, 0, num_rows, col, count));
  });
  ExpectNear(all.out, expected.out, 1e-4);
  ExpectNear(all.state, expected.state, 1e-5);
  for (const RuleBuffers* other : {&std::as_const(scalar), &std::as_const(alone), &pieces}) {
    ExpectSameBits(all.out, other->out);
    ExpectSameBits(all.state, other->state);
  }
}

// Gated DeltaNet's rule, Kimi Delta Attention's, and Mamba-2's.
TEST_P(RecurrentTest, StateRule) {
  constexpr int64_t kRows = 6;
  struct Case {
    bool decays_dims, has_delta;
  };
  for (const Case& c : {Case{false, true}, Case{true, true}, Case{false, false}}) {
    for (const int64_t key_dim : {1, 7, 16, 40, 300}) {
      for (const int64_t value_dim : {1, 16, 21, 64, 100}) {
        const int64_t k_stride = key_dim + 3, v_stride = value_dim + 2;
        std::vector<float> k = RandomFloats(kRows * k_stride, 1), q = RandomFloats(kRows * k_stride, 2);
        for (float& x : k) x /= static_cast<float>(key_dim);  // keys of length 1 or less, as in models
        const std::vector<float> v = RandomFloats(kRows * v_stride, 3);
        const std::vector<float> beta = {0, 0.1f, 0.5f, 0.9f, 1, 0.3f}, decays = {1, 0.9f, 0.5f, 0.99f, 0, 0.7f};
        std::vector<float> decay;
        for (int64_t i = 0; i < kRows * (c.decays_dims ? k_stride : 1); ++i) decay.push_back(decays[i % kRows]);
        const RuleBuffers start = {RandomFloats(key_dim * value_dim, 4),
                                   std::vector<float>(kRows * v_stride, kPadding)};
        const auto args = [&](RuleBuffers& buffers, int64_t first, int64_t num_rows, int64_t col, int64_t num_cols) {
          const int64_t decay_stride = c.decays_dims ? k_stride : 1;
          return StateRuleArgs{.num_rows = num_rows,
                               .key_dim = key_dim,
                               .value_dim = num_cols,
                               .q = q.data() + first * k_stride,
                               .k = k.data() + first * k_stride,
                               .k_stride = k_stride,
                               .v = v.data() + first * v_stride + col,
                               .v_stride = v_stride,
                               .decay = decay.data() + first * decay_stride,
                               .decay_stride = decay_stride,
                               .beta = beta.data() + first,
                               .beta_stride = 1,
                               .decays_dims = c.decays_dims,
                               .has_delta = c.has_delta,
                               .skip = 0.7f,
                               .state = buffers.state.data(),
                               .out = buffers.out.data() + first * v_stride + col,
                               .out_stride = v_stride};
        };
        ExpectRightInAllForms(table_.state_rule, scalar_.state_rule, reference::StateRule, start, kRows, key_dim,
                              value_dim, args);
      }
    }
  }
}

TEST_P(RecurrentTest, SelectiveScan) {
  constexpr int64_t kRows = 6;
  for (const int64_t key_dim : {int64_t{1}, int64_t{7}, int64_t{16}, kMaxScanDim}) {
    for (const int64_t value_dim : {1, 16, 21, 100}) {
      const int64_t k_stride = key_dim + 3, v_stride = value_dim + 2, log_stride = value_dim + 1;
      const std::vector<float> k = RandomFloats(kRows * k_stride, 1), q = RandomFloats(kRows * k_stride, 2);
      const std::vector<float> v = RandomFloats(kRows * v_stride, 3), logs = RandomFloats(key_dim * log_stride, 5);
      const std::vector<float> skip = RandomFloats(value_dim, 6);
      std::vector<float> step = RandomFloats(kRows * v_stride, 7);
      for (float& x : step) x = std::abs(x);
      const RuleBuffers start = {RandomFloats(key_dim * value_dim, 4), std::vector<float>(kRows * v_stride, kPadding)};
      const auto args = [&](RuleBuffers& buffers, int64_t first, int64_t num_rows, int64_t col, int64_t num_cols) {
        return SelectiveScanArgs{.num_rows = num_rows,
                                 .key_dim = key_dim,
                                 .value_dim = num_cols,
                                 .q = q.data() + first * k_stride,
                                 .k = k.data() + first * k_stride,
                                 .k_stride = k_stride,
                                 .v = v.data() + first * v_stride + col,
                                 .step = step.data() + first * v_stride + col,
                                 .v_stride = v_stride,
                                 .decay_log = logs.data() + col,
                                 .log_stride = log_stride,
                                 .skip = skip.data() + col,
                                 .state = buffers.state.data(),
                                 .out = buffers.out.data() + first * v_stride + col};
      };
      ExpectRightInAllForms(table_.selective_scan, scalar_.selective_scan, reference::SelectiveScan, start, kRows,
                            key_dim, value_dim, args);
    }
  }
}

TEST_P(RecurrentTest, ScaleBySigmoid) {
  for (const int64_t count : {1, 15, 16, 100}) {
    const std::vector<float> gate = RandomFloats(count, 1);
    std::vector<float> x = RandomFloats(count, 2), expected = x, scalar = x;
    table_.scale_by_sigmoid(gate.data(), count, x.data());
    scalar_.scale_by_sigmoid(gate.data(), count, scalar.data());
    reference::ScaleBySigmoid(gate.data(), count, expected.data());
    ExpectNear(x, expected, 1e-6);
    ExpectSameBits(x, scalar);
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, RecurrentTest, ::testing::ValuesIn(SupportedIsas()),
                         [](const auto& isa) { return std::string(IsaName(isa.param)); });

}  // namespace
}  // namespace penstock::kernels
