// Proves that a resumed job is refused, with the difference named, when anything changed that its texts depend on.
// Other changes do not stop it. Refused jobs leave the output unchanged.
#include "job_fixture.h"
#include "penstock/job/output_file.h"

namespace penstock {
namespace {

using testing::HasSubstr;

class ResumeTest : public JobFixture {
 protected:
  static constexpr int kNumRequests = 40;

  // Starts a job that a failing disk stops halfway.
  void StartJob() {
    options_.engine_settings = {{"dtype", "auto"}, {"kv_dtype", "auto"}, {"context_length", "0"}};
    options_.sampling.temperature = 0.7;
    input_ = ManyRequests(kNumRequests);
    WriteInput(input_);
    engine_.fail_at_step = 14;
    ASSERT_EQ(ExitCode(Run().status()), 5);
    engine_.fail_at_step = -1;
    options_.resume = true;
    partial_ = ReadAll(options_.output_path);
    ASSERT_GT(Lines(partial_).size(), 3u);
    ASSERT_LT(Lines(partial_).size(), 35u);
  }
  std::string InputWithLine(size_t i, const std::string& line) const {
    std::vector<std::string> lines = Lines(input_);
    lines[i] = line;
    std::string text;
    for (const std::string& one : lines) text += one + "\n";
    return text;
  }

