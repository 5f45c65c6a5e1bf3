// Proves that several inputs and patterns are one job, and that an input that changes meanwhile is noticed unless only
// its time has changed.
#include "job_fixture.h"

namespace penstock {
namespace {

using InputsTest = JobFixture;
using testing::HasSubstr;

TEST_F(InputsTest, AnInputThatChangesWhileItRunsIsNoticed) {
  WriteInput(ManyRequests(50));
  const auto summary = RunJob(
      options_,
      [&](const InputReport& report) -> absl::StatusOr<std::unique_ptr<Engine>> {
        EXPECT_EQ(report.num_lines, 50);
        EXPECT_GT(report.parse_bytes, 0u);
        std::ofstream(options_.input_paths[0], std::ios::app) << "{}\n";
        return std::make_unique<FakeEngine>(engine_);
      },
      stop_);
  ASSERT_FALSE(summary.ok());
  EXPECT_EQ(FaultOf(summary.status()), Fault::kInput);
  EXPECT_THAT(Message(summary.status()), HasSubstr("changed while the job ran"));
}

TEST_F(InputsTest, ATouchedInputGoesOn) {
  WriteInput(ManyRequests(50));
  const auto summary = RunJob(
      options_,
      [&](const InputReport&) -> absl::StatusOr<std::unique_ptr<Engine>> {
        std::filesystem::last_write_time(options_.input_paths[0], std::filesystem::file_time_type::clock::now());
        return std::make_unique<FakeEngine>(engine_);
      },
      stop_);
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(Output().size(), 50u);
}

TEST_F(InputsTest, AnInputOfTheSameSizeWithOtherContentIsNoticed) {
  WriteInput("{\"prompt\": \"abc\"}\n");
  const auto summary = RunJob(
      options_,
      [&](const InputReport&) -> absl::StatusOr<std::unique_ptr<Engine>> {
        WriteInput("{\"prompt\": \"abd\"}\n");
        return std::make_unique<FakeEngine>(engine_);
      },
      stop_);
  EXPECT_THAT(Message(summary.status()), HasSubstr("put the old content back"));
}

TEST_F(InputsTest, SeveralInputsAreOneJob) {
  const std::string first = dir_ + "/a-1.jsonl", second = dir_ + "/a-2.jsonl";
  WriteInput("{\"id\": \"0\", \"prompt\": \"zero\"}\n");
  WriteFile(first, "{\"prompt\": \"one\"}\n{\"id\": \"two\", \"prompt\": \"two\"}");  // no newline at the end
  WriteFile(second, "\xEF\xBB\xBF{\"prompt\": \"three\"}\nbroken\n");
  options_.input_paths.push_back(dir_ + "/a-*.jsonl");
  const auto summary = Run();
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->numbers.num_requests, 5);
  ASSERT_EQ(Output().size(), 5u);
  for (const char* id : {"0", "line-2", "two", "line-4"}) EXPECT_EQ(Result(id).at("error"), json::value(nullptr)) << id;
  const std::string output = ReadAll(options_.output_path);
  EXPECT_THAT(output, HasSubstr(R"("line":2,"file":")" + second + "\""));
  EXPECT_EQ(summary->numbers.failures.at(0).first_place, second + ", line 2");

  // One file with the same lines is the same job, and gives the same results.
  const std::vector<std::string> results = SortedOutput();
  options_.resume = true;
  options_.input_paths = {dir_ + "/all.jsonl"};
  WriteFile(options_.input_paths[0],
            "{\"id\": \"0\", \"prompt\": \"zero\"}\n{\"prompt\": \"one\"}\n{\"id\": \"two\", "
            "\"prompt\": \"two\"}\n{\"prompt\": \"three\"}\nbroken\n");
  ASSERT_TRUE(Run().ok());
  EXPECT_EQ(SortedOutput(), results);

  options_.resume = false;
  options_.output_path = dir_ + "/other.jsonl";
  options_.input_paths = {first, dir_ + "/a-?.jsonl"};
  ExpectFault(Fault::kUsage, {first, "named twice"});
  options_.input_paths = {dir_ + "/b-*.jsonl"};
  ExpectFault(Fault::kIo, {"b-*.jsonl", "no file has such a name"});
  options_.input_paths = {first, second};
  options_.stats_path = second;
  ExpectFault(Fault::kUsage, {"--stats", "the job itself uses this file"});
  WriteFile(second, "{\"id\": \"two\", \"prompt\": \"again\"}");
  options_.stats_path.clear();
  ExpectFault(Fault::kInput, {second + ": line 1: id 'two' was already used in " + first + ", line 2"});
}

TEST_F(InputsTest, AnInputThatGetsShorterBeforeTheNextOneIsNoticed) {
  const std::string second = dir_ + "/second.jsonl";
  std::string lines;
  for (int i = 0; i < 3000; ++i) lines += fmt::format("{{\"id\": \"a{}\", \"prompt\": \"x\"}}\n", i);
  WriteInput(lines);
  WriteFile(second, "{\"id\": \"b\", \"prompt\": \"x\"}\n");
  options_.input_paths.push_back(second);
  const auto summary = RunJob(
      options_,
      [&](const InputReport&) -> absl::StatusOr<std::unique_ptr<Engine>> {
        std::filesystem::resize_file(options_.input_paths[0], 0);
        return std::make_unique<FakeEngine>(engine_);
      },
      stop_);
  EXPECT_THAT(Message(summary.status()), HasSubstr("changed while the job ran"));
  EXPECT_TRUE(Output().empty());
}

TEST_F(InputsTest, AnOutputThatTheInputsPatternNamesIsRefused) {
  WriteInput("{\"prompt\": \"x\"}\n");
  options_.input_paths = {dir_ + "/*.jsonl"};
  ExpectFault(Fault::kUsage, {"/*.jsonl", "choose another --output"});
  EXPECT_FALSE(std::filesystem::exists(options_.output_path));
}

}  // namespace
}  // namespace penstock
