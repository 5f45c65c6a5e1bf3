// Measures the time to split a layer's experts, by rule and by number of chosen experts: those of a prompt or of one
// token.
#include <random>
#include <string>

#include <benchmark/benchmark.h>

#include "penstock/schedule/expert_split.h"

namespace penstock {
namespace {

void BM_SplitExperts(benchmark::State& state) {
  const auto rule = static_cast<HybridRule>(state.range(0));
  const auto disk_share = static_cast<double>(state.range(2)) / 100;
  std::mt19937 random(1);
  const auto uniform = [&](double low, double high) { return std::uniform_real_distribution<>(low, high)(random); };
  const LaneTimes times = {.host_first_s = 0.5, .transfer_s = 2, .read_s = 8};
  std::vector<std::vector<ExpertWork>> layers(64);
  for (std::vector<ExpertWork>& experts : layers) {
    for (int64_t i = 0; i < state.range(1); ++i) {
      const double rows = std::floor(std::exp(uniform(0, 4)));
      experts.push_back({.host_s = 0.5 + 0.3 * rows,
                         .device_s = 0.2 + 0.03 * rows,
                         .on_device = uniform(0, 1) < 0.25,
                         .in_dram = uniform(0, 1) >= disk_share});
    }
  }
  size_t next = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(SplitExperts(rule, layers[next], times));
    next = (next + 1) % layers.size();
  }
  state.SetLabel(std::string(TraitsOf(rule).name));
}
BENCHMARK(BM_SplitExperts)
    ->ArgsProduct({{0, 1, 2, 3, 4}, {2, 8, 16, 64, 128}, {0, 50}})
    ->ArgNames({"rule", "experts", "percent_on_disk"});

}  // namespace
}  // namespace penstock
