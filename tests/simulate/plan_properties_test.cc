// Proves the planner on random machines, models and workloads. Its policy is within 5 % of the best policy of a grid in
// whole simulations (except in 2 % of the cases). No plan exceeds its budgets. More memory, faster links and faster
// processors never make a plan slower.
#include <cmath>
#include <filesystem>
#include <memory>
#include <random>

#include <gmock/gmock.h>
#include <unistd.h>

#include "penstock/base/bytes.h"
#include "penstock/base/status.h"
#include "penstock/hardware/presets.h"
#include "penstock/simulate/policy_search.h"
#include "tests/choices.h"
#include "tests/environment.h"

namespace penstock {
namespace {

// A machine, a model and a workload.
struct Triple {
  std::string words;
  Hardware hardware;
  std::shared_ptr<const DescribedModel> model;
  Workload workload;
  EngineOptions options;
};

class PlanProperties : public testing::Test {
 protected:
  PlanProperties() : random_(FromEnvironment("PENSTOCK_TEST_SEED", 1)) {
    path_ = testing::TempDir() + "/plan-properties-" + std::to_string(::getpid()) + ".json";
  }
  ~PlanProperties() override { std::filesystem::remove(path_); }

  // Returns the number of triples, scaled by PENSTOCK_TEST_COMBINATIONS.
  static int NumTriples(int whole) {
    return static_cast<int>(std::max<uint64_t>(1, FromEnvironment("PENSTOCK_TEST_COMBINATIONS", 33) * whole / 1100));
  }

  int64_t Pick(std::initializer_list<int64_t> list) { return std::data(list)[random_() % list.size()]; }
  double Real(double low, double high) {
    return low * std::pow(high / low, std::uniform_real_distribution<double>()(random_));
  }

  Triple Next() {
    const int64_t num_experts = Pick({4, 8, 16}), num_heads = Pick({4, 8});
    const json::object config = {{"architectures", json::array{"MixtralForCausalLM"}},
                                 {"model_type", "mixtral"},
                                 {"hidden_act", "silu"},
                                 {"hidden_size", num_heads * 64},
                                 {"intermediate_size", Pick({512, 1024, 2048})},
                                 {"max_position_embeddings", 4096},
                                 {"num_attention_heads", num_heads},
                                 {"num_key_value_heads", Pick({2, 4})},
                                 {"num_experts_per_tok", Pick({1, 2, 4})},
                                 {"num_hidden_layers", Pick({3, 4, 6})},
                                 {"num_local_experts", num_experts},
                                 {"vocab_size", 1000}};
    Write(json::serialize(config));
    const std::string format = Pick({0, 1}) == 0 ? "int8" : "bf16";
    auto model = std::make_shared<const DescribedModel>(DescribedModel::FromConfig(path_, format).value());
    Hardware hardware = HardwarePreset(Pick({0, 1}) == 0 ? "none" : Pick({0, 1}) == 0 ? "l4" : "rtx4090").value();
    for (Link& link : hardware.links) link.SetRate(link.bytes_per_s * Real(0.05, 1));
    for (Processor& processor : hardware.processors) {
      processor.compute_efficiency *= Real(0.02, 1);
      processor.memory_efficiency *= Real(0.1, 1);
    }
    Workload workload{
        .num_requests = Pick({1, 4, 16, 32}), .prompt_tokens = Pick({4, 16, 64}), .new_tokens = Pick({2, 8})};
    workload.max_prompt_tokens = workload.prompt_tokens;
    EngineOptions options;
    const auto bytes = static_cast<double>(model->weights_bytes());
    constexpr double kTables = 80e6;
    options.memory_bytes = static_cast<uint64_t>(kTables + bytes * Real(0.3, 2));
    const bool has_device = hardware.FindTier("device") != nullptr;
    if (has_device) options.device_memory_bytes = static_cast<uint64_t>(20e6 + bytes * Real(0.2, 1));
    std::string words = fmt::format("{} in {}; DRAM {}, device {}; {} requests of {} + {}", json::serialize(config),
                                    format, FormatBytes(options.memory_bytes), FormatBytes(options.device_memory_bytes),
                                    workload.num_requests, workload.prompt_tokens, workload.new_tokens);
    return {std::move(words), std::move(hardware), std::move(model), workload, std::move(options)};
  }

  static std::string Words(const PolicyChoice& choice) {
    return fmt::format("{} on {}, N {}, micro-batches of {}, {} prompt rows",
                       TraitsOf(*choice.options.policy.schedule).name, choice.options.device, choice.options.batch_size,
                       choice.options.policy.micro_batch_size, choice.options.prefill_chunk);
  }
  static absl::StatusOr<std::vector<PolicyChoice>> Search(const Triple& t) {
    return SearchPolicies(*t.model, t.hardware, t.workload, t.options);
  }
  // Returns the tokens per second of a policy in the whole simulation; 0 when it cannot run.
  static double Simulated(const Triple& t, const EngineOptions& asked) {
    const absl::StatusOr<EngineOptions> options = OptionsFor(asked, t.hardware, t.workload);
    if (!options.ok()) return 0;
    const absl::StatusOr<EnginePlan> plan = PlanOn(t.hardware, *options, *t.model);
    if (!plan.ok()) return 0;
    const SimulationInputs inputs{.config = t.model->config(), .plan = *plan, .num_threads = options->threads};
    const absl::StatusOr<SimulatedRun> run = SimulateWorkload(inputs, t.hardware, t.workload);
    return run.ok() ? run->generation_tokens_per_s() : 0;
  }

