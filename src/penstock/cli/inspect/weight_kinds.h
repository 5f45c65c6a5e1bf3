// The bytes of each kind of a model's weights, and how they are stored.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/model/weight_map.h"

namespace penstock::cli {

// Bytes of one kind of weights, by their stored format.
using BytesByFormat = std::map<std::string, uint64_t, std::less<>>;

struct Kind {
  std::string_view name;
  BytesByFormat formats = {};
  int64_t num_tensors = 0;
  uint64_t num_weights = 0;

  void Add(const TensorInfo* tensor);
  uint64_t bytes() const;
  double bits_per_weight() const { return 8 * static_cast<double>(bytes()) / static_cast<double>(num_weights); }
};

// Returns the kinds that a model has.
std::vector<Kind> KindsOf(const WeightMap& map);

}  // namespace penstock::cli
