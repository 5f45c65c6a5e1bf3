// Proves that mirrors never change an answer: whole and partial ones, ones that lie, and ones that vanish. A store has
// checksums, so that wrong bytes of a mirror are read again from the model.
#include <atomic>
#include <chrono>
#include <filesystem>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include "penstock/base/status.h"
#include "penstock/checkpoint/mirror.h"
#include "penstock/measure/learned_routing.h"
#include "penstock/pack.h"
#include "tests/engine/answers.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;

class MirrorsTest : public testing::TestWithParam<bool> {
 protected:
  MirrorsTest() : root_(testing::TempDir() + "/mirrors-" + std::to_string(::getpid())) {
    fs::remove_all(root_);
    fs::create_directories(root_);
  }
  ~MirrorsTest() override { fs::remove_all(root_); }

  void SetUp() override {
    const PackOptions pack{
        .model_dir = golden_.dir(), .output_dir = root_ + "/store", .quantize = "int8", .threads = 1};
    ASSERT_TRUE(PackModel(pack, nullptr, stop_).ok());
    Choose(root_ + "/store", golden_);
  }
  // Runs the model without mirrors, and reads most of its experts from disk.
  void Choose(const std::string& model_dir, const Golden& golden) {
    requests_ = Requests(golden);
    options_ = {.model_dir = model_dir, .memory_bytes = 64 << 20, .threads = 2};
    options_.context_length = 192;
    options_.direct_io = options_.io_uring = GetParam();
    expected_ = RunAll(options_, requests_);
    options_.batch_size = 3;
    options_.policy.schedule = ScheduleKind::kKlotski;
    options_.memory_bytes = MinBudget(options_) + (64 << 10);
  }
  std::string CopyOf(const std::string& model_dir) {
    const std::string mirror = root_ + "/mirror";
    fs::copy(model_dir, mirror, fs::copy_options::recursive);
    return mirror;
  }
  // Expects the answers of a run without mirrors.
  void ExpectSameAnswers(Engine& engine) {
    std::map<RequestId, size_t> places;
    for (size_t i = 0; i < requests_.size(); ++i) places[engine.Submit(requests_[i]).value()] = i;
    while (!engine.idle()) {
      const auto finished = engine.Step();
      ASSERT_TRUE(finished.ok()) << finished.status();
      for (const Completion& completion : *finished) {
        EXPECT_TRUE(completion.status.ok()) << completion.status;
        EXPECT_EQ(completion.token_ids, expected_[places.at(completion.request_id)].token_ids);
        places.erase(completion.request_id);
      }
    }
    EXPECT_TRUE(places.empty());
  }
  // Expects the right answers until the engine leaves the mirror out. A mirror whose first part was slow gets no other
  // part for ten seconds, so a busy machine may need several such pauses.
  void ExpectLeftOut(Engine& engine) {
    const auto is_left_out = [&] { return engine.stats().directories.at(1).is_left_out; };
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::minutes(3);
    do {
      ExpectSameAnswers(engine);
    } while (!is_left_out() && std::chrono::steady_clock::now() < give_up);
    EXPECT_TRUE(is_left_out());
  }
  std::unique_ptr<Engine> OpenWith(const std::vector<std::string>& mirrors) {
    options_.model_mirrors = mirrors;
    auto engine = Engine::Open(options_);
    EXPECT_TRUE(engine.ok()) << engine.status();
    return engine.ok() ? *std::move(engine) : nullptr;
  }
  static void FlipBytes(const std::string& path, off_t begin) {
    const int fd = ::open(path.c_str(), O_RDWR);
    const auto size = static_cast<off_t>(fs::file_size(path));
    std::string bytes(static_cast<size_t>(size - begin), '\0');
    ASSERT_EQ(::pread(fd, bytes.data(), bytes.size(), begin), size - begin);
    for (size_t i = 0; i < bytes.size(); i += 64) bytes[i] = static_cast<char>(bytes[i] ^ 1);
    ASSERT_EQ(::pwrite(fd, bytes.data(), bytes.size(), begin), size - begin);
    ::fsync(fd);
    ::close(fd);
  }

  const Golden golden_{"mixtral-tiny"};
  std::atomic<bool> stop_{false};
  std::string root_;
  std::vector<Request> requests_;
  std::vector<Answer> expected_;
  EngineOptions options_;
};

TEST_P(MirrorsTest, WholeCopiesShareTheReads) {
  const auto engine = OpenWith({CopyOf(options_.model_dir)});
  ASSERT_NE(engine, nullptr);
  ExpectSameAnswers(*engine);
  const std::vector<DirectoryStats>& directories = engine->stats().directories;
  ASSERT_EQ(directories.size(), 2u);
  EXPECT_EQ(directories[1].path, root_ + "/mirror");
  for (const DirectoryStats& directory : directories) {
    EXPECT_GT(directory.bytes, 0u);
    EXPECT_GT(directory.bytes_per_s, 0);
    EXPECT_FALSE(directory.is_left_out);
  }
}

