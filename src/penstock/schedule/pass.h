// One pass over the model: a batch's rows, cut into micro-batches, and the tasks that schedules make of them.
//
// A schedule is ordinary code that calls these methods; each issues one task (a composite one: a few) and returns the
// event of its end. Tasks of one lane run in the order of the calls, so that only what crosses lanes waits for events.
// Layers are computed on one processor: the host, or a device that has its own memory, with the host beside it. In a
// simulation (no operations) tasks have costs and no bodies.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "penstock/base/thread_pool.h"
#include "penstock/memory/copier.h"
#include "penstock/memory/expert_store.h"
#include "penstock/memory/kv_staging.h"
#include "penstock/model/cost.h"
#include "penstock/ops/operations.h"
#include "penstock/routing/router_scores.h"
#include "penstock/routing/routing_source.h"
#include "penstock/runtime/runtime.h"

namespace penstock {

// What some of the batch's logit_rows came to, in order.
struct RowLogits {
  std::span<const int64_t> rows;
  std::span<float> logits;        // [rows.size(), vocab_size]; may be overwritten
  std::span<const TokenId> best;  // or instead of them [rows.size()]: Operations::PickBest()
};
using LogitsSink = absl::FunctionRef<void(const RowLogits& result)>;

// What operations run on.
struct PassProcessor {
  LaneIdx lane = 0;
  Operations* operations = nullptr;  // null in a simulation
};

// A device that computes the layers, and its links to the host.
struct PassDevice {
  PassProcessor processor;
  LaneIdx dram_to_device_lane = 0;
  LaneIdx device_to_dram_lane = 0;
  Copier* to_device = nullptr;  // null in a simulation, like to_host
  Copier* to_host = nullptr;
  // For attention on the device. Null: the KV cache lies there.
  KvStaging* kv_staging = nullptr;
};

// Seconds that a task of some cost takes on each lane; those of a device only where there is one.
struct LaneRates {
  using Duration = TaskDuration;
  Duration host_compute;
  Duration disk_to_dram;
  Duration device_compute = {};
  Duration dram_to_pinned = {};  // page-locked memory
  Duration dram_to_device = {};
  Duration device_to_dram = {};
};
// Of a link.
LaneRates::Duration TransferTime(double bytes_per_s);

class Pass {
 public:
  struct Args {
    const ModelConfig& config;
    const ModelCost& cost;
    Runtime& runtime;
    PassProcessor host;                // embeds, samples, attends where a schedule says so, computes without a device
    ThreadPool* host_pool = nullptr;   // checks experts which have come; null in a simulation
    std::optional<PassDevice> device;  // computes the layers
    KvLayer kv;                        // of layer 0 in the KV cache's pages
    ExpertStore* experts = nullptr;    // of the processor that computes the layers; null without experts
    ExpertStore* host_experts = nullptr;  // in DRAM, where a device computes the layers
    const LaneRates* rates = nullptr;     // what schedules that plan expect; null where none does
    RoutingSource& routing;
    const RowBatch& batch;
    std::vector<RowRange> micro_batches;    // of all rows, in order
    std::vector<absl::Status>& row_status;  // [num_rows]: OK, or why the row has no result; written by tasks
    int64_t rows_at_once = 1;               // logits that are computed at once
    int64_t ffn_row_bytes = 0;              // of a row as experts take it
    // Whether Route() tries the gates of the next layers, too: RoutingSource::ChoicesAhead().
    bool looks_ahead = false;
    // Whether scores come to the host, RoutingSource::Scores(), although no eviction wants them.
    bool wants_scores = false;
    // Sees what rows chose; once for each row and layer, one call at a time. Optional.
    std::function<void(int64_t layer_idx, RowRange rows, std::span<const int32_t> choices)> on_routing = {};
  };
  explicit Pass(Args args);
  ~Pass();  // waits for the tasks that were issued

