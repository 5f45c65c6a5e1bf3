// Proves that the device's kernels of recurrent layers give the host's bits: for several sequences in one launch, with
// copies of states in the middle of a run, and for all kinds of layers.
#include "penstock/kernels/cuda/recurrent.h"

#include <cmath>
#include <memory>
#include <tuple>

#include "kernels/cuda_testing.h"
#include "kernels/kernel_testing.h"

namespace penstock::cuda {
namespace {

using kernels::BitDifference;
using kernels::RandomFloats;
using kernels::RowFormat;

// Two sequences, the second with copies of its state behind its rows 2 (twice) and 5, and rows before and after them
// that no launch may touch.
constexpr int64_t kBegins[] = {1, 2, 9};
constexpr int64_t kCopyRows[] = {4, 4, 7};
constexpr int64_t kRows = 10;

// The states of both sequences and the copies, in parts of `part_floats`. The last part may use fewer of them.
class States {
 public:
  States(int64_t num_parts, int64_t part_floats, int64_t last_floats = 0)
      : num_parts_(num_parts),
        part_floats_(part_floats),
        last_floats_(last_floats > 0 ? last_floats : part_floats),
        states_(RandomFloats(2 * num_parts * part_floats, 21)),
        on_device_(std::span<const float>(states_)),
        copies_on_device_(Size(std::ssize(kCopyRows) * num_parts * part_floats)),
        begins_(std::span<const int64_t>(kBegins)),
        copy_rows_(std::span<const int64_t>(kCopyRows)),
        parts_(std::span<float* const>(Places(on_device_.data(), 2 * num_parts))),
        copy_parts_(std::span<float* const>(Places(copies_on_device_.data(), std::ssize(kCopyRows) * num_parts))) {}

  StateRuns runs() const {
    return {.num_runs = 2,
            .num_parts = num_parts_,
            .begins = begins_.data(),
            .parts = parts_.data(),
            .num_copies = std::ssize(kCopyRows),
            .copy_rows = copy_rows_.data(),
            .copy_parts = copy_parts_.data()};
  }
  // Calls advance(first_row, num_rows, part, state) on the host, and expects what the device has.
  template <typename Advance>
  void ExpectAsOnTheHost(const Advance& advance) {
    std::vector<float> copies = OnDevice<float>(Size(std::ssize(kCopyRows) * num_parts_ * part_floats_)).ToHost();
    for (int64_t run = 0; run < 2; ++run) {
      for (int64_t part = 0; part < num_parts_; ++part) {
        float* const state = states_.data() + (run * num_parts_ + part) * part_floats_;
        int64_t row = kBegins[run];
        for (int64_t i = 0; run == 1 && i < std::ssize(kCopyRows); ++i) {
          if (kCopyRows[i] >= row) advance(row, kCopyRows[i] + 1 - row, part, state);
          row = kCopyRows[i] + 1;
          std::copy_n(state, part + 1 < num_parts_ ? part_floats_ : last_floats_,
                      copies.data() + (i * num_parts_ + part) * part_floats_);
        }
        if (kBegins[run + 1] > row) advance(row, kBegins[run + 1] - row, part, state);
      }
    }
    EXPECT_EQ(BitDifference(on_device_.ToHost(), states_), "");
    EXPECT_EQ(BitDifference(copies_on_device_.ToHost(), copies), "");
  }

 private:
  std::vector<float*> Places(float* first, int64_t count) const {
    std::vector<float*> places;
    for (int64_t i = 0; i < count; ++i) places.push_back(first + i * part_floats_);
    return places;
  }

