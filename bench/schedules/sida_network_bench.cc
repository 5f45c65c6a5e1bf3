// Measures SiDA's network: a token of one sequence, alone and in a prompt of 64, for models of several shapes.
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "penstock/kernels/kernels.h"
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
  SidaNetwork::Scratch scratch = network->NewScratch(kernels::KernelsFor(kernels::BestIsa()));
  std::vector<int32_t> tokens(static_cast<size_t>(state.range(3)));
  int32_t token = 0;
  for (auto _ : state) {
    for (int32_t& next : tokens) next = token = (token + 7) % 1000;
    network->Run(tokens, 1, sequence, scratch,
                 [](size_t, std::span<float> logits) { benchmark::DoNotOptimize(logits.data()); });
  }
  state.counters["us_per_token"] =
      benchmark::Counter(1e-6 * static_cast<double>(tokens.size()),
                         benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}
// The demo model, Mixtral 8x7B, Qwen3 30B-A3B.
BENCHMARK(BM_SidaStep)
    ->ArgsProduct({{64}, {4}, {8}, {1, 64}})
    ->ArgsProduct({{64, 128}, {32}, {8}, {1, 64}})
    ->ArgsProduct({{64, 128}, {48}, {128}, {1, 64}})
    ->ArgNames({"dim", "layers", "experts", "tokens"})
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace penstock
