#include "penstock/model/relative_bias.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace penstock {

int64_t RelativeBucket(int64_t distance, bool is_of_encoder, const Encoder& encoder) {
  int64_t num_buckets = encoder.num_buckets, first = 0;
  if (is_of_encoder) {
    num_buckets /= 2;
    if (distance > 0) first = num_buckets;
    distance = std::abs(distance);
  } else {
    distance = std::max<int64_t>(0, -distance);
  }
  const int64_t num_exact = num_buckets / 2;
  if (distance < num_exact) return first + distance;
  // In f32, as in the reference implementation, so that no distance falls into another bucket.
  const auto exact = static_cast<float>(num_exact);
  const auto range = static_cast<float>(std::log(static_cast<double>(encoder.max_distance) / num_exact));
  const float place =
      std::log(static_cast<float>(distance) / exact) / range * static_cast<float>(num_buckets - num_exact);
  return first + std::min(num_exact + static_cast<int64_t>(place), num_buckets - 1);
}

uint64_t RelativeBiasBytes(const ModelConfig& config) {
  return static_cast<uint64_t>(config.num_heads * (2 * config.encoder.max_distance + 1)) * sizeof(float);
}

std::vector<float> BiasOfDistances(std::span<const float> table, bool is_of_encoder, const ModelConfig& config) {
  const int64_t reach = config.encoder.max_distance, num_heads = config.num_heads;
  std::vector<float> biases;
  biases.reserve(static_cast<size_t>(num_heads * (2 * reach + 1)));
  for (int64_t head = 0; head < num_heads; ++head) {
    for (int64_t distance = -reach; distance <= reach; ++distance) {
      biases.push_back(table[RelativeBucket(distance, is_of_encoder, config.encoder) * num_heads + head]);
    }
  }
  return biases;
}

}  // namespace penstock
