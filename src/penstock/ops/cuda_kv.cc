// CudaOperations: KV entries on a device, and attention to them.
#include <algorithm>
#include <vector>

#include "penstock/base/check.h"
#include "penstock/memory/kv_cache.h"
#include "penstock/ops/cuda_operations.h"
#include "penstock/ops/cuda_table.h"
#include "penstock/ops/cuda_workspace.h"

namespace penstock {

template <typename Visit>
void CudaOperations::ForEachKvPart(const RowBatch& batch, RowRange rows, const KvView& kv,
                                   std::span<const int64_t> firsts, const Visit& visit) {
  for (int64_t begin = rows.begin; begin < rows.end;) {
    std::vector<std::byte*> pages;
    std::vector<int64_t> first_page;
    std::span<std::byte* const> last;
    int64_t end = begin;
    for (; end < rows.end; ++end) {
      const std::span<std::byte* const> own = kv.pages[end - rows.begin];
      const bool is_new = end == begin || own.data() != last.data();  // rows of one sequence share a list
      const size_t num_pages = pages.size() + (is_new ? own.size() : 0);
      const size_t num_rows = end - begin;
      const size_t bytes = RowTableBytes(static_cast<int64_t>(num_pages)) + 3 * sizeof(int64_t) * num_rows;
      if (end > begin && bytes > args_.tables.max_bytes()) break;
      first_page.push_back(is_new ? std::ssize(pages) : first_page.back());
      if (is_new) pages.insert(pages.end(), own.begin(), own.end());
      last = own;
    }
    const size_t num_rows = end - begin;
    const auto positions = std::span<const int64_t>(batch.kv_positions).subspan(begin, num_rows);
    CudaTable table;
    const size_t pages_at = table.Add(std::span<std::byte* const>(pages));
    const size_t first_page_at = table.Add(std::span<const int64_t>(first_page));
    const size_t positions_at = table.Add(positions);
    const size_t firsts_at = table.Add(firsts.empty() ? firsts : firsts.subspan(begin - rows.begin, num_rows));
    const std::byte* const on_device = args_.tables.Upload(table.bytes());
    visit(begin,
          cuda::KvRows{.format = kv.layer.format,
                       .head_dim = kv.layer.head_dim,
                       .values_in_key = args_.config.values_in_key(),
                       .own_values = kv.layer.value_dim,
                       .num_kv_heads = kv.layer.num_heads,
                       .first_block_bytes = kv.layer.first_block_bytes,
                       .block_bytes = kv.layer.block_bytes,
                       .num_rows = end - begin,
                       .pages = reinterpret_cast<std::byte* const*>(on_device + pages_at),
                       .first_page = reinterpret_cast<const int64_t*>(on_device + first_page_at),
                       .positions = reinterpret_cast<const int64_t*>(on_device + positions_at),
                       .firsts = firsts.empty() ? nullptr : reinterpret_cast<const int64_t*>(on_device + firsts_at)});
    begin = end;
  }
}

void CudaOperations::StoreKv(const RowBatch& batch, RowRange rows, const KvView& kv) {
  const int64_t k_dim = args_.config.kv_dim(), v_dim = args_.config.v_dim();
  const Activations& a = args_.activations;
  const auto exists = [&](int64_t row) { return batch.has_kv[row] != 0 && !kv.is_copy; };
  for (int64_t begin = rows.begin; begin < rows.end;) {
    int64_t end = begin;
    while (end < rows.end && !exists(end)) ++end;
    KvView own = kv;
    own.pages = kv.pages.subspan(begin - rows.begin, end - begin);
    ForEachKvPart(batch, {begin, end}, own, {}, [&](int64_t first_row, const cuda::KvRows& part) {
      cuda::StoreKv({.rows = part,
                     .k = a.k.data() + first_row * k_dim,
                     .v = a.v.data() + first_row * v_dim,
                     .k_stride = k_dim,
                     .v_stride = v_dim},
                    args_.stream);
    });
    for (begin = end; begin < rows.end && exists(begin);) ++begin;
  }
}

void CudaOperations::Attend(const RowBatch& batch, RowRange rows, int64_t layer_idx, const KvView& kv) {
  if (args_.config.is_recurrent(layer_idx)) return AdvanceState(batch, rows, layer_idx, *kv.states);
  bool share_pages = false;
  for (size_t i = 1; i < kv.pages.size(); ++i) share_pages |= kv.pages[i].data() == kv.pages[i - 1].data();
  std::vector<int64_t> firsts;  // in layers with chunks
  for (int64_t row = rows.begin; args_.config.windows_are_chunks && row < rows.end; ++row) {
    firsts.push_back(args_.config.first_of_chunk(layer_idx, batch.positions[row]));
  }
  ForEachKvPart(batch, rows, kv, firsts, [&](int64_t first_row, const cuda::KvRows& part) {
    AttendPart(batch, first_row, layer_idx, part, share_pages);
  });
}

// Attends as many rows at a time as there is room for their scores.
void CudaOperations::AttendPart(const RowBatch& batch, int64_t first_row, int64_t layer_idx, cuda::KvRows part,
                                bool share_pages) {
  const ModelConfig& config = args_.config;
  Activations& a = args_.activations;
  const auto room = static_cast<int64_t>(args_.attention_scores.size());
  const int64_t num_heads = config.num_heads_of(layer_idx);
  const bool has_sinks = config.has_sinks(layer_idx);
  for (int64_t num_left = part.num_rows; num_left > 0;) {
    int64_t num_rows = 0, num_positions = 0;
    for (; num_rows < num_left; ++num_rows) {
      const int64_t own = batch.kv_positions[first_row + num_rows] + 1;
      const int64_t max = std::max(num_positions, own);
      if (num_rows > 0 && (num_rows + 1) * CudaScoresFloats(config, max) > room) break;
      num_positions = max;
    }
    const int64_t max_positions = PaddedPositions(num_positions + (has_sinks ? 1 : 0));
    PENSTOCK_CHECK(num_rows * CudaScoresFloats(config, num_positions) <= room);
    part.num_rows = num_rows;
    float* const scores = args_.attention_scores.data();
    cuda::Attention({.rows = part,
                     .num_heads = num_heads,
                     .window = config.window_of(layer_idx),
                     .scale = config.attention_scale,
                     .sinks = has_sinks ? args_.weights.layer(layer_idx).sinks.data() : nullptr,
                     .q = a.q.data() + first_row * config.q_dim(),
                     .out = a.attended.data() + first_row * config.attended_dim(),
                     .q_stride = config.q_dim(),
                     .out_stride = config.attended_dim(),
                     .max_positions = max_positions,
                     .scores = scores,
                     .totals = scores + num_rows * num_heads * max_positions,
                     .rows_share_pages = share_pages},
                    args_.stream);
    part.first_page += num_rows;
    part.positions += num_rows;
    if (part.firsts != nullptr) part.firsts += num_rows;
    first_row += num_rows;
    num_left -= num_rows;
  }
}

}  // namespace penstock
