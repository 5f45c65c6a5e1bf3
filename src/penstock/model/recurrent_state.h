// RecurrentState says where the state of one sequence (Recurrent in model/model_config.h) lies in KV pages.
//
// A sequence takes whole pages for its state, so that states and KV entries share one budget. A page holds pieces of
// the matrices of value heads [key_dim, columns of a piece], and inputs that short convolutions keep: [conv_width - 1,
// channels of a part]. All are f32, and each lies within one page. A piece is a whole matrix, or fewer of its columns
// if pages then lose less.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "penstock/model/model_config.h"

namespace penstock {

// A convolution's channels are kept, and computed, in parts of this many; the last one may have fewer.
inline constexpr int64_t kConvPartChannels = 512;

// Pieces of a matrix have at least as many columns, or all; the kernels are fast with them.
inline constexpr int64_t kMinPieceColumns = 64;

class RecurrentState {
 public:
  // Returns the bytes of a sequence's state, without what pages lose.
  static uint64_t Bytes(const ModelConfig& config);
  // Returns the least bytes of a page; 0 for a model without such layers.
  static uint64_t MinPageBytes(const ModelConfig& config);
  // Returns the number of pages for one sequence.
  static int64_t NumPages(const ModelConfig& config, uint64_t page_bytes) {
    return RecurrentState(config, page_bytes).num_pages();
  }
  // Returns the number of parts of a layer's convolution.
  static int64_t NumConvParts(const Recurrent& recurrent) {
    return (recurrent.num_channels() + kConvPartChannels - 1) / kConvPartChannels;
  }

  // Returns the most pieces that a layer's matrices have, whatever the size of pages.
  static int64_t MaxPieces(const Recurrent& recurrent) {
    return recurrent.num_value_heads * std::max<int64_t>(1, recurrent.value_dim / kMinPieceColumns);
  }

  RecurrentState() = default;
  // REQUIRES: page_bytes >= MinPageBytes().
  RecurrentState(const ModelConfig& config, uint64_t page_bytes);

  int64_t num_pages() const { return num_pages_; }
  // The columns of a piece, and the pieces of a layer. Those of a head follow each other.
  int64_t piece_columns() const { return piece_columns_; }
  int64_t num_pieces() const { return num_pieces_; }
  // `layer` counts recurrent layers (ModelConfig::recurrent_layer_of).
  float* piece(std::span<std::byte* const> pages, int64_t layer, int64_t piece_idx) const {
    return At(pages, layer * parts_of_layer_ + piece_idx);
  }
  float* conv_inputs(std::span<std::byte* const> pages, int64_t layer, int64_t conv_part) const {
    return At(pages, layer * parts_of_layer_ + num_pieces_ + conv_part);
  }
  void CopyPiece(std::span<std::byte* const> from, std::span<std::byte* const> to, int64_t layer,
                 int64_t piece_idx) const;
  void CopyConvInputs(std::span<std::byte* const> from, std::span<std::byte* const> to, int64_t layer,
                      int64_t conv_part) const;

 private:
  struct Place {
    int64_t page_idx = 0;
    uint64_t offset_bytes = 0;
  };
  float* At(std::span<std::byte* const> pages, int64_t part) const {
    const Place& place = places_[static_cast<size_t>(part)];
    return reinterpret_cast<float*>(pages[place.page_idx] + place.offset_bytes);
  }

  int64_t num_pages_ = 0;
  int64_t piece_columns_ = 0;
  int64_t num_pieces_ = 0;
  uint64_t piece_bytes_ = 0;
  uint64_t conv_bytes_ = 0;  // of a part
  int64_t parts_of_layer_ = 0;
  std::vector<Place> places_;  // [layers, pieces and then parts of convolutions]
};

}  // namespace penstock
