#include "penstock/model/recurrent_state.h"

#include <algorithm>
#include <cstring>

#include "penstock/base/bytes.h"
#include "penstock/base/check.h"
#include "penstock/base/checked.h"

namespace penstock {
namespace {

uint64_t BytesOf(int64_t num_floats) { return RoundUp(static_cast<uint64_t>(num_floats) * 4, kCacheLineBytes); }
uint64_t MatrixBytes(const DeltaNet& d) { return BytesOf(d.key_dim * d.value_dim); }
uint64_t ConvBytes(const DeltaNet& d) {
  return BytesOf((d.conv_width - 1) * (2 * d.key_dim + d.values_of_key() * d.value_dim));
}

}  // namespace

uint64_t RecurrentState::Bytes(const ModelConfig& config) {
  const DeltaNet& d = config.delta_net;
  const auto of_heads = [](int64_t num_heads, uint64_t bytes) { return static_cast<uint64_t>(num_heads) * bytes; };
  return config.num_recurrent_layers() == 0
             ? 0
             : static_cast<uint64_t>(config.num_recurrent_layers()) *
                   (of_heads(d.num_value_heads, MatrixBytes(d)) + of_heads(d.num_key_heads, ConvBytes(d)));
}

uint64_t RecurrentState::MinPageBytes(const ModelConfig& config) {
  if (config.num_recurrent_layers() == 0) return 0;
  return std::max(MatrixBytes(config.delta_net), ConvBytes(config.delta_net));
}

RecurrentState::RecurrentState(const ModelConfig& config, uint64_t page_bytes) {
  const int64_t num_layers = config.num_recurrent_layers();
  if (num_layers == 0) return;
  PENSTOCK_CHECK(page_bytes >= MinPageBytes(config));
  const DeltaNet& d = config.delta_net;
  net_ = d;
  matrix_bytes_ = MatrixBytes(d);
  conv_bytes_ = ConvBytes(d);
  parts_of_layer_ = d.num_value_heads + d.num_key_heads;
  places_.resize(static_cast<size_t>(num_layers * parts_of_layer_));
  // The matrices come first, because a page may hold a whole number of them without loss.
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
  place(0, d.num_value_heads, matrix_bytes_);
  place(d.num_value_heads, d.num_key_heads, conv_bytes_);
}

void RecurrentState::CopyKeyHead(std::span<std::byte* const> from, std::span<std::byte* const> to, int64_t layer,
                                 int64_t key_head) const {
  std::memcpy(conv_inputs(to, layer, key_head), conv_inputs(from, layer, key_head), conv_bytes_);
  for (int64_t i = 0; i < net_.values_of_key(); ++i) {
    const int64_t head = net_.value_head(key_head, i);
    std::memcpy(matrix(to, layer, head), matrix(from, layer, head), matrix_bytes_);
  }
}

}  // namespace penstock