  const ModelConfig& config() const { return args_.config; }
  Runtime& runtime() { return args_.runtime; }
  const ModelCost& cost() const { return args_.cost; }
  const LaneRates& rates() const { return *args_.rates; }
  ExpertStore& experts() { return *args_.experts; }
  // Beside a device: experts in DRAM, which the host can compute. Null without a device.
  ExpertStore* host_experts() { return args_.host_experts; }
  RoutingSource& routing() { return args_.routing; }
  // The same in all layers.
  std::span<const RowRange> micro_batches() const { return args_.micro_batches; }
  RowRange all_rows() const { return {0, args_.batch.num_rows()}; }
  bool IsPresent(int64_t layer_idx, int64_t expert_idx) const {
    return args_.experts->IsPresent(args_.experts->layouts().KeyOf(layer_idx, expert_idx));
  }
  std::span<const uint32_t> sequence_ids(RowRange rows) const {
    return std::span(args_.batch.sequence_ids)
        .subspan(static_cast<size_t>(rows.begin), static_cast<size_t>(rows.size()));
  }
  bool has_experts(int64_t layer_idx) const { return args_.config.layer_has_experts[layer_idx]; }

  // Of one or more micro-batches.
  Event Embed(RowRange rows);

  // Attention of micro_batches[i], which go through the layers together, on the processor that computes the layers.
  // From a KV cache in DRAM a device takes what FetchKv brought, and meanwhile the entries of the next micro-batch
  // come; new entries go back.
  Event Attention(std::span<const RowRange> micro_batches, size_t i, int64_t layer_idx);
  // Brings a micro-batch's KV entries to the device, where they need to be brought and are not on their way: at most
  // those of one micro-batch ahead.
  void FetchKv(RowRange rows, int64_t layer_idx);

  // Attention of one micro-batch where the KV cache lies, in DRAM, while a device computes everything else.
  // REQUIRES: a device. In this order, each after the one before it, other micro-batches' between them:
  Event PreAttention(RowRange rows, int64_t layer_idx);
  Event OffloadQkv(RowRange rows, const Event& pre_attention);
  Event HostAttention(RowRange rows, int64_t layer_idx, const Event& offloaded);
  Event LoadAttended(RowRange rows, const Event& attended);
  Event PostAttention(RowRange rows, int64_t layer_idx, const Event& loaded);

  // All experts from this one on will be wanted in their order: they come from the disk into DRAM while there is room
  // for them, a window that moves ahead of what a device takes from there (Klotski). Nothing without a device.
  void FetchWindow(int64_t layer_idx, int64_t expert_idx);

  // The event tells that Chosen() may be called.
  // `brings_input`: to a device's host also what experts take, for HostGroup().
  Event Route(RowRange rows, int64_t layer_idx, bool brings_input = false);
  // The experts that these rows chose, in increasing index. REQUIRES: the event of their Route() has happened.
  std::vector<int32_t> Chosen(RowRange rows, int64_t layer_idx);
  // And tells the experts' eviction how they were rated, where it wants to know. REQUIRES: as Chosen().
  Event Group(RowRange rows, int64_t layer_idx);
  // Computes those of the leased experts of a store that the rows grouped last chose. Those that did not arrive fail
  // their rows. The leases must be held until the event. Waits until it is known of each whether it arrives. REQUIRES:
  // of host_experts(), HostGroup() of these rows.
  Event Experts(int64_t layer_idx, ExpertStore& store, std::span<const ExpertLease> leases);
  // Group() on the host, for its share of a layer's experts. REQUIRES: a device, and as Chosen(), with `brings_input`.
  Event HostGroup(RowRange rows, int64_t layer_idx);
  Event Combine(RowRange rows, int64_t layer_idx);
  // Route, Group, Experts and Combine in one task, when the leases are on all experts of the layer: nobody needs to
  // know what the rows chose.
  Event RouteAndCompute(RowRange rows, int64_t layer_idx, std::span<const ExpertLease> leases);
  Event DenseFfn(RowRange rows, int64_t layer_idx);
  // The logits of all rows that want some, handed to the sink as they are computed; waits for all that was issued.
  absl::Status Finish(LogitsSink sink);

