#include <immintrin.h>

#include "penstock/hardware/peak_loop-inl.h"

namespace penstock {
namespace {

// Four tiles of sums of 16 x 16, from two tiles of 16 rows of 64 codes and two of 64 codes for 16 outputs.
void Run(int64_t num_steps) {
  struct alignas(64) {
    uint8_t bytes[64] = {1};
  } shapes;
  for (int tile = 0; tile < 8; ++tile) {
    shapes.bytes[16 + 2 * tile] = 64;
    shapes.bytes[48 + tile] = 16;
  }
  asm volatile("ldtilecfg %0" : : "m"(shapes));
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
  for (int64_t i = 0; i < num_steps; ++i) {
    _tile_dpbsud(0, 4, 6);
    _tile_dpbsud(1, 4, 7);
    _tile_dpbsud(2, 5, 6);
    _tile_dpbsud(3, 5, 7);
  }
  _tile_release();
}

}  // namespace

constinit const PeakLoop kAmxInt8Loop = {
    .instructions = "tdpbsud", .ops_per_step = int64_t{4} * 2 * 16 * 16 * 64, .run = Run};

}  // namespace penstock
