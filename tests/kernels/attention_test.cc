// Proves that attention matches the oracle for the head sizes, groups, windows, page borders and KV formats of real
// models. Proves that a head's bits do not depend on the instruction set, on the other heads, or on the rows computed
// with it.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/kernel_testing.h"
#include "penstock/tensor/kv_block.h"
#include "penstock/testing/reference/reference.h"

namespace penstock::kernels {
namespace {

constexpr KvFormat kAllKvFormats[] = {KvFormat::kF32, KvFormat::kBF16, KvFormat::kInt8};

struct AttentionCase {
  int64_t num_rows;
  int64_t group;
  int64_t head_dim;
  int64_t pos;  // of the first row
  int64_t window;
  KvFormat format;
  int64_t values_in_key = 0;
  // For encoder-decoder models: AttentionArgs::first, end and bias_reach; with a reach there are biases.
  int64_t first = 0;
  int64_t end = 0;
  int64_t bias_reach = 0;
  int64_t own_values = 0;  // KvBlock

  KvBlock block() const { return {format, head_dim, values_in_key, false, own_values}; }
  int64_t end_pos() const { return std::max(end, pos + num_rows); }
  int64_t value_dim() const { return block().value_dim(); }
  int64_t row_dim() const { return group * head_dim; }
};

// Small enough that many positions contribute to each output.
constexpr float kScale = 0.01f;
constexpr uint32_t kQuerySeed = 99;

float Norm(std::span<const float> values) {
  float squares = 0;
  for (const float value : values) squares += value * value;
  return std::sqrt(squares);
}

struct alignas(64) CacheLine {
  std::byte bytes[64];
};

// The KV of positions [0, end_pos). Each page has the block of another KV head before the one that is used. Pages
// wholly before the window are null. Places of tokens that were not stored are NaN (but codes have no NaN).
class PagedKv {
 public:
  explicit PagedKv(const AttentionCase& c)
      : block_bytes_(c.block().bytes()), memory_((c.end_pos() / kKvPageTokens + 1) * 2 * block_bytes_ / 64) {
    std::memset(memory_.data(), 0xFF, memory_.size() * sizeof(CacheLine));
    for (int64_t pos = 0; pos < c.end_pos(); ++pos) {
      if (pos % kKvPageTokens == 0) {
        std::byte* page = reinterpret_cast<std::byte*>(memory_.data()) + pos / kKvPageTokens * 2 * block_bytes_;
        const int64_t first_pos = c.window > 0 ? c.pos + 1 - c.window : c.first;
        pages_.push_back(pos + kKvPageTokens <= first_pos ? nullptr : page);
      }
      if (pages_.back() == nullptr) continue;
      const std::vector<float> k = RandomFloats(c.head_dim, static_cast<uint32_t>(2 * pos));
      const std::vector<float> v = RandomFloats(c.value_dim(), static_cast<uint32_t>(2 * pos + 1));
      k_norm_max_ = std::max(k_norm_max_, Norm(k));
      v_norm_max_ = std::max(v_norm_max_, Norm(c.values_in_key > 0 ? k : v));
      KernelsFor(Isa::kScalar)
          .store_kv({.format = c.format,
                     .head_dim = c.head_dim,
                     .values_in_key = c.values_in_key,
                     .value_dim = c.own_values,
                     .k = k.data(),
                     .v = v.data(),
                     .block = const_cast<std::byte*>(pages_.back()) + block_bytes_,
                     .token = pos % kKvPageTokens});
    }
  }

  const std::byte* const* pages() const { return pages_.data(); }
  int64_t head_offset_bytes() const { return block_bytes_; }
  // Return the largest norm of a K and of a V.
  double k_norm_max() const { return k_norm_max_; }
  double v_norm_max() const { return v_norm_max_; }

