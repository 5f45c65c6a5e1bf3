#include "penstock/hardware/read_loop-inl.h"

namespace penstock {
namespace {

struct Width {
  using Vec [[gnu::vector_size(32), gnu::may_alias]] = uint64_t;
};

}  // namespace

constinit const ReadLoop kAvx2ReadLoops[2] = {SumStreams<Width>, SumPages<Width>};

}  // namespace penstock
