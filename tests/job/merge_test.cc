// Proves that the shards of a job give the lines of the whole job, and that only all shards of one job are joined.
#include "penstock/job/merge.h"

#include "job_fixture.h"
#include "penstock/job/manifest.h"
#include "penstock/job/output_file.h"
#include "penstock/job/result_line.h"

namespace penstock {
namespace {

using testing::HasSubstr;

TEST(ShardTest, ReadsOnlyShards) {
  EXPECT_EQ(*ParseShard("1/1"), Shard());
  EXPECT_EQ(*ParseShard("4096/4096"), (Shard{4096, 4096}));
  for (const char* text : {"", "1", "/", "1/", "/2", "0/4", "5/4", "1/0", "-1/2", "1/-2", "x", "1/4/2", "1/4 ", " 1/4",
                           "1.5/4", "1/4097", "99999999999999999999/2", "1/99999999999999999999"}) {
    const auto shard = ParseShard(text);
    ASSERT_FALSE(shard.ok()) << text;
    EXPECT_EQ(FaultOf(shard.status()), Fault::kUsage) << text;
    EXPECT_THAT(Message(shard.status()), HasSubstr("such as 2/16")) << text;
  }
}

class MergeTest : public JobFixture {
 protected:
  static constexpr int kNumRequests = 30;

  MergeTest() {
    std::string text = "\n";  // blank lines count in line numbers, and not in shards
    for (const std::string& line : Lines(ManyRequests(kNumRequests)))
      text += line + (text.size() % 3 == 0 ? "\n \n" : "\n");
    WriteInput(text);
    merge_.output_path = dir_ + "/merged.jsonl";
  }

  std::string PartPath(const Shard& shard) const {
    return fmt::format("{}/{}of{}.jsonl", dir_, shard.index, shard.count);
  }
  absl::StatusOr<JobSummary> RunShard(const Shard& shard) {
    options_.shard = shard;
    options_.output_path = PartPath(shard);
    return Run();
  }
  void RunShards(int64_t count) {
    merge_.part_paths.clear();
    for (int64_t i = count; i >= 1; --i) {
      ASSERT_TRUE(RunShard({i, count}).ok());
      merge_.part_paths.push_back(PartPath({i, count}));
    }
  }
  void ExpectRefusal(Fault fault, const std::string& text) {
    const auto summary = MergeShards(merge_, stop_);
    ASSERT_FALSE(summary.ok());
    EXPECT_EQ(FaultOf(summary.status()), fault) << summary.status();
    EXPECT_THAT(Message(summary.status()), HasSubstr(text));
    for (const char* suffix : {"", ".tmp", ".manifest.json"}) {
      EXPECT_FALSE(std::filesystem::exists(merge_.output_path + suffix)) << suffix;
    }
  }

