// Proves that the kernels of gated DeltaNet match the oracle, give the same bits on every instruction set, and the same
// bits whether rows come together or one by one.
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

class DeltaNetTest : public ::testing::TestWithParam<Isa> {
 protected:
  const KernelTable& table_ = KernelsFor(GetParam());
  const KernelTable& scalar_ = KernelsFor(Isa::kScalar);
};

struct ConvBuffers {
  std::vector<float> x, state;
};

TEST_P(DeltaNetTest, ShortConv) {
  constexpr int64_t kRows = 7;
  for (const int64_t channels : {1, 15, 16, 33, 128}) {
    for (const int64_t width : {int64_t{2}, int64_t{3}, int64_t{4}, kMaxConvWidth}) {
      const int64_t stride = channels + 5;
      const std::vector<float> weight = RandomFloats(width * stride, 3);
      const ConvBuffers start = {RandomFloats(kRows * stride, 1), RandomFloats((width - 1) * stride, 2)};
      const auto args = [&](ConvBuffers& buffers, int64_t first, int64_t num_rows) {
        return ShortConvArgs{.num_rows = num_rows,
                             .num_channels = channels,
                             .width = width,
                             .x = buffers.x.data() + first * stride,
                             .x_stride = stride,
                             .weight = weight.data(),
                             .weight_stride = stride,
                             .state = buffers.state.data(),
                             .state_stride = stride};
      };
      ConvBuffers all = start, scalar = start, expected = start, alone = start;
      table_.short_conv(args(all, 0, kRows));
      scalar_.short_conv(args(scalar, 0, kRows));
      reference::ShortConv(args(expected, 0, kRows));
      for (int64_t row = 0; row < kRows; ++row) table_.short_conv(args(alone, row, 1));
      ExpectNear(all.x, expected.x, 1e-5);
      ExpectSameBits(all.state, expected.state);
      for (const ConvBuffers* other : {&scalar, &alone}) {
        ExpectSameBits(all.x, other->x);
        ExpectSameBits(all.state, other->state);
      }
    }
  }
}

TEST_P(DeltaNetTest, Gates) {
  for (const int64_t heads : {1, 16, 21, 48}) {
    const std::vector<float> bias = RandomFloats(heads, 1), log = RandomFloats(heads, 2);
    std::vector<float> decay = RandomFloats(heads, 3), beta = RandomFloats(heads, 4);
    for (float& x : decay) x *= 40;  // both ends of softplus
    std::vector<float> expected_decay = decay, expected_beta = beta, scalar_decay = decay, scalar_beta = beta;
    const auto args = [&](std::vector<float>& b, std::vector<float>& d) {
      return DeltaGatesArgs{heads, bias.data(), log.data(), b.data(), d.data()};
    };
    table_.delta_gates(args(beta, decay));
    scalar_.delta_gates(args(scalar_beta, scalar_decay));
    reference::DeltaGates(args(expected_beta, expected_decay));
    ExpectNear(decay, expected_decay, 1e-5);
    ExpectNear(beta, expected_beta, 1e-6);
    ExpectSameBits(decay, scalar_decay);
    ExpectSameBits(beta, scalar_beta);
  }
}

struct RuleBuffers {
  std::vector<float> state, out;
};

TEST_P(DeltaNetTest, DeltaRule) {
  constexpr int64_t kRows = 6;
  for (const int64_t key_dim : {1, 7, 16, 40}) {
    for (const int64_t value_dim : {1, 16, 21, 64, 100}) {
      const int64_t k_stride = key_dim + 3, v_stride = value_dim + 2;
      std::vector<float> k = RandomFloats(kRows * k_stride, 1), q = RandomFloats(kRows * k_stride, 2);
      for (float& x : k) x /= static_cast<float>(key_dim);  // keys of length 1 or less, as in models
      const std::vector<float> v = RandomFloats(kRows * v_stride, 3);
      const std::vector<float> beta = {0, 0.1f, 0.5f, 0.9f, 1, 0.3f}, decay = {1, 0.9f, 0.5f, 0.99f, 0, 0.7f};
      const RuleBuffers start = {RandomFloats(key_dim * value_dim, 4), std::vector<float>(kRows * v_stride, kPadding)};
      const auto args = [&](RuleBuffers& buffers, int64_t first, int64_t num_rows) {
        return DeltaRuleArgs{.num_rows = num_rows,
                             .key_dim = key_dim,
                             .value_dim = value_dim,
                             .q = q.data() + first * k_stride,
                             .k = k.data() + first * k_stride,
                             .k_stride = k_stride,
                             .v = v.data() + first * v_stride,
                             .v_stride = v_stride,
                             .decay = decay.data() + first,
                             .beta = beta.data() + first,
                             .gate_stride = 1,
                             .state = buffers.state.data(),
                             .out = buffers.out.data() + first * v_stride,
                             .out_stride = v_stride};
      };
      RuleBuffers all = start, scalar = start, expected = start, alone = start;
      table_.delta_rule(args(all, 0, kRows));
      scalar_.delta_rule(args(scalar, 0, kRows));
      reference::DeltaRule(args(expected, 0, kRows));
      for (int64_t row = 0; row < kRows; ++row) table_.delta_rule(args(alone, row, 1));
      ExpectNear(all.out, expected.out, 1e-4);
      ExpectNear(all.state, expected.state, 1e-5);
      for (const RuleBuffers* other : {&scalar, &alone}) {
        ExpectSameBits(all.out, other->out);
        ExpectSameBits(all.state, other->state);
      }
    }
  }
}

TEST_P(DeltaNetTest, ScaleBySigmoid) {
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

INSTANTIATE_TEST_SUITE_P(Isas, DeltaNetTest, ::testing::ValuesIn(SupportedIsas()),
                         [](const auto& isa) { return std::string(IsaName(isa.param)); });

}  // namespace
}  // namespace penstock::kernels
