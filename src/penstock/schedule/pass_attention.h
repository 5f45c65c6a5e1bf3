// Attention of a pass, and the embedding before it, for all places of the KV cache and of the computation.
//
// - On the processor that computes the layers, if the KV cache lies in its memory: Attend().
// - On a device, with the KV cache in DRAM: Attend() stages the KV entries of each micro-batch on the device, one
//   micro-batch ahead, and copies new entries back.
// - On several ranks that share the heads: Attend() (schedule/ranks/pass_heads.h).
// - On the host, beside a device: PreAttention() to PostAttention(), with q, k and v copied down and results copied up.
//
// In a decoder's layers, Attend() and PostAttention() also compute cross-attention.
//
// Each call issues a task (some calls: a few) and returns the event of its end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "penstock/schedule/pass_args.h"
#include "penstock/schedule/pass_tasks.h"
#include "penstock/schedule/ranks/pass_heads.h"

namespace penstock {

class PassAttention {
 public:
  // `args` and `tasks` must outlive the object and its tasks.
  PassAttention(const PassArgs& args, PassTasks& tasks);

  // Embeds the rows of one or more micro-batches.
  Event Embed(RowRange rows);

  // Computes attention of micro_batches[i] on the processor that computes the layers. `micro_batches` go through the
  // layers together. If the device attends to a KV cache in DRAM, the entries of the next micro-batch are copied
  // meanwhile. If ranks share the heads, the rows of the next micro-batch travel meanwhile. REQUIRES: micro-batches of
  // the pass, which have all completed the layer before.
  Event Attend(std::span<const RowRange> micro_batches, size_t i, int64_t layer_idx);
  // Returns whether KV entries are copied to a device for its attention.
  bool stages_kv() const { return args_.device.has_value() && args_.device->kv_staging != nullptr; }
  // Copies a micro-batch's KV entries to the device, unless they are there or on their way. Does nothing if the device
  // needs no copies. At most the entries of one micro-batch are fetched ahead.
  void FetchKv(RowRange rows, int64_t layer_idx);

  // The parts of attention on the host, while a device computes everything else. For one micro-batch they are called
  // in this order; calls for other micro-batches may come between them. REQUIRES: a device.
  Event PreAttention(RowRange rows, int64_t layer_idx);
  Event OffloadQkv(RowRange rows, int64_t layer_idx, const Event& pre_attention);
  Event HostAttention(RowRange rows, int64_t layer_idx, const Event& offloaded);
  Event LoadAttended(RowRange rows, int64_t layer_idx, const Event& attended);
  Event PostAttention(RowRange rows, int64_t layer_idx, const Event& loaded);

  // Stores what cross-attention of all layers of the decoder will see of these rows. REQUIRES: they have completed the
  // encoder.
  void StoreEncoded(RowRange rows);

 private:
  // KV entries of a micro-batch on the device.
  struct StagedKv {
    int64_t layer_idx = 0;
    RowRange rows;
    int buffer_idx = 0;
    Event arrived;
    std::deque<std::vector<std::byte*>> lists;           // pages in the buffer
    std::vector<std::span<std::byte* const>> row_pages;  // [rows.size()]
  };

  KvView CacheView(RowRange rows, int64_t layer_idx) const;
  ModelCost::Context ContextOf(RowRange rows, int64_t layer_idx) const {
    return penstock::ContextOf(args_.config, args_.batch, rows, layer_idx);
  }
  // Returns the events that the first operation of a layer waits for. PendingInput() returns those of rows whose input
  // is not yet on the device.
  Events BeforeLayer(RowRange rows) const;
  Events PendingInput(RowRange rows) const;
  // Makes the FFN of a layer without attention wait for the rows' input.
  Event SkipMixer(RowRange rows, int64_t layer_idx);
  Event AttendByHeads(std::span<const RowRange> micro_batches, size_t i, int64_t layer_idx);
  // A recurrent layer beside a device that does not hold its states: they change on the host.
  Event AdvanceOnHost(RowRange rows, int64_t layer_idx);
  // Issues all parts of attention as one task, on `kv`.
  Event IssueAttention(RowRange rows, int64_t layer_idx, Events after, PassTasks::Body attend);
  void AttendTo(Operations& operations, RowRange rows, int64_t layer_idx, const KvView& kv) const;
  // Cross-attention on the host, from the queries that a device has projected.
  Event CrossOnHost(RowRange rows, int64_t layer_idx, const Event& projected);
  // Copies k and v of the device to the host, which stores them. Sets offloaded_ and stored_.
  void StoreOnHost(RowRange rows, int64_t layer_idx, const Event& computed);
  std::shared_ptr<StagedKv> Stage(RowRange rows, int64_t layer_idx);
  Event StagedAttention(RowRange rows, int64_t layer_idx);
  std::shared_ptr<StagedKv> FindStaged(RowRange rows, int64_t layer_idx) const;

  const PassArgs& args_;
  PassTasks& tasks_;
  std::vector<Event> embedded_;   // [num_rows], set at an Embed()'s first row: its rows are on the device
  std::vector<Event> offloaded_;  // [num_rows], set at a micro-batch's first row: its K and V have left the device
  std::vector<Event> stored_;     // [num_rows], set at a micro-batch's first row: its K and V are in the KV cache
  std::optional<PassHeads> heads_;
  std::vector<std::shared_ptr<StagedKv>> staged_;  // fetched, not attended to yet
};

}  // namespace penstock
