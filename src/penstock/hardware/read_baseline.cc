#include "penstock/hardware/read_loop-inl.h"

namespace penstock {
namespace {

struct Width {
  using Vec [[gnu::vector_size(16), gnu::may_alias]] = uint64_t;
};

}  // namespace

constinit const ReadLoop kBaselineReadLoops[2] = {SumStreams<Width>, SumPages<Width>};

}  // namespace penstock
