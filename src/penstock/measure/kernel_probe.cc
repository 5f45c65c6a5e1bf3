#include "penstock/measure/kernel_probe.h"

#include <algorithm>
#include <random>
#include <vector>

#include "penstock/base/bytes.h"
#include "penstock/base/clock.h"
#include "penstock/base/status.h"
#include "penstock/memory/dense_weights.h"
#include "penstock/memory/expert_layouts.h"
#include "penstock/model/cost.h"
#include "penstock/ops/host_operations.h"
#include "penstock/ops/sampler.h"
#include "penstock/plan/formats.h"
#include "penstock/simulate/plan_simulator.h"

namespace penstock {
namespace {

constexpr int64_t kHostRows = 256;     // maximum rows of an expert; more of them are computed at the same rate
constexpr int64_t kDeviceRows = 2048;  // prompts come in longer parts, and large tiles need many rows
constexpr int64_t kExpertsAtOnce = 4;  // enough to keep all threads busy to the end
constexpr int64_t kMaxExpertsProbed = 256;
constexpr int64_t kContext = 256;  // positions of each sequence that attention reads
constexpr int64_t kMaxSequences = 64;
constexpr int64_t kMaxPrompts = 8;
constexpr int64_t kMaxProbedLayers = 4;
constexpr int kCalls = 32;  // one after another, as tasks of a pass are given to a device

// Returns the median seconds of at least three runs of `body`, which together take about as long as the probe may. The
// first run touches things for the first time. It counts only if it alone takes ten times that long.
absl::StatusOr<double> MedianSeconds(const KernelProbe& probe, absl::FunctionRef<void()> body) {
  const auto run = [&]() -> absl::StatusOr<double> {
    const auto begin = Clock::now();
    body();
    PENSTOCK_RETURN_IF_ERROR(probe.processor.wait());
    return SecondsSince(begin);
  };
  PENSTOCK_ASSIGN_OR_RETURN(const double first, run());
  if (first >= 10 * probe.seconds) return first;
  std::vector<double> seconds;
  for (double sum = 0; sum < probe.seconds || seconds.size() < 3; sum += seconds.back()) {
    PENSTOCK_ASSIGN_OR_RETURN(seconds.emplace_back(), run());
  }
  std::nth_element(seconds.begin(), seconds.begin() + std::ssize(seconds) / 2, seconds.end());
  return seconds[seconds.size() / 2];
}

// Fills the arena with words that are harmless numbers in every format: f32, f16, bf16 and the scales of quantised
// blocks. Untouched pages would all be one page of zeros, which stays in the caches.
absl::Status FillWithNumbers(Memory& memory, const Arena& arena) {
  constexpr uint64_t kPart = 4 * kMiB;
  std::vector<uint16_t> words(kPart / sizeof(uint16_t));
  std::minstd_rand random(1);
  for (uint16_t& word : words) word = static_cast<uint16_t>(0x3e00 | (random() & 0x80ff));  // +-0.125 to 0.5 as bf16
  const auto part = std::as_bytes(std::span(words));
  for (uint64_t begin = 0; begin < arena.size_bytes(); begin += kPart) {
    PENSTOCK_RETURN_IF_ERROR(
        memory.Write(arena.data() + begin, part.first(std::min(kPart, arena.size_bytes() - begin))));
  }
  return absl::OkStatus();
}

// Gives `slots` at least so many bytes of numbers.
absl::Status MakeRoom(const KernelProbe& probe, uint64_t size_bytes, Arena& slots) {
  if (slots.size_bytes() >= size_bytes) return absl::OkStatus();
  slots = {};
  PENSTOCK_ASSIGN_OR_RETURN(slots, probe.processor.memory.Map(size_bytes));
  return FillWithNumbers(probe.processor.memory, slots);
}

}  // namespace

MeasuredProcessor MeasureHost(ThreadPool& pool) {
  return {.memory = HostMemory(),
          .num_workers = pool.num_workers(),
          .num_threads = pool.num_workers(),
          .max_rows = kHostRows,
          .make_operations =
              [&pool](const Device::OperationsArgs& args) {
                return std::make_unique<HostOperations>(
                    OpContext{args.config, args.host_kernels, pool, args.row_formats, args.weights, args.activations});
              },
          .wait = [] { return absl::OkStatus(); }};
}

MeasuredProcessor MeasureDevice(Device& device) {
  return {.memory = device.memory(),
          .num_workers = device.num_workers(),
          .num_threads = 1,
          .max_rows = kDeviceRows,
          .make_operations = [&device](const Device::OperationsArgs& args) { return device.MakeOperations(args); },
          .wait = [&device] { return device.Wait(); }};
}

// Runs experts with equally many rows, slot after slot, so that weights come from memory as in a pass.
absl::StatusOr<GemmRates> MeasureGemm(const KernelProbe& probe, WeightFormat weights, ComputeDtype dtype,
                                      ActivationFormat activation_format, Arena& slots) {
  Memory& memory = probe.processor.memory;
  const int64_t max_rows = probe.processor.max_rows;
  ModelConfig config = FewerLayers(probe.config, 1);
  config.encoder = {};
  config.layer_has_experts = {true};
  config.layer_has_ffn = {};
  if (probe.config.num_moe_layers() == 0) config.expert_dim = config.dense_ffn_dim;
  config.num_topk = 1;
  config.num_experts = 1;
  config.num_identity_experts = 0;
  config.defers_experts = false;
  config.expert_bias = false;
  const ModelCost cost(config, {.ffn = weights});
  // Not more than the model has: those of a small model may stay in a cache during a pass.
  const int64_t max_experts = std::min(kMaxExpertsProbed, probe.config.num_moe_layers() > 0
                                                              ? probe.config.num_moe_layers() * probe.config.num_experts
                                                              : probe.config.num_layers);
  config.num_experts = std::clamp<int64_t>(static_cast<int64_t>(probe.max_bytes / cost.expert_bytes()), 1, max_experts);
  const WeightMap described = DescribeWeights(config, weights);
  const ExpertLayouts layouts(described, {}, dtype);
  const uint64_t slots_bytes = layouts.slot_bytes() * static_cast<uint64_t>(config.num_experts);
  // The experts of another format may fill the memory better.
  const bool is_limited = config.num_experts < max_experts;
  PENSTOCK_RETURN_IF_ERROR(MakeRoom(probe, is_limited ? std::max(slots_bytes, probe.max_bytes) : slots_bytes, slots));
  const RowFormats formats = RowFormatsOf(described, dtype, activation_format);
  PENSTOCK_ASSIGN_OR_RETURN(Activations activations, Activations::Create(memory, config, formats,
                                                                         {.max_rows = max_rows,
                                                                          .max_logit_rows = 1,
                                                                          .context_length = 1,
                                                                          .num_workers = probe.processor.num_workers}));
  PENSTOCK_RETURN_IF_ERROR(FillWithNumbers(memory, activations.arena));
  const DenseWeights no_dense;
  PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<Operations> operations,
                            probe.processor.make_operations({.config = config,
                                                             .host_kernels = probe.kernels,
                                                             .row_formats = formats,
                                                             .ffn_format = weights,
                                                             .weights = no_dense,
                                                             .activations = activations}));
  GemmRates rates{.num_threads = probe.processor.num_threads,
                  .weights = std::string(TraitsOf(weights).name),
                  .arithmetic = RowArithmetic(formats.ffn)};
  int64_t next = 0;
  for (int64_t num_rows = 1; num_rows <= max_rows; num_rows *= 2) {
    const int64_t num_experts =
        std::min(config.num_experts, std::clamp<int64_t>(max_rows / num_rows, 1, kExpertsAtOnce));
    std::vector<int32_t> choices;
    for (int64_t row = 0; row < num_experts * num_rows; ++row) choices.push_back(static_cast<int32_t>(row / num_rows));
    PENSTOCK_RETURN_IF_ERROR(
        memory.Write(reinterpret_cast<std::byte*>(activations.topk_idx.data()), std::as_bytes(std::span(choices))));
    operations->Group({0, num_experts * num_rows});
    PENSTOCK_ASSIGN_OR_RETURN(
        const double seconds, MedianSeconds(probe, [&] {
          std::vector<ExpertToRun> experts;
          for (int64_t e = 0; e < num_experts; ++e) {
            experts.push_back(
                {e, layouts.Views(ExpertKey{next}, slots.data() + static_cast<uint64_t>(next) * layouts.slot_bytes())});
            next = (next + 1) % config.num_experts;
          }
          operations->Experts(0, experts);
        }));
    const OperationCost each = cost.Expert(num_rows);
    rates.points.push_back(
        {.ops_per_byte = each.flops / static_cast<double>(each.bytes),
         .seconds_per_byte = seconds / static_cast<double>(each.bytes) / static_cast<double>(num_experts)});
  }
  return rates;
}

