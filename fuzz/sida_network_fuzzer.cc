// Feeds bytes as the file of a predictor. An accepted network must be within its limits, and its logits must be finite.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string_view>
#include <vector>

#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "penstock/kernels/kernels.h"
#include "penstock/routing/sida_network.h"

namespace {

void Require(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto network =
      penstock::SidaNetwork::OfBytes(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz");
  if (!network.ok()) {
    Require(penstock::FaultOf(network.status()) == penstock::Fault::kModel);
    return 0;
  }
  const penstock::SidaShape& shape = (*network)->shape();
  Require(shape.window >= 1 && shape.window <= penstock::kMaxSidaWindow);
  Require(4 * static_cast<uint64_t>(shape.vocab_size * shape.dim) <= size);
  Require(shape.network_bytes() >= size / 2 && shape.state_bytes() > 0);
  penstock::SidaNetwork::State state = (*network)->NewState();
  penstock::SidaNetwork::Scratch scratch =
      (*network)->NewScratch(penstock::kernels::KernelsFor(penstock::kernels::BestIsa()));
  std::vector<int32_t> tokens;
  for (int32_t step = 0; step < 4; ++step) tokens.push_back(step % static_cast<int32_t>(shape.vocab_size));
  (*network)->Run(tokens, 1, state, scratch, [](size_t, std::span<const float> logits) {
    Require(std::all_of(logits.begin(), logits.end(), [](float logit) { return std::isfinite(logit); }));
  });
  return 0;
}