  std::string input_;
  std::string partial_;
};

struct Mutation {
  std::string name;
  std::function<void()> apply;
  int exit_code;
  std::vector<std::string> messages;
};

TEST_F(ResumeTest, RefusesEveryMutation) {
  StartJob();
  const JobOptions options = options_;
  const FakeEngineOptions engine = engine_;
  const std::string manifest_path = ManifestPath(options_.output_path);
  const std::string manifest = ReadAll(manifest_path);
  const auto edit_manifest = [&](const std::string& from, const std::string& to) {
    const size_t at = manifest.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    WriteFile(manifest_path, std::string(manifest).replace(at, from.size(), to));
  };
  const std::vector<std::string> partial_lines = Lines(partial_);
  const std::string other_line = R"({"id": "other", "prompt": "other"})";
  const Mutation mutations[] = {
      {"seed", [&] { options_.seed = 8; }, 4, {"seed: 0 then, 8 now"}},
      {"temperature", [&] { options_.sampling.temperature = 0.8; }, 4, {"sampling.temperature: 0.7 then, 0.8 now"}},
      {"no temperature",
       [&] { options_.sampling.temperature.reset(); },
       4,
       {"sampling.temperature: 0.7 then, not given now"}},
      {"top_k", [&] { options_.sampling.top_k = 5; }, 4, {"sampling.top_k: not given then, 5 now"}},
      {"top_p", [&] { options_.sampling.top_p = 0.5; }, 4, {"sampling.top_p"}},
      {"min_p", [&] { options_.sampling.min_p = 0.5; }, 4, {"sampling.min_p"}},
      {"penalty", [&] { options_.sampling.repetition_penalty = 1.5; }, 4, {"sampling.repetition_penalty"}},
      {"max_tokens", [&] { options_.sampling.max_tokens = 5; }, 4, {"sampling.max_tokens: not given then, 5 now"}},
      {"stop", [&] { options_.sampling.stop = {"x"}; }, 4, {"sampling.stop"}},
      {"ignore_eos", [&] { options_.sampling.ignore_eos = true; }, 4, {"sampling.ignore_eos"}},
      {"logprobs", [&] { options_.sampling.logprobs = 1; }, 4, {"sampling.logprobs"}},
      {"dtype flag",
       [&] { options_.engine_settings[0].second = "bf16"; },
       4,
       {"settings.dtype: \"auto\" then, \"bf16\" now"}},
      {"kv dtype flag", [&] { options_.engine_settings[1].second = "bf16"; }, 4, {"settings.kv_dtype"}},
      {"context flag", [&] { options_.engine_settings[2].second = "64"; }, 4, {"settings.context_length"}},
      {"new setting",
       [&] {
         options_.engine_settings.push_back({"x", "y"});
       },
       4,
       {"settings.x: not given then"}},
      {"two flags", [&] { options_.seed = 8, options_.sampling.top_k = 5; }, 4, {"seed: 0 then", "sampling.top_k"}},
      {"model", [&] { engine_.fingerprint = "beef"; }, 4, {"model.fingerprint: \"f00d\" then, \"beef\" now"}},
      {"model dtype", [&] { engine_.dtype = "bf16"; }, 4, {"model.dtype"}},
      {"model context", [&] { engine_.context_length = 99; }, 4, {"model.context_length"}},
      {"generation config", [&] { engine_.default_temperature = 0.5; }, 4, {"model.sampling.temperature"}},
      {"line changed", [&] { WriteInput(InputWithLine(20, other_line)); }, 4, {"the first difference is in line 21"}},
      {"line inserted",
       [&] { WriteInput(InputWithLine(0, other_line + "\n" + Lines(input_)[0])); },
       4,
       {"input.lines: 40 then, 41 now", "in line 1"}},
      {"line appended", [&] { WriteInput(input_ + other_line); }, 4, {"the first difference is in line 41"}},
      {"line removed", [&] { WriteInput(input_.substr(input_.find('\n') + 1)); }, 4, {"input.lines: 40 then, 39 now"}},
      {"blank inserted", [&] { WriteInput("\n" + input_); }, 4, {"in line 1"}},
      {"shard",
       [&] {
         options_.shard = {2, 3};
       },
       4,
       {"shard: none then, 2/3 now"}},
      {"shard damaged", [&] { edit_manifest("\"shard\":\"1/1\"", "\"shard\":\"2/1\""); }, 5, {"\"shard\""}},
      {"input emptied", [&] { WriteInput(""); }, 4, {"input.lines: 40 then, 0 now"}},
      {"other version", [&] { edit_manifest("\"version\":\"", "\"version\":\"9."); }, 4, {"version: \"9."}},
      {"other format", [&] { edit_manifest("\"penstock_job\":3", "\"penstock_job\":4"); }, 5, {"penstock_job"}},
      {"manifest not JSON", [&] { WriteFile(manifest_path, "{"); }, 5, {"not a manifest"}},
      {"manifest empty", [&] { WriteFile(manifest_path, ""); }, 5, {"not a manifest"}},
      {"manifest gone", [&] { std::filesystem::remove(manifest_path); }, 5, {"manifest.json is missing"}},
      {"stride damaged", [&] { edit_manifest("\"stride\":1", "\"stride\":0"); }, 5, {"damaged"}},
      {"result twice",
       [&] { WriteFile(options_.output_path, partial_ + partial_lines[0] + "\n"); },
       5,
       {"second result"}},
      {"foreign result",
       [&] { WriteFile(options_.output_path, partial_ + "{\"id\": \"x\"}\n"); },
       5,
       {"does not belong to this job"}},
      {"no resume", [&] { options_.resume = false; }, 5, {"use --resume"}},
  };
  for (const Mutation& mutation : mutations) {
    SCOPED_TRACE(mutation.name);
    mutation.apply();
    const std::string before = ReadAll(options_.output_path);
    ExpectFault(static_cast<Fault>(mutation.exit_code), mutation.messages);
    EXPECT_EQ(ReadAll(options_.output_path), before);
    options_ = options;
    engine_ = engine;
    WriteInput(input_);
    WriteFile(options_.output_path, partial_);
    WriteFile(manifest_path, manifest);
  }
  ASSERT_TRUE(Run().ok());  // after all these refusals the job still continues
  EXPECT_EQ(Output().size(), static_cast<size_t>(kNumRequests));
}

TEST_F(ResumeTest, WhatChangesNoTextMayChange) {
  StartJob();
  const std::string start = partial_;
  std::string crlf;
  for (const std::string& line : Lines(input_)) crlf += line + "\r\n";
  engine_.batch_size = 17;
  engine_.name = "renamed";  // results go on naming the first one
  WriteInput(crlf);
  const auto summary = Run();
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->numbers.num_resumed, static_cast<int64_t>(Lines(start).size()));
  EXPECT_EQ(ReadAll(options_.output_path).substr(0, start.size()), start);
  const auto resumed = SortedOutput();
  const int64_t num_failed = summary->numbers.num_failed;
  options_.resume = false;
  engine_.name = "fake";
  options_.output_path = dir_ + "/once.jsonl";
  const auto once = Run();
  ASSERT_TRUE(once.ok());
  EXPECT_EQ(resumed, SortedOutput());
  EXPECT_EQ(num_failed, once->numbers.num_failed);
}

TEST_F(ResumeTest, AFinishedJobHasNothingToDo) {
  StartJob();
  ASSERT_TRUE(Run().ok());
  const int num_opened = num_opened_;
  const auto summary = Run();
  ASSERT_TRUE(summary.ok());
  EXPECT_TRUE(summary->nothing_to_do);
  EXPECT_EQ(summary->numbers.num_failed, 10);
  EXPECT_EQ(num_opened_, num_opened);
  // The model is compared all the same, without an engine.
  options_.fingerprint = [&] { return engine_.fingerprint; };
  EXPECT_TRUE(Run()->nothing_to_do);
  engine_.fingerprint = "beef";
  ExpectFault(Fault::kInput, {"model.fingerprint: \"f00d\" then, \"beef\" now"});
  EXPECT_EQ(num_opened_, num_opened);
}

TEST_F(ResumeTest, ResumeOfNothingStarts) {
  WriteInput(ManyRequests(5));
  options_.resume = true;
  ASSERT_TRUE(Run().ok());
  EXPECT_EQ(Output().size(), 5u);
}

TEST_F(ResumeTest, TornTailsAndMissingLinesRunAgain) {
  StartJob();
  ASSERT_TRUE(Run().ok());
  const std::string whole = ReadAll(options_.output_path);
  const auto sorted = SortedOutput();
  for (size_t cut = 1; cut < whole.size(); cut += 1 + whole.size() / 60) {
    WriteFile(options_.output_path, whole.substr(0, whole.size() - cut));
    const auto summary = Run();
    ASSERT_TRUE(summary.ok()) << summary.status();
    EXPECT_LE(summary->num_torn_lines, 1);
    ASSERT_EQ(SortedOutput(), sorted);
  }
  // Results are in another order, and the user deleted one of them: only that one is computed again.
  std::string shuffled;
  for (size_t i = 1; i < sorted.size(); ++i) shuffled += sorted[i] + "\n";
  WriteFile(options_.output_path, shuffled);
  ASSERT_TRUE(Run().ok());
  EXPECT_EQ(SortedOutput(), sorted);
}

TEST(InputCheckpointsTest, ALongInputStillTellsWhereItChanged) {
  std::string text;
  for (int i = 0; i < 10000; ++i) text += fmt::format("{{\"prompt\": \"{}\"}}\n", i);
  const std::string path = testing::TempDir() + "/penstock-checkpoints.jsonl";
  const std::atomic<bool> stop{false};
  const auto report_of = [&](const std::string& content) {
    std::ofstream(path, std::ios::trunc) << content;
    Inputs inputs = *Inputs::Open({path}, testing::TempDir(), stop);
    return *ValidateInput(inputs, {}, stop);
  };
  const InputReport then = report_of(text);
  EXPECT_EQ(then.checkpoints.stride, 4);
  EXPECT_LE(then.checkpoints.digests.size(), kMaxInputCheckpoints);
  const size_t at = text.find("\"5000\"");
  const InputReport now = report_of(std::string(text).replace(at, 6, "\"5o00\""));
  const auto manifest_of = [](const InputReport& report) {
    Manifest manifest;
    manifest.job = DescribeJob(report, 0, {}, {});
    manifest.checkpoints = report.checkpoints;
    return manifest;
  };
  EXPECT_TRUE(CompareJob(manifest_of(then), manifest_of(then)).ok());
  EXPECT_THAT(Message(CompareJob(manifest_of(then), manifest_of(now))), HasSubstr("in lines 5001 to 5004"));
  const InputReport shorter = report_of(text.substr(0, at));
  EXPECT_THAT(Message(CompareJob(manifest_of(then), manifest_of(shorter))), HasSubstr("after line 5000"));
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace penstock
