// The routing of one rank in an estimate, where all ranks share the same draws.
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "penstock/routing/routing_source.h"

namespace penstock {

// The routing of one rank's rows, for its thread: the same draws, of other layers.
class RankView : public RoutingSource {
 public:
  RankView(RoutingSource& all, std::mutex& mutex, int rank, int64_t num_layers)
      : all_(&all), mutex_(&mutex), first_layer_(rank * kStride), num_layers_(num_layers) {}

  std::span<const int32_t> Choices(int64_t layer_idx, int64_t first_row, int64_t num_rows) override {
    const std::lock_guard<std::mutex> lock(*mutex_);
    const std::span<const int32_t> drawn = all_->Choices((first_layer_ + layer_idx) % num_layers_, first_row, num_rows);
    choices_.assign(drawn.begin(), drawn.end());
    return choices_;
  }

 private:
  static constexpr int64_t kStride = 7;  // ranks have different draws, if there are enough layers

  RoutingSource* all_;
  std::mutex* mutex_;
  int64_t first_layer_;
  int64_t num_layers_;
  std::vector<int32_t> choices_;
};

}  // namespace penstock