absl::StatusOr<double> MeasurePacking(const KernelProbe& probe, const WeightMap& weights, ComputeDtype dtype,
                                      Arena& slots) {
  const ExpertLayouts layouts(weights, {}, dtype);
  // Made-up numbers have wrong checksums.
  bool has_checksums = false;
  for (const LayerTensors& layer : weights.layers) {
    for (const FfnTensors& expert : layer.experts) {
      expert.ForEach([&](const TensorInfo& tensor) { has_checksums = has_checksums || tensor.xxh3.has_value(); });
    }
  }
  if (!layouts.packs() || layouts.decompresses() || has_checksums) return 0;
  const int64_t num_slots =
      std::clamp<int64_t>(static_cast<int64_t>(probe.max_bytes / layouts.slot_bytes()), 1, layouts.num_experts());
  PENSTOCK_RETURN_IF_ERROR(MakeRoom(probe, layouts.slot_bytes() * static_cast<uint64_t>(num_slots), slots));
  std::vector<std::byte> scratch(layouts.scratch_bytes());
  int64_t next = 0;
  absl::Status status;
  PENSTOCK_ASSIGN_OR_RETURN(const double seconds, MedianSeconds(probe, [&] {
                              std::byte* const slot = slots.data() + static_cast<uint64_t>(next) * layouts.slot_bytes();
                              for (int part = 0; part < ExpertLayouts::kFinishParts; ++part) {
                                status.Update(layouts.FinishPart(ExpertKey{next}, part, slot, scratch));
                              }
                              next = (next + 1) % num_slots;
                            }));
  return status.ok() ? seconds / static_cast<double>(layouts.finished_extent(ExpertKey{0}).size_bytes) : 0;
}

