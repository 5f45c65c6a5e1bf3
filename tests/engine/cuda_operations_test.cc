// Proves that a device whose operations are CUDA's gives the host's answers, bit for bit: whole generations on every
// golden model, and on the demo model in quantised formats, under schedules that compute layers on the device, attend
// on either side, and share experts with the host. The kernels run on the host's threads (kernels/cuda/emulated/).
#include "penstock/schedule/cuda_operations.h"

#include <atomic>
#include <cstring>
#include <deque>
#include <filesystem>

#include <unistd.h>

#include "penstock/engine/hooks.h"
#include "penstock/pack.h"
#include "tests/engine/answers.h"

namespace penstock {
namespace {

// The device's memory is the host's.
class HostTables : public DeviceTables {
 public:
  const std::byte* Upload(std::span<const std::byte> bytes) override {
    if (tables_.size() == kMost) tables_.pop_front();
    return tables_.emplace_back(bytes.begin(), bytes.end()).data();
  }
  void Download(void* target, const void* source, size_t num_bytes) override { std::memcpy(target, source, num_bytes); }

 private:
  static constexpr size_t kMost = 100;  // what is older was used
  std::deque<std::vector<std::byte>> tables_;
};

class EmulatedCudaOperations : public CudaOperations {
 public:
  struct Memory {
    std::vector<float> scratch;
    HostTables tables;
  };
  static inline int num_made = 0;
  static std::unique_ptr<Operations> Make(const OpContext& context) {
    ++num_made;
    auto memory = std::make_unique<Memory>();
    // Two rows of the longest context: more are attended to by turns.
    memory->scratch.resize(
        static_cast<size_t>(2 * AttentionScratchFloats(context.config, context.activations.dims.context_length)));
    return std::unique_ptr<Operations>(new EmulatedCudaOperations(context, std::move(memory)));
  }

 private:
  EmulatedCudaOperations(const OpContext& context, std::unique_ptr<Memory> memory)
      : CudaOperations({.config = context.config,
                        .row_formats = context.row_formats,
                        .weights = context.weights,
                        .activations = context.activations,
                        .attention_scratch = memory->scratch,
                        .tables = memory->tables}),
        memory_(std::move(memory)) {}

  std::unique_ptr<Memory> memory_;
};

struct Setting {
  const char* schedule;
  const char* kv_tier;
  KvFormat kv;
};

void ExpectTheHostsAnswers(EngineOptions options, const std::vector<Request>& requests) {
  const EngineHooks hooks{.make_device_operations = EmulatedCudaOperations::Make};
  const Setting kSettings[] = {{"on-demand", "auto", KvFormat::kInt8},
                               {"zero", "device", KvFormat::kF32},
                               {"cgopipe", "auto", KvFormat::kBF16},
                               {"hybrid", "auto", KvFormat::kBF16}};
  for (const Setting& setting : kSettings) {
    SCOPED_TRACE(setting.schedule);
    options.kv_dtype = KvFormatName(setting.kv);
    EngineOptions plain = options;
    plain.device = "cpu";
    plain.device_memory_bytes = 0;
    plain.policy = {.schedule = "on-demand"};
    const std::vector<Answer> expected = RunAll(plain, requests);
    options.device = "emulated";
    options.policy = {.schedule = setting.schedule, .kv_tier = setting.kv_tier};
    const int num_before = EmulatedCudaOperations::num_made;
    EXPECT_EQ(RunAll(options, requests, hooks), expected);
    EXPECT_EQ(EmulatedCudaOperations::num_made, num_before + 1);
  }
}

class CudaOperationsTest : public testing::TestWithParam<std::string> {};

TEST_P(CudaOperationsTest, AnswersAreTheHosts) {
  const Golden golden(GetParam());
  std::vector<Request> requests = Requests(golden);
  requests.resize(3);
  ExpectTheHostsAnswers({.model_dir = golden.dir(),
                         .memory_bytes = 64 << 20,
                         .device_memory_bytes = 32 << 20,
                         .threads = 1,
                         .batch_size = 2,
                         .context_length = 192},
                        requests);
}

TEST(CudaOperations, QuantisedAnswersAreTheHosts) {
  const Golden golden("qwen3moe-tiny");
  std::vector<Request> requests = Requests(golden);
  requests.resize(3);
  for (const std::string format : {"int8", "hqq4", "hqq3"}) {
    SCOPED_TRACE(format);
    const std::string folder = testing::TempDir() + "/cuda-operations-" + format + "-" + std::to_string(::getpid());
    const std::atomic<bool> stop{false};
    ASSERT_TRUE(
        PackModel(
            {.model_dir = golden.dir(), .output_dir = folder, .quantize = format}, [](const PackProgress&) {}, stop)
            .ok());
    ExpectTheHostsAnswers({.model_dir = folder,
                           .memory_bytes = 64 << 20,
                           .kv_dtype = "auto",
                           .device_memory_bytes = 32 << 20,
                           .threads = 1,
                           .batch_size = 2,
                           .context_length = 192},
                          requests);
    std::filesystem::remove_all(folder);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, CudaOperationsTest, testing::ValuesIn(Golden::Variants()), [](const auto& param) {
  std::string name = param.param;
  for (char& c : name) c = c == '-' ? '_' : c;
  return name;
});

}  // namespace
}  // namespace penstock