 private:
  void Write(const std::string& text) {
    std::FILE* file = std::fopen(path_.c_str(), "w");
    std::fputs(text.c_str(), file);
    std::fclose(file);
  }

  std::mt19937_64 random_;
  std::string path_;
};

TEST_F(PlanProperties, TheChoiceIsNearTheBestOfAllPolicies) {
  const int num_triples = NumTriples(200);
  int num_planned = 0, num_far = 0;
  for (int i = 0; i < num_triples; ++i) {
    const Triple t = Next();
    SCOPED_TRACE(t.words);
    const auto choices = Search(t);
    if (!choices.ok()) {
      EXPECT_EQ(FaultOf(choices.status()), Fault::kResources) << choices.status();
      continue;
    }
    ++num_planned;
    const double chosen = Simulated(t, choices->front().options);
    double best = 0;
    std::string best_words;
    for (const char* device : {"cpu", "gpu"}) {
      if (device == std::string("gpu") && t.options.device_memory_bytes == 0) continue;
      for (const ScheduleTraits& schedule : Schedules()) {
        if (schedule.attends_on_host && device == std::string("cpu")) continue;
        for (int64_t batch_size = 1; batch_size <= t.workload.num_requests; batch_size *= 2) {
          for (int64_t micro_batch = 1; micro_batch <= batch_size; micro_batch *= 2) {
            if (device == std::string("cpu") && micro_batch < batch_size) continue;
            for (const int64_t chunk : {32, 256, 2048}) {
              for (const KvTierTraits& kv_tier : KvTiers()) {
                EngineOptions options = t.options;
                options.device = device;
                if (device == std::string("cpu")) {
                  options.device_memory_bytes = 0;
                  if (kv_tier.value == KvTier::kDevice) continue;
                }
                options.policy.schedule = schedule.value;
                options.policy.kv_tier = kv_tier.value;
                options.batch_size = batch_size;
                if (device == std::string("gpu")) options.policy.micro_batch_size = micro_batch;
                options.prefill_chunk = chunk;
                const double rate = Simulated(t, options);
                if (rate <= best) continue;
                best = rate;
                best_words = fmt::format("{} on {} N={} mu={} chunk={} KV {}", schedule.name, device, batch_size,
                                         micro_batch, chunk, kv_tier.name);
              }
            }
          }
        }
      }
    }
    const EngineOptions& o = choices->front().options;
    if (chosen >= 0.95 * best) continue;
    ++num_far;
    GTEST_LOG_(INFO) << chosen << " tokens/s of " << best << " with " << t.words
                     << "; chosen: " << ChoiceName(o.policy.schedule, Schedules()) << " on " << o.device
                     << " N=" << o.batch_size << " mu=" << o.policy.micro_batch_size << " chunk=" << o.prefill_chunk
                     << " KV " << ChoiceName(o.policy.kv_tier, KvTiers()) << ", estimated "
                     << choices->front().estimate.generation_tokens_per_s() << "; best: " << best_words;
  }
  EXPECT_LE(50 * num_far, num_triples);
  EXPECT_GT(num_planned, num_triples / 2);
}

TEST_F(PlanProperties, NoPlanTakesMoreThanItsBudgets) {
  const int num_triples = NumTriples(2000);
  for (int i = 0; i < num_triples; ++i) {
    const Triple t = Next();
    SCOPED_TRACE(t.words);
    const auto choices = Search(t);
    if (!choices.ok()) continue;
    for (const PolicyChoice& choice : *choices) {
      const MemoryPlan& plan = choice.plan;
      const uint64_t kv_bytes = plan.device.holds_kv_cache ? 0 : plan.kv_bytes;
      EXPECT_LE(plan.fixed_bytes + plan.dense_bytes + kv_bytes + plan.activation_bytes + plan.expert_bytes,
                t.options.memory_bytes);
      const DevicePlan& device = plan.device;
      EXPECT_LE(device.dense_bytes + device.kv_bytes + device.activation_bytes + device.expert_bytes,
                t.options.device_memory_bytes);
      EXPECT_LE(plan.num_pinned_experts, plan.num_expert_slots);
      EXPECT_LE(device.num_pinned_experts, device.num_expert_slots);
    }
  }
}

TEST_F(PlanProperties, BetterHardwareIsNeverSlower) {
  const int num_triples = NumTriples(200);
  for (int i = 0; i < num_triples; ++i) {
    Triple t = Next();
    SCOPED_TRACE(t.words);
    const auto base = Search(t);
    if (!base.ok()) continue;
    const double rate = base->front().estimate.generation_tokens_per_s();
    const auto expect_no_slower = [&](const Triple& better, const char* what) {
      const auto choices = Search(better);
      ASSERT_TRUE(choices.ok()) << what << ": " << choices.status();
      EXPECT_GE(choices->front().estimate.generation_tokens_per_s(), 0.97 * rate)
          << what << ": " << Words(base->front()) << "; then " << Words(choices->front());
    };
    Triple better = t;
    better.options.memory_bytes *= 2;
    expect_no_slower(better, "twice the DRAM");
    better = t;
    better.options.device_memory_bytes *= 2;
    if (t.options.device_memory_bytes > 0) expect_no_slower(better, "twice the device's memory");
    better = t;
    for (Link& link : better.hardware.links) link.SetRate(2 * link.bytes_per_s);
    expect_no_slower(better, "links twice as fast");
    better = t;
    for (Processor& processor : better.hardware.processors) {
      for (ComputePeak& peak : processor.peaks) {
        for (ComputeRate& compute_rate : peak.rates) compute_rate.ops_per_s *= 2;
      }
    }
    expect_no_slower(better, "processors twice as fast");
  }
}

}  // namespace
}  // namespace penstock
