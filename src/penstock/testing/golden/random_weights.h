// Weights from a seed, with the same bits on every machine. tools/golden/weights.py says how, and does it in Python.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/tensor/dtype.h"

namespace penstock::golden {

// A recipe names the version that it was written with.
inline constexpr int64_t kGeneratorVersion = 1;

struct RandomTensor {
  std::string name;
  Dtype dtype = Dtype::kF32;  // kF32, kF16, kBF16
  std::vector<int64_t> shape = {};
  int64_t mean_millionths = 0;
  int64_t std_millionths = 0;  // standard deviation

  int64_t num_elements() const;
};

// Means and standard deviations up to here keep every sum within the integers that a double holds exactly.
inline constexpr int64_t kMaxMillionths = 100'000'000;

// The tensor's bytes, row-major. A weight depends on the seed, the tensor's name and the element's index alone.
std::string RandomBytes(uint64_t seed, const RandomTensor& tensor);

// Rounds to nearest, ties to even. REQUIRES: x is finite.
F16 ToF16(float x);

}  // namespace penstock::golden
