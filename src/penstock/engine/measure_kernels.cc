// What the host does with the weights and KV entries of this model: Executor's probe.
#include <algorithm>
#include <chrono>
#include <cstring>

#include "penstock/base/status.h"
#include "penstock/engine/executor.h"

namespace penstock {
namespace {

constexpr double kPointSeconds = 0.1;

// Median seconds of runs of `body` for about kPointSeconds.
double MedianSeconds(absl::FunctionRef<void()> body) {
  std::vector<double> seconds;
  double sum = 0;
  body();  // what it touches first
  while (seconds.size() < 3 || sum < kPointSeconds) {
    const auto begin = std::chrono::steady_clock::now();
    body();
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    sum += seconds.back();
  }
  std::nth_element(seconds.begin(), seconds.begin() + std::ssize(seconds) / 2, seconds.end());
  return seconds[seconds.size() / 2];
}

}  // namespace

absl::StatusOr<KernelRates> Executor::MeasureKernels() {
  Side& side = host_;
  KernelRates rates;
  rates.num_threads = side.pool->num_workers();
  rates.weights = std::string(WeightFormatName(model_formats_.ffn));
  rates.kv = std::string(KvFormatName(formats_.kv));
  if (experts_.dram != nullptr) {
    schedule_->Reset();
    PENSTOCK_RETURN_IF_ERROR(experts_.dram->Preload(side.pool));
    rates.gemm = MeasureGemm(side);
  }
  rates.kv_bytes_per_s = MeasureAttention(side);
  return rates;
}

// Experts with as many rows each, slot after slot, so that weights come from memory as they do in a pass.
std::vector<GemmPoint> Executor::MeasureGemm(Side& side) {
  const OpContext context = ContextOf(side);
  Activations& a = side.activations;
  const std::vector<ExpertPlace> places = experts_.dram->Loaded();
  const int64_t most_rows = std::min<int64_t>(a.dims.max_rows, 256);
  const int64_t capacity = a.dims.max_rows * model_->config.num_topk;
  std::vector<GemmPoint> points;
  size_t next = 0;
  for (int64_t num_rows = 1; num_rows <= most_rows; num_rows *= 2) {
    const int64_t num_experts =
        std::min({capacity / num_rows, model_->config.num_experts, static_cast<int64_t>(places.size()), int64_t{4}});
    for (int64_t e = 0; e <= model_->config.num_experts; ++e) {
      a.group_offsets[static_cast<size_t>(e)] = std::min(e, num_experts) * num_rows;
    }
    const double seconds = MedianSeconds([&] {
      std::vector<ExpertToRun> experts;
      for (int64_t e = 0; e < num_experts; ++e) {
        experts.push_back({e, experts_.dram->Weights(places[next])});
        next = (next + 1) % places.size();
      }
      ops::Experts(context, experts);
    });
    const OperationCost cost = cost_.Expert(num_rows);
    points.push_back(
        {.ops_per_byte = cost.flops / static_cast<double>(cost.bytes),
         .seconds_per_byte = seconds / static_cast<double>(cost.bytes) / static_cast<double>(num_experts)});
  }
  return points;
}

// Bytes per second that attention reads of sequences that decode, layer after layer.
double Executor::MeasureAttention(Side& side) {
  const OpContext context = ContextOf(side);
  const int64_t num_tokens = std::min(
      {int64_t{256}, side.activations.dims.context_length, kv_cache_->num_free_pages() * KvCache::kPageTokens});
  const int64_t num_rows = std::min(
      {side.activations.dims.max_rows, int64_t{64}, kv_cache_->num_free_pages() / KvCache::PagesFor(num_tokens)});
  if (num_rows == 0) return 0;
  RowBatch batch;
  std::vector<std::vector<std::byte*>> pages;
  for (int64_t row = 0; row < num_rows; ++row) {
    pages.push_back(kv_cache_->Reserve(num_tokens));
    // Pages that were never written to are one page of zeros, which caches keep.
    for (std::byte* page : pages.back()) {
      std::memset(page, 0, KvCache::PageBytes(model_->config, formats_.kv));
    }
  }
  for (int64_t row = 0; row < num_rows; ++row) {
    batch.AddRow(0, num_tokens - 1, pages[static_cast<size_t>(row)], static_cast<uint32_t>(row), {});
  }
  int64_t layer_idx = 0;
  const double seconds = MedianSeconds([&] {
    ops::Attend(context, batch, {0, num_rows}, {kv_cache_->layer(layer_idx), batch.kv_pages});
    layer_idx = (layer_idx + 1) % model_->config.num_layers;
  });
  for (const auto& sequence : pages) kv_cache_->Free(sequence);
  return static_cast<double>(cost_.kv_bytes_per_token()) * static_cast<double>(num_rows * num_tokens) / seconds;
}

}  // namespace penstock
