// Kernels of recurrent layers share this: where a block finds its part of a state, and which copies it makes.
#pragma once

#include "penstock/kernels/cuda/recurrent.h"
#include "penstock/kernels/cuda/simt.h"

namespace penstock::cuda {

// The part of a run's state that a block changes.
struct StatePlace {
  int64_t begin, end;  // rows
  int64_t part;
  float* state;
};
PENSTOCK_DEVICE StatePlace PlaceOf(const StateRuns& runs, int64_t idx) {
  const int64_t run = idx / runs.num_parts, part = idx % runs.num_parts;
  return {runs.begins[run], runs.begins[run + 1], part, runs.parts[idx]};
}

// The copies of a state that are due after some rows.
class DueCopies {
 public:
  PENSTOCK_DEVICE DueCopies(const StateRuns& runs, const StatePlace& place) : runs_(runs), part_(place.part) {
    while (next_ < runs.num_copies && runs.copy_rows[next_] < place.begin) ++next_;
  }
  // Calls copy(target) for each copy of the state as it is after `row`. Rows increase.
  template <typename Copy>
  PENSTOCK_DEVICE void After(int64_t row, const Copy& copy) {
    for (; next_ < runs_.num_copies && runs_.copy_rows[next_] == row; ++next_) {
      copy(runs_.copy_parts[next_ * runs_.num_parts + part_]);
    }
  }

 private:
  const StateRuns& runs_;
  int64_t part_;
  int64_t next_ = 0;
};

}  // namespace penstock::cuda
