// Proves that a store with compressed experts gives the bits of one without, for every schedule, device, budget, thread
// count and number of ranks. Wrong bits from the disk heal, and every bit that is wrong on the disk is an error like
// other damage.
#include <atomic>
#include <fstream>
#include <iterator>
#include <random>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <unistd.h>
#include <xxhash.h>

#include "penstock/base/status.h"
#include "penstock/checkpoint/packed_index.h"
#include "penstock/engine/instrumented_engine.h"
#include "penstock/pack.h"
#include "penstock/plan/loaded_model.h"
#include "tests/choices.h"
#include "tests/effort.h"
#include "tests/engine/rank_runs.h"

namespace penstock {
namespace {

class CompressedTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    store_ = testing::TempDir() + "/compressed-" + GetParam() + std::to_string(::getpid());
    std::filesystem::remove_all(store_);
    const std::atomic<bool> stop{false};
    const absl::Status packed =
        PackModel({.model_dir = golden_.dir(), .output_dir = store_, .compress = "bf16", .threads = 2}, nullptr, stop);
    ASSERT_TRUE(packed.ok()) << packed;
    options_ = {.model_dir = golden_.dir(), .memory_bytes = 64 << 20, .threads = 1, .context_length = 192};
    expected_ = RunAll(options_, requests_);
    options_.model_dir = store_;
  }
  void TearDown() override { std::filesystem::remove_all(store_); }

  const Golden golden_{GetParam()};
  const std::vector<Request> requests_ = Requests(golden_);
  std::string store_;
  std::vector<Answer> expected_;
  EngineOptions options_;
};

