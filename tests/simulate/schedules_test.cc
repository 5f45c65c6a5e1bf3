// Proves the purpose of each schedule in virtual time. Every operation of every layer is issued once for every row, and
// no schedule uses more slots than it has. Where the disk is the limit, Klotski never lets it wait. Klotski is no
// slower than zigzag, and zigzag no slower than zero. Runs are deterministic, and no step is faster than its bound.
#include "penstock/simulate/pass_simulator.h"

#include <map>

#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

#include "penstock/routing/generated_routing.h"

namespace penstock {
namespace {

constexpr double kFlops = 1e12;
constexpr double kMemoryBytes = 25e9;

struct Scenario {
  ScheduleOptions schedule;
  Eviction eviction = Eviction::kStatic;
  int64_t num_layers = 8;
  int64_t num_experts = 8;
  int64_t num_topk = 2;
  int64_t num_slots = 40;
  int64_t num_streaming = 4;
  int64_t num_rows = 64;
  int64_t micro_batch = 64;
  double skew = 0;
  double disk_bytes_per_s = 2e9;
  int num_steps = 6;
  // A device computes the layers, and all experts are in DRAM.
  bool device = false;
  int64_t num_dram_slots = 0;  // with a device; 0: for all experts
  double link_bytes_per_s = 4e9;
  int64_t context = 100;         // positions before the first step
  double host_is_slower_by = 1;  // factor by which the host is slower than the device
  double compression = 0;        // factor by which experts are smaller on disk; 0: they are not compressed
};

struct Outcome {
  std::vector<double> step_s;
  double disk_busy_s = 0;     // after the first step, like the next ones
  double compute_busy_s = 0;  // busy time of the processor that computes the layers
  double host_busy_s = 0;
  double link_busy_s = 0;
  ExpertCounters counters;  // after the first step
  uint64_t expert_bytes = 0;
  std::map<std::string, int64_t> num_tasks;

  double last_step_s() const { return step_s.back(); }
  double later_s() const {
    double sum = 0;
    for (size_t i = 1; i < step_s.size(); ++i) sum += step_s[i];
    return sum;
  }
};

class TaskCounter : public TaskSink {
 public:
  explicit TaskCounter(std::map<std::string, int64_t>& counts) : counts_(&counts) {}
  void AddLane(LaneIdx, std::string_view) override {}
  void AddTask(LaneIdx, const TaskLabel& label, const TaskCost&, double, double) override {
    ++(*counts_)[std::string(label.name)];
  }

