// Proves that the engine's thread serves requests of many threads, gives up those that are cancelled, and that a job on
// a share of the engine has the results of a job on an engine of its own.
#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>

#include <gtest/gtest.h>

#include "penstock/base/file.h"
#include "penstock/base/status.h"
#include "penstock/job/job.h"
#include "penstock/server/batches/guest_engine.h"
#include "penstock/server/engine_service.h"
#include "tests/job/fake_engine.h"

namespace penstock::server {
namespace {

// Waits for the end of a request.
class Waiter : public AnswerListener {
 public:
  void OnEnd(Completion completion) override {
    const std::lock_guard lock(mutex_);
    completion_ = std::move(completion);
    ++num_ends;
    ended_.notify_all();
  }
  Completion Wait() {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [&] { return completion_.has_value(); });
    return *completion_;
  }
  std::atomic<int> num_ends{0};

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  std::optional<Completion> completion_;
};

Request PromptOfNumber(int number) {
  return {.prompt_ids = {1, static_cast<TokenId>(number % 200), static_cast<TokenId>(number / 200)},
          .sampling = {.max_tokens = 8}};
}

std::string AnswerAlone(int number) {
  FakeEngine engine({});
  EXPECT_TRUE(engine.Submit(PromptOfNumber(number)).ok());
  while (true) {
    const std::vector<Completion> finished = *engine.Step();
    if (!finished.empty()) return finished[0].text;
  }
}

TEST(EngineService, ManyThreadsGetTheirOwnAnswers) {
  EngineService service(std::make_unique<FakeEngine>(FakeEngineOptions{}));
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&service, thread] {
      for (int i = 0; i < 20; ++i) {
        const int number = thread * 100 + i;
        const auto waiter = std::make_shared<Waiter>();
        service.Submit(PromptOfNumber(number), waiter);
        EXPECT_EQ(waiter->Wait().text, AnswerAlone(number));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(EngineService, BadRequestsFailAlone) {
  EngineService service(std::make_unique<FakeEngine>(FakeEngineOptions{}));
  const auto bad = std::make_shared<Waiter>(), good = std::make_shared<Waiter>();
  service.Submit({.prompt_ids = {1'000'000}}, bad);
  service.Submit(PromptOfNumber(3), good);
  EXPECT_EQ(FaultOf(bad->Wait().status), Fault::kInput);
  EXPECT_TRUE(good->Wait().status.ok());
  EXPECT_TRUE(service.status().ok());
}

TEST(EngineService, ABrokenEngineFailsAllRequests) {
  EngineService service(std::make_unique<FakeEngine>(FakeEngineOptions{.fail_at_step = 0}));
  const auto first = std::make_shared<Waiter>(), second = std::make_shared<Waiter>();
  service.Submit(PromptOfNumber(1), first);
  EXPECT_EQ(FaultOf(first->Wait().status), Fault::kIo);
  service.Submit(PromptOfNumber(2), second);
  EXPECT_EQ(FaultOf(second->Wait().status), Fault::kIo);
  EXPECT_FALSE(service.status().ok());
}

TEST(EngineService, StoppingEndsWhatWaits) {
  const auto waiter = std::make_shared<Waiter>();
  EngineService service(std::make_unique<FakeEngine>(FakeEngineOptions{.max_sleep_us = 1000}));
  std::vector<std::shared_ptr<Waiter>> waiters;
  for (int i = 0; i < 50; ++i) {
    waiters.push_back(std::make_shared<Waiter>());
    service.Submit(PromptOfNumber(i), waiters.back());
  }
  service.Stop();
  for (const auto& one : waiters) EXPECT_EQ(one->num_ends, 1);
}

class GuestTest : public testing::Test {
 protected:
  GuestTest() {
    std::filesystem::create_directories(folder_);
    std::ofstream input(folder_ + "/in.jsonl");
    for (int i = 0; i < 60; ++i) {
      input << R"({"id": "r)" << i << R"(", "prompt": "question )" << i << R"(", "max_tokens": 9})"
            << "\n";
    }
    input << R"({"id": "bad", "prompt": 3})"
          << "\n";
  }
  ~GuestTest() override { std::filesystem::remove_all(folder_); }

  template <typename OpenEngine>
  std::string Run(const std::string& name, const OpenEngine& open_engine) {
    JobOptions options;
    options.input_paths = {folder_ + "/in.jsonl"};
    options.output_path = folder_ + "/" + name;
    options.quiet = true;
    options.date = "2026-11-05";
    const std::atomic<bool> stop{false};
    const absl::StatusOr<JobSummary> summary = RunJob(options, open_engine, stop);
    EXPECT_TRUE(summary.ok()) << summary.status();
    std::vector<std::string> lines;
    std::ifstream output(options.output_path);
    for (std::string line; std::getline(output, line);) lines.push_back(line);
    std::ranges::sort(lines);
    std::string all;
    for (const std::string& line : lines) all += line + "\n";
    return all;
  }

  const std::string folder_ = std::filesystem::temp_directory_path() / ("guest_" + std::to_string(::getpid()));
};

TEST_F(GuestTest, AJobHasTheResultsOfAnEngineOfItsOwn) {
  const std::string own = Run("own.jsonl", [](const InputReport&) -> absl::StatusOr<OpenedEngine> {
    return OpenedEngine(std::make_unique<FakeEngine>(FakeEngineOptions{}));
  });
  EngineService service(std::make_unique<FakeEngine>(FakeEngineOptions{}));
  std::atomic<bool> stops{false};
  std::thread chats([&] {
    for (int i = 0; !stops; ++i) {
      const auto waiter = std::make_shared<Waiter>();
      service.Submit(PromptOfNumber(i), waiter);
      waiter->Wait();
    }
  });
  const std::string guest = Run("guest.jsonl", [&](const InputReport&) -> absl::StatusOr<OpenedEngine> {
    return OpenedEngine(std::make_unique<GuestEngine>(service, "fake"));
  });
  stops = true;
  chats.join();
  EXPECT_EQ(guest, own);
}

TEST_F(GuestTest, CancelledRequestsAreForgotten) {
  EngineService service(std::make_unique<FakeEngine>(FakeEngineOptions{}));
  GuestEngine guest(service, "served");
  std::vector<RequestId> ids;
  for (int i = 0; i < 30; ++i) ids.push_back(*guest.Submit(PromptOfNumber(i)));
  std::vector<RequestId> ended = guest.DropWaiting();
  const RequestId further = *guest.Submit(PromptOfNumber(99));
  if (guest.Cancel(further)) ended.push_back(further);  // otherwise it has finished already
  while (!guest.idle()) {
    const std::vector<Completion> finished = *guest.Step();
    for (const Completion& completion : finished) ended.push_back(completion.request_id);
  }
  ids.push_back(further);
  std::ranges::sort(ended);
  EXPECT_EQ(ended, ids);
  EXPECT_FALSE(guest.Cancel(further));
  EXPECT_EQ(FaultOf(guest.Submit({.prompt_ids = {1'000'000}}).status()), Fault::kInput);
}

}  // namespace
}  // namespace penstock::server