  int64_t num_parts_, part_floats_, last_floats_;
  std::vector<float> states_;
  OnDevice<float> on_device_, copies_on_device_;
  OnDevice<int64_t> begins_, copy_rows_;
  OnDevice<float*> parts_, copy_parts_;
};

// Three buffers of channels, in parts that do not end where buffers do.
TEST(CudaRecurrentTest, ConvolutionsHaveTheHostsBits) {
  constexpr int64_t kCounts[] = {70, 33, 150}, kPartChannels = 100;
  constexpr int64_t kChannels = kCounts[0] + kCounts[1] + kCounts[2], kParts = 3;
  for (const int64_t width : {int64_t{2}, int64_t{4}, kernels::kMaxConvWidth}) {
    for (const bool has_silu : {false, true}) {
      States states(kParts, (width - 1) * kPartChannels, (width - 1) * (kChannels - 2 * kPartChannels));
      const std::vector<float> weight = RandomFloats(width * kChannels, 22), bias = RandomFloats(kChannels, 23);
      const OnDevice<float> device_weight(weight), device_bias(bias);
      std::vector<std::vector<float>> x;
      std::vector<std::unique_ptr<OnDevice<float>>> device_x;
      ShortConvLaunch launch{.runs = states.runs(),
                             .num_channels = kChannels,
                             .part_channels = kPartChannels,
                             .width = width,
                             .bias = has_silu ? device_bias.data() : nullptr,
                             .has_silu = has_silu};
      int64_t first = 0;
      for (int i = 0; i < 3; ++i) {
        x.push_back(RandomFloats(kRows * kCounts[i], 24 + static_cast<uint32_t>(i)));
        device_x.push_back(std::make_unique<OnDevice<float>>(std::span<const float>(x.back())));
        launch.inputs[i] = {device_x.back()->data(), kCounts[i], device_weight.data() + first, kChannels};
        first += kCounts[i];
      }
      ShortConv(launch, kStream);
      states.ExpectAsOnTheHost([&](int64_t row, int64_t num_rows, int64_t part, float* state) {
        const int64_t begin = part * kPartChannels, end = std::min(begin + kPartChannels, kChannels);
        int64_t first_of_buffer = 0;
        for (size_t i = 0; i < 3; ++i) {
          const int64_t from = std::max(begin, first_of_buffer), to = std::min(end, first_of_buffer + kCounts[i]);
          if (from < to) {
            float* const own = x[i].data() + row * kCounts[i] + from - first_of_buffer;
            Host().short_conv({.num_rows = num_rows,
                               .num_channels = to - from,
                               .width = width,
                               .x = own,
                               .x_stride = kCounts[i],
                               .weight = weight.data() + from,
                               .weight_stride = kChannels,
                               .bias = has_silu ? bias.data() + from : nullptr,
                               .state = state + from - begin,
                               .state_stride = end - begin,
                               .out = own,
                               .out_stride = kCounts[i],
                               .has_silu = has_silu});
          }
          first_of_buffer += kCounts[i];
        }
      });
      for (size_t i = 0; i < 3; ++i) EXPECT_EQ(BitDifference(device_x[i]->ToHost(), x[i]), "");
    }
  }
}

TEST(CudaRecurrentTest, GatesHaveTheHostsBits) {
  struct Case {
    int64_t decays_of_log;  // 0: there are no logs
    bool beta_is_step;
    float floor = 0;
  };
  for (const Case& c : {Case{1, false}, Case{1, true}, Case{19, false}, Case{0, false}, Case{19, false, -5}}) {
    constexpr int64_t kHeads = 21;
    const int64_t num_decays = kHeads * std::max<int64_t>(1, c.decays_of_log);
    const std::vector<float> bias = RandomFloats(num_decays, 1), log = RandomFloats(kHeads, 2);
    std::vector<float> decay = RandomFloats(kRows * num_decays, 3), beta = RandomFloats(kRows * kHeads, 4);
    for (float& value : decay) value *= 40;  // both ends of softplus
    const OnDevice<float> device_bias(bias), device_log(log), device_decay(decay), device_beta(beta);
    const auto args = [&](const float* b, const float* l, float* d, float* e) {
      return kernels::RecurrentGatesArgs{.num_decays = num_decays,
                                         .decays_of_log = std::max<int64_t>(1, c.decays_of_log),
                                         .decay_bias = b,
                                         .decay_log = c.decays_of_log == 0 ? nullptr : l,
                                         .decay_floor = c.floor,
                                         .decay = d,
                                         .num_betas = kHeads,
                                         .beta_is_step = c.beta_is_step,
                                         .beta = e};
    };
    RecurrentGates(args(device_bias.data(), device_log.data(), device_decay.data(), device_beta.data()), kRows,
                   kStream);
    for (int64_t row = 0; row < kRows; ++row) {
      Host().recurrent_gates(
          args(bias.data(), log.data(), decay.data() + row * num_decays, beta.data() + row * kHeads));
    }
    EXPECT_EQ(BitDifference(device_decay.ToHost(), decay), "");
    EXPECT_EQ(BitDifference(device_beta.ToHost(), beta), "");
  }
}

TEST(CudaRecurrentTest, VectorsAreNormedAsOnTheHost) {
  constexpr int64_t kVectors = 19;
  for (const int64_t dim : {5, 64, 100}) {
    for (const bool has_weight : {false, true}) {
      std::vector<float> x = RandomFloats(kVectors * dim, 31);
      const std::vector<float> weight = has_weight ? RandomFloats(dim, 32) : std::vector<float>(Size(dim), 0.3f);
      const OnDevice<float> device_x(x), device_weight(weight);
      NormVectors({.num_vectors = kVectors,
                   .dim = dim,
                   .x = device_x.data(),
                   .weight = has_weight ? device_weight.data() : nullptr,
                   .factor = 0.3f,
                   .eps = 1e-6f},
                  kStream);
      Host().norm({.num_rows = kVectors,
                   .dim = dim,
                   .x = x.data(),
                   .x_stride = dim,
                   .weight = weight.data(),
                   .eps = 1e-6f,
                   .out = x.data(),
                   .out_stride = dim});
      EXPECT_EQ(BitDifference(device_x.ToHost(), x), "");
    }
  }
}

struct RuleCase {
  int64_t key_dim, value_dim, part_cols;
  bool heads_alternate = false, decays_dims = false, has_delta = true, is_constant = false;
};

TEST(CudaRecurrentTest, RulesHaveTheHostsBits) {
  constexpr int64_t kKeyHeads = 2, kValueHeads = 4;
  for (const RuleCase& c : {RuleCase{64, 64, 32},
                            {19, 21, 21, true},
                            {128, 40, 40, false, true},
                            {20, 64, 64, false, false, false},
                            {17, 36, 36, false, false, false, true}}) {
    const int64_t keys_dim = kKeyHeads * c.key_dim, values_dim = kValueHeads * c.value_dim;
    const int64_t decay_cols = c.decays_dims ? keys_dim : kValueHeads;
    States states(values_dim / c.part_cols, c.key_dim * c.part_cols);
    const std::vector<float> q = RandomFloats(kRows * keys_dim, 41), k = RandomFloats(kRows * keys_dim, 42);
    const std::vector<float> v = RandomFloats(kRows * values_dim, 43), skip = RandomFloats(kValueHeads, 46);
    const std::vector<float> decay = RandomFloats((c.is_constant ? 1 : kRows) * decay_cols, 44);
    const std::vector<float> beta = RandomFloats(kRows * kValueHeads, 45);
    const OnDevice<float> dq(q), dk(k), dv(v), ddecay(decay), dbeta(beta), dskip(skip), out(v.size());
    StateRule({.runs = states.runs(),
               .num_key_heads = kKeyHeads,
               .num_value_heads = kValueHeads,
               .key_dim = c.key_dim,
               .value_dim = c.value_dim,
               .part_cols = c.part_cols,
               .heads_alternate = c.heads_alternate,
               .q = dq.data(),
               .k = dk.data(),
               .v = dv.data(),
               .decay = ddecay.data(),
               .decay_is_constant = c.is_constant,
               .beta = c.is_constant ? nullptr : dbeta.data(),
               .decays_dims = c.decays_dims,
               .has_delta = c.has_delta,
               .skip = c.has_delta ? nullptr : dskip.data(),
               .out = out.data()},
              kStream);
    std::vector<float> expected(v.size(), std::nanf(""));
    constexpr float kOne = 1;
    states.ExpectAsOnTheHost([&](int64_t row, int64_t num_rows, int64_t part, float* state) {
      const int64_t col = part * c.part_cols, head = col / c.value_dim;
      const int64_t key_head = c.heads_alternate ? head % kKeyHeads : head / (kValueHeads / kKeyHeads);
      const int64_t keys = row * keys_dim + key_head * c.key_dim, values = row * values_dim + col;
      Host().state_rule({.num_rows = num_rows,
                         .key_dim = c.key_dim,
                         .value_dim = c.part_cols,
                         .q = q.data() + keys,
                         .k = k.data() + keys,
                         .k_stride = keys_dim,
                         .v = v.data() + values,
                         .v_stride = values_dim,
                         .decay = c.is_constant   ? decay.data() + head
                                  : c.decays_dims ? decay.data() + keys
                                                  : decay.data() + row * kValueHeads + head,
                         .decay_stride = c.is_constant ? 0 : decay_cols,
                         .beta = c.is_constant ? &kOne : beta.data() + row * kValueHeads + head,
                         .beta_stride = c.is_constant ? 0 : kValueHeads,
                         .decays_dims = c.decays_dims,
                         .has_delta = c.has_delta,
                         .skip = c.has_delta ? 0 : skip[Size(head)],
                         .state = state,
                         .out = expected.data() + values,
                         .out_stride = values_dim});
    });
    const std::vector<float> found = out.ToHost();
    const size_t first = Size(kBegins[0] * values_dim), end = Size(kBegins[2] * values_dim);
    EXPECT_EQ(BitDifference(std::vector(found.begin() + first, found.begin() + end),
                            std::vector(expected.begin() + first, expected.begin() + end)),
              "");
    for (size_t i = 0; i < found.size(); ++i) ASSERT_TRUE((i >= first && i < end) || std::isnan(found[i])) << i;
  }
}

TEST(CudaRecurrentTest, ScansHaveTheHostsBits) {
  for (const auto& [key_dim, num_cols, part_cols] : {std::tuple<int64_t, int64_t, int64_t>{16, 80, 40}, {5, 33, 33}}) {
    States states(num_cols / part_cols, key_dim * part_cols);
    const std::vector<float> q = RandomFloats(kRows * key_dim, 51), k = RandomFloats(kRows * key_dim, 52);
    const std::vector<float> v = RandomFloats(kRows * num_cols, 53), skip = RandomFloats(num_cols, 56);
    std::vector<float> step = RandomFloats(kRows * num_cols, 54);
    for (float& value : step) value = std::abs(value);
    const std::vector<float> log = RandomFloats(key_dim * num_cols, 55);
    const OnDevice<float> dq(q), dk(k), dv(v), dstep(step), dlog(log), dskip(skip), out(v);
    SelectiveScan({.runs = states.runs(),
                   .key_dim = key_dim,
                   .num_cols = num_cols,
                   .part_cols = part_cols,
                   .q = dq.data(),
                   .k = dk.data(),
                   .v = dv.data(),
                   .step = dstep.data(),
                   .decay_log = dlog.data(),
                   .skip = dskip.data(),
                   .out = out.data()},
                  kStream);
    std::vector<float> expected = v;
    states.ExpectAsOnTheHost([&, cols = num_cols, dim = key_dim, of_part = part_cols](int64_t row, int64_t num_rows,
                                                                                      int64_t part, float* state) {
      const int64_t col = part * of_part;
      Host().selective_scan({.num_rows = num_rows,
                             .key_dim = dim,
                             .value_dim = of_part,
                             .q = q.data() + row * dim,
                             .k = k.data() + row * dim,
                             .k_stride = dim,
                             .v = v.data() + row * cols + col,
                             .step = step.data() + row * cols + col,
                             .v_stride = cols,
                             .decay_log = log.data() + col,
                             .log_stride = cols,
                             .skip = skip.data() + col,
                             .state = state,
                             .out = expected.data() + row * cols + col});
    });
    EXPECT_EQ(BitDifference(out.ToHost(), expected), "");
  }
}

TEST(CudaRecurrentTest, GatesChangeRowsAsOnTheHost) {
  constexpr int64_t kDim = 84;
  const std::vector<float> x = RandomFloats(kRows * kDim, 61), gate = RandomFloats(kRows * kDim, 62);
  const std::vector<float> weight = RandomFloats(kDim, 63);
  const OnDevice<float> device_x(x), device_gate(gate), device_weight(weight);
  const auto host_gate = [&](GateRule rule, float* row, const float* gates) {
    if (rule == GateRule::kSigmoid) return Host().scale_by_sigmoid(gates, kDim, row);
    if (rule == GateRule::kProduct) {
      for (int64_t i = 0; i < kDim; ++i) row[i] *= gates[i];
      return;
    }
    Host().swiglu({.num_rows = 1,
                   .dim = kDim,
                   .gate = gates,
                   .gate_stride = kDim,
                   .up = row,
                   .up_stride = kDim,
                   .out = row,
                   .out_stride = kDim});
  };
  for (const auto& [rule, norm_dim, is_shared, norms_last] :
       {std::tuple<GateRule, int64_t, bool, bool>{GateRule::kSilu, 12, true, false},
        {GateRule::kSigmoid, 84, false, false},
        {GateRule::kSilu, 28, false, true},
        {GateRule::kProduct, 0, false, false}}) {
    const int64_t stride = kernels::RowBytes(RowFormat::kInt8, kDim);
    const OnDevice<std::byte> prepared(Size(kRows * stride));
    GateRows({.num_rows = kRows,
              .dim = kDim,
              .x = device_x.data(),
              .gate = device_gate.data(),
              .rule = rule,
              .norm_dim = norm_dim,
              .norm_weight = device_weight.data(),
              .norm_weight_is_shared = is_shared,
              .norms_last = norms_last,
              .eps = 1e-5f,
              .format = RowFormat::kInt8,
              .prepared = prepared.data(),
              .prepared_stride_bytes = stride},
             kStream);
    std::vector<float> expected = x;
    for (int64_t row = 0; row < kRows; ++row) {
      float* const own = expected.data() + row * kDim;
      if (norms_last) host_gate(rule, own, gate.data() + row * kDim);
      for (int64_t first = 0; norm_dim > 0 && first < kDim; first += norm_dim) {
        Host().norm({.num_rows = 1,
                     .dim = norm_dim,
                     .x = own + first,
                     .x_stride = norm_dim,
                     .weight = weight.data() + (is_shared ? 0 : first),
                     .eps = 1e-5f,
                     .out = own + first,
                     .out_stride = norm_dim});
      }
      if (!norms_last) host_gate(rule, own, gate.data() + row * kDim);
    }
    const std::vector<std::byte> rows = PreparedOnHost(RowFormat::kInt8, expected, kRows, kDim),
                                 found = prepared.ToHost();
    for (int64_t row = 0; row < kRows; ++row) {
      EXPECT_TRUE(
          std::equal(rows.begin() + row * stride, rows.begin() + row * stride + 144, found.begin() + row * stride));
    }
  }
  // One gate for each 12 dims.
  std::vector<float> expected = x;
  const OnDevice<float> changed(x);
  Gate({.num_rows = kRows,
        .dim = kDim,
        .x = changed.data(),
        .gate = device_gate.data(),
        .x_stride = kDim,
        .gate_stride = kDim / 12,
        .rule = GateRule::kSoftplus,
        .dims_of_gate = 12},
       kStream);
  const std::vector<float> zeros(x.size());
  std::vector<float> factors = gate;
  Host().recurrent_gates({.num_decays = std::ssize(gate),
                          .decay_bias = zeros.data(),
                          .decay_log = nullptr,
                          .decay = factors.data(),
                          .num_betas = 0,
                          .beta = nullptr});
  for (size_t i = 0; i < expected.size(); ++i) expected[i] *= factors[i / 12];
  EXPECT_EQ(BitDifference(changed.ToHost(), expected), "");
}

}  // namespace
}  // namespace penstock::cuda
