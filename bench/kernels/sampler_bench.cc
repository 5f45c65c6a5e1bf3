// The time to choose a token, in nanoseconds for each entry of the vocabulary, on one thread. Its bound is the time to
// read the logits once; compare with the machine's read rate.
#include <random>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "penstock/kernels/kernels.h"
#include "penstock/ops/sampler.h"

namespace penstock {
namespace {

// Logits as language models give them: most are small, a few stand out.
std::vector<float> Logits(int64_t vocab_size, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 2.5f);
  std::vector<float> logits(static_cast<size_t>(vocab_size));
  for (float& logit : logits) logit = normal(random);
  for (int i = 0; i < 20; ++i) logits[random() % logits.size()] += 8;
  return logits;
}

void RunSampler(benchmark::State& state, int64_t vocab_size, const SamplingParams& sampling) {
  Sampler sampler(kernels::KernelsFor(kernels::BestIsa()), vocab_size);
  const TokenHistory history(sampling);
  std::vector<std::vector<float>> rows;
  for (uint32_t i = 0; i < 8; ++i) rows.push_back(Logits(vocab_size, i));
  std::vector<TokenId> generated;
  size_t next = 0;
  for (auto _ : state) {
    std::vector<float>& row = rows[next++ % rows.size()];
    generated.resize(next % 1000);
    benchmark::DoNotOptimize(sampler.Sample(row, sampling, {.history = history, .generated = generated}));
  }
  const auto num_entries = static_cast<double>(state.iterations() * vocab_size);
  state.counters["ns_per_entry"] =
      benchmark::Counter(num_entries / 1e9, benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

const bool registered = [] {
  const std::pair<std::string, SamplingParams> kinds[] = {
      {"greedy", {.temperature = 0}},
      {"temperature 0.7", {.temperature = 0.7}},
      {"temperature 0.7, top_p 0.9", {.temperature = 0.7, .top_p = 0.9}},
      {"temperature 0.7, top_k 40", {.temperature = 0.7, .top_k = 40}},
      {"temperature 0.7, top_k 40, top_p 0.9", {.temperature = 0.7, .top_k = 40, .top_p = 0.9}},
      {"temperature 0.7, min_p 0.05", {.temperature = 0.7, .min_p = 0.05}},
      {"temperature 2, top_p 0.95", {.temperature = 2, .top_p = 0.95}}};
  for (const int64_t vocab_size : {32'000, 152'000}) {
    for (const auto& [name, sampling] : kinds) {
      benchmark::RegisterBenchmark((std::to_string(vocab_size) + " entries, " + name).c_str(),
                                   [=](benchmark::State& state) { RunSampler(state, vocab_size, sampling); });
    }
  }
  return true;
}();

}  // namespace
}  // namespace penstock
