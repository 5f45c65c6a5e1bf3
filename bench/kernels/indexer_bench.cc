// Time of one layer's attention for a token that is decoded, with and without the lightning indexer, on the best
// instruction set. The shapes are those of DeepSeek-V3.2: 128 heads, 64 index heads, 2048 chosen positions.
//
// `dense` attends to all positions. `indexed` scores all positions, chooses, gathers and attends; its counters are the
// milliseconds of each part. Threads share heads and pages as the engine's operations do.
#include <chrono>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "kernels/probed_rates.h"
#include "penstock/kernels/kernels.h"
#include "penstock/tensor/kv_block.h"

namespace penstock::kernels {
namespace {

constexpr int64_t kHeads = 128, kHeadDim = 576, kValueDim = 512, kHeadsAtOnce = 32;
constexpr int64_t kIndexHeads = 64, kIndexDim = 128, kTopk = 2048, kPagesOfTask = 64;

// The blocks of one layer, one after another.
struct Blocks {
  Arena memory;
  std::vector<const std::byte*> pages;

  Blocks(const KvBlock& block, int64_t num_pages)
      : memory(RandomWords(static_cast<uint64_t>(num_pages * block.bytes()))) {
    for (int64_t i = 0; i < num_pages; ++i) pages.push_back(memory.data() + i * block.bytes());
  }
};

class LayerOf {
 public:
  LayerOf(KvFormat format, int64_t context, int num_threads) : format_(format), context_(context), pool_(num_threads) {
    const int64_t num_pages = context / kKvPageTokens;
    scratch_.resize(num_threads * AttentionScratchFloats(kHeadsAtOnce, kHeadDim, context));
    index_scratch_.resize(num_threads * IndexScratchFloats(kIndexHeads, kIndexDim));
    scores_.resize(num_pages * kKvPageTokens);
  }

  void Attend(const std::byte* const* pages, int64_t count) {
    const int64_t floats = std::ssize(scratch_) / pool_.num_workers();
    pool_.ParallelFor(kHeads / kHeadsAtOnce, [&](int64_t part, int worker) {
      table_.attention({.num_rows = 1,
                        .group = kHeadsAtOnce,
                        .head_dim = kHeadDim,
                        .values_in_key = kValueDim,
                        .q = q_.data() + part * kHeadsAtOnce * kHeadDim,
                        .q_stride = kHeads * kHeadDim,
                        .pages = pages,
                        .kv_format = format_,
                        .head_offset_bytes = 0,
                        .pos = count - 1,
                        .window = 0,
                        .scale = 0.07f,
                        .scratch = scratch_.data() + worker * floats,
                        .out = out_.data() + part * kHeadsAtOnce * kValueDim,
                        .out_stride = kHeads * kValueDim});
    });
  }

  void Score(const Blocks& keys) {
    const int64_t num_pages = std::ssize(keys.pages), floats = std::ssize(index_scratch_) / pool_.num_workers();
    pool_.ParallelFor((num_pages + kPagesOfTask - 1) / kPagesOfTask, [&](int64_t task, int worker) {
      const int64_t first = task * kPagesOfTask;
      table_.index_scores({.num_heads = kIndexHeads,
                           .head_dim = kIndexDim,
                           .q = q_.data(),
                           .weights = weights_.data(),
                           .pages = keys.pages.data() + first,
                           .num_pages = std::min(kPagesOfTask, num_pages - first),
                           .format = format_,
                           .block_offset_bytes = 0,
                           .scratch = index_scratch_.data() + worker * floats,
                           .scores = scores_.data() + first * kKvPageTokens});
    });
  }

  void Select() {
    table_.select_topk({.scores = scores_.data(), .count = context_, .num_topk = kTopk, .selected = selected_.data()});
  }

  void Gather(const Blocks& kv, Blocks& gathered) {
    constexpr int64_t kBlocksOfTask = 16, kTokens = kBlocksOfTask * kKvPageTokens;
    pool_.ParallelFor(kTopk / kTokens, [&](int64_t task, int) {
      table_.gather_kv({.format = format_,
                        .head_dim = kHeadDim,
                        .values_in_key = kValueDim,
                        .pages = kv.pages.data(),
                        .block_offset_bytes = 0,
                        .positions = selected_.data() + task * kTokens,
                        .count = kTokens,
                        .blocks = const_cast<std::byte*>(gathered.pages[task * kBlocksOfTask])});
    });
  }

  KvFormat format() const { return format_; }
  int64_t num_pages() const { return context_ / kKvPageTokens; }

 private:
  const KernelTable& table_ = KernelsFor(BestIsa());
  KvFormat format_;
  int64_t context_;
  ThreadPool pool_;
  std::vector<float> q_ = std::vector<float>(kHeads * kHeadDim, 0.05f);
  std::vector<float> weights_ = std::vector<float>(kIndexHeads, 0.5f);
  std::vector<float> out_ = std::vector<float>(kHeads * kValueDim);
  std::vector<float> scratch_, index_scratch_, scores_;
  std::vector<int32_t> selected_ = std::vector<int32_t>(kTopk);
};

template <class Part>
double SecondsOf(const Part& part) {
  const auto start = std::chrono::steady_clock::now();
  part();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void RunDense(benchmark::State& state, KvFormat format, int64_t context, int num_threads) {
  LayerOf layer(format, context, num_threads);
  const Blocks kv({format, kHeadDim, kValueDim}, layer.num_pages());
  for (auto _ : state) layer.Attend(kv.pages.data(), context);
}

void RunIndexed(benchmark::State& state, KvFormat format, int64_t context, int num_threads) {
  LayerOf layer(format, context, num_threads);
  const Blocks kv({format, kHeadDim, kValueDim, /*is_by_token=*/true}, layer.num_pages());
  const Blocks keys({format, kIndexDim, kIndexDim}, layer.num_pages());
  Blocks gathered({format, kHeadDim, kValueDim}, kTopk / kKvPageTokens);
  double score_s = 0, select_s = 0, gather_s = 0, attend_s = 0;
  for (auto _ : state) {
    score_s += SecondsOf([&] { layer.Score(keys); });
    select_s += SecondsOf([&] { layer.Select(); });
    gather_s += SecondsOf([&] { layer.Gather(kv, gathered); });
    attend_s += SecondsOf([&] { layer.Attend(gathered.pages.data(), kTopk); });
  }
  const auto ms = [&](double seconds) { return 1e3 * seconds / static_cast<double>(state.iterations()); };
  state.counters["score_ms"] = ms(score_s);
  state.counters["select_ms"] = ms(select_s);
  state.counters["gather_ms"] = ms(gather_s);
  state.counters["attend_ms"] = ms(attend_s);
}

int RegisterAll() {
  for (const auto& [name, format] : {std::pair("f32", KvFormat::kF32), std::pair("int8", KvFormat::kInt8)}) {
    for (const int64_t context : {4096, 32768, 131072}) {
      for (const auto& [kind, run] : {std::pair("dense", &RunDense), std::pair("indexed", &RunIndexed)}) {
        const std::string title = std::string(kind) + "/" + name + "/context:" + std::to_string(context);
        benchmark::RegisterBenchmark(title.c_str(),
                                     [=](benchmark::State& state) { run(state, format, context, NumUsableCpus()); })
            ->Unit(benchmark::kMillisecond)
            ->UseRealTime();
      }
    }
  }
  return 0;
}

const int kRegistered = RegisterAll();

}  // namespace
}  // namespace penstock::kernels
