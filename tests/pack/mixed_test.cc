// Proves that a store of so many bits has them, gives each matrix the format that its errors ask for, is the same each
// time, and runs. Proves that budgets and statistics that do not fit the model are refused.
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include <gmock/gmock.h>

#include "penstock/base/status.h"
#include "penstock/checkpoint/importance.h"
#include "penstock/checkpoint/tensor_rows.h"
#include "penstock/engine/instrumented_engine.h"
#include "penstock/measure/importance_collector.h"
#include "penstock/memory/expert_layouts.h"
#include "penstock/model/cost.h"
#include "penstock/pack.h"
#include "penstock/plan/formats.h"
#include "penstock/plan/loaded_model.h"
#include "tests/choices.h"
#include "tests/engine/answers.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr const char* kDemo = PENSTOCK_SOURCE_DIR "/models/penstock-demo";
constexpr std::string_view kText =
    "Once upon a time there was a little girl who lived in a great house at the edge of the forest. Every morning she "
    "went down to the river with her brother, and they looked at the boats. \"Where do they all go?\" she asked. ";

class MixedTest : public testing::Test {
 protected:
  MixedTest() : folder_(testing::TempDir() + "/mixed-" + std::to_string(::getpid())), store_(folder_ + "/store") {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~MixedTest() override { fs::remove_all(folder_); }

  // Writes the statistics of the demo model on a short text, and returns the file's path.
  std::string Calibrate(bool with_products) {
    const auto model = LoadModel(kDemo).value();
    ImportanceCollector collector(model->config, with_products);
    EngineHooks hooks;
    hooks.observer = &collector;
    const auto engine = OpenInstrumentedEngine({.model_dir = kDemo,
                                                .memory_bytes = 256 << 20,
                                                .activations = ActivationFormat::kF32,
                                                .threads = 2,
                                                .context_length = 512,
                                                .shares_prefixes = false},
                                               hooks);
    EXPECT_TRUE(engine.ok()) << engine.status();
    std::string text;
    for (int i = 0; i < 6; ++i) text += kText;
    const std::vector<TokenId> ids = (*engine)->Tokenize(text).value();
    EXPECT_TRUE((*engine)->ScoreTokens(ids).ok());
    const std::string path = folder_ + "/importance";
    EXPECT_TRUE(WriteImportance(path, collector.Take()).ok());
    return path;
  }
  absl::Status Pack(double bits, const std::string& importance = "", int threads = 2) {
    fs::remove_all(store_);
    return PackModel(
        {.model_dir = kDemo, .output_dir = store_, .bits = bits, .importance_path = importance, .threads = threads},
        nullptr, stop_);
  }
  static std::string ReadAll(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // Returns the bits of a weight of experts and attention, and the formats that experts have.
  std::pair<double, std::set<WeightFormat>> Measure() {
    const auto model = LoadModel(store_).value();
    uint64_t bytes = 0, count = 0;
    std::set<WeightFormat> formats;
    const auto add = [&](const TensorInfo& tensor) {
      bytes += StoredBytes(tensor);
      count += static_cast<uint64_t>(NumRows(tensor) * RowElements(tensor));
    };
    for (const LayerTensors& layer : model->weights.layers) {
      layer.ForEachDense([](const TensorInfo&) {},
                         [&](const TensorInfo& tensor, MatrixKind kind) {
                           if (kind != MatrixKind::kRouter) add(tensor);
                         });
      EXPECT_EQ(layer.experts.size(), 8u);
      for (const FfnTensors& expert : layer.experts) {
        expert.ForEach([&](const TensorInfo& tensor) {
          add(tensor);
          formats.insert(*tensor.packed);
        });
      }
    }
    return {8.0 * static_cast<double>(bytes) / static_cast<double>(count), formats};
  }

  std::string folder_, store_;
  std::atomic<bool> stop_{false};
};

TEST_F(MixedTest, AStoreHasTheBitsThatItWasGiven) {
  const std::string importance = Calibrate(/*with_products=*/true);
  for (const double bits : {2.0, 3.0, 4.5, 6.0}) {
    ASSERT_TRUE(Pack(bits, importance).ok());
    const auto [found, formats] = Measure();
    EXPECT_LE(found, bits);
    EXPECT_GT(found, bits - 0.05);
    EXPECT_GE(formats.size(), 2u) << bits;
    const auto model = LoadModel(store_).value();
    EXPECT_EQ(model->checkpoint.quantize(), "mixed");
    for (const LayerTensors& layer : model->weights.layers) {
      for (const FfnTensors& expert : layer.experts) EXPECT_EQ(expert.gate_proj->packed, expert.up_proj->packed);
    }
    const auto engine = Engine::Open({.model_dir = store_, .memory_bytes = 64 << 20, .threads = 1});
    ASSERT_TRUE(engine.ok()) << engine.status();
    EXPECT_EQ((*engine)->model().dtype, "mixed");
    EXPECT_TRUE((*engine)->ScoreTokens((*engine)->Tokenize(kText).value()).ok());
  }
}

TEST_F(MixedTest, PlansKnowTheBytesOfEveryFormat) {
  ASSERT_TRUE(Pack(3.5, Calibrate(/*with_products=*/false)).ok());
  const auto model = LoadModel(store_).value();
  const Formats formats = ChooseFormats({.model_dir = store_}, model->weights).value();
  const ModelFormats found = ModelFormatsOf(model->weights, formats);
  ASSERT_GT(found.ffn_shares.size(), 1u);
  double weights = 0, bytes = 0, expert_bytes = 0;
  for (const FormatShare& share : found.ffn_shares) {
    weights += share.weights;
    bytes += share.bytes;
  }
  EXPECT_NEAR(weights, 1, 1e-9);
  EXPECT_NEAR(bytes, 1, 1e-9);
  const ExpertLayouts layouts(model->weights, model->checkpoint.files(), formats.dtype);
  for (ExpertKey key{0}; key < layouts.end_key(); ++key) {
    expert_bytes += static_cast<double>(layouts.read_bytes(key)) / static_cast<double>(layouts.num_experts());
  }
  // The shares of gate, up and down are not known apart.
  const ModelCost cost(model->config, found);
  EXPECT_NEAR(static_cast<double>(cost.expert_bytes()), expert_bytes, 0.02 * expert_bytes);
}

TEST_F(MixedTest, WithoutStatisticsAttentionKeeps8Bits) {
  ASSERT_TRUE(Pack(4).ok());
  EXPECT_LE(Measure().first, 4);
  const auto model = LoadModel(store_).value();
  for (const LayerTensors& layer : model->weights.layers) {
    EXPECT_EQ(layer.q_proj->packed, WeightFormat::kInt8);
    EXPECT_EQ(layer.o_proj->packed, WeightFormat::kInt8);
  }
}

TEST_F(MixedTest, TheSameModelGivesTheSameStore) {
  const std::string importance = Calibrate(/*with_products=*/false);
  ASSERT_TRUE(Pack(3.5, importance, 1).ok());
  const std::string weights = ReadAll(store_ + "/penstock.bin"), index = ReadAll(store_ + "/penstock.json");
  ASSERT_TRUE(Pack(3.5, importance, 3).ok());
  EXPECT_EQ(ReadAll(store_ + "/penstock.bin"), weights);
  EXPECT_EQ(ReadAll(store_ + "/penstock.json"), index);
}

TEST_F(MixedTest, EveryScheduleGivesTheSameBits) {
  ASSERT_TRUE(Pack(3.2, Calibrate(/*with_products=*/false)).ok());
  std::vector<Request> requests;
  for (const uint32_t seed : {1, 2, 3}) {
    Request request{.prompt_ids = DrawTokens(20 + 5 * seed, seed)};
    request.sampling = {.temperature = 0, .max_tokens = 8};
    request.sampling.logprobs = 1;
    requests.push_back(request);
  }
  const EngineOptions base{.model_dir = store_, .memory_bytes = 128 << 20, .threads = 1, .context_length = 64};
  const std::vector<Answer> expected = RunAll(base, requests);
  ASSERT_EQ(expected.size(), requests.size());
  for (const char* schedule : {"on-demand", "zero", "zigzag", "klotski", "hybrid", "cgopipe"}) {
    for (const char* device : {"cpu", "emulated:link=1GB/s"}) {
      EngineOptions options = base;
      options.policy.schedule = ScheduleCalled(schedule);
      if (schedule == std::string("cgopipe") && device == std::string("cpu")) continue;
      options.device = device;
      options.threads = 2;
      options.batch_size = 2;
      options.prefill_chunk = 7;
      if (device != std::string("cpu")) options.device_memory_bytes = MinDeviceMemory(options);
      options.memory_bytes = MinBudget(options);
      EXPECT_EQ(RunAll(options, requests), expected) << schedule << " " << device;
    }
  }
}

TEST_F(MixedTest, WhatDoesNotFitIsRefused) {
  const auto expect = [&](const absl::Status& status, Fault fault, const std::string& text) {
    ASSERT_FALSE(status.ok()) << text;
    EXPECT_EQ(FaultOf(status), fault);
    EXPECT_THAT(Message(status), HasSubstr(text));
    EXPECT_FALSE(fs::exists(store_));
  };
  expect(Pack(1.5), Fault::kUsage, "the smallest formats take 2.68");
  expect(Pack(4, folder_ + "/none"), Fault::kInput, "cannot be opened");
  SiteStatistics site{.dim = 256, .rows = {100}, .squares = std::vector<float>(256, 1.0f), .products = {}};
  ASSERT_TRUE(WriteImportance(folder_ + "/other", {{SiteName(0, InputSite::kAttention), site}}).ok());
  expect(Pack(4, folder_ + "/other"), Fault::kInput, "is it of this model?");
  const auto pack = [&](const PackOptions& options) { return PackModel(options, nullptr, stop_); };
  expect(pack({.model_dir = kDemo, .output_dir = store_, .quantize = "int8", .bits = 4}), Fault::kUsage,
         "--bits goes without --quantize");
  expect(pack({.model_dir = kDemo, .output_dir = store_, .quantize = "int8", .importance_path = "x"}), Fault::kUsage,
         "--importance goes with");
  expect(pack({.model_dir = kDemo, .output_dir = store_, .bits = 4, .compress = "bf16"}), Fault::kUsage,
         "--quantize none only");
}

}  // namespace
}  // namespace penstock
