#include "penstock/schedule/ranks/pass_heads.h"

#include <algorithm>
#include <utility>

#include "penstock/base/check.h"
#include "penstock/base/status.h"

namespace penstock {

PassHeads::PassHeads(const PassArgs& args, PassTasks& tasks)
    : args_(args), tasks_(tasks), transfers_(args, tasks), micro_batches_(args.micro_batches.size()) {
  PENSTOCK_CHECK(rows().micro_batches.size() == micro_batches_.size());
}

HeadRange PassHeads::HeadsOfRank(int rank) const {
  return HeadsOf(args_.config, {.rank = rank, .num_ranks = transfers_.num_ranks(), .by_heads = true});
}

void PassHeads::Begin(size_t micro_batch_idx, int64_t layer_idx, Events after) {
  MicroBatch& micro_batch = micro_batches_[micro_batch_idx];
  if (micro_batch.layer_idx == layer_idx) return;
  const bool is_first = std::exchange(micro_batch.layer_idx, layer_idx) < 0;
  const RankRows::MicroBatch& places = rows().micro_batches[micro_batch_idx];
  const RowRange own = args_.micro_batches[micro_batch_idx], own_place = places.of_rank[transfers_.rank()];
  PENSTOCK_CHECK(own.size() == own_place.size());
  after.push_back(micro_batch.rows_sent);  // those of the layer before
  const Event normed =
      tasks_.Issue(args_.compute(), tasks_.LabelOf("norm", own, layer_idx), {}, std::move(after),
                   [=, this, all = places.all](Operations& home) {
                     if (is_first) heads().operations->SetAngles(rows().batch, all);
                     if (own.size() == 0) return;
                     home.NormForAttention(own, layer_idx);
                     const int64_t row_bytes = heads().row_bytes;
                     std::copy_n(home.activations().gemm_input.data() + own.begin * row_bytes, own.size() * row_bytes,
                                 heads().operations->activations().gemm_input.data() + own_place.begin * row_bytes);
                   });
  const auto bytes_of = [&](int64_t num_rows) { return static_cast<uint64_t>(num_rows * heads().row_bytes); };
  micro_batch.rows_sent =
      transfers_.Send(tasks_.LabelOf("send rows", own, layer_idx), bytes_of(own.size() * (transfers_.num_ranks() - 1)),
                      {normed}, [this, own_place] { return transfers_.SendToAll(InputsAt(own_place)); });
  micro_batch.rows_here = transfers_.ReceiveSent(
      tasks_.LabelOf("receive rows", own, layer_idx), bytes_of(places.all.size() - own.size()), {micro_batch.attended},
      [this, &places] {
        return transfers_.ForEachOther(
            [&](int rank) { return transfers_.ReceiveFrom(rank, InputsAt(places.of_rank[rank])); });
      },
      micro_batch.rows_sent, [&](int rank) { return places.of_rank[rank].size() > 0; });
}

Event PassHeads::Finish(size_t micro_batch_idx, int64_t layer_idx) {
  MicroBatch& micro_batch = micro_batches_[micro_batch_idx];
  PENSTOCK_CHECK(micro_batch.layer_idx == layer_idx);
  const RankRows::MicroBatch& places = rows().micro_batches[micro_batch_idx];
  const RowRange own = args_.micro_batches[micro_batch_idx];
  OperationCost cost = heads().cost->PreAttention(layer_idx, places.all.size(), {});
  cost += heads().cost->AttentionCore(layer_idx, ContextOf(args_.config, rows().batch, places.all, layer_idx));
  micro_batch.attended = tasks_.Issue(args_.compute(), tasks_.LabelOf("attention", own, layer_idx), cost,
                                      {micro_batch.rows_here, micro_batch.heads_sent},
                                      [=, this](Operations&) { Attend(micro_batch_idx, layer_idx); });
  const auto bytes_of = [](int64_t num_floats) { return 4 * static_cast<uint64_t>(num_floats); };
  const int64_t own_dim = AttendedDimOf(transfers_.rank());
  micro_batch.heads_sent = transfers_.Send(tasks_.LabelOf("send heads", own, layer_idx),
                                           bytes_of((places.all.size() - own.size()) * own_dim), {micro_batch.attended},
                                           [this, &places] { return SendHeads(places); });
  micro_batch.heads_here = transfers_.ReceiveSent(
      tasks_.LabelOf("receive heads", own, layer_idx), bytes_of(own.size() * (args_.config.attended_dim() - own_dim)),
      {micro_batch.finished}, [this, own] { return ReceiveHeads(own); }, micro_batch.heads_sent,
      [&](int) { return own.size() > 0; });
  if (own.size() == 0) return micro_batch.attended;
  micro_batch.finished = tasks_.Issue(args_.compute(), tasks_.LabelOf("output projection", own, layer_idx),
                                      args_.cost.PostAttention(layer_idx, own.size()), {micro_batch.heads_here},
                                      [=](Operations& home) { home.PostAttention(own, layer_idx); });
  return micro_batch.finished;
}

std::span<std::byte> PassHeads::InputsAt(RowRange place) const {
  return heads().operations->activations().gemm_input.subspan(static_cast<size_t>(place.begin * heads().row_bytes),
                                                              static_cast<size_t>(place.size() * heads().row_bytes));
}

void PassHeads::Attend(size_t micro_batch_idx, int64_t layer_idx) {
  const RankRows::MicroBatch& places = rows().micro_batches[micro_batch_idx];
  const RowRange all = places.all;
  Operations& own = *heads().operations;
  KvView kv{.layer = heads().kv,
            .pages = std::span(rows().batch.kv_pages).subspan(all.begin, static_cast<size_t>(all.size()))};
  kv.layer.first_block_bytes = layer_idx * kv.layer.bytes();
  own.ProjectQkv(all, layer_idx);
  own.StoreKv(rows().batch, all, kv);
  own.Attend(rows().batch, all, layer_idx, kv);
  const int64_t dim = AttendedDimOf(transfers_.rank());
  const RowRange own_place = places.of_rank[transfers_.rank()];
  PlaceHeads(transfers_.rank(), args_.micro_batches[micro_batch_idx],
             own.activations().attended.subspan(static_cast<size_t>(own_place.begin * dim),
                                                static_cast<size_t>(own_place.size() * dim)));
}

absl::Status PassHeads::SendHeads(const RankRows::MicroBatch& places) {
  const std::span<const float> attended = heads().operations->activations().attended;
  const int64_t dim = AttendedDimOf(transfers_.rank());
  return transfers_.ForEachOther([&](int rank) -> absl::Status {
    const RowRange place = places.of_rank[rank];
    if (place.size() == 0) return absl::OkStatus();
    return transfers_.communicator().Send(rank, MessageStream::kPass,
                                          std::as_bytes(attended.subspan(static_cast<size_t>(place.begin * dim),
                                                                         static_cast<size_t>(place.size() * dim))));
  });
}

absl::Status PassHeads::ReceiveHeads(RowRange own) {
  if (own.size() == 0) return absl::OkStatus();
  // Nothing else uses `q` of a rank's own rows: q lies with its heads.
  const std::span<float> room = args_.host.operations->activations().q;
  return transfers_.ForEachOther([&](int rank) -> absl::Status {
    const std::span<float> heads = room.first(static_cast<size_t>(own.size() * AttendedDimOf(rank)));
    PENSTOCK_RETURN_IF_ERROR(transfers_.ReceiveFrom(rank, std::as_writable_bytes(heads)));
    PlaceHeads(rank, own, heads);
    return absl::OkStatus();
  });
}

void PassHeads::PlaceHeads(int rank, RowRange own, std::span<const float> heads) {
  const int64_t dim = args_.config.attended_dim(), of_rank = AttendedDimOf(rank);
  float* to = args_.host.operations->activations().attended.data() + own.begin * dim + HeadsOfRank(rank).FirstOf(dim);
  for (int64_t row = 0; row < own.size(); ++row) {
    std::copy_n(heads.data() + row * of_rank, of_rank, to + row * dim);
  }
}

}  // namespace penstock