TEST_P(CompressedTest, EveryPlanGivesTheSameBits) {
  int64_t num_compressed = 0;
  const auto model = LoadModel(store_).value();
  for (const TensorInfo& tensor : model->checkpoint.tensors()) num_compressed += tensor.is_compressed ? 1 : 0;
  ASSERT_GT(num_compressed, 0);
  EXPECT_EQ(RunAll(options_, requests_), expected_);
  for (const char* schedule : {"on-demand", "zero", "zigzag", "hybrid", "klotski", "cgopipe"}) {
    for (const char* device : {"cpu", "emulated:link=1GB/s"}) {
      EngineOptions options = options_;
      options.policy.schedule = ScheduleCalled(schedule);
      if (schedule == std::string("cgopipe") && device == std::string("cpu")) continue;
      options.device = device;
      options.threads = 2;
      options.batch_size = 3;
      if (device != std::string("cpu")) options.device_memory_bytes = MinDeviceMemory(options);
      for (const uint64_t more_bytes : {uint64_t{0}, uint64_t{100'000}}) {
        options.memory_bytes = MinBudget(options) + more_bytes;
        EXPECT_EQ(RunAll(options, requests_), expected_) << schedule << " " << device << " " << more_bytes;
      }
    }
  }
}

TEST_P(CompressedTest, FlippedBitsHeal) {
  options_.memory_bytes = MinBudget(options_);
  const EngineHooks hooks = {.wrap_disk = [](std::unique_ptr<DiskReader> disk) {
    return std::make_unique<FaultyDisk>(std::move(disk), Faults{.flipped_reads = 0.3, .seed = 1});
  }};
  EXPECT_EQ(RunAll(options_, requests_, hooks), expected_);
}

TEST_P(CompressedTest, RanksGiveTheSameBits) {
  Draw draw(1);
  for (int i = 0; i < 4; ++i) {
    std::vector<RankRun> runs = RandomRuns(options_, 2 + i % 2, /*shares_heads=*/false, requests_.size(), draw);
    SCOPED_TRACE(Describe(runs));
    RunRanks(requests_, runs);
    EXPECT_EQ(AnswersOf(runs), expected_);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, CompressedTest, testing::Values("mixtral-bf16", "olmoe-bf16"), GoldenName);

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void WriteAll(const std::string& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

class DamagedTest : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::remove_all(store_);
    const std::atomic<bool> stop{false};
    ASSERT_TRUE(
        PackModel({.model_dir = Golden("mixtral-bf16").dir(), .output_dir = store_, .compress = "bf16"}, nullptr, stop)
            .ok());
    index_ = ParsePackedIndex(ReadAll(store_ + "/penstock.json")).value();
    weights_ = ReadAll(store_ + "/penstock.bin");
    for (const TensorInfo& tensor : index_.tensors) {
      if (tensor.is_compressed) compressed_.push_back(&tensor);
    }
    ASSERT_FALSE(compressed_.empty());
  }
  void TearDown() override { std::filesystem::remove_all(store_); }

  // Opens the store with room for all experts, which reads and decompresses each, and scores tokens that choose all.
  absl::Status Score() {
    const auto engine = Engine::Open({.model_dir = store_, .memory_bytes = 64 << 20, .threads = 1});
    if (!engine.ok()) return engine.status();
    std::vector<TokenId> tokens;
    for (int64_t i = 0; i < 64; ++i) tokens.push_back(static_cast<TokenId>(i * 7 % (*engine)->model().vocab_size));
    return (*engine)->ScoreTokens(tokens).status();
  }

  const std::string store_ = testing::TempDir() + "/damaged-" + std::to_string(::getpid());
  PackedIndex index_;
  std::string weights_;
  std::vector<const TensorInfo*> compressed_;
};

TEST_F(DamagedTest, EveryFlippedBitIsNoticed) {
  EXPECT_TRUE(Score().ok());
  std::mt19937 random(1);
  const int fd = ::open((store_ + "/penstock.bin").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  for (int trial = 0; trial < NumTried(1000); ++trial) {
    const TensorInfo& tensor = *compressed_[random() % compressed_.size()];
    const uint64_t offset = tensor.extent.offset_bytes + random() % tensor.extent.size_bytes;
    const char good = weights_[offset], bad = static_cast<char>(good ^ (1 << random() % 8));
    ASSERT_EQ(::pwrite(fd, &bad, 1, static_cast<off_t>(offset)), 1);
    const absl::Status status = Score();
    ASSERT_EQ(::pwrite(fd, &good, 1, static_cast<off_t>(offset)), 1);
    ASSERT_FALSE(status.ok()) << tensor.name << " at " << offset;
    EXPECT_EQ(ExitCodeOf(status), 3);
    EXPECT_THAT(Message(status),
                testing::AllOf(testing::HasSubstr(tensor.name), testing::HasSubstr("has the checksum")));
  }
  ::close(fd);
  EXPECT_TRUE(Score().ok());
}

// Such bytes come from a faulty program or from memory that lost a bit while packing.
TEST_F(DamagedTest, WhatHasItsChecksumAndCannotBeDecodedIsNoticed) {
  std::mt19937 random(2);
  int num_noticed = 0;
  for (int trial = 0; trial < 50; ++trial) {
    const size_t idx = random() % compressed_.size();
    const TensorInfo& tensor = *compressed_[idx];
    std::string damaged = weights_;
    damaged[tensor.extent.offset_bytes + random() % tensor.extent.size_bytes] ^= static_cast<char>(1 << random() % 8);
    PackedIndex index = index_;
    TensorInfo& changed = index.tensors[static_cast<size_t>(compressed_[idx] - index_.tensors.data())];
    changed.xxh3 = XXH3_64bits(damaged.data() + tensor.extent.offset_bytes, tensor.extent.size_bytes);
    WriteAll(store_ + "/penstock.bin", damaged);
    WriteAll(store_ + "/penstock.json", SerializePackedIndex(index));
    const absl::Status status = Score();
    if (status.ok()) continue;  // a bit that no weight uses
    ++num_noticed;
    EXPECT_EQ(ExitCodeOf(status), 3);
    EXPECT_THAT(Message(status),
                testing::AllOf(testing::HasSubstr(tensor.name), testing::HasSubstr("cannot be decompressed")));
  }
  EXPECT_GT(num_noticed, 40);
}

}  // namespace
}  // namespace penstock
