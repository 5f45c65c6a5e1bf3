// Proves that compiled formats are kept and shared, also by threads, and that those of requests under way are bounded.
#include "penstock/job/format_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "penstock/base/status.h"
#include "tests/grammar/walks.h"
#include "tests/job/fake_engine.h"

namespace penstock {
namespace {

class CompilingEngine : public FakeEngine {
 public:
  CompilingEngine() : FakeEngine({}) {}
  absl::StatusOr<std::shared_ptr<const Constraint>> CompileFormat(const OutputFormat& format) const override {
    return Constraint::Compile(format, ByteVocabulary());
  }
};

RequestFormat Regex(const std::string& pattern) {
  return {.format = {OutputFormat::Kind::kRegex, pattern}, .field = "guided_regex"};
}

TEST(FormatCacheTest, KeepsFormatsAndNamesTheFieldOfBadOnes) {
  const CompilingEngine engine;
  FormatCache formats;
  const auto one = formats.Compile(engine, Regex("a+"));
  ASSERT_TRUE(one.ok());
  EXPECT_EQ(*formats.Compile(engine, Regex("a+")), *one);
  EXPECT_NE(*formats.Compile(engine, Regex("b+")), *one);
  const absl::Status bad = formats.Compile(engine, Regex("(")).status();
  EXPECT_EQ(FaultOf(bad), Fault::kInput);
  EXPECT_THAT(Message(bad), testing::StartsWith("guided_regex: "));
}

TEST(FormatCacheTest, FormatsOfRequestsUnderWayAreBounded) {
  const CompilingEngine engine;
  FormatCache formats(/*max_bytes=*/1);
  auto held = formats.Compile(engine, Regex("a+"));
  ASSERT_TRUE(held.ok());
  EXPECT_FALSE(formats.HasRoom());
  const absl::Status refused = formats.Compile(engine, Regex("b+")).status();
  EXPECT_EQ(FaultOf(refused), Fault::kResources);
  EXPECT_THAT(Message(refused), testing::StartsWith("guided_regex: "));
  held = nullptr;
  EXPECT_TRUE(formats.HasRoom());
  EXPECT_TRUE(formats.Compile(engine, Regex("b+")).ok());
}

TEST(FormatCacheTest, ThreadsShareIt) {
  constexpr int kNumThreads = 4, kNumFormats = 6;
  const CompilingEngine engine;
  FormatCache formats(FormatBytesOf(0));
  std::vector<std::vector<std::optional<std::string>>> answers(kNumThreads);
  std::vector<std::thread> threads;
  for (auto& own : answers) {
    threads.emplace_back([&] {
      for (int i = 0; i < kNumFormats; ++i) {
        own.push_back(RandomAnswer(*formats.Compile(engine, Regex(fmt::format("{}(a|bc)*", i))), 1));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& own : answers) EXPECT_EQ(own, answers[0]);
  for (int i = 0; i < kNumFormats; ++i) EXPECT_THAT(*answers[0][i], testing::StartsWith(fmt::format("{}", i)));
}

}  // namespace
}  // namespace penstock
