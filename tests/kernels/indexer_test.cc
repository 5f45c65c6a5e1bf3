// Proves that the kernels of the lightning indexer match the oracle and give the same bits on every instruction set,
// that a score does not depend on which pages come together, and that ties among scores are broken by position.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/kernel_testing.h"
#include "penstock/tensor/kv_block.h"
#include "penstock/testing/reference/reference.h"

namespace penstock::kernels {
namespace {

constexpr KvFormat kFormats[] = {KvFormat::kF32, KvFormat::kBF16, KvFormat::kInt8};

class IndexerTest : public ::testing::TestWithParam<Isa> {
 protected:
  const KernelTable& table_ = KernelsFor(GetParam());
  const KernelTable& scalar_ = KernelsFor(Isa::kScalar);
};

// Pages with one block each, `offset` bytes behind the page's start.
class Pages {
 public:
  Pages(const KvBlock& block, int64_t num_tokens, int64_t offset)
      : offset_(offset),
        num_pages_((num_tokens + kKvPageTokens - 1) / kKvPageTokens),
        page_bytes_(block.bytes() + offset),
        memory_(static_cast<uint64_t>(num_pages_ * page_bytes_)) {
    std::fill_n(memory_.data(), num_pages_ * page_bytes_, std::byte{0});
    for (int64_t page = 0; page < num_pages_; ++page) pages_.push_back(memory_.data() + page * page_bytes_);
    for (int64_t token = 0; token < num_tokens; ++token) {
      const std::vector<float> k = RandomFloats(block.head_dim, static_cast<uint32_t>(token));
      KernelsFor(Isa::kScalar)
          .store_kv({.format = block.format,
                     .head_dim = block.head_dim,
                     .values_in_key = block.values_in_key,
                     .is_by_token = block.is_by_token,
                     .k = k.data(),
                     .v = k.data(),
                     .block = memory_.data() + token / kKvPageTokens * page_bytes_ + offset,
                     .token = token % kKvPageTokens});
    }
  }

  int64_t offset() const { return offset_; }
  int64_t num_pages() const { return num_pages_; }
  const std::byte* const* data() const { return pages_.data(); }

