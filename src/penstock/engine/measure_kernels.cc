#include "penstock/engine/measure_kernels.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "penstock/base/bytes.h"
#include "penstock/base/clock.h"
#include "penstock/base/status.h"
#include "penstock/engine/formats.h"
#include "penstock/engine/simulator.h"
#include "penstock/memory/expert_layouts.h"
#include "penstock/model/cost.h"
#include "penstock/schedule/host_operations.h"

namespace penstock {
namespace {

constexpr int64_t kMostRows = 256;     // of an expert
constexpr int64_t kExpertsAtOnce = 4;  // as many as keep all threads busy to the end
constexpr int64_t kContext = 256;      // positions that attention reads of each sequence
constexpr int64_t kMostSequences = 64;
constexpr int64_t kMostPrompts = 8;
constexpr int64_t kMostLayers = 4;

// Median seconds of runs of `body` for about `all_seconds`.
double MedianSeconds(double all_seconds, absl::FunctionRef<void()> body) {
  std::vector<double> seconds;
  double sum = 0;
  body();  // what it touches first
  while (seconds.size() < 3 || sum < all_seconds) {
    const auto begin = Clock::now();
    body();
    seconds.push_back(SecondsSince(begin));
    sum += seconds.back();
  }
  std::nth_element(seconds.begin(), seconds.begin() + std::ssize(seconds) / 2, seconds.end());
  return seconds[seconds.size() / 2];
}

// Words that are harmless numbers in every format, f32, f16, bf16 and the scales of quantised blocks: pages that were
// never written to would all be one page of zeros, which caches keep.
void FillWithNumbers(const Arena& arena, ThreadPool& pool) {
  constexpr uint64_t kPart = 4 * kMiB;
  std::vector<uint16_t> words(kPart / sizeof(uint16_t));
  std::minstd_rand random(1);
  for (uint16_t& word : words) word = static_cast<uint16_t>(0x3e00 | (random() & 0x80ff));  // +-0.125 to 0.5 as bf16
  const auto num_parts = static_cast<int64_t>((arena.size_bytes() + kPart - 1) / kPart);
  pool.ParallelFor(num_parts, [&](int64_t part, int) {
    const uint64_t begin = static_cast<uint64_t>(part) * kPart;
    std::memcpy(arena.data() + begin, words.data(), std::min(kPart, arena.size_bytes() - begin));
  });
}

}  // namespace

// Experts with as many rows each, slot after slot, so that weights come from memory as they do in a pass.
absl::StatusOr<GemmRates> MeasureGemm(const KernelProbe& probe, WeightFormat weights, ComputeDtype dtype) {
  ModelConfig config = FewerLayers(probe.config, 1);
  config.layer_has_experts = {true};
  if (probe.config.num_moe_layers() == 0) config.expert_dim = config.dense_ffn_dim;
  config.num_topk = 1;
  config.num_experts = 1;
  const ModelCost cost(config, {.ffn = weights});
  config.num_experts = std::clamp<int64_t>(static_cast<int64_t>(probe.most_bytes / cost.expert_bytes()), 1, 256);
  const std::unique_ptr<DescribedWeights> described = DescribeWeights(config, weights);
  const ExpertLayouts layouts(described->map, {}, dtype);
  PENSTOCK_ASSIGN_OR_RETURN(const Arena slots,
                            HostMemory().Map(layouts.slot_bytes() * static_cast<uint64_t>(config.num_experts)));
  FillWithNumbers(slots, probe.pool);
  const RowFormats formats = RowFormatsOf(described->map, dtype);
  PENSTOCK_ASSIGN_OR_RETURN(
      Activations activations,
      Activations::Create(
          HostMemory(), config, formats,
          {.max_rows = kMostRows, .max_logit_rows = 1, .context_length = 1, .num_workers = probe.pool.num_workers()}));
  FillWithNumbers(activations.arena, probe.pool);
  const DenseWeights no_dense;
  HostOperations operations({config, probe.kernels, probe.pool, formats, no_dense, activations});
  GemmRates rates{.num_threads = probe.pool.num_workers(),
                  .weights = std::string(WeightFormatName(weights)),
                  .arithmetic = RowArithmetic(formats.ffn)};
  int64_t next = 0;
  for (int64_t num_rows = 1; num_rows <= kMostRows; num_rows *= 2) {
    const int64_t num_experts =
        std::min(config.num_experts, std::clamp<int64_t>(kMostRows / num_rows, 1, kExpertsAtOnce));
    for (int64_t e = 0; e <= config.num_experts; ++e) {
      activations.group_offsets[static_cast<size_t>(e)] = std::min(e, num_experts) * num_rows;
    }
    const double seconds = MedianSeconds(probe.seconds, [&] {
      std::vector<ExpertToRun> experts;
      for (int64_t e = 0; e < num_experts; ++e) {
        experts.push_back({e, layouts.Views(next, slots.data() + static_cast<uint64_t>(next) * layouts.slot_bytes())});
        next = (next + 1) % config.num_experts;
      }
      operations.Experts(experts);
    });
    const OperationCost each = cost.Expert(num_rows);
    rates.points.push_back(
        {.ops_per_byte = each.flops / static_cast<double>(each.bytes),
         .seconds_per_byte = seconds / static_cast<double>(each.bytes) / static_cast<double>(num_experts)});
  }
  return rates;
}

// Layer after layer, as passes do: sequences that decode, then some that are prefilled.
absl::StatusOr<AttentionRates> MeasureAttention(const KernelProbe& probe, KvFormat kv) {
  ModelConfig config = FewerLayers(probe.config, std::min(probe.config.num_layers, kMostLayers));
  config.sliding_window = 0;
  const uint64_t sequence_bytes = KvCache::PageBytes(config, kv) * static_cast<uint64_t>(KvCache::PagesFor(kContext));
  const int64_t num_sequences =
      std::clamp<int64_t>(static_cast<int64_t>(probe.most_bytes / sequence_bytes), 1, kMostSequences);
  const int64_t num_prompts = std::min<int64_t>(num_sequences, kMostPrompts);
  PENSTOCK_ASSIGN_OR_RETURN(KvCache cache,
                            KvCache::Create(HostMemory(), config, kv, num_sequences * KvCache::PagesFor(kContext)));
  PENSTOCK_ASSIGN_OR_RETURN(Activations activations,
                            Activations::Create(HostMemory(), config, {},
                                                {.max_rows = std::max(num_sequences, num_prompts * kContext),
                                                 .max_logit_rows = 1,
                                                 .context_length = kContext,
                                                 .num_workers = probe.pool.num_workers()}));
  FillWithNumbers(activations.arena, probe.pool);
  std::vector<std::vector<std::byte*>> pages;
  RowBatch decoding, prompts;
  for (int64_t i = 0; i < num_sequences; ++i) {
    pages.push_back(cache.Reserve(kContext));
    // Pages that were never written to are one page of zeros, which caches keep.
    for (std::byte* page : pages.back()) std::memset(page, 0, KvCache::PageBytes(config, kv));
  }
  int64_t seen_tokens = 0;
  for (int64_t i = 0; i < num_sequences; ++i) {
    const std::vector<std::byte*>& of_sequence = pages[static_cast<size_t>(i)];
    decoding.AddRow(0, kContext - 1, of_sequence, static_cast<uint32_t>(i), {});
    for (int64_t pos = 0; i < num_prompts && pos < kContext; ++pos) {
      prompts.AddRow(0, pos, of_sequence, static_cast<uint32_t>(i), {});
      seen_tokens += pos + 1;
    }
  }
  const DenseWeights no_dense;
  HostOperations operations({config, probe.kernels, probe.pool, {}, no_dense, activations});
  int64_t layer_idx = 0;
  const auto attend = [&](const RowBatch& batch) {
    return MedianSeconds(probe.seconds, [&] {
      operations.Attend(batch, {0, batch.num_rows()}, {cache.layer(layer_idx), batch.kv_pages});
      layer_idx = (layer_idx + 1) % config.num_layers;
    });
  };
  const ModelCost cost(config, {.kv = kv});
  const OperationCost decoded = cost.AttentionCore({.read_tokens = num_sequences * kContext});
  const OperationCost prefilled = cost.AttentionCore({.seen_tokens = seen_tokens});
  return AttentionRates{.num_threads = probe.pool.num_workers(),
                        .kv = std::string(KvFormatName(kv)),
                        .bytes_per_s = static_cast<double>(decoded.kv_bytes) / attend(decoding),
                        .ops_per_s = prefilled.kv_flops / attend(prompts)};
}

}  // namespace penstock
