// Proves that attention matches the oracle for the head sizes, groups, windows, page borders and KV types that models
// have, and that the bits of a head depend neither on the instruction set, nor on the page size, nor on the other
// heads.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "kernels/kernel_testing.h"
#include "penstock/kernels/reference/reference.h"

namespace penstock::kernels {
namespace {

struct AttentionCase {
  int64_t group;
  int64_t head_dim;
  int64_t page_tokens;
  int64_t first_pos;
  int64_t end_pos;
  Dtype dtype;
};

constexpr int64_t kNumKvHeads = 2;
constexpr int64_t kKvHeadIdx = 1;

// Small enough that many positions have a share in each output.
constexpr float kScale = 0.01f;
constexpr uint32_t kQuerySeed = 99;

float Norm(std::span<const float> values) {
  float squares = 0;
  for (const float value : values) squares += value * value;
  return std::sqrt(squares);
}

// The KV of positions [0, end_pos) in pages of K [num_kv_heads, page_tokens, head_dim], then V. The value at a position
// does not depend on the size of the pages. Pages wholly before the window are null.
class PagedKv {
 public:
  explicit PagedKv(const AttentionCase& c) : case_(c) {
    const int64_t num_pages = (c.end_pos + c.page_tokens - 1) / c.page_tokens;
    for (int64_t page_idx = 0; page_idx < num_pages; ++page_idx) {
      if ((page_idx + 1) * c.page_tokens <= c.first_pos) {
        pages_.push_back(nullptr);
        continue;
      }
      std::vector<float> values;
      for (const int64_t is_v : {0, 1}) {
        for (int64_t head = 0; head < kNumKvHeads; ++head) {
          for (int64_t token = 0; token < c.page_tokens; ++token) {
            const int64_t pos = page_idx * c.page_tokens + token;
            const auto seed = static_cast<uint32_t>((pos * kNumKvHeads + head) * 2 + is_v);
            const std::vector<float> row = RandomFloats(c.head_dim, seed);
            float& norm_max = is_v != 0 ? v_norm_max_ : k_norm_max_;
            norm_max = std::max(norm_max, Norm(row));
            values.insert(values.end(), row.begin(), row.end());
          }
        }
      }
      stored_.push_back(std::make_unique<StoredValues>(c.dtype, values, 0));
      pages_.push_back(stored_.back()->data());
    }
  }

  const std::byte* const* pages() const { return pages_.data(); }
  // The largest norms of a K and a V.
  double k_norm_max() const { return k_norm_max_; }
  double v_norm_max() const { return v_norm_max_; }
  int64_t token_bytes() const { return case_.head_dim * static_cast<int64_t>(SizeOf(case_.dtype)); }
  int64_t k_offset() const { return kKvHeadIdx * case_.page_tokens * token_bytes(); }
  int64_t v_offset() const { return (kNumKvHeads + kKvHeadIdx) * case_.page_tokens * token_bytes(); }

