// Proves that the parts of a state lie in whole pages without overlaps, that copies take all of them,
// and how many pages a state needs.
#include "penstock/model/recurrent_state.h"

#include <algorithm>
#include <set>
#include <vector>

#include <gmock/gmock.h>

namespace penstock {
namespace {

ModelConfig ConfigOf(const Recurrent& recurrent, int64_t num_layers) {
  ModelConfig config;
  config.num_layers = num_layers + 1;
  config.layer_is_recurrent.assign(num_layers, true);
  config.layer_is_recurrent.push_back(false);
  config.recurrent = recurrent;
  return config;
}

TEST(RecurrentState, PartsFillPagesWithoutOverlaps) {
  for (const Recurrent& r :
       {Recurrent{2, 4, 16, 16, 4}, Recurrent{1, 3, 7, 21, 3}, Recurrent{3, 3, 5, 4, 2},
        Recurrent{1, 5, 3, 200, 2, RecurrentKind::kMamba2}, Recurrent{1, 4, 6, 30, 3, RecurrentKind::kMamba1},
        Recurrent{1, 1, 0, 700, 3, RecurrentKind::kShortConv}}) {
    const ModelConfig config = ConfigOf(r, 3);
    for (uint64_t page_bytes = RecurrentState::MinPageBytes(config); page_bytes < 16'000; page_bytes += 320) {
      const RecurrentState state(config, page_bytes);
      ASSERT_EQ(state.num_pieces() * state.piece_columns(), r.has_matrix() ? r.values_dim() : 0);
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
          for (int64_t piece = 0; piece < state.num_pieces(); ++piece) {
            for (int64_t i = 0; i < r.key_dim * state.piece_columns(); ++i) each(state.piece(of, layer, piece)[i]);
          }
          for (int64_t part = 0; part < RecurrentState::NumConvParts(r); ++part) {
            const int64_t channels = std::min(kConvPartChannels, r.num_channels() - part * kConvPartChannels);
            for (int64_t i = 0; i < (r.conv_width - 1) * channels; ++i) each(state.conv_inputs(of, layer, part)[i]);
          }
        }
      };
      visit(pages, [&](float& x) { x = next++; });
      EXPECT_GE(static_cast<uint64_t>(state.num_pages()) * page_bytes, RecurrentState::Bytes(config));
      for (int64_t layer = 0; layer < 3; ++layer) {
        for (int64_t piece = 0; piece < state.num_pieces(); ++piece) state.CopyPiece(pages, copy, layer, piece);
        for (int64_t part = 0; part < RecurrentState::NumConvParts(r); ++part) {
          state.CopyConvInputs(pages, copy, layer, part);
        }
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
  // A page of int8 entries holds three matrices and a half: seven halves, then a part of a convolution.
  constexpr uint64_t kInt8PageBytes = 12ull * 2 * 16 * 2 * (256 + 4) + 32 * 1024;
  EXPECT_EQ(RecurrentState(config, kInt8PageBytes).piece_columns(), 64);
  EXPECT_EQ(RecurrentState(config, kPageBytes).piece_columns(), 128);
}

}  // namespace
}  // namespace penstock
