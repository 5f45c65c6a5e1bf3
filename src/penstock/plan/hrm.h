// The Hierarchical Roofline Model (MoE-Lightning, section 3.2): what a computation can reach at one level of memory
// when its data lie at another one.
//
// Levels are numbered from the fastest: device, DRAM, disk. Each has a bandwidth B, perhaps a processor with a peak P,
// and a link from the level behind it. Intensities I are operations per byte that is read at a level.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/hardware/hardware.h"

namespace penstock {

struct HrmLevel {
  std::string name;             // of its tier
  double ops_per_s = 0;         // P; 0: nothing is computed here
  double bytes_per_s = 0;       // B
  double link_bytes_per_s = 0;  // to the level in front of it; 0 for the first
};

class Hrm {
 public:
  // REQUIRES: at least one level; rates are positive but for what HrmLevel allows.
  explicit Hrm(std::vector<HrmLevel> levels);
  // The tiers of `hardware` with what its processors and memories reach in some arithmetic. kUsage when it does not
  // say.
  static absl::StatusOr<Hrm> Of(const Hardware& hardware, Arithmetic arithmetic);

  const std::vector<HrmLevel>& levels() const { return levels_; }

  // min(P, B * I): computing with data of the same level (Eq. 3 to 5).
  double LocalRoof(size_t level, double ops_per_byte) const;
  // Bytes per second from one level to a faster one: of the slowest link between them.
  double LinkRate(size_t from, size_t to) const;
  // Operations per second at `to` when the data come from `from` (Eq. 6 to 8): min(P, B * I_to, B_link * I_from).
  double Roof(size_t to, double ops_per_byte_to, size_t from, double ops_per_byte_from) const;

  // Turning point P1 (Eq. 9): the intensity at `from` below which moving the data to `to` does not pay, because the
  // processor beside them computes as fast as the link brings them. 0: moving always pays.
  double FirstTurningPoint(size_t to, size_t from) const;
  // Turning point P2 (Eq. 10): the intensity at `from` below which the link limits what is computed at `to`.
  double SecondTurningPoint(size_t to, double ops_per_byte_to, size_t from) const;
  // Balance point (Eq. 11): the intensity at `from` above which memory at `to`, not the link, limits: a larger batch no
  // longer helps.
  double BalancePoint(size_t to, double ops_per_byte_to, size_t from) const;

 private:
  std::vector<HrmLevel> levels_;
};

}  // namespace penstock
