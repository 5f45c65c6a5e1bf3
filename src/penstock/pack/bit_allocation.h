// Distributes bytes among matrices so that the sum of their errors is small.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "penstock/tensor/packed_matrix.h"

namespace penstock {

// The bytes that a matrix takes in one format, and its error.
struct FormatCost {
  WeightFormat format = WeightFormat::kInt8;
  uint64_t bytes = 0;
  double error = 0;
};

struct MatrixChoice {
  std::vector<FormatCost> formats;
  // Matrices of the same group, such as an expert, take at most max_group_bytes together, unless their smallest formats
  // take more. Below 0: none.
  int64_t group = -1;
};

// Chooses one of the formats of each matrix: returns their indices, or nullopt when even the smallest take more than
// the budget. Starts from the smallest and takes the step that saves most error for each byte, as long as there is one
// that fits. So the errors are least for the bytes that it takes, but for the last steps. Ties go to earlier matrices.
std::optional<std::vector<size_t>> AllocateBits(std::span<const MatrixChoice> matrices, uint64_t budget_bytes,
                                                uint64_t max_group_bytes);

}  // namespace penstock
