// Proves that checked arithmetic agrees with 128-bit arithmetic, at random and at the edges.
#include "penstock/base/checked.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstdint>
#include <vector>

namespace penstock {
namespace {

__extension__ using Wide = unsigned __int128;

std::optional<uint64_t> Narrow(Wide value) {
  if (value > ~0ull) return std::nullopt;
  return static_cast<uint64_t>(value);
}

TEST(Checked, AgreesWithWideArithmeticAtTheEdges) {
  const std::vector<uint64_t> edges = {
      0, 1, 2, 3, 0xFFFFFFFF, 0x100000000, 0x100000001, 1ull << 63, (1ull << 63) - 1, ~0ull, ~0ull - 1, ~0ull / 3};
  for (const uint64_t a : edges) {
    for (const uint64_t b : edges) {
      EXPECT_EQ(CheckedAdd(a, b), Narrow(Wide(a) + b)) << a << " + " << b;
      EXPECT_EQ(CheckedMul(a, b), Narrow(Wide(a) * b)) << a << " * " << b;
    }
  }
}

RC_GTEST_PROP(Checked, AgreesWithWideArithmetic, (uint64_t a, uint64_t b)) {
  RC_ASSERT(CheckedAdd(a, b) == Narrow(Wide(a) + b));
  RC_ASSERT(CheckedMul(a, b) == Narrow(Wide(a) * b));
}

RC_GTEST_PROP(RoundUp, IsTheSmallestMultipleNotBelow, (uint32_t value)) {
  const uint64_t multiple = *rc::gen::inRange<uint64_t>(1, 1 << 20);
  const uint64_t rounded = RoundUp(value, multiple);
  RC_ASSERT(rounded % multiple == 0u);
  RC_ASSERT(rounded >= value);
  RC_ASSERT(rounded - value < multiple);
  RC_ASSERT(CeilDiv(value, multiple) * multiple == rounded);
}

}  // namespace
}  // namespace penstock
