#include "penstock/schedule/pass_attention.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "penstock/base/check.h"

namespace penstock {

PassAttention::PassAttention(const PassArgs& args, PassTasks& tasks)
    : args_(args),
      tasks_(tasks),
      embedded_(args.batch.num_rows()),
      offloaded_(embedded_.size()),
      stored_(embedded_.size()) {
  if (args.ranks.has_value() && args.ranks->heads.has_value()) heads_.emplace(args, tasks);
}

KvView PassAttention::CacheView(RowRange rows, int64_t layer_idx) const {
  KvView view{
      .layer = {}, .pages = std::span(args_.batch.kv_pages).subspan(rows.begin, rows.size()), .states = args_.states};
  if (!args_.config.is_recurrent(layer_idx)) view.layer = KvLayer::Of(args_.config, args_.kv_format, layer_idx);
  return view;
}

Event PassAttention::Embed(RowRange rows) {
  if (rows.size() == 0) return {};
  const Event embedded =
      tasks_.Issue(args_.host, tasks_.LabelOf("embed", rows),
                   {.begins_pass = rows.begin == 0, .embedded_rows = static_cast<double>(rows.size())}, {},
                   [this, rows](Operations& operations) { operations.Embed(args_.batch, rows); });
  if (!args_.device.has_value()) return embedded;
  const int64_t angles = args_.config.num_angles(), dim = args_.config.model_dim;
  const int64_t scales = args_.config.query_scale.is_on() ? 1 : 0;
  const Event loaded = tasks_.Copy(CopyDirection::kToDevice, tasks_.LabelOf("load hidden", rows),
                                   static_cast<uint64_t>(4 * rows.size() * (dim + 2 * angles + scales)), {embedded},
                                   [=](Activations& host, Activations& device, ByteCopies& copies) {
                                     AddRows(copies, host.residual, device.residual, rows, dim);
                                     AddRows(copies, host.cos, device.cos, rows, angles);
                                     AddRows(copies, host.sin, device.sin, rows, angles);
                                     AddRows(copies, host.query_scales, device.query_scales, rows, scales);
                                   });
  embedded_[rows.begin] = loaded;
  return loaded;
}

Events PassAttention::PendingInput(RowRange rows) const {
  Events pending;
  if (!args_.device.has_value()) return pending;
  for (int64_t row_idx = rows.begin; row_idx < rows.end; ++row_idx) {
    const Event& embedded = embedded_[row_idx];
    if (!args_.runtime.Done(embedded)) pending.push_back(embedded);
  }
  return pending;
}

Events PassAttention::BeforeLayer(RowRange rows) const {
  Events after = PendingInput(rows);
  if (args_.device.has_value()) after.push_back(offloaded_[rows.begin]);  // the layer overwrites q, k and v
  return after;
}

Event PassAttention::SkipMixer(RowRange rows, int64_t layer_idx) {
  Events pending = PendingInput(rows);
  if (pending.empty()) return {};
  return tasks_.Issue(args_.compute(), tasks_.LabelOf("no attention", rows, layer_idx), {}, std::move(pending),
                      [](Operations&) {});
}

Event PassAttention::IssueAttention(RowRange rows, int64_t layer_idx, Events after, PassTasks::Body attend) {
  OperationCost cost = args_.cost.Attention(layer_idx, rows.size(), ContextOf(rows, layer_idx));
  if (args_.config.has_cross_attention(layer_idx)) {
    cost += args_.cost.CrossProjections(rows.size());
    cost += args_.cost.AttentionCore(layer_idx, CrossContextOf(args_.batch, rows));
  }
  return tasks_.Issue(args_.compute(), tasks_.LabelOf("attention", rows, layer_idx), cost, std::move(after),
                      std::move(attend));
}

void PassAttention::AttendTo(Operations& operations, RowRange rows, int64_t layer_idx, const KvView& kv) const {
  operations.PreAttention(rows, layer_idx);
  if (!args_.config.is_recurrent(layer_idx)) operations.StoreKv(args_.batch, rows, kv);
  operations.Attend(args_.batch, rows, layer_idx, kv);
  operations.PostAttention(rows, layer_idx);
  if (!args_.config.has_cross_attention(layer_idx)) return;
  operations.PreCross(rows, layer_idx);
  operations.AttendCross(args_.batch, rows, layer_idx, kv);
  operations.PostCross(rows, layer_idx);
}

Event PassAttention::Attend(std::span<const RowRange> micro_batches, size_t i, int64_t layer_idx) {
  if (heads_.has_value()) return AttendByHeads(micro_batches, i, layer_idx);
  const RowRange rows = micro_batches[i];
  if (rows.size() == 0) return {};
  if (!args_.config.has_mixer(layer_idx)) return SkipMixer(rows, layer_idx);
  if (stages_kv()) {
    FetchKv(rows, layer_idx);
    if (i + 1 < micro_batches.size()) {
      FetchKv(micro_batches[i + 1], layer_idx);
    } else if (layer_idx + 1 < LayersOf(args_.config, Encodes(args_.config, args_.batch)).end) {
      FetchKv(micro_batches[0], layer_idx + 1);
    }
    return args_.config.is_recurrent(layer_idx) ? AdvanceOnHost(rows, layer_idx) : StagedAttention(rows, layer_idx);
  }
  return IssueAttention(rows, layer_idx, BeforeLayer(rows), [=, this](Operations& operations) {
    AttendTo(operations, rows, layer_idx, CacheView(rows, layer_idx));
  });
}

Event PassAttention::AttendByHeads(std::span<const RowRange> micro_batches, size_t i, int64_t layer_idx) {
  PENSTOCK_CHECK(!stages_kv());
  const auto first = static_cast<size_t>(micro_batches.data() - args_.micro_batches.data());
  PENSTOCK_CHECK(first + micro_batches.size() <= args_.micro_batches.size());
  for (size_t next = i; next < std::min(i + 2, micro_batches.size()); ++next) {
    const RowRange rows = micro_batches[next];
    heads_->Begin(first + next, layer_idx, rows.size() > 0 ? BeforeLayer(rows) : Events());
  }
  return heads_->Finish(first + i, layer_idx);
}

void PassAttention::FetchKv(RowRange rows, int64_t layer_idx) {
  if (args_.config.is_recurrent(layer_idx) || !args_.config.has_mixer(layer_idx)) return;
  if (stages_kv() && FindStaged(rows, layer_idx) == nullptr) staged_.push_back(Stage(rows, layer_idx));
}

std::shared_ptr<PassAttention::StagedKv> PassAttention::FindStaged(RowRange rows, int64_t layer_idx) const {
  for (const auto& staged : staged_) {
    if (staged->layer_idx == layer_idx && staged->rows == rows) return staged;
  }
  return nullptr;
}

std::shared_ptr<PassAttention::StagedKv> PassAttention::Stage(RowRange rows, int64_t layer_idx) {
  KvStaging& staging = *args_.device->kv_staging;
  PENSTOCK_CHECK(staged_.size() < KvStaging::kNumBuffers);
  auto staged = std::make_shared<StagedKv>();
  staged->layer_idx = layer_idx;
  staged->rows = rows;
  staged->buffer_idx = staging.Take();
  ByteCopies copies;
  const RowBatch& batch = args_.batch;
  const KvLayer layer = KvLayer::Of(args_.config, args_.kv_format, layer_idx);
  const int64_t layer_bytes = layer.bytes(), index_bytes = layer.first_index_bytes > 0 ? layer.index_block_bytes : 0;
  const auto page_bytes = static_cast<uint64_t>(layer_bytes + index_bytes);
  uint64_t link_bytes = 0;
  int64_t page_idx = 0;
  absl::flat_hash_map<const std::byte*, std::byte*> copy_of;  // rows of a window share pages
  for (int64_t first = rows.begin; first < rows.end;) {
    int64_t end = first + 1;
    while (end < rows.end && batch.sequence_ids[end] == batch.sequence_ids[first] &&
           batch.kv_pages[end].data() == batch.kv_pages[first].data()) {
      ++end;
    }
    // The entries of earlier passes are copied. The rows' own entries are written on the device.
    const int64_t num_stored = batch.kv_positions[first];
    const int64_t num_pages = KvCache::PagesFor(batch.kv_positions[end - 1] + 1);
    std::vector<std::byte*>& pages = staged->lists.emplace_back();
    for (int64_t i = 0; i < num_pages; ++i) {
      const bool is_copied = i * KvCache::kPageTokens < num_stored;
      if (args_.is_simulated()) {
        link_bytes += is_copied ? page_bytes : 0;
        continue;
      }
      const std::byte* page = batch.kv_pages[first][i];
      const auto [copy, is_new] = copy_of.try_emplace(page, nullptr);
      if (is_new) {
        copy->second = staging.page(staged->buffer_idx, page_idx++);
        if (is_copied) {
          link_bytes += page_bytes;
          copies.push_back({copy->second, page + layer.first_block_bytes, static_cast<size_t>(layer_bytes)});
          if (index_bytes > 0) {
            copies.push_back(
                {copy->second + layer_bytes, page + layer.first_index_bytes, static_cast<size_t>(index_bytes)});
          }
        }
      }
      pages.push_back(copy->second);
    }
    for (; first < end; ++first) staged->row_pages.emplace_back(pages);
  }
  if (args_.is_simulated()) {
    // Sequences that share pages count them several times here. The buffer has room for all pages that there are.
    link_bytes = std::min(link_bytes, static_cast<uint64_t>(staging.num_pages()) * page_bytes);
  } else {
    PENSTOCK_CHECK(page_idx <= staging.num_pages());
  }
  staged->arrived = tasks_.Copy(CopyDirection::kToDevice, tasks_.LabelOf("load kv", rows, layer_idx), link_bytes,
                                {staging.last_use(staged->buffer_idx)},
                                [&](Activations&, Activations&, ByteCopies& all) { all = std::move(copies); });
  return staged;
}

Event PassAttention::StagedAttention(RowRange rows, int64_t layer_idx) {
  const std::shared_ptr<StagedKv> staged = FindStaged(rows, layer_idx);
  std::erase(staged_, staged);
  Events after = BeforeLayer(rows);
  after.push_back(staged->arrived);
  KvLayer layer = KvLayer::Of(args_.config, args_.kv_format, layer_idx);
  layer.first_block_bytes = 0;  // the blocks of a page lie together, its index keys behind them
  if (layer.first_index_bytes > 0) layer.first_index_bytes = layer.bytes();
  const Event done = IssueAttention(rows, layer_idx, std::move(after), [=, this](Operations& operations) {
    AttendTo(operations, rows, layer_idx, {.layer = layer, .pages = staged->row_pages, .is_copy = true});
  });
  KvStaging& staging = *args_.device->kv_staging;
  staging.last_use(staged->buffer_idx) = done;
  StoreOnHost(rows, layer_idx, done);
  return done;
}

void PassAttention::StoreOnHost(RowRange rows, int64_t layer_idx, const Event& computed) {
  const int64_t k_dim = args_.config.kv_dim(), v_dim = args_.config.v_dim(), first = rows.begin;
  const int64_t index_dim = args_.config.has_indexer(layer_idx) ? args_.config.indexer.head_dim : 0;
  offloaded_[first] =
      tasks_.Copy(CopyDirection::kToHost, tasks_.LabelOf("store kv", rows, layer_idx),
                  static_cast<uint64_t>(4 * rows.size() * (k_dim + v_dim + index_dim)), {computed, stored_[first]},
                  [=](Activations& host, Activations& device, ByteCopies& copies) {
                    AddRows(copies, device.k, host.k, rows, k_dim);
                    AddRows(copies, device.v, host.v, rows, v_dim);
                    AddRows(copies, device.indexer.k, host.indexer.k, rows, index_dim);
                  });
  stored_[first] = tasks_.Issue(
      args_.host, tasks_.LabelOf("store kv", rows, layer_idx), {}, {offloaded_[first]},
      [=, this](Operations& operations) { operations.StoreKv(args_.batch, rows, CacheView(rows, layer_idx)); });
}

void PassAttention::StoreEncoded(RowRange rows) {
  if (rows.size() == 0) return;
  const bool is_on_host = args_.device.has_value() && !args_.device->holds_kv_cache;
  const IndexRange decoder = LayersOf(args_.config, /*encodes=*/false);
  for (int64_t layer_idx = decoder.begin; layer_idx < decoder.end; ++layer_idx) {
    Events after;
    if (is_on_host) after.push_back(offloaded_[rows.begin]);  // the layer overwrites k and v
    const Event computed =
        tasks_.Issue(args_.compute(), tasks_.LabelOf("encoded kv", rows, layer_idx), args_.cost.CrossKv(rows.size()),
                     std::move(after), [=, this](Operations& operations) {
                       if (layer_idx == decoder.begin) operations.NormEncoded(rows);
                       operations.ProjectCross(rows, layer_idx);
                       if (!is_on_host) operations.StoreKv(args_.batch, rows, CacheView(rows, layer_idx));
                     });
    if (is_on_host) StoreOnHost(rows, layer_idx, computed);
  }
}

Event PassAttention::PreAttention(RowRange rows, int64_t layer_idx) {
  if (!args_.config.has_mixer(layer_idx)) return {};
  return tasks_.Issue(args_.compute(), tasks_.LabelOf("pre-attention", rows, layer_idx),
                      args_.cost.PreAttention(layer_idx, rows.size(), ContextOf(rows, layer_idx)), BeforeLayer(rows),
                      [=](Operations& operations) { operations.PreAttention(rows, layer_idx); });
}

Event PassAttention::AdvanceOnHost(RowRange rows, int64_t layer_idx) {
  const Event offloaded = OffloadQkv(rows, layer_idx, PreAttention(rows, layer_idx));
  const Event attended = HostAttention(rows, layer_idx, offloaded);
  return PostAttention(rows, layer_idx, LoadAttended(rows, layer_idx, attended));
}

Event PassAttention::OffloadQkv(RowRange rows, int64_t layer_idx, const Event& pre_attention) {
  const ModelConfig& config = args_.config;
  if (!config.has_mixer(layer_idx)) return {};
  const bool is_recurrent = config.is_recurrent(layer_idx);
  const Recurrent& recurrent = config.recurrent;
  const Indexer indexer = config.has_indexer(layer_idx) ? config.indexer : Indexer();
  const bool has_keys = recurrent.has_matrix() && !recurrent.projects_values();
  const int64_t num_cols =
      is_recurrent
          ? recurrent.values_dim() +
                (has_keys ? 2 * recurrent.keys_dim() + recurrent.beta_cols() + recurrent.decay_cols() : 0)
          : config.q_dim() + config.kv_dim() + config.v_dim() + indexer.q_dim() + indexer.head_dim + indexer.num_heads;
  Event& offloaded = offloaded_[rows.begin];
  offloaded = tasks_.Copy(CopyDirection::kToHost, tasks_.LabelOf("offload qkv", rows),
                          static_cast<uint64_t>(4 * rows.size() * num_cols), {pre_attention},
                          [=, &config](Activations& host, Activations& device, ByteCopies& copies) {
                            if (!is_recurrent) {
                              AddRows(copies, device.q, host.q, rows, config.q_dim());
                              AddRows(copies, device.k, host.k, rows, config.kv_dim());
                              AddRows(copies, device.v, host.v, rows, config.v_dim());
                              AddRows(copies, device.indexer.q, host.indexer.q, rows, indexer.q_dim());
                              AddRows(copies, device.indexer.k, host.indexer.k, rows, indexer.head_dim);
                              AddRows(copies, device.indexer.weights, host.indexer.weights, rows, indexer.num_heads);
                              return;
                            }
                            const Recurrent& r = config.recurrent;
                            const RecurrentRows &from = device.recurrent, &to = host.recurrent;
                            AddRows(copies, from.v, to.v, rows, r.values_dim());
                            if (!has_keys) return;
                            AddRows(copies, from.q, to.q, rows, r.keys_dim());
                            AddRows(copies, from.k, to.k, rows, r.keys_dim());
                            AddRows(copies, from.beta, to.beta, rows, r.beta_cols());
                            AddRows(copies, from.decay, to.decay, rows, r.decay_cols());
                          });
  return offloaded;
}

Event PassAttention::HostAttention(RowRange rows, int64_t layer_idx, const Event& offloaded) {
  if (!args_.config.has_mixer(layer_idx)) return {};
  return tasks_.Issue(args_.host, tasks_.LabelOf("attention", rows, layer_idx),
                      args_.cost.AttentionCore(layer_idx, ContextOf(rows, layer_idx)), {offloaded},
                      [=, this](Operations& operations) {
                        const KvView kv = CacheView(rows, layer_idx);
                        if (!args_.config.is_recurrent(layer_idx)) operations.StoreKv(args_.batch, rows, kv);
                        operations.Attend(args_.batch, rows, layer_idx, kv);
                      });
}

Event PassAttention::LoadAttended(RowRange rows, int64_t layer_idx, const Event& attended) {
  if (!args_.config.has_mixer(layer_idx)) return {};
  const bool is_recurrent = args_.config.is_recurrent(layer_idx);
  const int64_t dim = is_recurrent ? args_.config.recurrent.values_dim() : args_.config.attended_dim();
  return tasks_.Copy(CopyDirection::kToDevice, tasks_.LabelOf("load hidden", rows),
                     static_cast<uint64_t>(4 * rows.size() * dim), {attended},
                     [=](Activations& host, Activations& device, ByteCopies& copies) {
                       is_recurrent ? AddRows(copies, host.recurrent.out, device.recurrent.out, rows, dim)
                                    : AddRows(copies, host.attended, device.attended, rows, dim);
                     });
}

Event PassAttention::PostAttention(RowRange rows, int64_t layer_idx, const Event& loaded) {
  if (!args_.config.has_mixer(layer_idx)) return SkipMixer(rows, layer_idx);
  const bool has_cross = args_.config.has_cross_attention(layer_idx);
  const Event added =
      tasks_.Issue(args_.compute(), tasks_.LabelOf("post-attention", rows, layer_idx),
                   args_.cost.PostAttention(layer_idx, rows.size()), {loaded}, [=](Operations& operations) {
                     operations.PostAttention(rows, layer_idx);
                     if (has_cross) operations.PreCross(rows, layer_idx);
                   });
  return has_cross ? CrossOnHost(rows, layer_idx, added) : added;
}

Event PassAttention::CrossOnHost(RowRange rows, int64_t layer_idx, const Event& projected) {
  const int64_t q_dim = args_.config.q_dim();
  const Event offloaded = tasks_.Copy(CopyDirection::kToHost, tasks_.LabelOf("offload q", rows),
                                      static_cast<uint64_t>(4 * rows.size() * q_dim), {projected},
                                      [=](Activations& host, Activations& device, ByteCopies& copies) {
                                        AddRows(copies, device.q, host.q, rows, q_dim);
                                      });
  const Event attended =
      tasks_.Issue(args_.host, tasks_.LabelOf("cross-attention", rows, layer_idx),
                   args_.cost.AttentionCore(layer_idx, CrossContextOf(args_.batch, rows)), {offloaded},
                   [=, this](Operations& operations) {
                     operations.AttendCross(args_.batch, rows, layer_idx, CacheView(rows, layer_idx));
                   });
  return tasks_.Issue(args_.compute(), tasks_.LabelOf("post-attention", rows, layer_idx),
                      args_.cost.CrossProjections(rows.size()), {LoadAttended(rows, layer_idx, attended)},
                      [=](Operations& operations) { operations.PostCross(rows, layer_idx); });
}

}  // namespace penstock
