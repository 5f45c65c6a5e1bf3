// Proves that packing leaves a whole store or none, that changes to a store are noticed, and that a model that cannot
// be packed is refused with a reason.
#include "penstock/pack.h"
#include "tests/choices.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <iterator>
#include <random>

#include <gmock/gmock.h>

#include "penstock/base/status.h"
#include "penstock/checkpoint/packed_index.h"
#include "penstock/plan/formats.h"
#include "penstock/plan/loaded_model.h"
#include "tests/engine/golden.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class PackTest : public testing::Test {
 protected:
  PackTest() : folder_(testing::TempDir() + "/pack-" + std::to_string(::getpid())), store_(folder_ + "/store") {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~PackTest() override { fs::remove_all(folder_); }

  absl::Status Pack(const std::string& quantize = "int8") {
    return PackModel({.model_dir = golden_.dir(), .output_dir = store_, .quantize = quantize, .threads = 2}, nullptr,
                     stop_);
  }
  void ExpectFault(const absl::Status& status, Fault fault, const std::string& text) {
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(FaultOf(status), fault) << status;
    EXPECT_THAT(Message(status), HasSubstr(text));
  }
  static std::string ReadAll(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static void WriteAll(const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
  }
  // Runs the model far enough to read every weight.
  absl::Status Run(uint64_t memory_bytes = 64 << 20) {
    auto engine = Engine::Open({.model_dir = store_, .memory_bytes = memory_bytes, .threads = 1});
    if (!engine.ok()) return engine.status();
    for (int i = 0; i < golden_.num_prompts(); ++i) {
      const auto scores = (*engine)->ScoreTokens(golden_.prompt(i));
      if (!scores.ok()) return scores.status();
    }
    return absl::OkStatus();
  }

  const Golden golden_{"mixtral-bf16"};
  std::string folder_;
  std::string store_;
  std::atomic<bool> stop_{false};
};

TEST_F(PackTest, AStoreIsAModelFolder) {
  ASSERT_TRUE(Pack().ok());
  EXPECT_TRUE(Run().ok());
  const auto model = LoadModel(store_).value();
  EXPECT_EQ(StoredFormatName(model->weights), "int8");
  EXPECT_EQ(model->checkpoint.quantize(), "int8");
  EXPECT_FALSE(fs::exists(store_ + ".partial"));
  for (const LayerTensors& layer : model->weights.layers) {
    EXPECT_EQ(layer.router_proj->packed, WeightFormat::kBF16);
    for (const FfnTensors& expert : layer.experts) {
      // An expert is one contiguous run that starts at a page.
      EXPECT_EQ(expert.gate_proj->extent.offset_bytes % 4096, 0u);
      EXPECT_EQ(expert.gate_proj->extent.offset_bytes + expert.gate_proj->extent.size_bytes,
                expert.up_proj->extent.offset_bytes);
      EXPECT_EQ(expert.up_proj->extent.offset_bytes + expert.up_proj->extent.size_bytes,
                expert.down_proj->extent.offset_bytes);
    }
  }
}

TEST_F(PackTest, TheSameModelGivesTheSameStore) {
  ASSERT_TRUE(Pack("hqq4").ok());
  const std::string weights = ReadAll(store_ + "/penstock.bin"), index = ReadAll(store_ + "/penstock.json");
  fs::remove_all(store_);
  ASSERT_TRUE(
      PackModel({.model_dir = golden_.dir(), .output_dir = store_, .quantize = "hqq4", .threads = 1}, nullptr, stop_)
          .ok());
  EXPECT_EQ(ReadAll(store_ + "/penstock.bin"), weights);
  EXPECT_EQ(ReadAll(store_ + "/penstock.json"), index);
}

TEST_F(PackTest, EveryChangedByteOfATensorIsNoticed) {
  ASSERT_TRUE(Pack().ok());
  const std::string weights = ReadAll(store_ + "/penstock.bin");
  const auto model = LoadModel(store_).value();
  std::mt19937 random(1);
  int num_noticed = 0;
  for (int trial = 0; trial < 25; ++trial) {
    const auto& tensors = model->checkpoint.tensors();
    const TensorInfo& tensor = tensors[random() % tensors.size()];
    std::string damaged = weights;
    damaged[tensor.extent.offset_bytes + random() % tensor.extent.size_bytes] ^= static_cast<char>(1 << random() % 8);
    WriteAll(store_ + "/penstock.bin", damaged);
    const absl::Status status = Run();
    if (status.ok()) continue;  // an expert that no token chose
    ++num_noticed;
    ExpectFault(status, Fault::kModel, "checksum");
    EXPECT_THAT(Message(status), HasSubstr(tensor.name));
  }
  EXPECT_GE(num_noticed, 20);
}

TEST_F(PackTest, EveryChangedByteOfConfigTokenizerAndTemplateIsNoticed) {
  ASSERT_TRUE(Pack().ok());
  const PackedIndex index = ParsePackedIndex(ReadAll(store_ + "/penstock.json")).value();
  std::set<std::string> names;
  std::mt19937 random(2);
  for (const auto& [name, unused] : index.files) {
    names.insert(name);
    const std::string content = ReadAll(store_ + "/" + name);
    std::string damaged = content;
    damaged[random() % damaged.size()] ^= static_cast<char>(1 << random() % 8);
    WriteAll(store_ + "/" + name, damaged);
    ExpectFault(Run(), Fault::kModel, "/" + name + ": has the checksum");
    fs::remove(store_ + "/" + name);
    ExpectFault(Run(), Fault::kModel, name);
    WriteAll(store_ + "/" + name, content);
  }
  for (const char* name : {"config.json", "tokenizer.json", "tokenizer_config.json"}) {
    EXPECT_EQ(names.contains(name), fs::exists(golden_.dir() + "/" + name)) << name;
  }
  EXPECT_TRUE(names.contains("config.json"));
  EXPECT_TRUE(Run().ok());
}

TEST_F(PackTest, AStoreOfAnEarlierProgramHasNoChecksumsOfFiles) {
  ASSERT_TRUE(Pack().ok());
  PackedIndex index = ParsePackedIndex(ReadAll(store_ + "/penstock.json")).value();
  index.files.clear();
  WriteAll(store_ + "/penstock.json", SerializePackedIndex(index));
  WriteAll(store_ + "/config.json", ReadAll(store_ + "/config.json") + "\n");
  EXPECT_TRUE(Run().ok());
}

TEST_F(PackTest, AStoreWithoutItsIndexIsExplained) {
  ASSERT_TRUE(Pack().ok());
  fs::remove(store_ + "/penstock.json");
  ExpectFault(Run(), Fault::kModel, "a packed store without its index");
}

TEST_F(PackTest, AShortFileIsRefused) {
  ASSERT_TRUE(Pack().ok());
  fs::resize_file(store_ + "/penstock.bin", fs::file_size(store_ + "/penstock.bin") - 1);
  ExpectFault(Run(), Fault::kModel, "not whole");
}

TEST_F(PackTest, AnotherVersionIsRefused) {
  ASSERT_TRUE(Pack().ok());
  std::string index = ReadAll(store_ + "/penstock.json");
  const std::string version = "\"penstock_packed_store\":2";
  index.replace(index.find(version), version.size(), "\"penstock_packed_store\":3");
  WriteAll(store_ + "/penstock.json", index);
  ExpectFault(Run(), Fault::kModel, "version 3");
}

// All experts must take the same kind of rows.
TEST_F(PackTest, OneQuantisedExpertAmongOthersIsRefused) {
  ASSERT_TRUE(Pack("none").ok());
  PackedIndex index = ParsePackedIndex(ReadAll(store_ + "/penstock.json")).value();
  const auto expert = std::find_if(index.tensors.begin(), index.tensors.end(), [](const TensorInfo& tensor) {
    return tensor.name.find("experts.1.") != std::string::npos;
  });
  ASSERT_NE(expert, index.tensors.end());
  expert->packed = WeightFormat::kInt8;
  expert->extent.offset_bytes = (index.weights_bytes + 63) / 64 * 64;
  index.weights_bytes =
      expert->extent.offset_bytes + PackedBytes(WeightFormat::kInt8, expert->shape[0], expert->shape[1]);
  WriteAll(store_ + "/penstock.json", SerializePackedIndex(index));
  fs::resize_file(store_ + "/penstock.bin", index.weights_bytes);
  ExpectFault(Run(), Fault::kModel, "is quantised and");
}

TEST_F(PackTest, NothingIsOverwritten) {
  fs::create_directories(store_);
  WriteAll(store_ + "/letter.txt", "dear");
  ExpectFault(Pack(), Fault::kIo, "no empty folder");
  EXPECT_EQ(ReadAll(store_ + "/letter.txt"), "dear");
}

TEST_F(PackTest, ALeftoverIsReplacedAndNothingElseIsRemoved) {
  fs::create_directories(store_ + ".partial/folder");
  ExpectFault(Pack(), Fault::kIo, "remove it");
  EXPECT_TRUE(fs::exists(store_ + ".partial/folder"));
  fs::remove_all(store_ + ".partial");
  fs::create_directories(store_ + ".partial");
  WriteAll(store_ + ".partial/penstock.bin", "half");
  ASSERT_TRUE(Pack().ok());
  EXPECT_TRUE(Run().ok());
}

TEST_F(PackTest, AStopLeavesNothing) {
  stop_ = true;
  ExpectFault(Pack(), Fault::kStopped, "nothing is left");
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(PackTest, AFullDiskLeavesNothing) {
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{.rlim_cur = 20'000, .rlim_max = 20'000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const absl::Status status = Pack();
    ::_exit(!status.ok() && FaultOf(status) == Fault::kIo ? 0 : 1);
  }
  int result = 0;
  ::waitpid(child, &result, 0);
  EXPECT_EQ(result, 0);
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(PackTest, AKillAtAnyMomentLeavesAWholeStoreOrNone) {
  int num_whole = 0, num_none = 0;
  for (int trial = 0; trial < 40; ++trial) {
    fs::remove_all(store_);
    const pid_t child = ::fork();
    if (child == 0) ::_exit(Pack("hqq4").ok() ? 0 : 1);
    ::usleep(static_cast<useconds_t>(trial * trial * 40));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    if (fs::exists(store_)) {
      EXPECT_TRUE(Run().ok());
      ++num_whole;
    } else {
      ++num_none;
    }
  }
  EXPECT_GT(num_none, 0);
  fs::remove_all(store_);
  EXPECT_TRUE(Pack("hqq4").ok()) << "after what the kills left";
  EXPECT_TRUE(Run().ok());
}

// The threads that pack, and the pieces in which they do, leave no trace.
TEST_F(PackTest, TheSameModelGivesTheSameCompressedStore) {
  const std::string demo = PENSTOCK_SOURCE_DIR "/models/penstock-demo";
  std::vector<std::string> weights, indexes;
  for (const int threads : {1, 3}) {
    fs::remove_all(store_);
    const absl::Status packed =
        PackModel({.model_dir = demo, .output_dir = store_, .compress = "auto", .threads = threads}, nullptr, stop_);
    ASSERT_TRUE(packed.ok()) << packed;
    weights.push_back(ReadAll(store_ + "/penstock.bin"));
    indexes.push_back(ReadAll(store_ + "/penstock.json"));
  }
  EXPECT_EQ(weights[0], weights[1]);
  EXPECT_EQ(indexes[0], indexes[1]);
  const auto model = LoadModel(store_).value();
  for (const LayerTensors& layer : model->weights.layers) {
    for (const FfnTensors& expert : layer.experts) {
      expert.ForEach([&](const TensorInfo& tensor) {
        EXPECT_TRUE(tensor.is_compressed) << tensor.name;
        EXPECT_EQ(tensor.extent.offset_bytes % 4096, 0u);
        const uint64_t plain_bytes = PackedBytes(*tensor.packed, tensor.shape[0], tensor.shape[1]);
        EXPECT_GT(static_cast<double>(plain_bytes) / static_cast<double>(tensor.extent.size_bytes), 1.45);
      });
    }
  }
}

TEST_F(PackTest, AutoCompressesOnlyWhatPays) {
  // The experts of the golden model are too small.
  ASSERT_TRUE(PackModel({.model_dir = golden_.dir(), .output_dir = store_, .compress = "auto"}, nullptr, stop_).ok());
  const auto model = LoadModel(store_).value();
  for (const TensorInfo& tensor : model->checkpoint.tensors()) EXPECT_FALSE(tensor.is_compressed);
}

TEST_F(PackTest, CompressedTensorsThatAreNotOfExpertsAreRefused) {
  ASSERT_TRUE(Pack("none").ok());
  const PackedIndex index = ParsePackedIndex(ReadAll(store_ + "/penstock.json")).value();
  const auto refuse = [&](const std::string& part_of_name, const std::string& text) {
    PackedIndex changed = index;
    const auto tensor = std::find_if(changed.tensors.begin(), changed.tensors.end(), [&](const TensorInfo& t) {
      return t.name.find(part_of_name) != std::string::npos && t.packed == WeightFormat::kBF16;
    });
    ASSERT_NE(tensor, changed.tensors.end());
    tensor->is_compressed = true;
    WriteAll(store_ + "/penstock.json", SerializePackedIndex(changed));
    ExpectFault(Run(), Fault::kModel, text);
  };
  refuse("q_proj", "not of experts");
  refuse("mlp.gate.weight", "not of experts");
  refuse("o_proj", "not of experts");
  refuse("experts.1.", "cannot be decompressed");
}

TEST_F(PackTest, WhatCannotBePackedIsRefused) {
  ExpectFault(Pack("int5"), Fault::kUsage, "int5");
  ExpectFault(PackModel({.model_dir = golden_.dir(), .output_dir = store_, .compress = "zip"}, nullptr, stop_),
              Fault::kUsage, "--compress 'zip' is unknown");
  ExpectFault(PackModel({.model_dir = golden_.dir(), .output_dir = store_, .quantize = "int8", .compress = "bf16"},
                        nullptr, stop_),
              Fault::kUsage, "--compress bf16 goes with --quantize none only");
  ASSERT_TRUE(Pack().ok());
  const absl::Status again =
      PackModel({.model_dir = store_, .output_dir = folder_ + "/again", .quantize = "int8"}, nullptr, stop_);
  ExpectFault(again, Fault::kUsage, "packed store already");
  ExpectFault(PackModel({.model_dir = golden_.dir(), .output_dir = folder_ + "/b", .quantize = "int8", .dtype = "bf16"},
                        nullptr, stop_),
              Fault::kUsage, "--quantize none only");
}

TEST_F(PackTest, AWeightThatIsNoNumberCannotBeQuantised) {
  const std::string copy = folder_ + "/copy";
  fs::copy(golden_.dir(), copy);
  const auto model = LoadModel(copy).value();
  const TensorInfo& tensor = *model->weights.layers[0].experts[0].gate_proj;
  const std::string path = model->checkpoint.files()[tensor.file_idx].path;
  std::string file = ReadAll(path);
  ASSERT_GT(file.size(), tensor.extent.offset_bytes + 1);
  file[tensor.extent.offset_bytes] = static_cast<char>(0xC0);
  file[tensor.extent.offset_bytes + 1] = 0x7F;  // bf16 NaN
  WriteAll(path, file);
  const absl::Status status = PackModel({.model_dir = copy, .output_dir = store_, .quantize = "hqq4"}, nullptr, stop_);
  ExpectFault(status, Fault::kModel, tensor.name);
}

// Weights can be rounded for --dtype bf16 when they are packed, but not afterwards.
TEST(PackDtypeTest, Bf16) {
  const Golden golden("mixtral-tiny");
  const std::string folder = testing::TempDir() + "/pack-dtype-" + std::to_string(::getpid());
  const std::atomic<bool> stop{false};
  const auto logits = [&](const std::string& dir, const std::string& dtype) {
    auto engine = Engine::Open({.model_dir = dir, .memory_bytes = 64 << 20, .dtype = DtypeCalled(dtype), .threads = 1});
    return engine.ok() ? (*engine)->Logits(golden.prompt(0)) : absl::StatusOr<std::vector<float>>(engine.status());
  };
  ASSERT_TRUE(PackModel({.model_dir = golden.dir(), .output_dir = folder + "-f32"}, nullptr, stop).ok());
  ASSERT_TRUE(
      PackModel({.model_dir = golden.dir(), .output_dir = folder + "-bf16", .dtype = "bf16"}, nullptr, stop).ok());
  EXPECT_EQ(logits(folder + "-f32", "auto").value(), logits(golden.dir(), "auto").value());
  EXPECT_EQ(logits(folder + "-bf16", "bf16").value(), logits(golden.dir(), "bf16").value());
  const auto refused = logits(folder + "-f32", "bf16");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(FaultOf(refused.status()), Fault::kUsage);
  fs::remove_all(folder + "-f32");
  fs::remove_all(folder + "-bf16");
}

}  // namespace
}  // namespace penstock
