// Proves that answers do not depend on the policy. Random combinations of schedule, eviction, batch, micro-batch,
// chunk, budget, streaming slots, threads and Klotski's switches run on every golden model, with the CPU alone and with
// an emulated device. All give the bits of a plain engine with all experts resident. PENSTOCK_TEST_COMBINATIONS (88)
// sets their number, PENSTOCK_TEST_SEED (1) their choice.
#include <filesystem>

#include <fmt/format.h>
#include <unistd.h>

#include "penstock/base/status.h"
#include "penstock/memory/eviction.h"
#include "penstock/plan/described_model.h"
#include "penstock/schedule/schedule.h"
#include "tests/choices.h"
#include "tests/draw.h"
#include "tests/engine/answers.h"
#include "tests/environment.h"
#include "tests/sida_file.h"

namespace penstock {
namespace {

EngineOptions RandomOptions(const EngineOptions& base, Draw& draw) {
  EngineOptions options = base;
  options.threads = draw.From({1, 2, 3});
  options.batch_size = draw.From<int64_t>({0, 1, 3, 5, 64});
  options.prefill_chunk = draw.From<int64_t>({0, 1, 7, 40});
  options.io_uring = draw.Coin();
  options.direct_io = draw.Coin();
  Policy& policy = options.policy;
  std::vector<std::optional<ScheduleKind>> schedules = {std::nullopt, ScheduleKind::kHybrid}, for_devices;
  for (const ScheduleTraits& schedule : Schedules()) {
    (schedule.attends_on_host ? for_devices : schedules).emplace_back(schedule.value);
  }
  policy.schedule = draw.From(schedules);
  policy.hybrid_rule = draw.From(ChoicesAndNone(HybridRules()));
  std::vector<std::optional<PredictorKind>> predictors = {std::nullopt};
  for (const PredictorTraits& predictor : Predictors()) {
    if (!predictor.is_simulated_only) predictors.emplace_back(predictor.value);
  }
  policy.predictor = draw.From(predictors);
  const bool has_device = draw.Coin();
  if (has_device) {
    options.device = draw.From<std::string>({"emulated", "emulated:link=50MB/s", "emulated:threads=2,link=1GB/s"});
    policy.kv_tier = draw.From(ChoicesAndNone(KvTiers()));
    policy.disk_window = draw.From<int64_t>({0, 0, 1, 2});
    if (draw.Coin()) {
      policy.schedule = draw.From(for_devices);
      policy.kv_tier = std::nullopt;
      policy.prompt_attention = draw.From(ChoicesAndNone(PromptAttentions()));
    }
  }
  policy.eviction = draw.From(ChoicesAndNone(Evictions()));
  if (policy.eviction == Eviction::kStatic) policy.pinned_experts = draw.From(ChoicesAndNone(PinnedExpertsTable()));
  policy.micro_batch_size = draw.From<int64_t>({0, 1, 2, 4});
  policy.streaming_slots = draw.From<int64_t>({0, 1, 2, 3, 9});
  policy.hot_experts = draw.From<int64_t>({0, 1, 5});
  policy.path_length = draw.From<int64_t>({0, 1, 1, 2, 3});
  policy.multi_batch = draw.Coin();
  policy.hot_prefetch = draw.Coin();
  policy.reorder = draw.Coin();
  // From the least budget to room for everything.
  const auto budget = [&](uint64_t min) {
    return draw.Coin() ? min : min + draw.Below(std::max(base.memory_bytes, min) - min + 1);
  };
  if (has_device) {
    options.device_memory_bytes = 1ull << 30;
    options.memory_bytes = budget(MinBudget(options));
    options.device_memory_bytes = budget(MinDeviceMemory(options));
  } else {
    options.memory_bytes = budget(MinBudget(options));
  }
  return options;
}

std::string Describe(const EngineOptions& options) {
  const Policy& policy = options.policy;
  return fmt::format(
      "memory {} device {} of {} kv {} prompts {} window {} threads {} batch {} chunk {} io_uring {} direct {} "
      "schedule {} "
      "eviction {} pinned {} "
      "micro-batch {} streaming {} hot {} path {} multi-batch {} hot-prefetch {} reorder {} rule {} predictor {}",
      options.memory_bytes, options.device, options.device_memory_bytes, ChoiceName(policy.kv_tier, KvTiers()),
      ChoiceName(policy.prompt_attention, PromptAttentions()), policy.disk_window, options.threads, options.batch_size,
      options.prefill_chunk, options.io_uring, options.direct_io, ChoiceName(policy.schedule, Schedules()),
      ChoiceName(policy.eviction, Evictions()), ChoiceName(policy.pinned_experts, PinnedExpertsTable()),
      policy.micro_batch_size, policy.streaming_slots, policy.hot_experts, policy.path_length, policy.multi_batch,
      policy.hot_prefetch, policy.reorder, ChoiceName(policy.hybrid_rule, HybridRules()),
      ChoiceName(policy.predictor, Predictors()));
}

// A network that predicts nonsense, for a model or for a fine-tune of it.
class NetworkFile {
 public:
  explicit NetworkFile(const std::string& model_dir, bool is_of_model = true) {
    const DescribedModel model = DescribedModel::FromFolder(model_dir).value();
    const SidaShape shape = {.vocab_size = model.config().vocab_size,
                             .dim = 6,
                             .window = 5,
                             .num_layers = model.config().num_moe_layers(),
                             .num_experts = model.config().num_experts,
                             .fingerprint = is_of_model ? model.loaded()->fingerprint : std::string(32, '0')};
    EXPECT_TRUE(WriteFile(path_, RandomSidaFile(shape, 1)).ok());
  }
  ~NetworkFile() { std::filesystem::remove(path_); }
  NetworkFile(const NetworkFile&) = delete;
  NetworkFile& operator=(const NetworkFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  const std::string path_ = testing::TempDir() + "/penstock-network-" + std::to_string(::getpid());
};

class PoliciesTest : public testing::TestWithParam<std::string> {};

TEST_P(PoliciesTest, RandomPoliciesGiveTheBitsOfAPlainEngine) {
  const Golden golden(GetParam());
  const std::vector<Request> requests = Requests(golden);
  EngineOptions base{.model_dir = golden.dir(), .memory_bytes = 64 << 20, .threads = 1, .context_length = 192};
  const NetworkFile network(golden.dir());
  base.policy.predictor_path = network.path();
  EngineOptions plain = base;
  plain.policy.schedule = ScheduleKind::kOnDemand;
  const std::vector<Answer> expected = RunAll(plain, requests);
  ASSERT_EQ(expected.size(), requests.size());
  const auto num_models = static_cast<int64_t>(Golden::Variants().size());
  const int64_t num_combinations = (FromEnvironment("PENSTOCK_TEST_COMBINATIONS", 88) + num_models - 1) / num_models;
  const uint64_t seed = FromEnvironment("PENSTOCK_TEST_SEED", 1);
  Draw draw(seed ^ std::hash<std::string>()(GetParam()));
  for (int64_t i = 0; i < num_combinations; ++i) {
    const EngineOptions options = RandomOptions(base, draw);
    EXPECT_EQ(RunAll(options, requests), expected) << "seed " << seed << ": " << Describe(options);
    if (HasFailure()) return;
  }
}

// Every pass of these tests needs experts from the disk, so each prediction has consequences.
TEST(Policies, PredictionsOfANetworkChangeNoBit) {
  const Golden golden("qwen3moe-tiny");
  const std::vector<Request> requests = Requests(golden);
  EngineOptions options{.model_dir = golden.dir(), .threads = 1, .context_length = 192};
  options.batch_size = 2;
  options.policy.schedule = ScheduleKind::kHybrid;
  options.policy.predictor = PredictorKind::kNone;
  options.memory_bytes = MinBudget(options);
  const uint64_t without_bytes = options.memory_bytes;
  const std::vector<Answer> expected = RunAll(options, requests);
  options.policy.predictor = PredictorKind::kSida;
  options.memory_bytes = 64 << 20;
  {
    const NetworkFile other(golden.dir(), /*is_of_model=*/false);
    options.policy.predictor_path = other.path();
    const absl::Status refused = Engine::Open(options).status();
    EXPECT_EQ(FaultOf(refused), Fault::kModel) << refused;
  }
  const NetworkFile network(golden.dir());
  options.policy.predictor_path = network.path();
  options.memory_bytes = MinBudget(options);
  EXPECT_GE(options.memory_bytes, without_bytes + std::filesystem::file_size(network.path()));  // the plan counts it
  EXPECT_EQ(RunAll(options, requests), expected);
}

// A network that replaces routers gives other answers than they do, and the same ones for every plan.
TEST(Policies, ANetworkThatReplacesRoutersGivesTheSameBitsForEveryPlan) {
  for (const std::string model : {"qwen3moe-tiny", "switch-odd"}) {
    SCOPED_TRACE(model);
    const Golden golden(model);
    const std::vector<Request> requests = Requests(golden);
    const NetworkFile network(golden.dir());
    EngineOptions base{.model_dir = golden.dir(), .memory_bytes = 64 << 20, .threads = 1, .context_length = 192};
    base.policy.schedule = ScheduleKind::kHybrid;
    base.policy.predictor = PredictorKind::kSida;
    base.policy.predictor_path = network.path();
    const std::vector<Answer> of_routers = RunAll(base, requests);
    base.policy.predictor_replaces_routers = true;
    const std::vector<Answer> expected = RunAll(base, requests);
    ASSERT_EQ(expected.size(), requests.size());
    EXPECT_NE(expected, of_routers);
    for (const int64_t batch_size : {1, 2, 3, 64}) {
      for (const std::string device : {"cpu", "emulated:link=50MB/s"}) {
        EngineOptions options = base;
        options.batch_size = batch_size;
        options.prefill_chunk = 7 * batch_size;
        options.policy.micro_batch_size = batch_size / 2;
        options.device = device;
        if (device != "cpu") options.device_memory_bytes = 1ull << 30;
        options.memory_bytes = MinBudget(options);
        if (device != "cpu") options.device_memory_bytes = MinDeviceMemory(options);
        EXPECT_EQ(RunAll(options, requests), expected) << "batch " << batch_size << ", " << device;
      }
    }
    base.policy.schedule = ScheduleKind::kOnDemand;
    EXPECT_EQ(FaultOf(Engine::Open(base).status()), Fault::kUsage);
  }
}

// A name that is mistaken for another would be tested twice, and its own setting never.
TEST(Policies, EveryNameIsKnown) {
  const auto check = [](auto rows) {
    for (const auto& row : rows) {
      EXPECT_EQ(ParseChoice("choice", row.name, rows).value(), row.value);
      EXPECT_EQ(ChoiceName(std::optional(row.value), rows), row.name);
      EXPECT_FALSE(row.summary.empty()) << row.name;
    }
    EXPECT_EQ(ParseChoice("choice", "auto", rows).value(), std::nullopt);
    EXPECT_FALSE(ParseChoice("choice", "", rows).ok());
    EXPECT_FALSE(ParseChoice("choice", "martian", rows).ok());
  };
  check(Schedules());
  check(Evictions());
  check(Predictors());
  check(HybridRules());
  check(KvTiers());
  check(PromptAttentions());
  check(PinnedExpertsTable());
  check(ComputeDtypes());
  check(KvFormats());
}

INSTANTIATE_TEST_SUITE_P(Models, PoliciesTest, testing::ValuesIn(Golden::Variants()), GoldenName);

}  // namespace
}  // namespace penstock
