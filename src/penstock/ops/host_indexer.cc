// HostOperations: layers whose rows attend to positions that an indexer chooses (Indexer in model/model_config.h).
//
// The positions that a row sees depend only on the row and on the keys before it, not on the batch or the chunk: each
// score is one sum in a fixed order, and ties have a rule. So a prompt gives the same bits however it is cut.
#include <algorithm>
#include <numeric>

#include "penstock/kernels/kernels.h"
#include "penstock/ops/host_operations.h"
#include "penstock/ops/host_rows.h"

namespace penstock {

using namespace host;  // NOLINT: the helpers of these operations

namespace {

// Consecutive pages, or gathered blocks, of one row: what a task takes.
struct RowPages {
  int64_t row;
  int64_t first;
  int64_t end;
};

// Splits the pages of rows into tasks; pages_of(row) is their number.
std::vector<RowPages> SplitPages(RowRange rows, int64_t pages_at_once, absl::FunctionRef<int64_t(int64_t)> pages_of) {
  std::vector<RowPages> tasks;
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const int64_t num_pages = pages_of(row);
    for (int64_t first = 0; first < num_pages; first += pages_at_once) {
      tasks.push_back({row, first, std::min(first + pages_at_once, num_pages)});
    }
  }
  return tasks;
}

int64_t NumSelected(const OpContext& context, const RowBatch& batch, int64_t row) {
  return std::min(batch.kv_positions[row] + 1, context.config.indexer.num_topk);
}

int32_t* SelectedBy(const OpContext& context, int64_t row) {
  const Activations& a = context.activations;
  return a.indexer.selected.data() + row * MaxSelected(context.config, a.dims.context_length);
}

}  // namespace

// Norms the index keys, and rotates keys and queries.
void HostOperations::FinishIndexer(RowRange rows, int64_t layer_idx) {
  const LayerWeights& layer = context_.weights.layer(layer_idx);
  const ModelConfig& config = context_.config;
  const Indexer& indexer = config.indexer;
  Activations& a = context_.activations;
  context_.pool.ParallelFor(rows.size(), [&](int64_t i, int) {
    const int64_t row = rows.begin + i;
    float* const k = a.indexer.k.data() + row * indexer.head_dim;
    context_.kernels.norm({.num_rows = 1,
                           .dim = indexer.head_dim,
                           .x = k,
                           .x_stride = indexer.head_dim,
                           .weight = layer.index_k_norm.data(),
                           .eps = Indexer::kNormEps,
                           .out = k,
                           .out_stride = indexer.head_dim,
                           .norm = Norm::kLayer,
                           .bias = layer.index_k_norm_bias.data()});
    const int64_t first_angle = row * config.num_angles() + config.first_angle_of(layer_idx);
    kernels::RopeArgs rope = {.num_heads = 1,
                              .rotary_dim = config.mla.rope_dim,
                              .x = k,
                              .head_stride = indexer.head_dim,
                              .cos = a.cos.data() + first_angle,
                              .sin = a.sin.data() + first_angle,
                              .is_interleaved = indexer.is_interleaved};
    context_.kernels.rope(rope);
    rope.num_heads = indexer.num_heads;
    rope.x = a.indexer.q.data() + row * indexer.q_dim();
    context_.kernels.rope(rope);
  });
}

// Chooses the positions of the rows `at_once`. `rows` are those of `kv`. Rows that see no more than num_topk positions
// need no scores.
void HostOperations::SelectPositions(const RowBatch& batch, RowRange rows, RowRange at_once, const KvView& kv) {
  constexpr int64_t kPagesOfTask = 64;
  const Indexer& indexer = context_.config.indexer;
  Activations& a = context_.activations;
  const auto seen_by = [&](int64_t row) { return batch.kv_positions[row] + 1; };
  const auto scores_of = [&](int64_t row) {
    return a.indexer.scores.data() + (row - at_once.begin) * (a.dims.context_length + KvCache::kPageTokens);
  };
  const std::vector<RowPages> tasks = SplitPages(at_once, kPagesOfTask, [&](int64_t row) {
    return seen_by(row) > indexer.num_topk ? KvCache::PagesFor(seen_by(row)) : 0;
  });
  const int64_t scratch_floats = kernels::IndexScratchFloats(indexer.num_heads, indexer.head_dim);
  context_.pool.ParallelFor(std::ssize(tasks), [&](int64_t task_idx, int worker_idx) {
    const auto& [row, first, end] = tasks[task_idx];
    context_.kernels.index_scores({.num_heads = indexer.num_heads,
                                   .head_dim = indexer.head_dim,
                                   .q = a.indexer.q.data() + row * indexer.q_dim(),
                                   .weights = a.indexer.weights.data() + row * indexer.num_heads,
                                   .pages = kv.pages[row - rows.begin].data() + first,
                                   .num_pages = end - first,
                                   .format = kv.layer.format,
                                   .block_offset_bytes = kv.layer.first_index_bytes,
                                   .scratch = a.indexer.scratch.data() + worker_idx * scratch_floats,
                                   .scores = scores_of(row) + first * KvCache::kPageTokens});
  });
  context_.pool.ParallelFor(at_once.size(), [&](int64_t i, int) {
    const int64_t row = at_once.begin + i, seen = seen_by(row);
    int32_t* const selected = SelectedBy(context_, row);
    if (seen <= indexer.num_topk) {
      std::iota(selected, selected + seen, 0);
    } else {
      context_.kernels.select_topk(
          {.scores = scores_of(row), .count = seen, .num_topk = indexer.num_topk, .selected = selected});
    }
  });
}

