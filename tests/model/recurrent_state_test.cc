// Proves that the parts of a state lie in whole pages without overlaps, that copies take what belongs to a key head,
// and how many pages a state needs.
#include "penstock/model/recurrent_state.h"

#include <set>
#include <vector>

#include <gmock/gmock.h>

namespace penstock {
namespace {

ModelConfig ConfigOf(const DeltaNet& delta, int64_t num_layers) {
  ModelConfig config;
  config.num_layers = num_layers + 1;
  config.layer_is_recurrent.assign(num_layers, true);
  config.layer_is_recurrent.push_back(false);
  config.delta_net = delta;
  return config;
}

TEST(RecurrentState, PartsFillPagesWithoutOverlaps) {
  for (const DeltaNet& d : {DeltaNet{2, 4, 16, 16, 4}, DeltaNet{1, 3, 7, 21, 3}, DeltaNet{3, 3, 5, 4, 2}}) {
    const ModelConfig config = ConfigOf(d, 3);
    for (uint64_t page_bytes = RecurrentState::MinPageBytes(config); page_bytes < 16'000; page_bytes += 320) {
      const RecurrentState state(config, page_bytes);
      ASSERT_EQ(RecurrentState::NumPages(config, page_bytes), state.num_pages());
      std::vector<std::vector<std::byte>> memory(state.num_pages() * 2, std::vector<std::byte>(page_bytes));
      std::vector<std::byte*> pages, copy;
      for (int64_t i = 0; i < state.num_pages(); ++i) {
        pages.push_back(memory[2 * i].data());
        copy.push_back(memory[2 * i + 1].data());
      }
      float next = 1;
      const auto visit = [&](std::span<std::byte* const> of, const auto& each) {
        for (int64_t layer = 0; layer < 3; ++layer) {
          for (int64_t head = 0; head < d.num_value_heads; ++head) {
            for (int64_t i = 0; i < d.key_dim * d.value_dim; ++i) each(state.matrix(of, layer, head)[i]);
          }
          for (int64_t head = 0; head < d.num_key_heads; ++head) {
            const int64_t channels = 2 * d.key_dim + d.values_of_key() * d.value_dim;
            for (int64_t i = 0; i < (d.conv_width - 1) * channels; ++i) each(state.conv_inputs(of, layer, head)[i]);
          }
        }
      };
      visit(pages, [&](float& x) { x = next++; });
      EXPECT_GE(static_cast<uint64_t>(state.num_pages()) * page_bytes, RecurrentState::Bytes(config));
      for (int64_t layer = 0; layer < 3; ++layer) {
        for (int64_t head = 0; head < d.num_key_heads; ++head) state.CopyKeyHead(pages, copy, layer, head);
      }
      float expected = 1;
      bool is_same = true;
      visit(copy, [&](const float& x) { is_same = is_same && x == expected++; });
      EXPECT_TRUE(is_same) << page_bytes;
    }
  }
}

TEST(RecurrentState, OfQwen3Next80B) {
  ModelConfig config = ConfigOf({16, 32, 128, 128, 4}, 36);
  constexpr uint64_t kMatrices = 36ull * 32 * 128 * 128 * 4, kConvs = 36ull * 16 * 3 * (2 * 128 + 2 * 128) * 4;
  EXPECT_EQ(RecurrentState::Bytes(config), kMatrices + kConvs);
  // A page of 16 tokens in f32: 12 layers, two KV heads, K and V of 256 dims. Twelve matrices fill one.
  constexpr uint64_t kPageBytes = 12ull * 2 * 16 * 512 * 4;
  EXPECT_EQ(RecurrentState::NumPages(config, kPageBytes), 36 * 32 / 12 + 5);
  EXPECT_EQ(RecurrentState::NumPages(ModelConfig{}, kPageBytes), 0);
}

}  // namespace
}  // namespace penstock
