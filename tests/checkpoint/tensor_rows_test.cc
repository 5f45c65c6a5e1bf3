// Proves that codes of every order and width, with their scales and zero points, become the weights that they stand
// for: any rows of a matrix, also some of a word's rows only.
#include "penstock/checkpoint/tensor_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "penstock/base/status.h"
#include "penstock/tensor/block_formats.h"

namespace penstock {
namespace {

constexpr int64_t kAwqOrder[] = {0, 2, 4, 6, 1, 3, 5, 7};  // the row of each place in a word, as AutoAWQ packs them

struct Matrix {
  CodeOrder order;
  WeightFormat format;
  int64_t rows;
  int64_t inputs;
  int64_t group;            // 0: all inputs
  bool less_1 = false;      // the file has zero points less 1
  bool has_groups = false;  // a tensor says which inputs share a scale

  bool is_by_rows() const { return order == CodeOrder::kRows; }
  int64_t bits() const { return format == WeightFormat::kQ8_0 ? 8 : 4; }
  int64_t num_groups() const { return group == 0 ? 1 : (inputs + group - 1) / group; }
  std::string name() const {
    return std::string(TraitsOf(format).name) + " order " + std::to_string(static_cast<int>(order)) + " [" +
           std::to_string(rows) + ", " + std::to_string(inputs) + "] groups of " + std::to_string(group) +
           (has_groups ? ", in another order" : "");
  }
};

// A matrix of codes as a file has it, and its weights.
struct Stored {
  std::vector<uint32_t> words;
  std::vector<uint32_t> zeros;
  std::vector<float> scales;
  std::vector<float> weights;
  std::vector<int32_t> groups;  // of the inputs
  TensorInfo groups_tensor = {.name = "g_idx"};
};

void PutCode(uint32_t& word, int64_t place, int64_t bits, uint32_t code) { word |= code << (place * bits); }

Stored Random(const Matrix& m, std::mt19937& generator) {
  const int64_t per_word = 32 / m.bits(), groups = m.num_groups(), row_words = (m.rows + 7) / 8;
  Stored stored;
  stored.words.resize(
      static_cast<size_t>(m.order == CodeOrder::kRowWords ? m.inputs * m.rows / 8 : m.rows * m.inputs / per_word));
  stored.zeros.resize(static_cast<size_t>(row_words * groups));
  stored.scales.resize(static_cast<size_t>(m.rows * groups));
  for (int64_t k = 0; k < m.inputs; ++k) stored.groups.push_back(m.group == 0 ? 0 : static_cast<int32_t>(k / m.group));
  if (m.has_groups) std::ranges::shuffle(stored.groups, generator);
  std::vector<int> zero_points(stored.scales.size(), m.bits() == 8 ? 128 : 8);
  for (int64_t row = 0; row < m.rows; ++row) {
    int64_t zero_place = row % 8;
    if (m.order == CodeOrder::kRowWords) zero_place = std::ranges::find(kAwqOrder, row % 8) - kAwqOrder;
    for (int64_t g = 0; g < groups; ++g) {
      const int first = m.less_1 ? 1 : 0, zero = first + static_cast<int>(generator() % (16u - first));
      if (m.format == WeightFormat::kU4) {
        zero_points[row * groups + g] = zero;
        PutCode(stored.zeros[m.is_by_rows() ? row / 8 * groups + g : g * row_words + row / 8], zero_place, 4,
                static_cast<uint32_t>(zero - first));
      }
      stored.scales[m.is_by_rows() ? row * groups + g : g * m.rows + row] =
          0x1p-12f * static_cast<float>(1 + generator() % 2047);
    }
    for (int64_t k = 0; k < m.inputs; ++k) {
      const uint32_t code = generator() % (1u << m.bits());
      if (m.is_by_rows()) {
        PutCode(stored.words[(row * m.inputs + k) / per_word], k % per_word, m.bits(), code);
      } else if (m.order == CodeOrder::kInputWords) {
        PutCode(stored.words[k / per_word * m.rows + row], k % per_word, m.bits(), code);
      } else {
        PutCode(stored.words[k * (m.rows / 8) + row / 8], zero_place, m.bits(), code);
      }
      const int64_t g = stored.groups[k];
      const float scale = stored.scales[m.is_by_rows() ? row * groups + g : g * m.rows + row];
      stored.weights.push_back(scale * static_cast<float>(static_cast<int>(code) - zero_points[row * groups + g]));
    }
  }
  return stored;
}

TensorInfo TensorOf(const Matrix& m, const Stored& stored) {
  TensorInfo tensor{.name = "w", .dtype = Dtype::kU8, .shape = {m.rows, m.inputs}};
  tensor.extent.size_bytes = 4 * stored.words.size();
  if (!m.is_by_rows()) tensor.places = {.stored_rows = static_cast<int32_t>(m.rows), .is_transposed = true};
  tensor.scales = {.format = m.format,
                   .group_units = static_cast<uint16_t>(m.group / Scales::kGroupUnit),
                   .order = m.order,
                   .zeros_are_less_1 = m.less_1,
                   .extent = {0, 4 * stored.scales.size()}};
  if (m.has_groups) tensor.scales->groups = &stored.groups_tensor;
  return tensor;
}

TEST(TensorRows, CodesBecomeTheirWeights) {
  const Matrix kMatrices[] = {
      {CodeOrder::kRows, WeightFormat::kQ4_0, 5, 96, 32},
      {CodeOrder::kRows, WeightFormat::kU4, 21, 256, 128},
      {CodeOrder::kRows, WeightFormat::kU4, 8, 40, 0},
      {CodeOrder::kRows, WeightFormat::kQ8_0, 7, 96, 32},
      {CodeOrder::kInputWords, WeightFormat::kQ4_0, 9, 128, 64},
      {CodeOrder::kInputWords, WeightFormat::kU4, 13, 128, 64},
      {CodeOrder::kInputWords, WeightFormat::kU4, 16, 96, 32, true},
      {CodeOrder::kInputWords, WeightFormat::kQ8_0, 5, 44, 0},
      {CodeOrder::kInputWords, WeightFormat::kQ4_0, 9, 128, 64, false, true},
      {CodeOrder::kInputWords, WeightFormat::kU4, 13, 128, 64, true, true},
      {CodeOrder::kInputWords, WeightFormat::kQ8_0, 5, 96, 32, false, true},
      {CodeOrder::kRowWords, WeightFormat::kU4, 40, 256, 128},
      {CodeOrder::kRowWords, WeightFormat::kU4, 8, 33, 0},
  };
  std::mt19937 generator(7);
  for (const Matrix& m : kMatrices) {
    SCOPED_TRACE(m.name());
    const Stored stored = Random(m, generator);
    const TensorInfo tensor = TensorOf(m, stored);
    const auto* words = reinterpret_cast<const std::byte*>(stored.words.data());
    const ScaleBytes scales = {reinterpret_cast<const std::byte*>(stored.scales.data()),
                               reinterpret_cast<const std::byte*>(stored.zeros.data()),
                               reinterpret_cast<const std::byte*>(stored.groups.data())};
    for (const auto& [first, count] : std::vector<std::pair<int64_t, int64_t>>{{0, m.rows}, {1, 3}, {m.rows - 2, 2}}) {
      std::vector<std::byte> rows(static_cast<size_t>(count) * RowBytes(tensor));
      GatherRows(tensor, words, first, count, rows.data());
      std::vector<float> weights(static_cast<size_t>(count * m.inputs));
      RowsToFloats(tensor, rows.data(), scales, first, count, weights.data());
      const auto begin = stored.weights.begin() + first * m.inputs;
      EXPECT_EQ(weights, std::vector<float>(begin, begin + count * m.inputs)) << first;
    }
  }
}

TEST(TensorRows, GroupsOfInputsBecomePanelsOfFloats) {
  const Matrix m = {CodeOrder::kInputWords, WeightFormat::kU4, 5, 64, 32, false, true};
  std::mt19937 generator(11);
  Stored stored = Random(m, generator);
  const TensorInfo tensor = TensorOf(m, stored);
  const auto* groups = reinterpret_cast<const std::byte*>(stored.groups.data());
  std::vector<std::byte> rows(5 * RowBytes(tensor)), floats(5 * 64 * 4), panel(PanelBytes(WeightFormat::kF32, 64));
  std::vector<std::byte> expected(panel.size());
  GatherRows(tensor, reinterpret_cast<const std::byte*>(stored.words.data()), 0, 5, rows.data());
  PackRows(tensor, rows.data(),
           {reinterpret_cast<const std::byte*>(stored.scales.data()),
            reinterpret_cast<const std::byte*>(stored.zeros.data()), groups},
           0, 5, WeightFormat::kF32, floats.data(), panel.data());
  PackPanel(Dtype::kF32, reinterpret_cast<const std::byte*>(stored.weights.data()), 5, 64, WeightFormat::kF32,
            expected.data());
  EXPECT_EQ(panel, expected);

  EXPECT_TRUE(CheckGroups(tensor, groups).ok());
  for (const int32_t bad : {2, -1}) {
    stored.groups[63] = bad;
    const absl::Status status = CheckGroups(tensor, groups);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(Message(status), "g_idx: input 63 has group " + std::to_string(bad) + ", expected 0 to 1");
  }
}

// Zero points less 1 share words, in which the sum carries as it does in GPTQModel: 0 is stored as 15.
TEST(TensorRows, ZeroPointsCarryWithinAWord) {
  const Matrix m = {CodeOrder::kInputWords, WeightFormat::kU4, 8, 32, 0, true};
  Stored stored;
  stored.words.assign(32, 0);
  stored.scales.assign(8, 1.0f);
  stored.zeros = {0xF};  // 15 for row 0, and 0 for the others
  const TensorInfo tensor = TensorOf(m, stored);
  std::vector<std::byte> rows(8 * RowBytes(tensor));
  std::vector<float> weights(8 * 32);
  GatherRows(tensor, reinterpret_cast<const std::byte*>(stored.words.data()), 0, 8, rows.data());
  RowsToFloats(tensor, rows.data(),
               {reinterpret_cast<const std::byte*>(stored.scales.data()),
                reinterpret_cast<const std::byte*>(stored.zeros.data())},
               0, 8, weights.data());
  EXPECT_EQ(weights[0], 0);    // 15 + 1
  EXPECT_EQ(weights[32], -2);  // 0 + 1, and the carry
  EXPECT_EQ(weights[2 * 32], -1);
}

}  // namespace
}  // namespace penstock