// Copies the KV entries of the chosen positions into `gathered`; returns their layout, a list of blocks for each row.
KvLayer HostOperations::GatherSelected(const RowBatch& batch, RowRange rows, RowRange at_once, const KvView& kv,
                                       std::vector<std::vector<std::byte*>>& blocks) {
  constexpr int64_t kBlocksOfTask = 16;
  const ModelConfig& config = context_.config;
  Activations& a = context_.activations;
  const int64_t block_bytes = KvBlock{kv.layer.format, config.head_dim, config.values_in_key()}.bytes();
  const auto bytes_of_row = std::ssize(a.indexer.gathered) / a.dims.num_workers;
  blocks.assign(static_cast<size_t>(at_once.size()), {});
  for (int64_t i = 0; i < at_once.size(); ++i) {
    const int64_t num_blocks = KvCache::PagesFor(NumSelected(context_, batch, at_once.begin + i));
    for (int64_t block = 0; block < num_blocks; ++block) {
      blocks[i].push_back(a.indexer.gathered.data() + i * bytes_of_row + block * block_bytes);
    }
  }
  const std::vector<RowPages> tasks =
      SplitPages(at_once, kBlocksOfTask, [&](int64_t row) { return std::ssize(blocks[row - at_once.begin]); });
  context_.pool.ParallelFor(std::ssize(tasks), [&](int64_t task_idx, int) {
    const auto& [row, first, end] = tasks[task_idx];
    const int64_t first_token = first * KvCache::kPageTokens;
    const int64_t end_token = std::min(end * KvCache::kPageTokens, NumSelected(context_, batch, row));
    context_.kernels.gather_kv({.format = kv.layer.format,
                                .head_dim = config.head_dim,
                                .values_in_key = config.values_in_key(),
                                .pages = kv.pages[row - rows.begin].data(),
                                .block_offset_bytes = kv.layer.first_block_bytes,
                                .positions = SelectedBy(context_, row) + first_token,
                                .count = end_token - first_token,
                                .blocks = blocks[row - at_once.begin][first]});
  });
  return {.format = kv.layer.format,
          .first_block_bytes = 0,
          .block_bytes = block_bytes,
          .num_heads = 1,
          .head_dim = config.head_dim};
}

void HostOperations::AttendSelected(const RowBatch& batch, RowRange rows, int64_t layer_idx, const KvView& kv) {
  const int64_t rows_at_once = context_.activations.dims.num_workers,
                num_parts = PartsOfKvHead(context_.config, layer_idx);
  std::vector<std::vector<std::byte*>> blocks;  // of each row at once
  for (int64_t begin = rows.begin; begin < rows.end; begin += rows_at_once) {
    const RowRange at_once = {begin, std::min(begin + rows_at_once, rows.end)};
    if (context_.config.has_indexer(layer_idx)) SelectPositions(batch, rows, at_once, kv);
    const KvLayer gathered = GatherSelected(batch, rows, at_once, kv, blocks);
    context_.pool.ParallelFor(at_once.size() * num_parts, [&](int64_t task_idx, int worker_idx) {
      const int64_t i = task_idx / num_parts, row = begin + i;
      AttendHeads(layer_idx, gathered, blocks[i], NumSelected(context_, batch, row) - 1, {row, row + 1},
                  task_idx % num_parts, {}, worker_idx);
    });
  }
}

}  // namespace penstock