  MergeOptions merge_;
};

TEST_F(MergeTest, ShardsGiveTheLinesOfTheWholeJob) {
  ASSERT_TRUE(Run().ok());
  const std::vector<std::string> whole = SortedOutput();
  const uint64_t digest = ReadManifest(ManifestPath(options_.output_path))->job_digest;
  ASSERT_EQ(whole.size(), static_cast<size_t>(kNumRequests));
  for (const int64_t count : {1, 2, 3, 7, 30, 40}) {
    SCOPED_TRACE(count);
    RunShards(count);
    const auto summary = MergeShards(merge_, stop_);
    ASSERT_TRUE(summary.ok()) << summary.status();
    EXPECT_EQ(summary->num_results, kNumRequests);
    EXPECT_EQ(summary->num_failed, 7);
    EXPECT_EQ(summary->note, "");
    options_.output_path = merge_.output_path;
    EXPECT_EQ(SortedOutput(), whole);
    int64_t last = 0;
    for (const std::string& line : Output()) {
      const json::value result = *ParseJson(line, Fault::kInternal);
      const int64_t number = *LineOfResultId(View(result.at("id").get_string()), digest);
      EXPECT_GT(number, last);
      last = number;
    }
    // The joined output is one of the whole job, so that its failed requests can run again.
    options_.shard = {};
    options_.resume = true;
    const auto resumed = Run();
    ASSERT_TRUE(resumed.ok()) << resumed.status();
    EXPECT_TRUE(resumed->nothing_to_do);
    options_.resume = false;
    std::filesystem::remove(merge_.output_path);
  }
}

TEST_F(MergeTest, EverythingCountsOnlyTheShard) {
  const auto summary = RunShard({2, 7});
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->numbers.num_requests, 5);  // 2, 9, 16, 23 and 30
  EXPECT_EQ(Output().size(), 5u);
  const auto job = ValidateJob(options_, stop_);
  options_.shard = {};
  const auto whole = ValidateJob(options_, stop_);
  options_.shard = {2, 7};
  EXPECT_EQ(job->report.num_requests, 5);
  EXPECT_EQ(job->report.num_bad, summary->numbers.num_failed);
  EXPECT_EQ(job->report.num_lines, whole->report.num_lines);
  EXPECT_EQ(job->report.digest, whole->report.digest);
  EXPECT_THAT(FormatInputReport(job->report), HasSubstr("lines: 5 requests of shard 2/7 ("));
  options_.resume = true;
  const auto resumed = Run();
  EXPECT_TRUE(resumed->nothing_to_do);
  EXPECT_EQ(resumed->numbers.num_resumed, 5);
}

TEST_F(MergeTest, AShardIsStoppedResumedAndRetried) {
  RunShards(3);
  const std::string path = PartPath({3, 3}), text = ReadAll(path);
  WriteFile(path, text.substr(0, text.size() / 2));
  ExpectRefusal(Fault::kInput,
                "of 30 requests have no result, the first in or after input line 1; shard 3 of 3 is not");
  options_.resume = options_.retry_failed = true;
  ASSERT_TRUE(RunShard({3, 3}).ok());
  std::vector<std::string> before = Lines(text);
  std::sort(before.begin(), before.end());
  EXPECT_EQ(SortedOutput(), before);
  EXPECT_TRUE(MergeShards(merge_, stop_).ok());
}

TEST_F(MergeTest, NamesTheFirstRequestWithoutAResult) {
  WriteInput(ManyRequests(9));
  RunShards(2);
  const std::string path = PartPath({1, 2});
  std::string text;
  for (const std::string& line : Lines(ReadAll(path))) {
    if (line.find("\"r4\"") == std::string::npos && line.find("\"r8\"") == std::string::npos) text += line + "\n";
  }
  WriteFile(path, text);
  ExpectRefusal(Fault::kInput, "2 of 9 requests have no result, the first in input line 5; shard 1 of 2 is");
}

TEST_F(MergeTest, RefusesPartsThatAreNotAllShardsOfOneJob) {
  RunShards(4);
  const std::vector<std::string> paths = merge_.part_paths;
  merge_.part_paths = {paths[0], paths[2]};  // shards 4 and 2
  ExpectRefusal(Fault::kInput, "shards 1, 3 of 4 are missing");
  merge_.part_paths = {paths[0], paths[1], paths[2], paths[3], paths[1]};
  ExpectRefusal(Fault::kInput, "are both shard 3/4");
  ASSERT_TRUE(RunShard({1, 2}).ok());
  merge_.part_paths = {paths[0], PartPath({1, 2})};
  ExpectRefusal(Fault::kInput, "number of shards: 4 in the first, 2 in the second");
  merge_.part_paths = paths;
  std::filesystem::remove(paths[2]);
  ExpectRefusal(Fault::kIo, "cannot open");
  options_.seed = 5;
  ASSERT_TRUE(RunShard({2, 4}).ok());
  ExpectRefusal(Fault::kInput, "are not of one job: seed: 0 in the first, 5 in the second");
  options_.seed = 0;
  engine_.fingerprint = "beef";
  std::filesystem::remove(paths[2]);
  ASSERT_TRUE(RunShard({2, 4}).ok());
  ExpectRefusal(Fault::kInput, "model.fingerprint: \"f00d\" in the first, \"beef\" in the second");
  std::filesystem::remove(ManifestPath(paths[2]));
  ExpectRefusal(Fault::kIo, "manifest.json");
  merge_.part_paths.clear();
  ExpectRefusal(Fault::kUsage, "the outputs of the shards");
}

TEST_F(MergeTest, RefusesResultsInTheWrongPart) {
  RunShards(2);
  const std::string one = ReadAll(PartPath({1, 2})), two = ReadAll(PartPath({2, 2}));
  const std::string first_of_two = Lines(two)[0] + "\n";
  WriteFile(PartPath({1, 2}), one + first_of_two);
  ExpectRefusal(Fault::kIo, "has a result in");
  options_.resume = true;
  options_.shard = {1, 2};
  options_.output_path = PartPath({1, 2});
  ExpectFault(Fault::kIo, {"is in another shard"});
  WriteFile(PartPath({1, 2}), one + Lines(one)[0] + "\n");
  ExpectRefusal(Fault::kIo, "a second result of input line");
  // Each part has as many results as its shard has requests, but two are exchanged.
  const std::string first_of_one = Lines(one)[0] + "\n";
  WriteFile(PartPath({1, 2}), first_of_two + one.substr(first_of_one.size()));
  WriteFile(PartPath({2, 2}), first_of_one + two.substr(first_of_two.size()));
  ExpectRefusal(Fault::kIo, "is not of shard");
}

TEST_F(MergeTest, RefusesABusyPartAStopAndAnOutputThatIsThere) {
  RunShards(2);
  {
    OutputCalls calls;
    const auto running = OutputFile::Open(PartPath({1, 2}), calls);
    ExpectRefusal(Fault::kIo, "still runs");
  }
  stop_ = true;
  ExpectRefusal(Fault::kStopped, "no output was written");
  stop_ = false;
  WriteFile(merge_.output_path + ".tmp", "x");
  EXPECT_THAT(Message(MergeShards(merge_, stop_).status()), HasSubstr(".tmp: exists"));
  std::filesystem::remove(merge_.output_path + ".tmp");
  WriteFile(merge_.output_path, "");
  EXPECT_THAT(Message(MergeShards(merge_, stop_).status()), HasSubstr("the output exists"));
  EXPECT_EQ(ReadAll(merge_.output_path), "");
  merge_.output_path = dir_ + "/none/merged.jsonl";
  ExpectRefusal(Fault::kIo, "folder does not exist");
  merge_.output_path = "-";
  ExpectRefusal(Fault::kUsage, "writes a file");
}

TEST_F(MergeTest, TellsThatShardsSawDifferentDates) {
  options_.date = "2026-11-21";
  ASSERT_TRUE(RunShard({1, 2}).ok());
  options_.date = "2026-11-22";
  ASSERT_TRUE(RunShard({2, 2}).ok());
  merge_.part_paths = {PartPath({1, 2}), PartPath({2, 2})};
  const auto summary = MergeShards(merge_, stop_);
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_THAT(summary->note, HasSubstr("began on 2026-11-22, the first part on 2026-11-21"));
}

// A job with a text is not refused for want of a chat template. The shard with its chats must not be either.
TEST_F(MergeTest, AShardIsRefusedOnlyWhenTheWholeJobIs) {
  const std::string chat = R"({"messages": [{"role": "user", "content": "hi"}]})";
  engine_.has_template = false;
  WriteInput(R"({"prompt": "hi"})"
             "\n" +
             chat + "\n");
  const auto summary = RunShard({2, 2});
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->numbers.num_failed, 1);
  WriteInput(chat + "\n" + chat + "\n");
  ASSERT_FALSE(RunShard({1, 2}).ok());
}

}  // namespace
}  // namespace penstock