// Returns a config of layers with attention alone, as the model's first one has it. All see all positions.
ModelConfig WithAttentionOnly(const ModelConfig& whole) {
  int64_t first = 0;
  while (first + 1 < whole.num_layers && (whole.is_recurrent(first) || !whole.has_mixer(first))) ++first;
  const LayerHeads heads = whole.heads_of(first);
  ModelConfig config = FewerLayers(whole, std::clamp<int64_t>(whole.num_kv_layers(), 1, kMaxProbedLayers));
  config.encoder = {};  // attention takes as long for the same rows and positions
  config.layer_is_recurrent = {};
  config.layer_has_mixer = {};
  config.layer_heads = {};
  config.num_heads = whole.num_heads_of(first);
  config.num_kv_heads = heads.num_kv_heads;
  config.head_dim = heads.head_dim;
  config.sliding_window = 0;
  config.attention_sinks = false;
  config.indexer.num_topk = std::max(config.indexer.num_topk, kContext);  // scores are not part of these rates
  return config;
}

// Attends layer after layer, as passes do: first for sequences that decode, then for some that prefill.
absl::StatusOr<AttentionRates> MeasureAttention(const KernelProbe& probe, KvFormat kv) {
  Memory& memory = probe.processor.memory;
  const ModelConfig config = WithAttentionOnly(probe.config);
  const uint64_t sequence_bytes = KvCache::PageBytes(config, kv) * static_cast<uint64_t>(KvCache::PagesFor(kContext));
  const int64_t num_sequences =
      std::clamp<int64_t>(static_cast<int64_t>(probe.max_bytes / sequence_bytes), 1, kMaxSequences);
  const int64_t num_prompts = std::min<int64_t>(num_sequences, kMaxPrompts);
  PENSTOCK_ASSIGN_OR_RETURN(KvCache cache,
                            KvCache::Create(memory, config, kv, num_sequences * KvCache::PagesFor(kContext)));
  PENSTOCK_ASSIGN_OR_RETURN(Activations activations,
                            Activations::Create(memory, config, {},
                                                {.max_rows = std::max(num_sequences, num_prompts * kContext),
                                                 .max_logit_rows = 1,
                                                 .context_length = kContext,
                                                 .num_workers = probe.processor.num_workers}));
  PENSTOCK_RETURN_IF_ERROR(FillWithNumbers(memory, activations.arena));
  std::vector<std::vector<std::byte*>> pages;
  RowBatch decoding, prompts;
  for (int64_t i = 0; i < num_sequences; ++i) {
    std::vector<std::byte*>& taken = pages.emplace_back();
    while (std::ssize(taken) < KvCache::PagesFor(kContext)) taken.push_back(cache.address(cache.prefixes().Take()));
    // Touches the pages: otherwise all would be one page of zeros, which stays in the caches.
    PENSTOCK_RETURN_IF_ERROR(cache.Clear(pages.back()));
  }
  int64_t seen_tokens = 0;
  for (int64_t i = 0; i < num_sequences; ++i) {
    const std::vector<std::byte*>& of_sequence = pages[i];
    decoding.AddRow(0, kContext - 1, of_sequence, static_cast<uint32_t>(i), {});
    for (int64_t pos = 0; i < num_prompts && pos < kContext; ++pos) {
      prompts.AddRow(0, pos, of_sequence, static_cast<uint32_t>(i), {});
      seen_tokens += pos + 1;
    }
  }
  const DenseWeights no_dense;
  PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<Operations> operations,
                            probe.processor.make_operations({.config = config,
                                                             .host_kernels = probe.kernels,
                                                             .row_formats = {},
                                                             .weights = no_dense,
                                                             .activations = activations}));
  int64_t layer_idx = 0;
  const auto attend = [&](const RowBatch& batch, int num_calls) {
    return MedianSeconds(probe, [&] {
      for (int call = 0; call < num_calls; ++call) {
        operations->Attend(batch, {0, batch.num_rows()}, layer_idx,
                           {KvLayer::Of(config, kv, layer_idx), batch.kv_pages});
        layer_idx = (layer_idx + 1) % config.num_layers;
      }
    });
  };
  const ModelCost cost(config, {.kv = kv});
  const OperationCost decoded = cost.AttentionCore(0, {.read_tokens = num_sequences * kContext});
  const OperationCost prefilled = cost.AttentionCore(0, {.seen_tokens = seen_tokens});
  RowBatch shortest;
  shortest.AddRow(0, 0, pages[0], 0, {});
  PENSTOCK_ASSIGN_OR_RETURN(const double decode_s, attend(decoding, 1));
  PENSTOCK_ASSIGN_OR_RETURN(const double prefill_s, attend(prompts, 1));
  PENSTOCK_ASSIGN_OR_RETURN(const double calls_s, attend(shortest, kCalls));
  return AttentionRates{.num_threads = probe.processor.num_threads,
                        .kv = std::string(KvFormatName(kv)),
                        .bytes_per_s = static_cast<double>(decoded.kv_bytes) / decode_s,
                        .ops_per_s = prefilled.kv_flops / prefill_s,
                        .call_s = calls_s / kCalls};
}

