#include "penstock/hardware/read_loop-inl.h"

namespace penstock {
namespace {

struct Width {
  using Vec [[gnu::vector_size(32), gnu::may_alias]] = uint64_t;
};

}  // namespace

constinit const ReadLoop kAvx2ReadLoop = SumStreams<Width>;

}  // namespace penstock