 private:
  AttentionCase case_;
  std::vector<std::unique_ptr<StoredValues>> stored_;
  std::vector<const std::byte*> pages_;
  float k_norm_max_ = 0;
  float v_norm_max_ = 0;
};

template <typename Kernel>
std::vector<float> Attend(Kernel kernel, const AttentionCase& c, const PagedKv& kv, int64_t first_head,
                          int64_t num_heads) {
  const std::vector<float> q = RandomFloats(c.group * c.head_dim, kQuerySeed);
  const int64_t count = c.end_pos - c.first_pos;
  std::vector<float> scratch(num_heads * count), out(num_heads * c.head_dim, -1.0f);
  kernel(AttentionArgs{.group = num_heads,
                       .head_dim = c.head_dim,
                       .q = q.data() + first_head * c.head_dim,
                       .q_stride = c.head_dim,
                       .pages = kv.pages(),
                       .page_tokens = c.page_tokens,
                       .kv_dtype = c.dtype,
                       .k_offset_bytes = kv.k_offset(),
                       .v_offset_bytes = kv.v_offset(),
                       .token_stride_bytes = kv.token_bytes(),
                       .first_pos = c.first_pos,
                       .end_pos = c.end_pos,
                       .scale = kScale,
                       .scratch = scratch.data(),
                       .scratch_stride = count,
                       .out = out.data(),
                       .out_stride = c.head_dim});
  return out;
}

std::vector<AttentionCase> AllCases() {
  std::vector<AttentionCase> cases;
  for (const int64_t head_dim : {20, 32, 64, 128}) {
    for (const int64_t group : {1, 2, 5, 8}) {
      for (const Dtype dtype : kAllDtypes) {
        cases.push_back({group, head_dim, 16, 0, 1, dtype});    // one position
        cases.push_back({group, head_dim, 16, 0, 16, dtype});   // exactly one page
        cases.push_back({group, head_dim, 16, 0, 53, dtype});   // ends inside a page
        cases.push_back({group, head_dim, 16, 21, 70, dtype});  // starts and ends inside pages
        cases.push_back({group, head_dim, 16, 32, 48, dtype});  // a window that is one page
        cases.push_back({group, head_dim, 1, 3, 20, dtype});    // a page for each position
      }
    }
  }
  cases.push_back({4, 64, 64, 0, 1000, Dtype::kF32});
  cases.push_back({4, 7, 16, 0, 40, Dtype::kBF16});
  return cases;
}

class AttentionTest : public ::testing::TestWithParam<Isa> {
 protected:
  const KernelTable& table_ = KernelsFor(GetParam());
};

TEST_P(AttentionTest, MatchesTheOracleAndTheScalarKernels) {
  for (const AttentionCase& c : AllCases()) {
    const PagedKv kv(c);
    const std::vector<float> actual = Attend(table_.attention, c, kv, 0, c.group);
    ExpectSameBits(actual, Attend(KernelsFor(Isa::kScalar).attention, c, kv, 0, c.group));
    const std::vector<float> expected = Attend(reference::Attention, c, kv, 0, c.group);
    // The error of a score, (head_dim/16 + 6) roundings of at most scale * |q| * |K|, is the relative error of its p;
    // exp and the sums over positions add (2 + 2 * count) roundings at most; out is a mean of V weighted by p.
    const double q_norm = Norm(RandomFloats(c.group * c.head_dim, kQuerySeed));
    const double roundings = (static_cast<double>(c.head_dim) / 16 + 6) * kScale * q_norm * kv.k_norm_max() + 2 +
                             2 * static_cast<double>(c.end_pos - c.first_pos);
    const double tolerance = roundings * std::numeric_limits<float>::epsilon() * kv.v_norm_max();
    for (size_t i = 0; i < actual.size(); ++i) {
      ASSERT_NEAR(actual[i], expected[i], tolerance)
          << "head_dim " << c.head_dim << " group " << c.group << " end " << c.end_pos << " element " << i;
    }
  }
}

TEST_P(AttentionTest, AHeadAloneHasTheBitsThatItHasInItsGroup) {
  for (const Dtype dtype : kAllDtypes) {
    const AttentionCase c = {7, 45, 16, 5, 90, dtype};
    const PagedKv kv(c);
    const std::vector<float> whole = Attend(table_.attention, c, kv, 0, 7);
    for (int64_t head = 0; head < 7; ++head) {
      ExpectSameBits(Attend(table_.attention, c, kv, head, 1), std::span(whole).subspan(head * 45, 45));
    }
  }
}

TEST_P(AttentionTest, PageSizeDoesNotChangeTheBits) {
  AttentionCase c = {4, 64, 1, 9, 120, Dtype::kBF16};
  const std::vector<float> expected = Attend(table_.attention, c, PagedKv(c), 0, 4);
  for (const int64_t page_tokens : {3, 16, 64, 256}) {
    c.page_tokens = page_tokens;
    ExpectSameBits(Attend(table_.attention, c, PagedKv(c), 0, 4), expected);
  }
}

TEST_P(AttentionTest, EqualValuesAreTheirOwnMean) {
  const AttentionCase c = {3, 32, 16, 0, 37, Dtype::kF32};
  std::vector<float> page(2 * kNumKvHeads * 16 * 32, 1.5f);
  const std::vector<const std::byte*> pages(3, reinterpret_cast<const std::byte*>(page.data()));
  const std::vector<float> q = RandomFloats(3 * 32, 1);
  std::vector<float> scratch(3 * 37), out(3 * 32);
  table_.attention({.group = 3,
                    .head_dim = 32,
                    .q = q.data(),
                    .q_stride = 32,
                    .pages = pages.data(),
                    .page_tokens = 16,
                    .kv_dtype = c.dtype,
                    .k_offset_bytes = 0,
                    .v_offset_bytes = kNumKvHeads * 16 * 32 * 4,
                    .token_stride_bytes = 32 * 4,
                    .first_pos = 0,
                    .end_pos = 37,
                    .scale = 1,
                    .scratch = scratch.data(),
                    .scratch_stride = 37,
                    .out = out.data(),
                    .out_stride = 32});
  for (const float value : out) EXPECT_EQ(value, 1.5f);
}

INSTANTIATE_TEST_SUITE_P(Isas, AttentionTest, ::testing::ValuesIn(SupportedIsas()),
                         [](const auto& isa) { return std::string(IsaName(isa.param)); });

}  // namespace
}  // namespace penstock::kernels