bool HostPace::IsNear(const HostPace& other) const {
  constexpr double kNear = 1.3;
  const auto near = [](double a, double b) { return a <= kNear * b && b <= kNear * a; };
  return near(call_s, other.call_s) && near(byte_s, other.byte_s);
}

absl::StatusOr<HostPace> MeasurePace(const KernelProbe& probe, WeightFormat weights, ComputeDtype dtype,
                                     ActivationFormat activation_format) {
  constexpr uint64_t kBytes = 128 * kMiB;  // more than most caches hold
  MeasuredProcessor one_row = probe.processor;
  one_row.max_rows = 1;
  const auto quick = [&](uint64_t max_bytes) {
    return KernelProbe{.config = probe.config,
                       .kernels = probe.kernels,
                       .processor = one_row,
                       .max_bytes = max_bytes,
                       .seconds = 0.01};
  };
  HostPace pace;
  {
    Arena slots;
    PENSTOCK_ASSIGN_OR_RETURN(const GemmRates gemm, MeasureGemm(quick(std::min(kBytes, probe.max_bytes)), weights,
                                                                dtype, activation_format, slots));
    pace.byte_s = gemm.points.front().seconds_per_byte;
  }
  constexpr uint64_t kOneSequence = 1;
  PENSTOCK_ASSIGN_OR_RETURN(const AttentionRates attention, MeasureAttention(quick(kOneSequence), KvFormat::kF32));
  pace.call_s = attention.call_s;
  return pace;
}

