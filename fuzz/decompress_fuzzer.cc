// Feeds bytes as a compressed matrix. All instruction sets must give the same answer, without leaving their memory.
// The first two bytes choose how many groups of values are expected.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "penstock/kernels/decompress.h"
#include "penstock/kernels/kernels.h"
#include "penstock/tensor/exponent_code.h"

namespace {

using penstock::kExponentGroupBytes;

void Require(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const size_t num_groups = 1 + (data[0] | data[1] << 8) % 600;
  const std::vector<std::byte> compressed(reinterpret_cast<const std::byte*>(data + 2),
                                          reinterpret_cast<const std::byte*>(data + size));
  // A decoder may read bytes of the scratch memory that an earlier block left, so all begin with the same bytes.
  std::vector<std::byte> expected;
  bool is_first = true, was_decoded = false;
  for (const penstock::kernels::Isa isa : penstock::kernels::SupportedIsas()) {
    std::vector<std::byte> scratch(penstock::kExponentScratchBytes), values(num_groups * kExponentGroupBytes);
    const bool is_decoded =
        penstock::kernels::Decompress(penstock::kernels::KernelsFor(isa), compressed, scratch, values).has_value();
    if (!is_first) Require(is_decoded == was_decoded && (!is_decoded || values == expected));
    is_first = false;
    was_decoded = is_decoded;
    expected = std::move(values);
  }
  return 0;
}
