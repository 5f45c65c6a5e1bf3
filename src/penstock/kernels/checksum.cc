#include "penstock/kernels/checksum.h"

#include <xxhash.h>
#if defined(__x86_64__)
#include <xxh_x86dispatch.h>
#endif

#include "penstock/hardware/cpu_features.h"

namespace penstock::kernels {
namespace {

// libxxhash 0.8.1 leaves values in the upper parts of vector registers. Then Intel's processors execute SSE
// instructions, as in all code outside the kernels, many times as slowly, until some code clears the upper parts.
#if defined(__x86_64__)
[[gnu::target("avx")]] void ClearUpperParts() { __builtin_ia32_vzeroupper(); }
#endif

void LeaveVectors() {
#if defined(__x86_64__)
  if (MachineCpuFeatures().avx2) ClearUpperParts();
#endif
}

}  // namespace

uint64_t Checksum(std::span<const std::byte> bytes) {
  const uint64_t checksum = XXH3_64bits(bytes.data(), bytes.size());
  LeaveVectors();
  return checksum;
}

RunningChecksum::RunningChecksum() : state_(XXH3_createState(), [](XXH3_state_s* state) { XXH3_freeState(state); }) {
  XXH3_64bits_reset(state_.get());
}

void RunningChecksum::Add(std::span<const std::byte> bytes) {
  XXH3_64bits_update(state_.get(), bytes.data(), bytes.size());
  LeaveVectors();
}

uint64_t RunningChecksum::value() const {
  const uint64_t checksum = XXH3_64bits_digest(state_.get());
  LeaveVectors();
  return checksum;
}

}  // namespace penstock::kernels
