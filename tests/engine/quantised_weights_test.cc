// Proves that HQQ stores every matrix that packing quantises more accurately than rounding to nearest with the same
// groups. This holds although only HQQ's scales and zeros are rounded to 8 bits. The matrices are those of the demo
// model. Prints the table of docs/quantisation.md.
#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <vector>

#include <gtest/gtest.h>

#include "penstock/base/file.h"
#include "penstock/plan/loaded_model.h"
#include "penstock/tensor/hqq.h"
#include "penstock/tensor/quantise.h"

namespace penstock {
namespace {

std::vector<float> ReadMatrix(const LoadedModel& model, const TensorInfo& tensor) {
  const OpenedFile& file = model.checkpoint.files()[tensor.file_idx];
  std::vector<std::byte> raw(tensor.extent.size_bytes);
  EXPECT_TRUE(PreadFully(file.fd.get(), raw, tensor.extent.offset_bytes, file.path).ok());
  std::vector<float> values(tensor.shape[0] * tensor.shape[1]);
  ToFloats(tensor.dtype, raw.data(), values);
  return values;
}

// Returns the sum of |weight - stored value|.
double HqqError(WeightFormat format, std::span<const float> rows, int64_t num_cols, int64_t inner_dim) {
  std::vector<std::byte> packed(PackedBytes(format, num_cols, inner_dim));
  double error = 0;
  std::vector<float> stored(inner_dim);
  for (int64_t col = 0; col < num_cols; ++col) {
    if (col % kPanelCols == 0) {
      const int64_t count = std::min(kPanelCols, num_cols - col);
      QuantisePanel(format, rows.subspan(col * inner_dim, count * inner_dim), count, inner_dim,
                    packed.data() + static_cast<uint64_t>(col / kPanelCols) * PanelBytes(format, inner_dim));
    }
    UnpackColumn(format, packed.data(), col, inner_dim, stored.data());
    for (int64_t k = 0; k < inner_dim; ++k) {
      error += std::abs(rows[col * inner_dim + k] - stored[k]);
    }
  }
  return error;
}

double NearestError(int bits, std::span<const float> rows, int64_t inner_dim) {
  double error = 0;
  uint8_t codes[kHqqGroup];
  for (size_t row = 0; row < rows.size(); row += static_cast<size_t>(inner_dim)) {
    for (int64_t k = 0; k < inner_dim; k += kHqqGroup) {
      const size_t count = std::min(kHqqGroup, inner_dim - k);
      const std::span<const float> weights = rows.subspan(row + static_cast<size_t>(k), count);
      const HqqGroup group = RoundToNearestGroup(weights, bits);
      EncodeGroup(weights, CodeRange::OfBits(bits), group, codes);
      for (size_t i = 0; i < count; ++i) error += std::abs(weights[i] - DequantiseHqq(codes[i], group));
    }
  }
  return error;
}

struct Summary {
  int num_matrices = 0;
  double sum = 0;
  double worst = 0;
};

class QuantisedWeightsTest : public testing::TestWithParam<WeightFormat> {};

TEST_P(QuantisedWeightsTest, HqqIsCloserThanRoundToNearestInEveryMatrix) {
  const auto model = LoadModel(PENSTOCK_SOURCE_DIR "/models/penstock-demo");
  ASSERT_TRUE(model.ok()) << model.status();
  const int bits = std::bit_width(static_cast<unsigned>(HqqLevels(GetParam())));
  std::map<std::string, Summary> kinds;
  const auto compare = [&](const std::string& kind, const TensorInfo* tensor) {
    const std::vector<float> rows = ReadMatrix(**model, *tensor);
    const double ratio =
        HqqError(GetParam(), rows, tensor->shape[0], tensor->shape[1]) / NearestError(bits, rows, tensor->shape[1]);
    EXPECT_LT(ratio, 1) << tensor->name;
    Summary& summary = kinds[kind];
    ++summary.num_matrices;
    summary.sum += ratio;
    summary.worst = std::max(summary.worst, ratio);
  };
  for (const LayerTensors& layer : (*model)->weights.layers) {
    compare("q_proj", layer.q_proj);
    compare("k_proj", layer.k_proj);
    compare("v_proj", layer.v_proj);
    compare("o_proj", layer.o_proj);
    for (const FfnTensors& expert : layer.experts) {
      compare("experts' gate_proj", expert.gate_proj);
      compare("experts' up_proj", expert.up_proj);
      compare("experts' down_proj", expert.down_proj);
    }
  }
  EXPECT_EQ(kinds.size(), 7u);
  for (const auto& [kind, summary] : kinds) {
    std::printf("%d bits | %-18s | %3d matrices | mean %.3f | worst %.3f\n", bits, kind.c_str(), summary.num_matrices,
                summary.sum / summary.num_matrices, summary.worst);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, QuantisedWeightsTest,
                         testing::Values(WeightFormat::kHqq4, WeightFormat::kHqq3, WeightFormat::kHqq2),
                         [](const auto& format) { return std::string(TraitsOf(format.param).name); });

}  // namespace
}  // namespace penstock
