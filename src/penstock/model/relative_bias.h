// Relative position biases (T5; Raffel et al. 2020, section 2.1): a number for each head and each bucket of distances
// is added to the scores of self-attention.
//
// Half of the buckets are for one distance each, from 0 on; the others grow as logarithms up to max_distance, and the
// last holds all greater distances. An encoder has such a set of buckets for each direction; a decoder only looks back.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "penstock/model/model_config.h"

namespace penstock {

// Returns the bucket of `distance`, the position that is seen minus the position that sees it.
int64_t RelativeBucket(int64_t distance, bool is_of_encoder, const Encoder& encoder);

// Returns the biases of the distances from -max_distance to max_distance, [num_heads, 2 * max_distance + 1]. `table` is
// the stored weight, [num_buckets, num_heads].
std::vector<float> BiasOfDistances(std::span<const float> table, bool is_of_encoder, const ModelConfig& config);
uint64_t RelativeBiasBytes(const ModelConfig& config);  // of the result

}  // namespace penstock
