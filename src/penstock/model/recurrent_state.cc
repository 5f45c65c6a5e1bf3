#include "penstock/model/recurrent_state.h"

#include <algorithm>
#include <cstring>

#include "penstock/base/bytes.h"
#include "penstock/base/check.h"
#include "penstock/base/checked.h"

namespace penstock {
namespace {

uint64_t BytesOf(int64_t num_floats) { return RoundUp(static_cast<uint64_t>(num_floats) * 4, kCacheLineBytes); }
int64_t NumMatrices(const Recurrent& r) { return r.has_matrix() ? r.num_value_heads : 0; }
// Returns the bytes of a piece of a matrix.
uint64_t PieceBytes(const Recurrent& r, int64_t columns) { return BytesOf(r.key_dim * columns); }
uint64_t MatrixBytes(const Recurrent& r) { return r.has_matrix() ? PieceBytes(r, r.value_dim) : 0; }

// Returns the columns of a piece. Halves of matrices, or quarters, are only worth it if they need fewer pages.
int64_t ChoosePieceColumns(const Recurrent& r, uint64_t page_bytes) {
  const auto columns_per_page = [&](int64_t columns) {
    return static_cast<int64_t>(page_bytes / PieceBytes(r, columns)) * columns;
  };
  int64_t best = r.value_dim;
  for (int64_t columns = best; columns % 2 == 0 && columns / 2 >= kMinPieceColumns;) {
    columns /= 2;
    if (columns_per_page(columns) > columns_per_page(best)) best = columns;
  }
  return best;
}

// Returns the bytes of a part; the last one has room for as many channels as the others.
uint64_t ConvBytes(const Recurrent& r) {
  return BytesOf((r.conv_width - 1) * std::min(r.num_channels(), kConvPartChannels));
}

}  // namespace

uint64_t RecurrentState::Bytes(const ModelConfig& config) {
  const int64_t num_layers = config.num_recurrent_layers();
  if (num_layers == 0) return 0;
  const Recurrent& r = config.recurrent;
  const auto of_parts = [](int64_t count, uint64_t bytes) { return static_cast<uint64_t>(count) * bytes; };
  return of_parts(num_layers, of_parts(NumMatrices(r), MatrixBytes(r)) + of_parts(NumConvParts(r), ConvBytes(r)));
}

uint64_t RecurrentState::MinPageBytes(const ModelConfig& config) {
  if (config.num_recurrent_layers() == 0) return 0;
  return std::max(MatrixBytes(config.recurrent), ConvBytes(config.recurrent));
}

RecurrentState::RecurrentState(const ModelConfig& config, uint64_t page_bytes) {
  const int64_t num_layers = config.num_recurrent_layers();
  if (num_layers == 0) return;
  PENSTOCK_CHECK(page_bytes >= MinPageBytes(config));
  const Recurrent& r = config.recurrent;
  if (r.has_matrix()) {
    piece_columns_ = ChoosePieceColumns(r, page_bytes);
    num_pieces_ = r.values_dim() / piece_columns_;
    piece_bytes_ = PieceBytes(r, piece_columns_);
  }
  conv_bytes_ = ConvBytes(r);
  parts_of_layer_ = num_pieces_ + NumConvParts(r);
  places_.resize(static_cast<size_t>(num_layers * parts_of_layer_));
  // The pieces come first, because a page may hold a whole number of them without loss.
  uint64_t used = page_bytes;
  const auto place = [&](int64_t first_part, int64_t count, uint64_t bytes) {
    for (int64_t layer = 0; layer < num_layers; ++layer) {
      for (int64_t i = 0; i < count; ++i) {
        if (used + bytes > page_bytes) {
          ++num_pages_;
          used = 0;
        }
        places_[static_cast<size_t>(layer * parts_of_layer_ + first_part + i)] = {num_pages_ - 1, used};
        used += bytes;
      }
    }
  };
  place(0, num_pieces_, piece_bytes_);
  place(num_pieces_, NumConvParts(r), conv_bytes_);
}

void RecurrentState::CopyPiece(std::span<std::byte* const> from, std::span<std::byte* const> to, int64_t layer,
                               int64_t piece_idx) const {
  std::memcpy(piece(to, layer, piece_idx), piece(from, layer, piece_idx), piece_bytes_);
}

void RecurrentState::CopyConvInputs(std::span<std::byte* const> from, std::span<std::byte* const> to, int64_t layer,
                                    int64_t conv_part) const {
  std::memcpy(conv_inputs(to, layer, conv_part), conv_inputs(from, layer, conv_part), conv_bytes_);
}

}  // namespace penstock