namespace {

constexpr int64_t kPassRows = 256;  // larger passes take as long for each row

// Layers with attention and experts, as the model's first ones have them, and hardly any vocabulary. The weights are
// harmless numbers. Of the KV cache each sequence has one page.
struct MeasuredLayers {
  ModelConfig config;
  WeightMap map;
  DenseWeights weights;
  Activations activations;
  KvCache cache;
  std::vector<std::vector<std::byte*>> pages;
  std::unique_ptr<Operations> operations;
};

// Returns null if not even one layer fits into the memory of the probe.
absl::StatusOr<std::unique_ptr<MeasuredLayers>> MakeLayers(const KernelProbe& probe, const DenseFormats& formats) {
  Memory& memory = probe.processor.memory;
  auto layers = std::make_unique<MeasuredLayers>();
  ModelConfig& config = layers->config;
  config = WithAttentionOnly(probe.config);
  config.layer_has_ffn = {};
  const ActivationDims dims = {.max_rows = kPassRows,
                               .max_logit_rows = 1,
                               .context_length = kContext,
                               .num_workers = probe.processor.num_workers};
  for (;; --config.num_layers) {
    if (config.num_layers == 0) return nullptr;
    config.layer_has_experts.assign(static_cast<size_t>(config.num_layers), probe.config.num_moe_layers() > 0);
    config.vocab_size = kPanelCols;
    layers->map = DescribeWeights(config, formats.weights);
    const RowFormats row_formats = RowFormatsOf(layers->map, formats.dtype, formats.activations);
    const uint64_t needed = kMaxSequences * KvCache::PageBytes(config, KvFormat::kF32) +
                            Activations::Bytes(config, row_formats, dims) +
                            DenseWeights::Bytes(layers->map, formats.dtype, DensePart::kAll);
    if (needed <= probe.max_bytes) break;
  }
  PENSTOCK_ASSIGN_OR_RETURN(Arena arena, memory.Map(DenseWeights::Bytes(layers->map, formats.dtype, DensePart::kAll)));
  PENSTOCK_RETURN_IF_ERROR(FillWithNumbers(memory, arena));
  layers->weights = DenseWeights::Over(std::move(arena), layers->map, formats.dtype);
  const RowFormats row_formats = RowFormatsOf(layers->map, formats.dtype, formats.activations);
  PENSTOCK_ASSIGN_OR_RETURN(layers->activations, Activations::Create(memory, config, row_formats, dims));
  PENSTOCK_RETURN_IF_ERROR(FillWithNumbers(memory, layers->activations.arena));
  PENSTOCK_ASSIGN_OR_RETURN(layers->cache, KvCache::Create(memory, config, KvFormat::kF32, kMaxSequences));
  for (int64_t i = 0; i < kMaxSequences; ++i) {
    layers->pages.push_back({layers->cache.address(layers->cache.prefixes().Take())});
  }
  PENSTOCK_ASSIGN_OR_RETURN(layers->operations, probe.processor.make_operations({.config = config,
                                                                                 .host_kernels = probe.kernels,
                                                                                 .row_formats = row_formats,
                                                                                 .weights = layers->weights,
                                                                                 .activations = layers->activations}));
  return layers;
}

// Returns rows of as many sequences as there are, at their first positions.
RowBatch FirstRows(const MeasuredLayers& layers, int64_t num_rows) {
  RowBatch batch;
  const int64_t rows_of_each = std::max<int64_t>(1, num_rows / std::ssize(layers.pages));
  for (int64_t row = 0; row < num_rows; ++row) {
    const int64_t sequence = row / rows_of_each;
    batch.AddRow(0, row % rows_of_each, layers.pages[sequence], static_cast<uint32_t>(sequence), {});
  }
  return batch;
}

// Returns the seconds in which a pool draws tokens from logits, for an entry. Of a vocabulary whose rows do
// not fit into max_bytes it draws from a part.
absl::StatusOr<double> MeasureDraws(const KernelProbe& probe, ThreadPool& pool) {
  constexpr int64_t kDrawnRows = RowRates::kDrawnRows;
  constexpr uint64_t kEntryBytes = 2 * sizeof(float) * kDrawnRows;  // of `given` and `logits`
  const int64_t num_entries =
      std::clamp<int64_t>(static_cast<int64_t>(probe.max_bytes / kEntryBytes), 1, probe.config.vocab_size);
  std::vector<float> given(static_cast<size_t>(num_entries * kDrawnRows)), logits(given.size());
  std::minstd_rand random(1);
  std::normal_distribution<float> values(0, 3);
  for (float& value : given) value = values(random);
  std::vector<Sampler> samplers;
  for (int i = 0; i < pool.num_workers(); ++i) samplers.emplace_back(probe.kernels, num_entries);
  const SamplingParams sampling{.temperature = 0.7, .top_p = 0.9};
  const TokenHistory history(sampling);
  const auto draw = [&](int64_t row, int worker_idx) {
    const auto own =
        std::span(logits).subspan(static_cast<size_t>(row * num_entries), static_cast<size_t>(num_entries));
    std::copy_n(given.begin() + row * num_entries, num_entries, own.begin());
    samplers[worker_idx].Sample(own, sampling, {.history = history});
  };
  PENSTOCK_ASSIGN_OR_RETURN(const double seconds, MedianSeconds(probe, [&] { pool.ParallelFor(kDrawnRows, draw); }));
  return seconds / static_cast<double>(logits.size());
}

}  // namespace

