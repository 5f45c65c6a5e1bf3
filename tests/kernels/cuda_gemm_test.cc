// Proves that matrix products and experts on the device give the host's bits wherever they follow the law of sums.
// Proves that products of bf16 rows are right and do not depend on the other rows. With CUDA this runs on the GPU;
// otherwise the same code runs on fibers of the host.
#include "penstock/kernels/cuda/cuda_kernels.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "kernels/cuda_testing.h"
#include "kernels/kernel_testing.h"
#include "tests/effort.h"

namespace penstock::cuda {
namespace {

using kernels::AlignedBytes;
using kernels::BitDifference;
using kernels::RandomFloats;
using kernels::RandomPacked;
using kernels::RowFormat;

struct Kind {
  RowFormat x_format;
  WeightFormat w_format;
};
constexpr Kind kKinds[] = {{RowFormat::kF32, WeightFormat::kF32},      {RowFormat::kF32, WeightFormat::kF16},
                           {RowFormat::kF32, WeightFormat::kBF16},     {RowFormat::kBF16, WeightFormat::kBF16},
                           {RowFormat::kInt8, WeightFormat::kInt8},    {RowFormat::kInt8, WeightFormat::kHqq4},
                           {RowFormat::kInt8, WeightFormat::kHqq3},    {RowFormat::kF32, WeightFormat::kFp8},
                           {RowFormat::kBF16, WeightFormat::kFp8},     {RowFormat::kF32, WeightFormat::kInt8},
                           {RowFormat::kF32, WeightFormat::kHqq4},     {RowFormat::kF32, WeightFormat::kHqq3},
                           {RowFormat::kBF16, WeightFormat::kHqq4},    {RowFormat::kInt8, WeightFormat::kHqq2},
                           {RowFormat::kInt8, WeightFormat::kTernary}, {RowFormat::kF32, WeightFormat::kHqq2},
                           {RowFormat::kF32, WeightFormat::kTernary}};

// Those, and all block formats that are not slow, with rows of codes and of floats.
std::vector<Kind> AllKinds() {
  std::vector<Kind> kinds(std::begin(kKinds), std::end(kKinds));
  for (const WeightFormatTraits& format : kWeightFormats) {
    if (!IsBlocks(format.value) || !MultipliesInt8Rows(format.value) || !format.is_of_gpus) continue;
    kinds.push_back({RowFormat::kInt8, format.value});
    kinds.push_back({RowFormat::kF32, format.value});
  }
  return kinds;
}

// As launches of few blocks are computed; tiles of many rows, several to a block, in a few blocks; tiles of few rows.
constexpr GemmTuning kTunings[] = {{.max_blocks = 0, .tiled_from = 1'000'000},
                                   {.max_blocks = 3, .tiled_from = 1, .few_blocks = 0},
                                   {.max_blocks = 0, .tiled_from = 1'000'000, .few_blocks = 0}};

// Block formats have one kernel for few rows and one for many, so of the tunings only the number of blocks matters.
std::span<const GemmTuning> TuningsOf(const Kind& kind) {
  return std::span(kTunings).first(IsBlocks(kind.w_format) ? 2 : std::size(kTunings));
}

std::span<const std::byte> PackedBytesOf(const AlignedBytes& packed, const Kind& kind, int64_t num_cols,
                                         int64_t inner_dim) {
  return {packed.data(), PackedBytes(kind.w_format, num_cols, inner_dim)};
}

std::vector<float> GemmOnHost(const Kind& kind, std::span<const std::byte> rows, const std::byte* w,
                              std::span<const float> bias, int64_t num_rows, int64_t num_cols, int64_t inner_dim) {
  std::vector<float> y(Size(num_rows * num_cols));
  Host().gemm({.num_rows = num_rows,
               .num_cols = num_cols,
               .inner_dim = inner_dim,
               .x_format = kind.x_format,
               .x = rows.data(),
               .x_stride_bytes = kernels::RowBytes(kind.x_format, inner_dim),
               .w_format = kind.w_format,
               .w = w,
               .panel_bytes = static_cast<int64_t>(PanelBytes(kind.w_format, inner_dim)),
               .bias = bias.empty() ? nullptr : bias.data(),
               .y = y.data(),
               .y_stride = num_cols});
  return y;
}

// Bf16 products use another order, so they must be within the rounding of their sums. All others must have the same
// bits.
void ExpectProducts(const Kind& kind, std::span<const float> actual, std::span<const float> expected,
                    double magnitude) {
  if (kind.x_format != RowFormat::kBF16) {
    EXPECT_EQ(BitDifference(actual, expected), "") << TraitsOf(kind.w_format).name;
    return;
  }
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) ASSERT_NEAR(actual[i], expected[i], 1e-5 * magnitude) << i;
}

// Returns rows of f32 as the device prepares them.
OnDevice<std::byte> PreparedOnDevice(RowFormat format, std::span<const float> x, int64_t num_rows, int64_t dim) {
  const OnDevice<float> source(x);
  const int64_t stride = kernels::RowBytes(format, dim);
  const OnDevice<std::byte> rows(Size(num_rows * stride));
  PrepareRows({.num_rows = num_rows,
               .dim = dim,
               .x = source.data(),
               .x_stride = dim,
               .format = format,
               .prepared = rows.data(),
               .prepared_stride_bytes = stride},
              kStream);
  return OnDevice<std::byte>(rows.ToHost());
}

TEST(CudaKernelsTest, GemmHasTheHostsBits) {
  for (const Kind& kind : AllKinds()) {
    for (const int64_t inner_dim : {1, 2, 31, 64, 127, 128, 192, 320, 514}) {
      if (kSanitized && inner_dim != 31 && inner_dim != 192) continue;
      for (const auto& [num_rows, num_cols] :
           {std::pair<int64_t, int64_t>{1, 32}, {2, 33}, {8, 5}, {13, 130}, {37, 64}, {150, 290}}) {
        if (num_rows > 100 && inner_dim != 514) continue;
        SCOPED_TRACE(testing::Message() << num_rows << " rows, " << num_cols << " outputs, " << inner_dim << " inputs");
        const std::vector<float> x = RandomFloats(num_rows * inner_dim, 1), bias = RandomFloats(num_cols, 3);
        const AlignedBytes w = RandomPacked(kind.w_format, num_cols, inner_dim, 2);
        const OnDevice<std::byte> rows = PreparedOnDevice(kind.x_format, x, num_rows, inner_dim);
        const OnDevice<std::byte> weights(PackedBytesOf(w, kind, num_cols, inner_dim));
        const OnDevice<float> device_bias(bias);
        const std::vector<float> expected = GemmOnHost(kind, PreparedOnHost(kind.x_format, x, num_rows, inner_dim),
                                                       w.data(), bias, num_rows, num_cols, inner_dim);
        std::vector<float> first;
        for (const GemmTuning& tuning : TuningsOf(kind)) {
          if (tuning.tiled_from == 1 && inner_dim != 31 && inner_dim != 128 && inner_dim != 514) continue;
          const OnDevice<float> y(Size(num_rows * num_cols));
          Gemm({.x_format = kind.x_format,
                .w_format = kind.w_format,
                .num_cols = num_cols,
                .inner_dim = inner_dim,
                .x = rows.data(),
                .x_stride_bytes = kernels::RowBytes(kind.x_format, inner_dim),
                .weights = {{weights.data()}},
                .bias = {device_bias.data()},
                .y = y.data(),
                .y_stride = num_cols,
                .groups = {.max_rows = num_rows},
                .tuning = tuning},
               kStream);
          const std::vector<float> actual = y.ToHost();
          ExpectProducts(kind, actual, expected, 16.0 * static_cast<double>(inner_dim));
          if (first.empty()) first = actual;
          EXPECT_EQ(BitDifference(actual, first), "") << "the switch shows";
        }
      }
    }
  }
}

// A row's outputs do not depend on the other rows.
TEST(CudaKernelsTest, RowsDoNotDependOnEachOther) {
  constexpr int64_t kInnerDim = 200, kCols = 40, kMax = 35;
  for (const Kind& kind : AllKinds()) {
    const AlignedBytes w = RandomPacked(kind.w_format, kCols, kInnerDim, 4);
    const OnDevice<std::byte> weights(PackedBytesOf(w, kind, kCols, kInnerDim));
    const std::vector<float> x = RandomFloats(kMax * kInnerDim, 5);
    std::vector<float> all;
    for (const int64_t num_rows : {kMax, int64_t{1}, int64_t{7}, int64_t{12}}) {
      const OnDevice<std::byte> rows =
          PreparedOnDevice(kind.x_format, std::span(x).first(Size(num_rows * kInnerDim)), num_rows, kInnerDim);
      const OnDevice<float> y(Size(num_rows * kCols));
      Gemm({.x_format = kind.x_format,
            .w_format = kind.w_format,
            .num_cols = kCols,
            .inner_dim = kInnerDim,
            .x = rows.data(),
            .x_stride_bytes = kernels::RowBytes(kind.x_format, kInnerDim),
            .weights = {{weights.data()}},
            .y = y.data(),
            .y_stride = kCols,
            .groups = {.max_rows = num_rows}},
           kStream);
      const std::vector<float> values = y.ToHost();
      if (all.empty()) all = values;
      EXPECT_EQ(BitDifference(values, std::span(all).first(values.size())), "");
    }
  }
}

// Several matrices with all rows each, as the heads of MLA have them: x [rows, heads, inputs], y [rows, heads,
// outputs].
TEST(CudaKernelsTest, MatricesOfHeadsHaveTheHostsBits) {
  constexpr int64_t kHeads = 3, kRows = 9, kCols = 40, kInnerDim = 96;
  for (const Kind& kind : {Kind{RowFormat::kF32, WeightFormat::kBF16}, Kind{RowFormat::kInt8, WeightFormat::kInt8},
                           Kind{RowFormat::kInt8, WeightFormat::kQ8_0}}) {
    const std::vector<float> x = RandomFloats(kRows * kHeads * kInnerDim, 8);
    const OnDevice<std::byte> rows = PreparedOnDevice(kind.x_format, x, kRows * kHeads, kInnerDim);
    const std::vector<std::byte> host_rows = PreparedOnHost(kind.x_format, x, kRows * kHeads, kInnerDim);
    const int64_t row_bytes = kernels::RowBytes(kind.x_format, kInnerDim);
    const OnDevice<float> y(Size(kRows * kHeads * kCols));
    GemmLaunch launch{.x_format = kind.x_format,
                      .w_format = kind.w_format,
                      .num_cols = kCols,
                      .inner_dim = kInnerDim,
                      .x = rows.data(),
                      .x_stride_bytes = kHeads * row_bytes,
                      .y = y.data(),
                      .y_stride = kHeads * kCols,
                      .groups = {.num_groups = kHeads, .max_rows = kRows, .x_step_bytes = row_bytes, .y_step = kCols}};
    std::vector<AlignedBytes> weights;
    std::vector<std::unique_ptr<OnDevice<std::byte>>> on_device;
    for (int64_t head = 0; head < kHeads; ++head) {
      weights.push_back(RandomPacked(kind.w_format, kCols, kInnerDim, static_cast<uint32_t>(30 + head)));
      on_device.push_back(std::make_unique<OnDevice<std::byte>>(PackedBytesOf(weights.back(), kind, kCols, kInnerDim)));
      launch.weights.w[head] = on_device.back()->data();
    }
    Gemm(launch, kStream);
    const std::vector<float> actual = y.ToHost();
    for (int64_t head = 0; head < kHeads; ++head) {
      for (int64_t row = 0; row < kRows; ++row) {
        const int64_t place = row * kHeads + head;
        const auto own = std::span(host_rows).subspan(Size(place * row_bytes), Size(row_bytes));
        const std::vector<float> expected = GemmOnHost(kind, own, weights[Size(head)].data(), {}, 1, kCols, kInnerDim);
        EXPECT_EQ(BitDifference(std::span(actual).subspan(Size(place * kCols), Size(kCols)), expected), "") << head;
      }
    }
  }
}

// The matrix units need finite bf16 values beyond a row's end.
TEST(CudaKernelsTest, PreparedRowsAreTheHosts) {
  for (const int64_t dim : {1, 3, 16, 100, 128, 129, 400}) {
    std::vector<float> x = RandomFloats(5 * dim, 6);
    x[0] = std::numeric_limits<float>::infinity();
    for (int64_t i = 0; i < dim; ++i) x[Size(dim + i)] *= 1e-35f;
    x[Size(2 * dim)] = std::nanf("");
    for (const RowFormat format : {RowFormat::kF32, RowFormat::kInt8}) {
      const std::vector<std::byte> expected = PreparedOnHost(format, x, 5, dim);
      const std::vector<std::byte> actual = PreparedOnDevice(format, x, 5, dim).ToHost();
      const int64_t stride = kernels::RowBytes(format, dim), groups = (dim + kInt8Group - 1) / kInt8Group;
      const int64_t used = format == RowFormat::kF32 ? 4 * dim : groups * kernels::kInt8RowGroupBytes;
      for (int64_t row = 0; row < 5; ++row) {
        for (int64_t i = 0; i < used; i += 4) {
          float a = 0, b = 0;
          std::memcpy(&a, actual.data() + row * stride + i, 4);
          std::memcpy(&b, expected.data() + row * stride + i, 4);
          ASSERT_EQ(BitDifference({&a, 1}, {&b, 1}), "") << "row " << row << " byte " << i << " of " << dim;
        }
      }
    }
    const std::vector<std::byte> pairs = PreparedOnDevice(RowFormat::kBF16, x, 5, dim).ToHost();
    for (int64_t row = 0; row < 5; ++row) {
      for (int64_t k = 0; k < (dim + 15) / 16 * 16; ++k) {
        BF16 value;
        std::memcpy(&value, pairs.data() + row * kernels::RowBytes(RowFormat::kBF16, dim) + 2 * k, 2);
        ASSERT_EQ(value.bits, k < dim ? ToBF16(x[Size(row * dim + k)]).bits : 0) << k;
      }
    }
  }
}

// Experts have their own rows, some none: hidden rows and outputs equal those of the host's kernels.
TEST(CudaKernelsTest, ExpertsHaveTheHostsBits) {
  constexpr int64_t kDim = 160, kRows = 180;
  const std::vector<int64_t> offsets = {0, 1, 1, 10, 10, 177, 180};
  const std::vector<int32_t> experts = {4, 0, 2, 1};  // 3 and 5 run elsewhere
  const auto kinds = AllKinds();
  for (size_t kind_idx = 0; kind_idx < kinds.size(); kind_idx += kSanitized ? 3 : 1) {
    const Kind& kind = kinds[kind_idx];
    std::vector<std::tuple<int64_t, GemmTuning, bool>> cases;
    for (const GemmTuning& tuning : TuningsOf(kind)) {
      if (!kSanitized) cases.emplace_back(96, tuning, true);
      cases.emplace_back(200, tuning, true);
      if (!kSanitized) cases.emplace_back(136, tuning, false);
    }
    for (const auto& [ffn_dim, tuning, is_gated] : cases) {
      SCOPED_TRACE(testing::Message() << TraitsOf(kind.w_format).name << ", FFN of " << ffn_dim << ", tiles from "
                                      << tuning.tiled_from);
      const std::vector<float> x = RandomFloats(kRows * kDim, 7);
      const OnDevice<std::byte> rows = PreparedOnDevice(kind.x_format, x, kRows, kDim);
      const int64_t x_stride = kernels::RowBytes(kind.x_format, kDim),
                    stride = kernels::RowBytes(kind.x_format, ffn_dim);
      const OnDevice<std::byte> hidden(Size(kRows * stride));
      const OnDevice<int64_t> device_offsets(offsets);
      const OnDevice<float> y(Size(kRows * kDim));
      // Some cases have biases and another gate.
      const bool is_biased = ffn_dim == 200;
      const std::vector<float> gate_bias = RandomFloats(6 * ffn_dim, 20), up_bias = RandomFloats(6 * ffn_dim, 21),
                               down_bias = RandomFloats(6 * kDim, 22);
      const OnDevice<float> device_gate_bias(gate_bias), device_up_bias(up_bias), device_down_bias(down_bias);
      const auto bias_of = [&](const OnDevice<float>& bias) {
        return is_biased ? Biases{bias.data(), true} : Biases{};
      };
      const auto bias_at = [&](const std::vector<float>& bias, int32_t expert_idx, int64_t dim) {
        return is_biased ? std::span(bias).subspan(Size(expert_idx * dim), Size(dim)) : std::span<const float>();
      };
      const GluRule rule =
          is_biased ? GluRule{.alpha = 1.702f, .up_offset = 1, .limit = 0.5f, .output_limit = 0.3f} : GluRule{};
      std::vector<AlignedBytes> gate, up, down;
      std::vector<std::unique_ptr<OnDevice<std::byte>>> on_device;
      GateUpLaunch first{.x_format = kind.x_format,
                         .w_format = kind.w_format,
                         .ffn_dim = ffn_dim,
                         .inner_dim = kDim,
                         .x = rows.data(),
                         .x_stride_bytes = x_stride,
                         .gate_bias = bias_of(device_gate_bias),
                         .up_bias = bias_of(device_up_bias),
                         .rule = rule,
                         .is_gated = is_gated,
                         .squares_relu = true,
                         .hidden = hidden.data(),
                         .hidden_stride_bytes = stride,
                         .groups = {.num_groups = 4,
                                    .offsets = device_offsets.data(),
                                    .max_rows = 167,
                                    .typical_rows = ffn_dim == 96 ? 4 : 0},
                         .tuning = tuning};
      GemmLaunch second{.x_format = kind.x_format,
                        .w_format = kind.w_format,
                        .num_cols = kDim,
                        .inner_dim = ffn_dim,
                        .x = hidden.data(),
                        .x_stride_bytes = stride,
                        .bias = bias_of(device_down_bias),
                        .y = y.data(),
                        .y_stride = kDim,
                        .tuning = tuning};
      const auto put = [&](std::vector<AlignedBytes>& all, int64_t num_cols, int64_t inner_dim, uint32_t seed) {
        all.push_back(RandomPacked(kind.w_format, num_cols, inner_dim, seed));
        on_device.push_back(
            std::make_unique<OnDevice<std::byte>>(PackedBytesOf(all.back(), kind, num_cols, inner_dim)));
        return on_device.back()->data();
      };
      for (size_t i = 0; i < experts.size(); ++i) {
        const auto seed = static_cast<uint32_t>(100 + 3 * i);
        first.groups.expert_idx[i] = experts[i];
        if (is_gated) first.gate.w[i] = put(gate, ffn_dim, kDim, seed);
        first.up.w[i] = put(up, ffn_dim, kDim, seed + 1);
        second.weights.w[i] = put(down, kDim, ffn_dim, seed + 2);
      }
      second.groups = first.groups;
      GateUp(first, kStream);
      Gemm(second, kStream);
      const std::vector<float> actual = y.ToHost();
      for (size_t i = 0; i < experts.size(); ++i) {
        const int64_t begin = offsets[Size(experts[i])], num_rows = offsets[Size(experts[i]) + 1] - begin;
        if (num_rows == 0) continue;
        const auto part = std::span(x).subspan(Size(begin * kDim), Size(num_rows * kDim));
        const std::vector<std::byte> input = PreparedOnHost(kind.x_format, part, num_rows, kDim);
        const std::vector<float> u =
            GemmOnHost(kind, input, up[i].data(), bias_at(up_bias, experts[i], ffn_dim), num_rows, ffn_dim, kDim);
        std::vector<float> h = u;
        if (is_gated) {
          h = GemmOnHost(kind, input, gate[i].data(), bias_at(gate_bias, experts[i], ffn_dim), num_rows, ffn_dim, kDim);
          Host().swiglu({.num_rows = num_rows,
                         .dim = ffn_dim,
                         .gate = h.data(),
                         .gate_stride = ffn_dim,
                         .up = u.data(),
                         .up_stride = ffn_dim,
                         .out = h.data(),
                         .out_stride = ffn_dim,
                         .rule = rule});
        } else {
          for (float& value : h) value = value < 0 ? 0 : value * value;
        }
        const std::vector<float> expected =
            GemmOnHost(kind, PreparedOnHost(kind.x_format, h, num_rows, ffn_dim), down[i].data(),
                       bias_at(down_bias, experts[i], kDim), num_rows, kDim, ffn_dim);
        double largest = 0;
        for (const float value : expected) largest = std::max<double>(largest, std::abs(value));
        // Hidden rows that differ in the last bit may round to different bf16 values.
        const auto values = std::span(actual).subspan(Size(begin * kDim), Size(num_rows * kDim));
        if (kind.x_format == RowFormat::kBF16) {
          for (size_t j = 0; j < values.size(); ++j) ASSERT_NEAR(values[j], expected[j], 4e-3 * largest);
        } else {
          EXPECT_EQ(BitDifference(values, expected), "") << "expert " << experts[i];
        }
      }
      // Rows of experts that run elsewhere stay unwritten.
      for (const int64_t row : {int64_t{177}, int64_t{179}}) EXPECT_TRUE(std::isnan(actual[Size(row * kDim)]));
    }
  }
}

}  // namespace
}  // namespace penstock::cuda
