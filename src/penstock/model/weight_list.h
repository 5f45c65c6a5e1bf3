// Lists the weights that a model of a config has, and takes each from a source.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/model/weight_map.h"

namespace penstock {

// Returns the pattern with `idx` in place of the first placeholder.
std::string ReplaceIdx(std::string_view pattern, std::string_view placeholder, int64_t idx);

// The use of a tensor, which decides how it may be stored.
enum class WeightUse : uint8_t { kVector, kRows, kRouter, kMatrix };

// A weight of the model: its index, and its name with placeholders for layer and expert.
struct Weight {
  std::string_view name;
  std::vector<int64_t> shape;
  WeightUse use = WeightUse::kMatrix;
  int64_t layer_idx = -1;   // -1: not in a layer
  int64_t expert_idx = -1;  // -1: not of one expert
  int64_t num_groups = 1;   // of heads, if the stored name is_grouped
  VectorForm form = VectorForm::kPlain;

  std::string FullName() const {
    const std::string own = ReplaceIdx(name, "{expert}", expert_idx);
    return layer_idx < 0 ? own : fmt::format("model.layers.{}.{}", layer_idx, own);
  }
  int64_t num_elements() const {
    int64_t count = 1;
    for (const int64_t dim : shape) count *= dim;
    return count;
  }
};

// Supplies the tensors of a model one by one.
class TensorSource {
 public:
  virtual ~TensorSource() = default;
  virtual const TensorInfo* Take(const Weight& weight) = 0;
  // Says that asking for more tensors is pointless.
  virtual bool hopeless() const { return false; }
};

// Takes all weights of a model from the source.
void TakeWeights(TensorSource& source, const ModelConfig& config, WeightMap& map);

}  // namespace penstock