 private:
  int64_t block_bytes_;
  std::vector<CacheLine> memory_;
  std::vector<const std::byte*> pages_;
  float k_norm_max_ = 0;
  float v_norm_max_ = 0;
};

std::vector<float> Queries(const AttentionCase& c) { return RandomFloats(c.num_rows * c.row_dim(), kQuerySeed); }

// Computes rows [first_row, first_row + num_rows) and heads [first_head, first_head + num_heads) of the case.
template <typename Kernel>
std::vector<float> Attend(Kernel kernel, const AttentionCase& c, const PagedKv& kv, int64_t first_row, int64_t num_rows,
                          int64_t first_head, int64_t num_heads) {
  const std::vector<float> q = Queries(c), sinks = RandomFloats(c.group, 17);
  const int64_t num_distances = 2 * c.bias_reach + 1;
  std::vector<float> biases = RandomFloats(c.group * num_distances, 18);
  for (float& bias : biases) bias /= kScale;  // large enough to matter
  std::vector<float> scratch(AttentionScratchFloats(num_rows * num_heads, c.head_dim, c.end_pos()));
  std::vector<float> out(num_rows * num_heads * c.value_dim(), -1.0f);
  kernel(AttentionArgs{.num_rows = num_rows,
                       .group = num_heads,
                       .head_dim = c.head_dim,
                       .values_in_key = c.values_in_key,
                       .value_dim = c.own_values,
                       .q = q.data() + first_row * c.row_dim() + first_head * c.head_dim,
                       .q_stride = c.row_dim(),
                       .pages = kv.pages(),
                       .kv_format = c.format,
                       .head_offset_bytes = kv.head_offset_bytes(),
                       .pos = c.pos + first_row,
                       .window = c.window,
                       .first = c.first,
                       .end = c.end,
                       .scale = kScale,
                       .sinks = c.group % 2 == 0 ? sinks.data() + first_head : nullptr,
                       .bias = c.bias_reach > 0 ? biases.data() + first_head * num_distances : nullptr,
                       .bias_reach = c.bias_reach,
                       .scratch = scratch.data(),
                       .out = out.data(),
                       .out_stride = num_heads * c.value_dim()});
  return out;
}

template <typename Kernel>
std::vector<float> Attend(Kernel kernel, const AttentionCase& c, const PagedKv& kv) {
  return Attend(kernel, c, kv, 0, c.num_rows, 0, c.group);
}

std::vector<AttentionCase> AllCases() {
  std::vector<AttentionCase> cases;
  for (const int64_t head_dim : {7, 20, 32, 64, 128}) {
    for (const int64_t group : {1, 2, 5, 8, 13}) {
      for (const KvFormat format : kAllKvFormats) {
        cases.push_back({1, group, head_dim, 0, 0, format});    // one position
        cases.push_back({1, group, head_dim, 15, 0, format});   // exactly one page
        cases.push_back({1, group, head_dim, 52, 0, format});   // ends inside a page
        cases.push_back({1, group, head_dim, 69, 49, format});  // starts and ends inside pages
        cases.push_back({1, group, head_dim, 47, 16, format});  // a window that is one page
        cases.push_back({3, group, head_dim, 62, 0, format});   // rows over a border of pages
        cases.push_back({4, group, head_dim, 0, 0, format});    // the first rows of a sequence
        cases.push_back({4, group, head_dim, 30, 20, format});  // rows with different windows
        cases.push_back({5, group, head_dim, 40, 3, format});   // windows with nothing in common
      }
    }
  }
  cases.push_back({12, 1, 64, 1000, 0, KvFormat::kF32});
  for (const KvFormat format : kAllKvFormats) {
    for (const int64_t group : {1, 2, 3}) {
      cases.push_back({4, group, 20, 0, 0, format, 0, 0, 37, 9});   // the first rows of an encoder
      cases.push_back({4, group, 20, 33, 0, format, 0, 0, 37, 9});  // its last rows
      cases.push_back({3, group, 20, 37, 0, format, 0, 37, 0, 9});  // the first rows of a decoder, inside a page
      cases.push_back({1, group, 20, 90, 0, format, 0, 37, 0, 9});  // a later row, whose first page is not read
      cases.push_back({4, group, 20, 61, 0, format, 0, 0, 37, 0});  // cross-attention
    }
  }
  for (const KvFormat format : kAllKvFormats) {
    for (const int64_t values_in_key : {7, 16, 48}) {
      cases.push_back({1, 13, 52, 0, 0, format, values_in_key});
      cases.push_back({1, 4, 52, 70, 0, format, values_in_key});
      cases.push_back({4, 3, 52, 62, 40, format, values_in_key});
    }
    for (const int64_t own_values : {5, 16, 33}) {  // V that is narrower than K
      cases.push_back({1, 13, 52, 70, 0, format, 0, 0, 0, 0, own_values});
      cases.push_back({4, 3, 52, 62, 40, format, 0, 0, 0, 0, own_values});
    }
  }
  return cases;
}

class AttentionTest : public ::testing::TestWithParam<Isa> {
 protected:
  const KernelTable& table_ = KernelsFor(GetParam());
};

TEST_P(AttentionTest, MatchesTheOracleAndTheScalarKernels) {
  for (const AttentionCase& c : AllCases()) {
    const PagedKv kv(c);
    const std::vector<float> actual = Attend(table_.attention, c, kv);
    ExpectSameBits(actual, Attend(KernelsFor(Isa::kScalar).attention, c, kv));
    const std::vector<float> expected = Attend(reference::Attention, c, kv);
    // A score has at most head_dim + 2 roundings of scale * |q| * |K|; this error is the relative error of its p. exp
    // and the sums over positions add at most (3 + 2 * count) roundings; out is a mean of V weighted by p. A bias is at
    // most 4 / scale.
    const double q_norm = Norm(Queries(c)), bias = c.bias_reach > 0 ? 4 : 0;
    const double roundings = (static_cast<double>(c.head_dim) + 2) * kScale * q_norm * kv.k_norm_max() + 3 + 2 * bias +
                             2 * static_cast<double>(c.end_pos());
    const double tolerance = roundings * std::numeric_limits<float>::epsilon() * kv.v_norm_max();
    for (size_t i = 0; i < actual.size(); ++i) {
      ASSERT_NEAR(actual[i], expected[i], tolerance) << "rows " << c.num_rows << " head_dim " << c.head_dim << " group "
                                                     << c.group << " pos " << c.pos << " element " << i;
    }
  }
}

TEST_P(AttentionTest, AHeadAloneHasTheBitsThatItHasInItsGroup) {
  for (const KvFormat format : kAllKvFormats) {
    const AttentionCase c = {1, 7, 45, 89, 85, format};
    const PagedKv kv(c);
    const std::vector<float> whole = Attend(table_.attention, c, kv);
    for (int64_t head = 0; head < 7; ++head) {
      ExpectSameBits(Attend(table_.attention, c, kv, 0, 1, head, 1), std::span(whole).subspan(head * 45, 45));
    }
  }
}

TEST_P(AttentionTest, ARowAloneHasTheBitsThatItHasAmongOthers) {
  for (const KvFormat format : kAllKvFormats) {
    for (const int64_t window : {0, 3, 40}) {
      const AttentionCase c = {6, 2, 32, 77, window, format};
      const PagedKv kv(c);
      const std::vector<float> whole = Attend(table_.attention, c, kv);
      for (int64_t row = 0; row < 6; ++row) {
        ExpectSameBits(Attend(table_.attention, c, kv, row, 1, 0, 2), std::span(whole).subspan(row * 64, 64));
      }
    }
  }
}

TEST_P(AttentionTest, ARowOfAnEncoderAloneHasTheBitsThatItHasAmongOthers) {
  for (const KvFormat format : kAllKvFormats) {
    for (const auto& [first, end] : {std::pair<int64_t, int64_t>(0, 81), std::pair<int64_t, int64_t>(30, 0)}) {
      const AttentionCase c = {6, 2, 32, 40, 0, format, 0, first, end, 12};
      const PagedKv kv(c);
      const std::vector<float> whole = Attend(table_.attention, c, kv);
      for (int64_t row = 0; row < 6; ++row) {
        ExpectSameBits(Attend(table_.attention, c, kv, row, 1, 0, 2), std::span(whole).subspan(row * 64, 64));
      }
    }
  }
}

TEST_P(AttentionTest, EqualValuesAreTheirOwnMean) {
  const AttentionCase c = {1, 3, 32, 36, 0, KvFormat::kF32};
  std::vector<float> page(2 * KvBlock{c.format, 32}.bytes() / 4, 1.5f);
  const std::vector<const std::byte*> pages(3, reinterpret_cast<const std::byte*>(page.data()));
  const std::vector<float> q = RandomFloats(3 * 32, 1);
  std::vector<float> scratch(AttentionScratchFloats(3, 32, 37)), out(3 * 32);
  table_.attention({.num_rows = 1,
                    .group = 3,
                    .head_dim = 32,
                    .q = q.data(),
                    .q_stride = 3 * 32,
                    .pages = pages.data(),
                    .kv_format = c.format,
                    .head_offset_bytes = 0,
                    .pos = c.pos,
                    .window = 0,
                    .scale = 1,
                    .scratch = scratch.data(),
                    .out = out.data(),
                    .out_stride = 3 * 32});
  for (const float value : out) EXPECT_EQ(value, 1.5f);
}

// Returns the bytes of a block that held zeros, after `row` was stored as K and V of a token.
template <typename Kernel>
std::vector<std::byte> Store(Kernel kernel, KvFormat format, std::span<const float> row, int64_t value_dim = 0) {
  std::vector<std::byte> block(KvBlock{format, static_cast<int64_t>(row.size()), 0, false, value_dim}.bytes());
  kernel(StoreKvArgs{.format = format,
                     .head_dim = static_cast<int64_t>(row.size()),
                     .value_dim = value_dim,
                     .k = row.data(),
                     .v = row.data(),
                     .block = block.data(),
                     .token = 5});
  return block;
}

TEST_P(AttentionTest, StoresWhatTheOracleStores) {
  for (const KvFormat format : kAllKvFormats) {
    for (const int64_t head_dim : {1, 7, 16, 45, 128}) {
      const std::vector<float> row = RandomFloats(head_dim, 3);
      for (const int64_t value_dim : {int64_t{0}, (head_dim + 1) / 2}) {
        EXPECT_EQ(Store(table_.store_kv, format, row, value_dim), Store(reference::StoreKv, format, row, value_dim));
      }
    }
  }
}

TEST_P(AttentionTest, AnInt8RowThatIsNotFiniteIsNaN) {
  std::vector<float> row = RandomFloats(32, 3);
  row[17] = std::numeric_limits<float>::infinity();
  const std::vector<std::byte> block = Store(table_.store_kv, KvFormat::kInt8, row);
  const KvBlock layout = {KvFormat::kInt8, 32};
  float scale;
  std::memcpy(&scale, block.data() + layout.k_scales_offset() + 4 * 5, 4);
  EXPECT_TRUE(std::isnan(scale));
  for (int64_t d = 0; d < 32; ++d) {
    EXPECT_EQ(static_cast<int>(block[layout.k_offset(d, 5)]), kKvCodeOffset);
    EXPECT_EQ(static_cast<int>(block[layout.v_offset() + 5 * layout.v_stride() + d]), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, AttentionTest, ::testing::ValuesIn(SupportedIsas()),
                         [](const auto& isa) { return std::string(IsaName(isa.param)); });

}  // namespace
}  // namespace penstock::kernels
