// The Hierarchical Roofline Model (MoE-Lightning, section 3.2). It bounds the speed of a computation at one level of
// memory when its data lie at another level.
//
// Levels are numbered from the fastest: device, DRAM, disk. Each has a bandwidth B and a link to the next faster level.
// A level may have a processor with a peak P. An intensity I is the number of operations per byte read at a level.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/hardware/hardware.h"

namespace penstock {

struct HrmLevel {
  std::string name;             // name of its tier
  double ops_per_s = 0;         // P; 0: nothing is computed here
  double bytes_per_s = 0;       // B
  double link_bytes_per_s = 0;  // link to the next faster level; 0 for the first level
};

class Hrm {
 public:
  // REQUIRES: at least one level; rates are positive, except where HrmLevel allows 0.
  explicit Hrm(std::vector<HrmLevel> levels);
  // Makes the levels from the tiers of `hardware`, with the rates of its processors in this arithmetic. kUsage when a
  // rate is unknown.
  static absl::StatusOr<Hrm> Of(const Hardware& hardware, Arithmetic arithmetic);

  const std::vector<HrmLevel>& levels() const { return levels_; }

  // Returns operations per second with data of the same level (Eq. 3 to 5): min(P, B * I).
  double LocalRoof(size_t level, double ops_per_byte) const;
  // Returns bytes per second from one level to a faster one: the rate of the slowest link between them.
  double LinkRate(size_t from, size_t to) const;
  // Returns operations per second at `to` when the data come from `from` (Eq. 6 to 8):
  // min(P, B * I_to, B_link * I_from).
  double Roof(size_t to, double ops_per_byte_to, size_t from, double ops_per_byte_from) const;

  // Returns turning point P1 (Eq. 9), an intensity at `from`. Below it, moving the data to `to` does not pay, because
  // the processor at `from` computes as fast as the link transfers. 0: moving always pays.
  double FirstTurningPoint(size_t to, size_t from) const;
  // Returns turning point P2 (Eq. 10), an intensity at `from`. Below it, the link limits the computation at `to`.
  double SecondTurningPoint(size_t to, double ops_per_byte_to, size_t from) const;
  // Returns the balance point (Eq. 11), an intensity at `from`. Above it, the memory at `to` is the limit, not the
  // link. A larger batch then no longer helps.
  double BalancePoint(size_t to, double ops_per_byte_to, size_t from) const;

 private:
  std::vector<HrmLevel> levels_;
};

}  // namespace penstock
