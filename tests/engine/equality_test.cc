// Proves that an answer depends only on its request. Tokens and log-probabilities are the same, bit for bit, for every
// memory budget from the least one on, batch size, thread count, prefill chunk and way of reading the disk. This holds
// for model folders, for packed stores of every format, and for every format of the KV cache.
#include <atomic>
#include <cstdlib>

#include "penstock/kernels/kernels.h"
#include "penstock/pack.h"
#include "tests/choices.h"
#include "tests/effort.h"
#include "tests/engine/answers.h"

namespace penstock {
namespace {

// Returns plans with different budgets from the least one on, batches, threads, prefill chunks and ways of reading the
// disk.
std::vector<EngineOptions> Plans(const EngineOptions& base) {
  std::vector<EngineOptions> plans;
  for (const int64_t batch_size : {1, 3, 64}) {
    for (const int threads : {1, 2}) {
      EngineOptions options = base;
      options.batch_size = batch_size;
      options.threads = threads;
      plans.push_back(options);
      options.memory_bytes = MinBudget(options);
      plans.push_back(options);
      options.memory_bytes += 100'000;
      plans.push_back(options);
    }
  }
  for (const int64_t chunk : {1, 5, 100}) {
    EngineOptions options = base;
    options.prefill_chunk = chunk;
    plans.push_back(options);
  }
  for (const bool flag : {false, true}) {
    EngineOptions options = base;
    options.io_uring = flag;
    options.direct_io = !flag;
    options.memory_bytes = MinBudget(options);
    plans.push_back(options);
  }
  return plans;
}

// Models take turns with the plans: each one runs with half of them, its neighbour in the list with the others. Under
// sanitizers it is an eighth.
void ExpectSameAnswers(const EngineOptions& base, const std::vector<Request>& requests,
                       const std::vector<Answer>& expected) {
  ASSERT_EQ(expected.size(), requests.size());
  static size_t turn = 0;
  const std::vector<EngineOptions> plans = Plans(base);
  constexpr size_t kTurns = kSanitized ? 8 : 2;
  for (size_t i = turn++ % kTurns; i < plans.size(); i += kTurns) {
    const EngineOptions& plan = plans[i];
    EXPECT_EQ(RunAll(plan, requests), expected)
        << "memory " << plan.memory_bytes << ", batch " << plan.batch_size << ", threads " << plan.threads << ", chunk "
        << plan.prefill_chunk << ", io_uring " << plan.io_uring;
  }
}

class EqualityTest : public testing::TestWithParam<std::string> {};
class PackedEqualityTest : public testing::TestWithParam<std::string> {};

TEST_P(EqualityTest, EveryPlanGivesTheSameBits) {
  const Golden golden(GetParam());
  const std::vector<Request> requests = Requests(golden);
  const EngineOptions base{.model_dir = golden.dir(), .memory_bytes = 64 << 20, .threads = 1};
  const std::vector<Answer> expected = RunAll(base, requests);
  ExpectSameAnswers(base, requests, expected);
  // Models without weights in codes or blocks have only one arithmetic.
  EngineOptions exact = base;
  exact.activations = ActivationFormat::kF32;
  const std::vector<Answer> of_floats = RunAll(exact, requests);
  if (of_floats != expected) ExpectSameAnswers(exact, requests, of_floats);
}

TEST_P(EqualityTest, EveryKvFormatGivesTheSameBits) {
  const Golden golden(GetParam());
  const std::vector<Request> requests = Requests(golden);
  for (const std::string kv_dtype : {"bf16", "int8"}) {
    SCOPED_TRACE(kv_dtype);
    EngineOptions base{
        .model_dir = golden.dir(), .memory_bytes = 64 << 20, .kv_dtype = KvFormatCalled(kv_dtype), .threads = 1};
    const std::vector<Answer> expected = RunAll(base, requests);
    EXPECT_EQ(expected.size(), requests.size());
    for (const int64_t chunk : {1, 5, 100}) {
      EngineOptions options = base;
      options.prefill_chunk = chunk;
      options.batch_size = chunk;
      EXPECT_EQ(RunAll(options, requests), expected) << "chunk " << chunk;
    }
    for (const kernels::Isa isa : kernels::SupportedIsas()) {
      ::setenv("PENSTOCK_FORCE_ISA", std::string(kernels::IsaName(isa)).c_str(), 1);
      EXPECT_EQ(RunAll(base, requests), expected) << kernels::IsaName(isa);
    }
    ::unsetenv("PENSTOCK_FORCE_ISA");
  }
}

// A packed store without quantising gives the bits of the model folder. With quantising it gives the same bits for
// every plan and instruction set.
TEST_P(PackedEqualityTest, EveryPackedFormatGivesTheSameBits) {
  const Golden golden(GetParam());
  const std::vector<Request> requests = Requests(golden);
  const std::atomic<bool> stop{false};
  size_t turn = std::hash<std::string>()(GetParam());
  for (const std::string quantize : {"none", "int8", "hqq4", "hqq3", "hqq2", "ternary"}) {
    // Under sanitizers, models take turns with the formats, too.
    if (kSanitized && turn++ % 2 == 0) continue;
    SCOPED_TRACE(quantize);
    const std::string store = testing::TempDir() + "/equality-" + GetParam() + "-" + quantize;
    std::filesystem::remove_all(store);
    const absl::Status packed =
        PackModel({.model_dir = golden.dir(), .output_dir = store, .quantize = quantize, .threads = 2}, nullptr, stop);
    ASSERT_TRUE(packed.ok()) << packed;
    EngineOptions base{.model_dir = golden.dir(), .memory_bytes = 64 << 20, .threads = 1};
    if (quantize != "none") base.model_dir = store;
    const std::vector<Answer> expected = RunAll(base, requests);
    base.model_dir = store;
    ExpectSameAnswers(base, requests, expected);
    for (const kernels::Isa isa : kernels::SupportedIsas()) {
      ::setenv("PENSTOCK_FORCE_ISA", std::string(kernels::IsaName(isa)).c_str(), 1);
      EXPECT_EQ(RunAll(base, requests), expected) << kernels::IsaName(isa);
    }
    ::unsetenv("PENSTOCK_FORCE_ISA");
    // The same codes, multiplied as floats.
    base.activations = ActivationFormat::kF32;
    const std::vector<Answer> of_floats = RunAll(base, requests);
    if (quantize != "none") {
      EXPECT_NE(of_floats, expected);
    }
    for (const kernels::Isa isa : kernels::SupportedIsas()) {
      EngineOptions other = base;
      other.prefill_chunk = 3;
      other.batch_size = 2;
      ::setenv("PENSTOCK_FORCE_ISA", std::string(kernels::IsaName(isa)).c_str(), 1);
      EXPECT_EQ(RunAll(other, requests), of_floats) << kernels::IsaName(isa);
    }
    ::unsetenv("PENSTOCK_FORCE_ISA");
    std::filesystem::remove_all(store);
  }
}

TEST(EqualityTest, BelowTheLeastBudgetIsRefused) {
  const Golden golden("mixtral-tiny");
  EngineOptions options{.model_dir = golden.dir()};
  options.memory_bytes = MinBudget(options) - 1;
  const auto refused = Engine::Open(options);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(ExitCodeOf(refused.status()), 6);
}

INSTANTIATE_TEST_SUITE_P(Models, EqualityTest,
                         testing::Values("mixtral-odd", "mixtral-sliding", "mixtral-bf16", "mixtral-f16",
                                         "qwen3moe-odd", "olmoe-bf16", "llama4-vision", "glm5-odd", "mimo-odd"),
                         GoldenName);
INSTANTIATE_TEST_SUITE_P(Models, PackedEqualityTest,
                         testing::Values("mixtral-bf16", "qwen3moe-odd", "llama4-vision", "qwen3vl-odd",
                                         "ernie45vl-odd", "deepseek32-odd", "mimo-odd", "step-published",
                                         "deepseek3-u4", "qwen3moe-nvfp4"),
                         GoldenName);

}  // namespace
}  // namespace penstock