 private:
  using Body = std::function<void(Operations&)>;
  using Copies = std::vector<ByteCopy>;
  struct LostExpert {
    ExpertPlace place;
    absl::Status why;
  };
  // Leases as a task takes them: what arrived, and what did not.
  struct TakenExperts {
    ExpertStore* store = nullptr;
    std::vector<ExpertPlace> places;
    Events arrived;  // of these
    std::vector<LostExpert> lost;
    std::optional<std::vector<absl::Status>> checked;  // [places.size()]: of the task that checks them, if there is one
  };
  // KV entries of a micro-batch on the device.
  struct StagedKv {
    int64_t layer_idx = 0;
    RowRange rows;
    int buffer_idx = 0;
    Event arrived;
    std::deque<std::vector<std::byte*>> lists;           // pages in the buffer
    std::vector<std::span<std::byte* const>> row_pages;  // [rows.size()]
  };

  bool stages_kv() const { return args_.device.has_value() && args_.device->kv_staging != nullptr; }
  const PassProcessor& compute() const { return args_.device.has_value() ? args_.device->processor : args_.host; }
  // That computes a store's experts.
  const PassProcessor& ProcessorOf(const ExpertStore& store) const {
    return &store == args_.experts ? compute() : args_.host;
  }
  Event Issue(const PassProcessor& processor, TaskLabel label, const OperationCost& cost, Events after, Body body);
  // Copies between the host's and the device's memory: those that `list` adds. Not called in a simulation.
  using CopyLister = absl::FunctionRef<void(Activations& host, Activations& device, Copies& copies)>;
  enum class Direction : uint8_t { kToDevice, kToHost };
  Event Copy(Direction direction, TaskLabel label, uint64_t link_bytes, Events after, CopyLister list);
  // With the number of the micro-batch that `rows` are, where there are several.
  TaskLabel LabelOf(std::string_view name, RowRange rows, int64_t layer_idx = -1) const;
  Event IssueInOrder(Task task);
  KvView CacheView(RowRange rows, int64_t layer_idx) const;
  std::shared_ptr<StagedKv> Stage(RowRange rows, int64_t layer_idx);
  Event StagedAttention(RowRange rows, int64_t layer_idx);
  std::shared_ptr<StagedKv> FindStaged(RowRange rows, int64_t layer_idx) const;
  // What the first operation of a layer must wait for.
  Events BeforeLayer(RowRange rows) const;
  // `is_wanted` says which of the leases; what has not been checked since it was read is checked by a task.
  std::shared_ptr<TakenExperts> Take(int64_t layer_idx, ExpertStore& store, std::span<const ExpertLease> leases,
                                     absl::FunctionRef<bool(const ExpertPlace&)> is_wanted);
  // Brings what the host computed of the rows grouped last to the device.
  void LoadExpertOutput(int64_t layer_idx, const TakenExperts& taken, const Event& computed);
  void RunExperts(Operations& operations, int64_t layer_idx, const TakenExperts& taken);
  void FailExpert(Operations& operations, const ExpertPlace& place, const absl::Status& status);
  ModelCost::Context ContextOf(RowRange rows, int64_t layer_idx) const;
  // What Route() is followed by where all rows take a shared FFN.
  void SharedFfn(RowRange rows, int64_t layer_idx);
  // The next layers with experts, kMaxAhead at most.
  absl::InlinedVector<int64_t, kMaxAhead> LayersAhead(int64_t layer_idx) const;

  Args args_;
  std::mutex status_mutex_;        // of row_status: two processors may fail rows
  std::map<LaneIdx, Event> last_;  // the task issued last, by lane
  std::vector<Event> embedded_;    // [num_rows]: by the first row of what was embedded; on the device
  std::vector<Event> offloaded_;   // [num_rows]: by a micro-batch's first row: its K and V have left the device
  std::vector<Event> stored_;      // [num_rows]: and are in the KV cache
  std::vector<std::shared_ptr<StagedKv>> staged_;  // fetched, not attended to yet
  std::vector<int64_t> group_rows_;                // [num_experts]: of the rows that were grouped last
  std::vector<int64_t> group_offsets_;             // [num_experts]: where their assignments begin
  Event input_offloaded_;                          // of the rows routed last: experts' inputs are on the host
  Events expert_outputs_;                          // of the host's experts: they are on the device
  MeanTopScores mean_scores_;
};

}  // namespace penstock
