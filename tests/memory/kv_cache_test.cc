// Proves that KV pages and their blocks never overlap, and that pages are copied whole.
#include "penstock/memory/kv_cache.h"

#include <algorithm>

#include <gmock/gmock.h>

namespace penstock {
namespace {

ModelConfig SmallConfig() {
  ModelConfig config;
  config.num_layers = 3;
  config.num_kv_heads = 2;
  config.head_dim = 20;
  return config;
}

TEST(KvCache, PagesLieBehindEachOtherAndAreCopiedWhole) {
  const ModelConfig config = SmallConfig();
  KvCache cache = KvCache::Create(HostMemory(), config, KvFormat::kBF16, 10).value();
  // K of 20 dimensions and V of 32, 16 tokens, 2 bytes.
  const uint64_t page_bytes = 3u * 2 * 16 * (20 + 32) * 2;
  EXPECT_EQ(KvCache::PageBytes(config, KvFormat::kBF16), page_bytes);
  const auto bytes_of = [&](int32_t page) { return std::span(cache.address(KvPageId{page}), page_bytes); };
  EXPECT_EQ(bytes_of(1).data() - bytes_of(0).data(), static_cast<int64_t>(page_bytes));
  std::ranges::fill(bytes_of(4), std::byte{4});
  std::ranges::fill(bytes_of(7), std::byte{7});
  ASSERT_TRUE(cache.Copy(KvPageId{4}, KvPageId{6}).ok());
  EXPECT_THAT(bytes_of(6), testing::Each(std::byte{4}));
  EXPECT_THAT(bytes_of(7), testing::Each(std::byte{7}));
  EXPECT_THAT(bytes_of(5), testing::Each(std::byte{0}));
  std::byte* const pages[] = {cache.address(KvPageId{7})};
  ASSERT_TRUE(cache.Clear(pages).ok());
  EXPECT_THAT(bytes_of(7), testing::Each(std::byte{0}));
}

TEST(KvCache, BlocksLieBehindEachOther) {
  const ModelConfig config = SmallConfig();
  for (const KvFormat format : {KvFormat::kF32, KvFormat::kBF16, KvFormat::kInt8}) {
    const auto layer = [&](int64_t layer_idx) { return KvLayer::Of(config, format, layer_idx); };
    const int64_t block = KvBlock{format, config.head_dim}.bytes();
    EXPECT_EQ(block % 64, 0);
    EXPECT_EQ(layer(0).head_offset_bytes(0), 0);
    EXPECT_EQ(layer(0).head_offset_bytes(1), block);
    EXPECT_EQ(layer(1).head_offset_bytes(0), 2 * block);
    EXPECT_EQ(layer(2).head_offset_bytes(1) + block, static_cast<int64_t>(KvCache::PageBytes(config, format)));
    EXPECT_EQ(layer(2).first_index_bytes, 0);
    EXPECT_EQ(KvLayer::MaxBytes(config, format), 2 * block);
  }
}

TEST(KvCache, IndexKeysLieBehindAllLayers) {
  ModelConfig config = SmallConfig();  // of 3 layers
  config.num_kv_heads = 1;
  config.mla = {.kv_lora_rank = 16, .rope_dim = 8};
  config.head_dim = 24;
  config.indexer = {.num_heads = 2, .head_dim = 16, .num_topk = 4, .is_shared = {false, true, false}};
  for (const KvFormat format : {KvFormat::kF32, KvFormat::kBF16, KvFormat::kInt8}) {
    const auto layer = [&](int64_t layer_idx) { return KvLayer::Of(config, format, layer_idx); };
    const int64_t block = KvBlock{format, 24, 16, true}.bytes(), keys = KvBlock{format, 16, 16}.bytes();
    EXPECT_EQ(block % 64, 0);
    EXPECT_GE(block, KvBlock({format, 24, 16}).bytes());
    EXPECT_EQ(layer(0).first_index_bytes, 3 * block);
    EXPECT_EQ(layer(1).first_index_bytes, 0);
    EXPECT_EQ(layer(1).first_block_bytes, block);
    EXPECT_EQ(layer(2).first_index_bytes, 3 * block + keys);
    EXPECT_EQ(static_cast<int64_t>(KvCache::PageBytes(config, format)), 3 * block + 2 * keys);
  }
}

TEST(KvCache, LayersMayHaveHeadsOfTheirOwn) {
  ModelConfig config = SmallConfig();
  config.layer_heads = {{.num_kv_heads = 2, .head_dim = 20}, {.num_kv_heads = 1, .head_dim = 64}, {3, 7}};
  for (const KvFormat format : {KvFormat::kF32, KvFormat::kBF16, KvFormat::kInt8}) {
    int64_t end = 0, max = 0;
    for (int64_t layer_idx = 0; layer_idx < 3; ++layer_idx) {
      const LayerHeads& heads = config.layer_heads[layer_idx];
      const KvLayer layer = KvLayer::Of(config, format, layer_idx);
      EXPECT_EQ(layer.first_block_bytes, end);
      EXPECT_EQ(layer.num_heads, heads.num_kv_heads);
      EXPECT_EQ(layer.head_dim, heads.head_dim);
      EXPECT_EQ(layer.block_bytes, (KvBlock{format, heads.head_dim}.bytes()));
      end += layer.bytes();
      max = std::max(max, layer.bytes());
    }
    EXPECT_EQ(static_cast<int64_t>(KvCache::PageBytes(config, format)), end);
    EXPECT_EQ(KvLayer::MaxBytes(config, format), max);
  }
}

}  // namespace
}  // namespace penstock
