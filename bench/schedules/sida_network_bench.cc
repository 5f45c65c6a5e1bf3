// Measures a step of SiDA's network: one token of one sequence, for models of several shapes.
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "penstock/routing/sida_network.h"
#include "tests/sida_file.h"

namespace penstock {
namespace {

void BM_SidaStep(benchmark::State& state) {
  const SidaShape shape = {.vocab_size = 1000,
                           .dim = state.range(0),
                           .window = 64,
                           .num_layers = state.range(1),
                           .num_experts = state.range(2),
                           .fingerprint = std::string(32, '0')};
  const auto network = SidaNetwork::OfBytes(RandomSidaFile(shape, 1), "bench").value();
  SidaNetwork::State sequence = network->NewState();
  SidaNetwork::Scratch scratch = network->NewScratch();
  std::vector<float> logits(static_cast<size_t>(shape.num_layers * shape.num_experts));
  int32_t token = 0;
  for (auto _ : state) {
    network->Step(token, sequence, scratch, logits);
    benchmark::DoNotOptimize(logits.data());
    token = (token + 7) % 1000;
  }
}
// The demo model, Mixtral 8x7B, Qwen3 30B-A3B.
BENCHMARK(BM_SidaStep)
    ->Args({64, 4, 8})
    ->Args({64, 32, 8})
    ->Args({128, 32, 8})
    ->Args({64, 48, 128})
    ->Args({128, 48, 128})
    ->ArgNames({"dim", "layers", "experts"})
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace penstock
