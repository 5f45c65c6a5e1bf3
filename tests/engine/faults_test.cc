// Proves that, when experts stream, a failed read or a wrong bit never gives a wrong token. A flipped bit is read again
// and heals. An unreadable expert fails the requests that wanted it, each with its own status. All other requests get
// the bits of an undisturbed run, from the same engine. Failed requests get these bits when they are repeated.
#include <atomic>
#include <map>
#include <mutex>

#include <fcntl.h>
#include <unistd.h>

#include "penstock/base/status.h"
#include "penstock/engine/instrumented_engine.h"
#include "penstock/pack.h"
#include "tests/choices.h"
#include "tests/engine/answers.h"
#include "tests/engine/faulty_disk.h"

namespace penstock {
namespace {

class FaultsTest : public testing::TestWithParam<std::string> {
 protected:
  // An int8 store, because it has checksums.
  void SetUp() override {
    store_ = testing::TempDir() + "/faults-" + GetParam() + std::to_string(::getpid());
    std::filesystem::remove_all(store_);
    const std::atomic<bool> stop{false};
    const Golden golden("mixtral-tiny");
    ASSERT_TRUE(
        PackModel({.model_dir = golden.dir(), .output_dir = store_, .quantize = "int8", .threads = 1}, nullptr, stop)
            .ok());
    requests_ = Requests(golden);
    options_ = {.model_dir = store_, .memory_bytes = 64 << 20, .threads = 2};
    options_.context_length = 192;
    expected_ = RunAll(options_, requests_);
    options_.batch_size = 3;
    options_.policy.schedule = ScheduleCalled(Schedule());
    if (GetParam() != Schedule()) {
      options_.device = "emulated:link=1GB/s";
      options_.device_memory_bytes = MinDeviceMemory(options_);
    }
    // Without pinned experts in DRAM, a device wants each expert from the disk again.
    options_.memory_bytes = MinBudget(options_) + (options_.device == "auto" ? 64 << 10 : 0);
  }
  void TearDown() override { std::filesystem::remove_all(store_); }

  // The name "device_klotski" means klotski on a device.
  static std::string Schedule() {
    const std::string& name = GetParam();
    return name.starts_with("device_") ? name.substr(7) : name;
  }

  // Runs all requests, each of which gets its answer or fails. Returns the number of failures.
  int Run(Engine& engine) {
    std::map<RequestId, size_t> places;
    for (size_t i = 0; i < requests_.size(); ++i) places[engine.Submit(requests_[i]).value()] = i;
    int num_failed = 0;
    while (!engine.idle()) {
      const auto finished = engine.Step();
      EXPECT_TRUE(finished.ok()) << finished.status();
      if (!finished.ok()) return -1;
      for (const Completion& completion : *finished) {
        const Answer& answer = expected_[places.at(completion.request_id)];
        places.erase(completion.request_id);
        if (completion.status.ok()) {
          EXPECT_EQ(completion.token_ids, answer.token_ids);
          continue;
        }
        ++num_failed;
        const Fault fault = FaultOf(completion.status);
        EXPECT_TRUE(fault == Fault::kIo || fault == Fault::kModel) << completion.status;
      }
    }
    EXPECT_TRUE(places.empty());
    return num_failed;
  }

  // Flips a bit of every byte of the last experts. The store ends with the experts of the last layer, one of which may
  // stay on the device for good.
  void FlipLastExperts() {
    const std::string path = store_ + "/penstock.bin";
    const int fd = ::open(path.c_str(), O_RDWR);
    const auto end = static_cast<off_t>(std::filesystem::file_size(path));
    char bytes[64];
    for (off_t offset = end - end / 8 / 64 * 64; offset < end; offset += 64) {
      ASSERT_EQ(::pread(fd, bytes, 64, offset), 64);
      for (char& c : bytes) c = static_cast<char>(c ^ 1);
      ASSERT_EQ(::pwrite(fd, bytes, 64, offset), 64);
    }
    ::fsync(fd);
    ::close(fd);
  }

  std::unique_ptr<Engine> Open(const Faults& faults) {
    return OpenInstrumentedEngine(options_, {.wrap_disk =
                                                 [faults](std::unique_ptr<DiskReader> disk) {
                                                   return std::make_unique<FaultyDisk>(std::move(disk), faults);
                                                 }})
        .value();
  }

  std::string store_;
  std::vector<Request> requests_;
  std::vector<Answer> expected_;
  EngineOptions options_;
};

TEST_P(FaultsTest, FlippedBitsHeal) {
  const auto engine = Open({.flipped_reads = 0.5, .seed = 1});
  EXPECT_EQ(Run(*engine), 0);
}

TEST_P(FaultsTest, FailedReadsFailTheRequestsThatWantedThem) {
  int num_failed = 0, num_answered = 0;
  for (unsigned seed = 0; seed < 3; ++seed) {
    const auto engine = Open({.failed_reads = 0.003, .flipped_reads = 0.1, .seed = seed});
    // Uses the same engine repeatedly: a failure leaves nothing behind.
    for (int round = 0; round < 2; ++round) {
      const int failed = Run(*engine);
      ASSERT_GE(failed, 0);
      num_failed += failed;
      num_answered += static_cast<int>(requests_.size()) - failed;
    }
  }
  EXPECT_GT(num_failed, 0);
  EXPECT_GT(num_answered, 0);
}

TEST_P(FaultsTest, ADiskThatReadsNothingFailsEveryRequest) {
  const auto engine = Open({.failed_reads = 1});
  EXPECT_EQ(Run(*engine), static_cast<int>(requests_.size()));
}

TEST_P(FaultsTest, ABlobThatWasChangedFailsThoseWhoWantIt) {
  const auto engine = Open({});
  EXPECT_EQ(Run(*engine), 0);
  FlipLastExperts();
  const int num_failed = Run(*engine);
  EXPECT_GT(num_failed, 0);
  // An engine that has room for all experts reads them when it is opened, and fails the same requests as a small one.
  const int failed_when_streaming = Run(*Open({}));
  options_.memory_bytes = 64 << 20;
  const auto roomy = Open({});
  EXPECT_EQ(Run(*roomy), failed_when_streaming);
  FlipLastExperts();
  EXPECT_EQ(Run(*roomy), 0);
  EXPECT_EQ(Run(*engine), 0);
}

INSTANTIATE_TEST_SUITE_P(Schedules, FaultsTest,
                         testing::Values("on-demand", "zero", "zigzag", "hybrid", "klotski", "device_zigzag",
                                         "device_hybrid", "device_klotski", "device_cgopipe"),
                         [](const auto& param) { return param.param == "on-demand" ? "on_demand" : param.param; });

}  // namespace
}  // namespace penstock
