// How passes are scheduled.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace penstock {

// The rows of schedules.def, evictions.def and predictors.def say what each of these does.
enum class ScheduleKind : uint8_t {
#define PENSTOCK_SCHEDULE(kind, ...) kind,
#include "penstock/schedules.def"
};
enum class Eviction : uint8_t {
#define PENSTOCK_EVICTION(kind, ...) kind,
#include "penstock/evictions.def"
};
enum class PredictorKind : uint8_t {
#define PENSTOCK_PREDICTOR(kind, ...) kind,
#include "penstock/predictors.def"
};

// How the schedule `hybrid` divides experts between the host and a device.
enum class HybridRule : uint8_t {
  // Minimises the time plus the transfers' prices over all plans in which the device takes the heaviest experts and the
  // host the lightest. The experts in the device's memory and the others are split separately. The plan is optimal if
  // the device's time does not depend on the rows.
  kBalanced,
  // HybriMoE's paper: each time, the timeline (host, device, link) whose next operation would end first takes that
  // operation, until none is left.
  // - Host: experts that the device lacks, lightest first, then those that the device has, also lightest first.
  // - Device: experts that it has, heaviest first.
  // - Link: experts that the device lacks, heaviest first.
  kTimelines,
  // HybriMoE's public code: one list of the experts that the device has, then of those that it lacks, each by falling
  // load. The device takes from the front, through the link if it must; the host takes from the back. The one that
  // would end first takes the next expert.
  kTwoEnded,
  // Fiddler: an expert that the device lacks is computed by the processor that would finish it sooner if there were no
  // other expert. The device's time includes the transfer.
  kThreshold,
  // KTransformers: the device computes the experts that it has, and the host computes the rest. Nothing travels.
  kFixed,
};

// The memory that holds the KV cache.
enum class KvTier : uint8_t { kDram, kDevice };

// The processor that attends to prompts under schedules that attend on the host (cgopipe and its relatives). On the
// device, their KV entries are copied there and back, as under zigzag.
enum class PromptAttention : uint8_t { kHost, kDevice };

// With eviction static, some experts never leave their tier: equally many of each layer, or all of the first layers.
enum class PinnedExperts : uint8_t { kEvenly, kLayers };

// How several ranks divide attention: by sequences (data parallelism), or by heads (tensor parallelism).
enum class AttentionParallel : uint8_t { kSequences, kHeads };

// How several ranks divide experts: each whole on one rank (expert parallelism), or a part of each on every rank
// (tensor parallelism). Parts are added up, so answers then depend on the number of ranks in their last bits.
enum class ExpertParallel : uint8_t { kWhole, kCut };

// Settings of the schedule. They do not change answers, except where they say so. The engine chooses those that are
// left open.
struct Policy {
  // Default: klotski when experts stream, otherwise on-demand. For a batch of one sequence it is on-demand if the
  // experts of two tokens fit.
  std::optional<ScheduleKind> schedule = {};
  // Default: the schedule's own (ScheduleTraits): lru for on-demand, mrs for hybrid, otherwise static.
  std::optional<Eviction> eviction = {};
  int64_t micro_batch_size = 0;  // sequences that go through a layer together; 0: all of a pass, with a device 32
  // Default: kDevice for zero and hybrid, and for a device that has room for all experts as well; otherwise kDram.
  std::optional<KvTier> kv_tier = {};
  // Default: kDevice if the device has room for the KV entries of two micro-batches.
  std::optional<PromptAttention> prompt_attention = {};
  std::optional<PinnedExperts> pinned_experts = {};  // with eviction static; default: kEvenly
  // Slots in DRAM for which the KV cache leaves room, giving up to half of its pages away; 0: what it leaves.
  int64_t expert_slots = 0;
  // Slots that no pinned expert holds (eviction static); 0: as many as the schedule can use.
  int64_t streaming_slots = 0;
  // With a device: the number of layers whose experts are read from disk into DRAM ahead of the device. 0: as many
  // experts as keep the disk busy, so that more experts can stay in DRAM.
  int64_t disk_window = 0;
  int64_t hot_experts = 0;  // klotski: experts fetched ahead for each layer; 0: all that are probably needed
  std::optional<AttentionParallel> attention_parallel = {};  // on several ranks; default: kSequences
  std::optional<ExpertParallel> expert_parallel = {};        // on several ranks; default: kWhole. kCut changes answers
  // On several ranks with whole experts: a routing trace (EngineOptions::routing_path). The ranks get experts that it
  // counts about equally often. If empty, each rank gets neighbouring experts.
  std::string expert_placement = {};
  int64_t expert_replicas = 0;  // with expert_placement: the further experts of each layer that each rank holds
  // On several ranks: the groups into which a rank's experts are cut. The rows of a group travel while another group is
  // computed. 0: as many as are fastest by the measured network, 1: nothing overlaps.
  int64_t expert_groups = 0;
  int64_t path_length = 1;  // klotski: number of earlier layers that predict a layer's experts; 0 to 3
  // klotski: the correlation table to begin with, written by an earlier run (EngineOptions::correlation_path). If
  // empty, klotski begins without one and learns while it runs. hybrid and on-demand with eviction static: the experts
  // that the table counts most often never leave.
  std::string correlation_table = {};
  // The three ideas of klotski, each of which can be switched off for ablations.
  bool multi_batch = true;
  bool hot_prefetch = true;
  bool reorder = true;
  std::optional<HybridRule> hybrid_rule = {};  // hybrid with a device; default: kBalanced
  // hybrid: the predictor of the experts to fetch ahead. Default: the one that penstock bench routing found best for
  // the model, and with a default eviction also its best eviction. None if it never ran.
  std::optional<PredictorKind> predictor = {};
  std::string predictor_path = {};  // of the network of kSida, written by tools/train_predictor; only read with kSida
  // kSida: routers are left out, and each token takes the experts and weights that the network names (SiDA). Answers
  // then differ. Without it, predictions only move experts.
  bool predictor_replaces_routers = false;
};

}  // namespace penstock