 private:
  std::map<std::string, int64_t>* counts_;
};

Outcome Simulate(const Scenario& scenario) {
  ModelConfig config;
  config.vocab_size = 32000;
  config.model_dim = 2048;
  config.num_layers = scenario.num_layers;
  config.num_heads = 16;
  config.num_kv_heads = 4;
  config.head_dim = 128;
  config.num_experts = scenario.num_experts;
  config.num_topk = scenario.num_topk;
  config.expert_dim = 5632;
  config.layer_has_experts.assign(scenario.num_layers, true);
  const ModelFormats formats = {.attention = WeightFormat::kInt8,
                                .ffn = WeightFormat::kInt8,
                                .lm_head = WeightFormat::kInt8,
                                .kv = KvFormat::kBF16};
  const auto compute_time = [](const TaskCost& task) {
    return std::max(task.flops / kFlops, static_cast<double>(task.memory_bytes) / kMemoryBytes);
  };
  Outcome outcome;
  outcome.expert_bytes = ModelCost(config, formats).expert_bytes();
  TaskCounter counter(outcome.num_tasks);
  PassSimulator::Args args{
      .config = config,
      .formats = formats,
      .expert_bytes = outcome.expert_bytes,
      .schedule = scenario.schedule,
      .eviction = scenario.eviction,
      .rates = {.host_compute = compute_time, .disk_to_dram = TransferTime(scenario.disk_bytes_per_s)},
      .sink = &counter};
  if (scenario.compression > 0) {
    args.compressed_bytes = static_cast<uint64_t>(static_cast<double>(args.expert_bytes) / scenario.compression);
  }
  const ExpertRoom room = {.num_slots = scenario.num_slots,
                           .num_pinned = std::max<int64_t>(0, scenario.num_slots - scenario.num_streaming)};
  args.dram = room;
  if (scenario.device) {
    args.dram = {.num_slots = scenario.num_layers * scenario.num_experts};
    if (scenario.num_dram_slots > 0) {
      args.dram = {.num_slots = scenario.num_dram_slots, .num_pinned = scenario.num_dram_slots - 4};
    }
    args.device = {.room = room,
                   .staged_pages = scenario.micro_batch * KvCache::PagesFor(scenario.context + scenario.num_steps)};
    args.rates.device_compute = compute_time;
    args.rates.host_compute = [=](const TaskCost& task) { return scenario.host_is_slower_by * compute_time(task); };
    args.rates.dram_to_device = args.rates.device_to_dram = TransferTime(scenario.link_bytes_per_s);
    args.rates.dram_to_pinned = TransferTime(5 * scenario.link_bytes_per_s);
  }
  const auto simulator = PassSimulator::Create(args).value();
  GeneratedRouting routing(config.num_experts, config.num_topk, {.skew = scenario.skew, .seed = 1});
  for (int step = 0; step < scenario.num_steps; ++step) {
    RowBatch batch;
    std::vector<RowRange> micro_batches;
    for (int64_t row_idx = 0; row_idx < scenario.num_rows; ++row_idx) {
      batch.AddRow(1, scenario.context + step, {}, static_cast<uint32_t>(row_idx), {});
      batch.logit_rows.push_back(row_idx);
    }
    for (int64_t begin = 0; begin < scenario.num_rows; begin += scenario.micro_batch) {
      micro_batches.push_back({begin, std::min(begin + scenario.micro_batch, scenario.num_rows)});
    }
    if (step == 1) {
      simulator->ResetUsage();
      outcome.num_tasks.clear();
    }
    outcome.step_s.push_back(simulator->Run(batch, micro_batches, routing));
    routing.NextStep();
  }
  std::map<std::string, double> busy_s;
  for (const LaneUsage& usage : simulator->Usage()) busy_s[usage.name] = usage.busy_s;
  outcome.host_busy_s = busy_s["host_compute"];
  outcome.compute_busy_s = busy_s[scenario.device ? "device_compute" : "host_compute"];
  outcome.disk_busy_s = busy_s["disk_to_dram"];
  outcome.link_busy_s = busy_s["dram_to_device"];
  outcome.counters = simulator->counters();
  return outcome;
}

Scenario With(ScheduleKind kind) {
  Scenario scenario;
  scenario.schedule.kind = kind;
  if (TraitsOf(kind).is_layer_by_layer) scenario.num_streaming = 16;
  scenario.device = TraitsOf(kind).attends_on_host;
  return scenario;
}

TEST(Schedules, IssueEveryOperationOnce) {
  for (const ScheduleTraits& traits : Schedules()) {
    const ScheduleKind kind = traits.value;
    SCOPED_TRACE(traits.name);
    Scenario scenario = With(kind);
    scenario.micro_batch = 16;
    const Outcome outcome = Simulate(scenario);
    const int64_t num_steps = scenario.num_steps - 1, per_layer = num_steps * scenario.num_layers;
    const bool in_micro_batches = kind != ScheduleKind::kOnDemand && kind != ScheduleKind::kHybrid;
    const bool in_groups = !TraitsOf(kind).is_layer_by_layer;
    EXPECT_EQ(outcome.num_tasks.at("attention"), per_layer * 4);
    EXPECT_EQ(outcome.num_tasks.at("logits"), num_steps * 4);
    if (TraitsOf(kind).attends_on_host) {
      for (const char* name : {"pre-attention", "offload qkv", "post-attention", "experts"}) {
        EXPECT_EQ(outcome.num_tasks.at(name), per_layer * 4) << name;
      }
      // Embeddings, and results of the host's attention.
      EXPECT_EQ(outcome.num_tasks.at("load hidden"), num_steps * 4 + per_layer * 4);
      continue;
    }
    EXPECT_EQ(outcome.num_tasks.at("route"), per_layer * (in_micro_batches ? 4 : 1));
    EXPECT_EQ(outcome.num_tasks.at("combine"), per_layer * (in_groups ? 1 : 4));
  }
}

TEST(Schedules, KlotskisDiskNeverWaitsWhereItIsTheLimit) {
  for (const int64_t micro_batch : {64, 16}) {
    Scenario scenario = With(ScheduleKind::kKlotski);
    scenario.micro_batch = micro_batch;
    const Outcome outcome = Simulate(scenario);
    EXPECT_LT(outcome.compute_busy_s, outcome.disk_busy_s);
    EXPECT_GT(outcome.disk_busy_s / outcome.later_s(), 0.98);
    // Pinned experts are never read again. With 64 rows every other expert is read once per step.
    EXPECT_EQ(outcome.counters.misses + outcome.counters.prefetched, 5 * (64 - 36));
    EXPECT_EQ(outcome.counters.prefetch_used, outcome.counters.prefetched);
  }
}

TEST(Schedules, OnDemandReadsAheadForRowsThatChooseNearlyAllExperts) {
  for (const Eviction eviction : {Eviction::kMrsLayer, Eviction::kLru, Eviction::kStatic}) {
    SCOPED_TRACE(TraitsOf(eviction).name);
    Scenario scenario = With(ScheduleKind::kOnDemand);
    scenario.eviction = eviction;
    const Outcome many = Simulate(scenario);
    EXPECT_GT(many.counters.prefetched, many.counters.misses);
    EXPECT_EQ(many.counters.prefetch_used, many.counters.prefetched);
    EXPECT_GT(many.disk_busy_s / many.later_s(), 0.95);
    // Four rows are expected to choose 68 % of the experts, five 76 %.
    scenario.num_rows = 4;
    EXPECT_EQ(Simulate(scenario).counters.prefetched, 0);
    scenario.num_rows = 5;
    EXPECT_GT(Simulate(scenario).counters.prefetched, 0);
    scenario.device = true;
    EXPECT_EQ(Simulate(scenario).counters.prefetched, 0);
  }
}

// The processor decodes in no time here, and the disk is the limit.
TEST(Schedules, CompressedExpertsAreReadFaster) {
  for (const ScheduleTraits& traits : Schedules()) {
    SCOPED_TRACE(traits.name);
    Scenario plain = With(traits.value);
    plain.num_dram_slots = plain.device ? 40 : 0;
    Scenario compressed = plain;
    compressed.compression = 1.5;
    const Outcome of_plain = Simulate(plain), of_compressed = Simulate(compressed);
    EXPECT_NEAR(of_plain.disk_busy_s / of_compressed.disk_busy_s, 1.5, 0.01);
    EXPECT_LT(of_compressed.later_s(), of_plain.later_s());
    EXPECT_NEAR(of_compressed.link_busy_s, of_plain.link_busy_s, 1e-9);  // a device gets decoded experts
  }
}

TEST(Schedules, ABatchOfMicroBatchesSharesItsReads) {
  Scenario zero = With(ScheduleKind::kZero), zigzag = With(ScheduleKind::kZigzag);
  zero.micro_batch = zigzag.micro_batch = 16;
  EXPECT_LT(Simulate(zigzag).later_s(), 0.3 * Simulate(zero).later_s());
}

TEST(Schedules, EachOfKlotskisIdeasHelpsOrDoesNoHarm) {
  Scenario zigzag = With(ScheduleKind::kZigzag), klotski = With(ScheduleKind::kKlotski);
  // Computing and reading take about equally long, so the order matters.
  for (Scenario* scenario : {&zigzag, &klotski}) {
    scenario->disk_bytes_per_s = 8e9;
    scenario->micro_batch = 16;
  }
  Scenario in_order = klotski, cold = klotski;
  in_order.schedule.reorder = false;
  cold.schedule.hot_prefetch = false;
  const double klotski_s = Simulate(klotski).later_s();
  EXPECT_LT(Simulate(in_order).later_s(), Simulate(zigzag).later_s());
  EXPECT_LE(klotski_s, Simulate(in_order).later_s());
  EXPECT_LT(klotski_s, Simulate(cold).later_s());
}

// Has so many sequences that computing a layer takes about as long as fetching its experts. Attention takes half of the
// computing time.
Scenario OnDevice(ScheduleKind kind) {
  Scenario scenario = With(kind);
  scenario.device = true;
  scenario.num_slots = 20;
  scenario.num_streaming = 16;
  scenario.num_rows = 384;
  scenario.context = 1400;
  return scenario;
}

TEST(Schedules, HotExpertsDoNotDelayKvEntries) {
  // Decoding sequences with long contexts: their KV entries take as long to copy as a layer's experts.
  for (const int64_t context : {1000, 4000}) {
    Scenario hot = OnDevice(ScheduleKind::kKlotski);
    hot.num_slots = 12;
    hot.num_streaming = 3;
    hot.micro_batch = 32;
    hot.context = context;
    Scenario cold = hot, two = hot;
    cold.schedule.hot_prefetch = false;
    two.schedule.hot_experts = 2;
    const double hot_s = Simulate(hot).later_s();
    EXPECT_LT(hot_s, Simulate(cold).later_s()) << context;
    EXPECT_LE(hot_s, 1.001 * Simulate(two).later_s()) << context;
  }
}

TEST(Schedules, KlotskiLearnsWhichExpertsAreWantedMost) {
  Scenario scenario = With(ScheduleKind::kKlotski);
  scenario.num_steps = 12;
  const auto accuracy = [&] {
    const ExpertCounters counters = Simulate(scenario).counters;
    // Two experts of each of 8 layers, in 11 steps.
    EXPECT_EQ(counters.named_hot, 2 * 8 * 11);
    return static_cast<double>(counters.named_right) / static_cast<double>(counters.named_hot);
  };
  EXPECT_LT(accuracy(), 0.6);  // equally likely experts
  scenario.skew = 1;
  EXPECT_GT(accuracy(), 0.9);
}

TEST(Schedules, APinnedShareBeatsACacheInAScan) {
  Scenario pinned = With(ScheduleKind::kKlotski);
  Scenario cache = pinned;
  cache.eviction = Eviction::kLru;
  EXPECT_LT(Simulate(pinned).counters.bytes_read, Simulate(cache).counters.bytes_read / 2 + 1);
}

TEST(Schedules, CgopipeIsTheFastestOfThoseForADevice) {
  const Outcome cgopipe = Simulate(OnDevice(ScheduleKind::kCgopipe));
  const double fastdecode_s = Simulate(OnDevice(ScheduleKind::kFastdecode)).later_s();
  const double host_attention_s = Simulate(OnDevice(ScheduleKind::kZigzagCpuAttention)).later_s();
  const double device_attention_s = Simulate(OnDevice(ScheduleKind::kZigzag)).later_s();
  EXPECT_GT(cgopipe.compute_busy_s / cgopipe.later_s(), 0.85);  // less than 1 because of bubbles
  EXPECT_LT(1.1 * cgopipe.later_s(), fastdecode_s);
  EXPECT_LT(fastdecode_s, host_attention_s);
  EXPECT_LT(1.3 * cgopipe.later_s(), host_attention_s);
  EXPECT_LT(1.5 * cgopipe.later_s(), device_attention_s);
}

// Not even DRAM holds the model. The device has room for two layers, for one layer and a few experts, or for one layer.
// Weight pages keep the disk busy while everything else runs. Whole layers, choices that gates must make first, and a
// device with one layer make the disk wait while the device computes, but never longer. Klotski's disk reads for later
// layers meanwhile, and waits less.
TEST(Schedules, BelowADeviceTheDiskGoesOnWhereItIsTheLimit) {
  for (const ScheduleKind kind :
       {ScheduleKind::kCgopipe, ScheduleKind::kFastdecode, ScheduleKind::kZigzag, ScheduleKind::kKlotski}) {
    for (const int64_t num_slots : {20, 16, 8}) {
      Scenario scenario = OnDevice(kind);
      scenario.context = 100;
      scenario.num_slots = num_slots;
      scenario.num_streaming = num_slots;
      scenario.num_dram_slots = 24;
      const Outcome outcome = Simulate(scenario);
      const bool overlaps = kind == ScheduleKind::kCgopipe && num_slots >= 16;
      const double least = overlaps ? 0.95 : kind == ScheduleKind::kKlotski ? 0.8 : 0.6;
      EXPECT_GT(outcome.disk_busy_s / outcome.later_s(), least) << TraitsOf(kind).name << ", " << num_slots << " slots";
    }
  }
}

TEST(Schedules, OnADeviceAttentionTakesTheKvCacheAlong) {
  const Outcome on_device = Simulate(OnDevice(ScheduleKind::kZigzag));
  const Outcome on_host = Simulate(OnDevice(ScheduleKind::kCgopipe));
  const double kv_bytes = 384.0 * 1400 * 4 * 128 * 2 * 2;  // bytes of one layer
  EXPECT_GT((on_device.link_busy_s - on_host.link_busy_s) * 4e9, 0.9 * 5 * 8 * kv_bytes);
  EXPECT_GT(on_host.host_busy_s, 0.3 * on_host.later_s());
  EXPECT_LT(on_device.host_busy_s, 0.05 * on_device.later_s());
}

// A few sequences, and a device four times as fast as the host. The link transfers one expert while the host computes
// two.
Scenario FewRowsOnDevice(HybridRule rule, Eviction eviction) {
  Scenario scenario = With(ScheduleKind::kHybrid);
  scenario.schedule.hybrid_rule = rule;
  scenario.eviction = eviction;
  scenario.device = true;
  scenario.num_experts = 16;
  scenario.num_topk = 4;
  scenario.num_slots = 32;
  scenario.num_streaming = 32;
  scenario.num_rows = 4;
  scenario.skew = 0.8;
  scenario.num_steps = 20;
  scenario.host_is_slower_by = 4;
  scenario.link_bytes_per_s = kMemoryBytes / 8;
  return scenario;
}

TEST(Schedules, HybridComputesEachExpertWhereItIsSooner) {
  const double balanced_s = Simulate(FewRowsOnDevice(HybridRule::kBalanced, Eviction::kMrs)).later_s();
  for (const HybridRuleTraits& rule : HybridRules()) {
    EXPECT_GE(Simulate(FewRowsOnDevice(rule.value, Eviction::kMrs)).later_s(), 0.999 * balanced_s) << rule.name;
  }
  for (const HybridRule rule : {HybridRule::kThreshold, HybridRule::kFixed}) {
    EXPECT_LT(1.3 * balanced_s, Simulate(FewRowsOnDevice(rule, Eviction::kMrs)).later_s()) << TraitsOf(rule).name;
  }
  Scenario on_demand = FewRowsOnDevice(HybridRule::kBalanced, Eviction::kLru);
  on_demand.schedule.kind = ScheduleKind::kOnDemand;
  EXPECT_LT(2 * balanced_s, Simulate(on_demand).later_s());
}

TEST(Schedules, HybridFetchesAheadWhatItWillNeed) {
  for (const bool device : {true, false}) {
    SCOPED_TRACE(device ? "device" : "disk");
    Scenario none = FewRowsOnDevice(HybridRule::kBalanced, Eviction::kMrs);
    none.device = device;
    none.schedule.predictor = PredictorKind::kNone;
    // One token wants few experts of a layer, so little is computed while missing experts arrive.
    none.num_rows = 1;
    none.host_is_slower_by = 20;
    none.link_bytes_per_s = none.disk_bytes_per_s = 6e9;
    Scenario oracle = none;
    oracle.schedule.predictor = PredictorKind::kOracle;
    const Outcome without = Simulate(none), with = Simulate(oracle);
    EXPECT_EQ(without.counters.prefetched, 0);
    EXPECT_GT(with.counters.prefetched, 0);
    EXPECT_GT(with.counters.prefetch_used, 0.9 * static_cast<double>(with.counters.prefetched));
    EXPECT_LT(1.05 * with.later_s(), without.later_s());
  }
}

// The device's experts come from the disk. Prefetching must not keep the link waiting for the disk, and nothing is read
// twice.
TEST(Schedules, HybridDoesNotFetchAheadThroughTheDisk) {
  Scenario none = FewRowsOnDevice(HybridRule::kBalanced, Eviction::kMrs);
  none.num_dram_slots = 64;
  none.schedule.predictor = PredictorKind::kNone;
  Scenario oracle = none, fixed = none;
  oracle.schedule.predictor = PredictorKind::kOracle;
  EXPECT_LT(Simulate(oracle).later_s(), 1.02 * Simulate(none).later_s());
  fixed.schedule.hybrid_rule = HybridRule::kFixed;
  fixed.schedule.predictor = PredictorKind::kOracle;
  EXPECT_EQ(Simulate(fixed).counters.prefetched, 0);
}

// Experts that nobody will want are fetched only while there is nothing else to do.
TEST(Schedules, WrongPredictionsCostLittle) {
  for (const bool device : {true, false}) {
    SCOPED_TRACE(device ? "device" : "disk");
    Scenario none = FewRowsOnDevice(HybridRule::kBalanced, Eviction::kMrs);
    none.device = device;
    none.skew = 0;
    none.schedule.predictor = PredictorKind::kNone;
    Scenario history = none;
    history.schedule.predictor = PredictorKind::kHistory;
    EXPECT_LT(Simulate(history).later_s(), 1.15 * Simulate(none).later_s());
  }
}

RC_GTEST_PROP(Schedules, AreDeterministicAndNeverFasterThanTheirBound, ()) {
  Scenario scenario;
  scenario.schedule.kind = Schedules()[*rc::gen::inRange<size_t>(0, Schedules().size())].value;
  scenario.device = TraitsOf(scenario.schedule.kind).attends_on_host || *rc::gen::arbitrary<bool>();
  scenario.schedule.multi_batch = *rc::gen::arbitrary<bool>();
  scenario.schedule.hot_prefetch = *rc::gen::arbitrary<bool>();
  scenario.schedule.reorder = *rc::gen::arbitrary<bool>();
  scenario.eviction = Evictions()[*rc::gen::inRange<size_t>(0, Evictions().size())].value;
  scenario.num_layers = *rc::gen::inRange<int64_t>(1, 5);
  scenario.num_experts = *rc::gen::inRange<int64_t>(2, 12);
  scenario.num_topk = *rc::gen::inRange<int64_t>(1, scenario.num_experts + 1);
  const int64_t min = std::max<int64_t>(2, scenario.num_experts);
  scenario.num_slots = *rc::gen::inRange<int64_t>(min, scenario.num_experts * scenario.num_layers + min + 1);
  scenario.num_slots = std::min(scenario.num_slots, scenario.num_experts * scenario.num_layers);
  scenario.num_streaming = std::min(scenario.num_slots, *rc::gen::inRange<int64_t>(min, 2 * min));
  scenario.num_rows = *rc::gen::inRange<int64_t>(1, 40);
  scenario.micro_batch = *rc::gen::inRange<int64_t>(1, 41);
  scenario.skew = 0.25 * *rc::gen::inRange(0, 8);
  scenario.num_steps = 3;
  const Outcome outcome = Simulate(scenario), again = Simulate(scenario);
  RC_ASSERT(outcome.step_s == again.step_s);
  RC_ASSERT(outcome.counters.bytes_read == again.counters.bytes_read);
  // A lane does one task at a time. Reading ahead for the next step is limited by the slots.
  const double slack_s = static_cast<double>(scenario.num_slots) * static_cast<double>(outcome.expert_bytes) / 2e9;
  RC_ASSERT(outcome.compute_busy_s <= outcome.later_s() * 1.000001);
  RC_ASSERT(outcome.disk_busy_s <= outcome.later_s() + slack_s);
}

}  // namespace
}  // namespace penstock
