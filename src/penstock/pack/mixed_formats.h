// Chooses a format for each matrix of a model under a budget of bytes, by the errors that the formats make.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "penstock/base/thread_pool.h"
#include "penstock/checkpoint/importance.h"
#include "penstock/model/model_config.h"
#include "penstock/model/weight_map.h"
#include "penstock/tensor/error_weights.h"

namespace penstock {

// Tells where the inputs of a model's matrices come from. Of the inputs of other matrices nothing is known.
using InputPlaces = std::unordered_map<const TensorInfo*, InputPlace>;
InputPlaces PlacesOfInputs(const ModelConfig& config, const WeightMap& map);

// All that is known of a matrix's inputs. Movable: the weights refer to the heap.
struct MatrixErrors {
  Importance::Moments moments;
  std::optional<ErrorWeights> weights;
};
// Reads it. kInput when the file has nothing of such a matrix.
absl::StatusOr<MatrixErrors> ReadMatrixErrors(const Importance& importance, const InputPlace& place,
                                              const ModelConfig& config, const TensorInfo& tensor);

using MatrixFormats = std::unordered_map<const TensorInfo*, WeightFormat>;

struct MixedFormatsArgs {
  const ModelConfig& config;
  const WeightMap& map;
  const InputPlaces& places;
  const Importance* importance = nullptr;  // null: none
  double bits = 8;
  ThreadPool& pool;
  // Returns rows [first, first + count) of a matrix as floats. `begins`: the first call for the matrix. Calls for other
  // rows of the same matrix may come from several threads at once.
  absl::FunctionRef<absl::Status(const TensorInfo&)> begin;
  absl::FunctionRef<absl::StatusOr<std::vector<float>>(const TensorInfo&, int64_t first, int64_t count)> rows;
};
// Returns the format of each matrix of experts, dense FFNs and attention. They take at most `bits` of a weight on
// average, with scales, and the largest expert at most 1.25 times as many. Matrices whose errors cannot be compared
// with those of experts get 8 bits: attention and dense FFNs without importances, and matrices that are no site of
// importances. kUsage when no formats are so small.
absl::StatusOr<MatrixFormats> ChooseMixedFormats(const MixedFormatsArgs& args);

}  // namespace penstock