 private:
  int64_t offset_, num_pages_, page_bytes_;
  AlignedBytes memory_;
  std::vector<const std::byte*> pages_;
};

struct ScoresCase {
  KvFormat format;
  int64_t num_heads;
  int64_t head_dim;
};

template <typename Kernel>
std::vector<float> Scores(const Kernel& kernel, const ScoresCase& c, const Pages& pages, int64_t first,
                          int64_t num_pages) {
  const std::vector<float> q = RandomFloats(c.num_heads * c.head_dim, 1000), weights = RandomFloats(c.num_heads, 1001);
  std::vector<float> scratch(static_cast<size_t>(IndexScratchFloats(c.num_heads, c.head_dim)));
  std::vector<float> scores(static_cast<size_t>(num_pages * kKvPageTokens), -1.0f);
  kernel(IndexScoresArgs{.num_heads = c.num_heads,
                         .head_dim = c.head_dim,
                         .q = q.data(),
                         .weights = weights.data(),
                         .pages = pages.data() + first,
                         .num_pages = num_pages,
                         .format = c.format,
                         .block_offset_bytes = pages.offset(),
                         .scratch = scratch.data(),
                         .scores = scores.data()});
  return scores;
}

TEST_P(IndexerTest, Scores) {
  for (const KvFormat format : kFormats) {
    for (const int64_t head_dim : {10, 16, 128}) {
      for (const int64_t num_heads : {1, 9, 64}) {
        const ScoresCase c{format, num_heads, head_dim};
        const Pages pages({format, head_dim, head_dim}, 7 * kKvPageTokens - 3, 64);
        const std::vector<float> all = Scores(table_.index_scores, c, pages, 0, pages.num_pages());
        ExpectSameBits(all, Scores(scalar_.index_scores, c, pages, 0, pages.num_pages()));
        for (int64_t page = 0; page < pages.num_pages(); ++page) {
          const auto first = all.begin() + page * kKvPageTokens;
          ExpectSameBits(std::vector(first, first + kKvPageTokens), Scores(table_.index_scores, c, pages, page, 1));
        }
        const std::vector<float> expected = Scores(reference::IndexScores, c, pages, 0, pages.num_pages());
        const float largest = *std::ranges::max_element(expected, {}, [](float x) { return std::abs(x); });
        for (size_t i = 0; i < all.size(); ++i) ASSERT_NEAR(all[i], expected[i], 1e-5 * std::abs(largest) + 1e-30) << i;
      }
    }
  }
}

std::vector<int32_t> Select(void (*kernel)(const SelectTopkArgs&), const std::vector<float>& scores, int64_t num_topk) {
  std::vector<int32_t> selected(static_cast<size_t>(num_topk), -1);
  kernel({.scores = scores.data(), .count = std::ssize(scores), .num_topk = num_topk, .selected = selected.data()});
  return selected;
}

TEST_P(IndexerTest, SelectsTheLargest) {
  for (const int64_t count : {1, 2, 17, 300, 5000}) {
    std::vector<float> scores = RandomFloats(count, 5);
    for (const int64_t num_topk : {int64_t{1}, (count + 1) / 2, count - count / 10, count}) {
      EXPECT_EQ(Select(table_.select_topk, scores, num_topk), Select(reference::SelectTopk, scores, num_topk));
    }
    // Many equal scores, zeros of both signs, infinities and NaNs.
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    const float few[] = {0, -0.0f, 1, -1, kInfinity, -kInfinity, NAN, -NAN, 1e-42f};
    for (size_t i = 0; i < scores.size(); ++i) scores[i] = few[(i * 7 + i / 5) % std::size(few)];
    for (const int64_t num_topk : {int64_t{1}, (count + 1) / 2, count - count / 10, count}) {
      EXPECT_EQ(Select(table_.select_topk, scores, num_topk), Select(reference::SelectTopk, scores, num_topk));
    }
  }
}

TEST_P(IndexerTest, TiesGoToTheFirstPositions) {
  const std::vector<float> scores = {1, 0, 2, -0.0f, 0, 1, 1};
  EXPECT_EQ(Select(table_.select_topk, scores, 2), (std::vector<int32_t>{0, 2}));
  EXPECT_EQ(Select(table_.select_topk, scores, 3), (std::vector<int32_t>{0, 2, 5}));
  EXPECT_EQ(Select(table_.select_topk, scores, 5), (std::vector<int32_t>{0, 1, 2, 5, 6}));
  EXPECT_EQ(Select(table_.select_topk, scores, 6), (std::vector<int32_t>{0, 1, 2, 3, 5, 6}));
}

// Attention to gathered positions gives the bits of attention to a cache that has only these positions.
TEST_P(IndexerTest, GathersWhatAttentionTakes) {
  constexpr int64_t kTokens = 90, kHeads = 3;
  std::vector<int32_t> positions;
  for (int32_t pos = 1; pos < kTokens; pos += 1 + pos % 4) positions.push_back(pos);
  const auto count = std::ssize(positions);
  for (const KvFormat format : kFormats) {
    for (const int64_t head_dim : {23, 40}) {
      const int64_t values = head_dim - 8;
      const KvBlock block{format, head_dim, values};
      const Pages pages({format, head_dim, values, /*is_by_token=*/true}, kTokens, 128);
      const int64_t num_blocks = (count + kKvPageTokens - 1) / kKvPageTokens;
      AlignedBytes gathered(static_cast<uint64_t>(num_blocks * block.bytes()));
      AlignedBytes expected(static_cast<uint64_t>(num_blocks * block.bytes()));
      GatherKvArgs args{.format = format,
                        .head_dim = head_dim,
                        .values_in_key = values,
                        .pages = pages.data(),
                        .block_offset_bytes = pages.offset(),
                        .positions = positions.data(),
                        .count = count,
                        .blocks = gathered.data()};
      table_.gather_kv(args);
      args.blocks = expected.data();
      reference::GatherKv(args);
      AlignedBytes own(static_cast<uint64_t>(num_blocks * block.bytes()));
      for (int64_t i = 0; i < count; ++i) {
        const std::vector<float> k = RandomFloats(head_dim, static_cast<uint32_t>(positions[i]));
        scalar_.store_kv({.format = format,
                          .head_dim = head_dim,
                          .values_in_key = values,
                          .k = k.data(),
                          .v = k.data(),
                          .block = own.data() + i / kKvPageTokens * block.bytes(),
                          .token = i % kKvPageTokens});
      }
      const auto attend = [&](const AlignedBytes& blocks) {
        std::vector<const std::byte*> of_blocks;
        for (int64_t i = 0; i < num_blocks; ++i) of_blocks.push_back(blocks.data() + i * block.bytes());
        const std::vector<float> q = RandomFloats(kHeads * head_dim, 2000);
        std::vector<float> scratch(static_cast<size_t>(AttentionScratchFloats(kHeads, head_dim, count)));
        std::vector<float> out(static_cast<size_t>(kHeads * values));
        table_.attention({.num_rows = 1,
                          .group = kHeads,
                          .head_dim = head_dim,
                          .values_in_key = values,
                          .q = q.data(),
                          .q_stride = kHeads * head_dim,
                          .pages = of_blocks.data(),
                          .kv_format = format,
                          .head_offset_bytes = 0,
                          .pos = count - 1,
                          .window = 0,
                          .scale = 0.3f,
                          .scratch = scratch.data(),
                          .out = out.data(),
                          .out_stride = kHeads * values});
        return out;
      };
      ExpectSameBits(attend(gathered), attend(own));
      ExpectSameBits(attend(expected), attend(own));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, IndexerTest, ::testing::ValuesIn(SupportedIsas()),
                         [](const auto& param) { return std::string(IsaName(param.param)); });

}  // namespace
}  // namespace penstock::kernels