TEST_P(MirrorsTest, AModelFolderHasMirrorsToo) {
  Choose(golden_.dir(), golden_);
  const auto engine = OpenWith({CopyOf(golden_.dir())});
  ASSERT_NE(engine, nullptr);
  ExpectSameAnswers(*engine);
  EXPECT_GT(engine->stats().directories.at(1).bytes, 0u);
}

TEST_P(MirrorsTest, AGgufFileHasMirrorsOfAnyName) {
  const Golden golden("glm4moe-tiny");
  const std::string file = golden.dir() + "/gguf/glm4moe-tiny.gguf";
  Choose(file, golden);
  fs::create_directories(root_ + "/mirror");
  fs::copy(file, root_ + "/mirror/other.gguf");
  const auto engine = OpenWith({root_ + "/mirror/other.gguf"});
  ASSERT_NE(engine, nullptr);
  ExpectSameAnswers(*engine);
  EXPECT_GT(engine->stats().directories.at(1).bytes, 0u);
}

TEST_P(MirrorsTest, ASplitGgufModelIsMirroredByItsFolder) {
  Choose(golden_.dir() + "/gguf", golden_);
  const auto engine = OpenWith({CopyOf(golden_.dir() + "/gguf")});
  ASSERT_NE(engine, nullptr);
  ExpectSameAnswers(*engine);
  EXPECT_GT(engine->stats().directories.at(1).bytes, 0u);
}

TEST_P(MirrorsTest, AnotherModelIsRefused) {
  options_.model_mirrors = {CopyOf(golden_.dir())};
  EXPECT_EQ(FaultOf(Engine::Open(options_).status()), Fault::kModel);
  fs::remove_all(root_ + "/mirror");
  // The same headers, other weights.
  options_.model_mirrors = {CopyOf(options_.model_dir)};
  FlipBytes(root_ + "/mirror/penstock.bin", 0);
  const absl::Status status = Engine::Open(options_).status();
  EXPECT_EQ(FaultOf(status), Fault::kModel);
  EXPECT_THAT(Message(status), testing::HasSubstr("of another model"));
}

TEST_P(MirrorsTest, AMirrorThatLiesIsLeftOut) {
  const auto engine = OpenWith({CopyOf(options_.model_dir)});
  ASSERT_NE(engine, nullptr);
  FlipBytes(root_ + "/mirror/penstock.bin", 0);
  ExpectLeftOut(*engine);
}

TEST_P(MirrorsTest, AMirrorReplacesWrongBytesOfTheModel) {
  const auto engine = OpenWith({CopyOf(options_.model_dir)});
  ASSERT_NE(engine, nullptr);
  FlipBytes(root_ + "/store/penstock.bin", 0);
  ExpectSameAnswers(*engine);
  EXPECT_FALSE(engine->stats().directories.at(1).is_left_out);
}

TEST_P(MirrorsTest, AMirrorMayVanish) {
  const auto engine = OpenWith({CopyOf(options_.model_dir)});
  ASSERT_NE(engine, nullptr);
  fs::resize_file(root_ + "/mirror/penstock.bin", 0);
  ExpectLeftOut(*engine);
}

TEST_P(MirrorsTest, APartialMirrorHoldsSomeExperts) {
  const MirrorOptions mirror{.model_dir = options_.model_dir, .output_dir = root_ + "/mirror", .size_bytes = 100'000};
  uint64_t done_bytes = 0;
  const absl::Status made = MirrorModel(
      mirror, [&](const PackProgress& progress) { done_bytes = progress.done_bytes; }, stop_);
  ASSERT_TRUE(made.ok()) << made;
  EXPECT_GT(done_bytes, 0u);
  EXPECT_LE(done_bytes, mirror.size_bytes);
  EXPECT_EQ(fs::file_size(root_ + "/mirror/penstock.bin"), fs::file_size(root_ + "/store/penstock.bin"));
  const auto engine = OpenWith({root_ + "/mirror"});
  ASSERT_NE(engine, nullptr);
  ExpectSameAnswers(*engine);
  EXPECT_GT(engine->stats().directories.at(1).bytes, 0u);
  EXPECT_GT(engine->stats().directories.at(0).bytes, engine->stats().directories.at(1).bytes);
}

TEST_P(MirrorsTest, AnInterruptedMirrorLeavesNothing) {
  stop_ = true;
  const absl::Status stopped =
      MirrorModel({.model_dir = options_.model_dir, .output_dir = root_ + "/mirror"}, nullptr, stop_);
  EXPECT_EQ(FaultOf(stopped), Fault::kStopped);
  EXPECT_FALSE(fs::exists(root_ + "/mirror"));
  EXPECT_FALSE(fs::exists(root_ + "/mirror.partial"));
  stop_ = false;
  const absl::Status small = MirrorModel(
      {.model_dir = options_.model_dir, .output_dir = root_ + "/mirror", .size_bytes = 4096}, nullptr, stop_);
  EXPECT_EQ(FaultOf(small), Fault::kUsage);
  EXPECT_THAT(Message(small), testing::HasSubstr("not one expert"));
}

INSTANTIATE_TEST_SUITE_P(Readers, MirrorsTest, testing::Bool(),
                         [](const auto& param) { return param.param ? "DirectRing" : "BufferedThreads"; });

}  // namespace
}  // namespace penstock