absl::StatusOr<RowRates> MeasureRows(const KernelProbe& probe, ThreadPool& pool, const DenseFormats& formats,
                                     const GemmRates& gemm, double call_s) {
  RowRates rates{.num_threads = probe.processor.num_threads};
  PENSTOCK_ASSIGN_OR_RETURN(rates.draw_s, MeasureDraws(probe, pool));
  PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<MeasuredLayers> layers, MakeLayers(probe, formats));
  if (layers == nullptr) {
    rates.points = {{.rows = 1}};  // large layers hardly notice
    return rates;
  }
  Operations& operations = *layers->operations;
  const ModelConfig& config = layers->config;
  const ModelCost cost(config, {.attention = formats.weights, .ffn = formats.weights});
  for (int64_t num_rows = 1; num_rows <= kPassRows; num_rows *= 4) {
    const RowBatch batch = FirstRows(*layers, num_rows);
    const RowRange rows = {0, num_rows};
    int64_t layer_idx = 0;
    // Returns the time of `run`, less that of its products and of the calls that each task is counted with.
    const auto measure = [&](const OperationCost& products, int num_tasks,
                             absl::FunctionRef<void()> run) -> absl::StatusOr<double> {
      PENSTOCK_ASSIGN_OR_RETURN(const double seconds, MedianSeconds(probe, [&] {
                                  run();
                                  layer_idx = (layer_idx + 1) % config.num_layers;
                                }));
      const double counted = gemm.Seconds(products.flops, static_cast<double>(products.bytes)) + num_tasks * call_s;
      return std::max(0.0, seconds - counted);
    };
    RowPoint& point = rates.points.emplace_back(RowPoint{.rows = static_cast<double>(num_rows)});
    PENSTOCK_ASSIGN_OR_RETURN(point.embed_s, measure({}, 1, [&] { operations.Embed(batch, rows); }));
    OperationCost products = cost.PreAttention(0, num_rows, {.has_indexer = config.has_indexer(0)});
    products += cost.PostAttention(0, num_rows);
    PENSTOCK_ASSIGN_OR_RETURN(point.attention_s, measure(products, 1, [&] {
                                const KvView kv{.layer = KvLayer::Of(config, KvFormat::kF32, layer_idx),
                                                .pages = batch.kv_pages};
                                operations.PreAttention(rows, layer_idx);
                                operations.StoreKv(batch, rows, kv);
                                operations.Attend(batch, rows, layer_idx, kv);
                                operations.PostAttention(rows, layer_idx);
                              }));
    if (config.num_moe_layers() == 0) continue;
    products = cost.Route(num_rows);
    products += cost.Combine(num_rows);
    PENSTOCK_ASSIGN_OR_RETURN(point.routed_s, measure(products, 3, [&] {
                                operations.Route(rows, layer_idx);
                                operations.Group(rows);
                                operations.Combine(rows, layer_idx);
                              }));
  }
  return rates;
}

}  // namespace penstock
