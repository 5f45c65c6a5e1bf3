// Proves that bad inputs give one error record per line, or one refusal before any model is opened (rows J1 to J10 of
// bad inputs). Results do not depend on batching. Turns are answered in order. --stats has its keys. Memory is bounded.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <thread>

#include "job_fixture.h"
#include "penstock/base/limits.h"
#include "penstock/job/runner.h"

namespace penstock {
namespace {

using JobTest = JobFixture;
using testing::HasSubstr;

std::string ErrorCode(const json::object& result) {
  return result.at("error").is_null() ? "" : std::string(result.at("error").at("code").as_string().c_str());
}

TEST_F(JobTest, EveryLineGetsExactlyOneRecord) {
  std::string input = "\xEF\xBB\xBF{\"id\": \"bom\", \"prompt\": \"x\"}\r\n\n  \t\r\n{not json}\r\n";
  input +=
      "{\"id\": \"twin1\", \"prompt\": \"same\", \"seed\": 5}\n{\"id\": \"twin2\", \"prompt\": \"same\", \"seed\": "
      "5}\n";
  input += "{\"id\": \"huge\", \"prompt\": \"" + std::string(kMaxRequestLineBytes, 'x') + "\"}\n";
  input += "{\"id\": \"long\", \"prompt\": \"" + std::string(5000, 'x') + "\"}\n";
  input += R"({"id": "vocab", "prompt": [300]})"
           "\n";
  input += R"({"custom_id": "m1", "url": "/v1/completions", "body": {"model": "a", "prompt": "x"}})"
           "\n";
  input += R"({"custom_id": "m2", "url": "/v1/completions", "body": {"model": "b", "prompt": "x"}})"
           "\n";
  input += R"({"custom_id": "url", "url": "/v1/audio", "body": {}})"
           "\n";
  input += R"({"id": [], "prompt": "x"})"
           "\n";
  input += R"({"id": "last", "prompt": "no final newline"})";
  WriteInput(input);
  const auto summary = Run();
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->num_blank, 2);
  EXPECT_EQ(summary->numbers.num_requests, 12);
  EXPECT_EQ(summary->numbers.num_failed, 7);
  EXPECT_EQ(Output().size(), 12u);
  for (const char* id : {"bom", "twin1", "twin2", "m1", "last"}) EXPECT_EQ(ErrorCode(Result(id)), "") << id;
  EXPECT_EQ(Result("twin1").at("response").at("body").at("choices"),
            Result("twin2").at("response").at("body").at("choices"));
  EXPECT_EQ(ErrorCode(Result("long")), "invalid_request");
  EXPECT_EQ(ErrorCode(Result("vocab")), "invalid_request");
  EXPECT_EQ(ErrorCode(Result("m2")), "mixed_models");
  EXPECT_EQ(ErrorCode(Result("url")), "invalid_request");
  const std::string text = ReadAll(options_.output_path);
  EXPECT_THAT(text, HasSubstr(R"("code":"line_too_long")"));
  EXPECT_THAT(text, HasSubstr(R"("code":"invalid_json","message":"column)"));
  EXPECT_THAT(text, HasSubstr(R"("code":"invalid_id")"));
}

TEST_F(JobTest, ARequestWhoseExpertsCannotBeReadHasItsErrorLineAndTheJobGoesOn) {
  engine_.unreadable = "burned";
  WriteInput(
      "{\"id\": \"a\", \"prompt\": \"x\"}\n{\"id\": \"b\", \"prompt\": \"burned\"}\n"
      "{\"id\": \"c\", \"turns\": [\"x\", \"burned\", \"y\"]}\n{\"id\": \"d\", \"prompt\": \"y\"}\n");
  const auto summary = Run();
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->numbers.num_failed, 2);
  EXPECT_EQ(Output().size(), 4u);
  for (const char* id : {"a", "d"}) EXPECT_EQ(ErrorCode(Result(id)), "") << id;
  for (const char* id : {"b", "c"}) {
    EXPECT_EQ(ErrorCode(Result(id)), "model_error") << id;
    EXPECT_THAT(std::string(Result(id).at("error").at("message").as_string()), HasSubstr("wrong checksum"));
  }
  // The turn that was answered is kept.
  EXPECT_EQ(Result("c").at("error").at("turns").as_array().size(), 1u);
}

TEST_F(JobTest, FailedRequestsRunAgainWhenAskedFor) {
  engine_.unreadable = "burned";
  const std::string input =
      "{\"id\": \"a\", \"prompt\": \"x\"}\n{\"id\": \"b\", \"prompt\": \"burned\"}\n"
      "{\"id\": \"c\", \"prompt\": \"burned 2\"}\n{\"id\": \"d\", \"prompt\": \"y\"}\n";
  WriteInput(input);
  ASSERT_TRUE(Run().ok());
  engine_.unreadable = "2";
  options_.resume = true;
  EXPECT_EQ(Run()->numbers.num_failed, 2);  // resuming alone changes nothing
  options_.retry_failed = true;
  const auto summary = Run();
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->numbers.num_failed, 1);
  EXPECT_EQ(summary->numbers.num_resumed, 2);
  engine_.unreadable = "(never)";
  std::ofstream(options_.output_path + ".retry") << "of a run that was killed";
  ExpectFault(Fault::kIo, {".retry", "remove it"});
  std::filesystem::remove(options_.output_path + ".retry");
  EXPECT_EQ(Run()->numbers.num_failed, 0);
  std::vector<std::string> again = Output();
  std::ranges::sort(again);
  // The results are those of a job in which nothing failed.
  std::filesystem::remove(options_.output_path);
  std::filesystem::remove(options_.output_path + ".manifest.json");
  options_.resume = options_.retry_failed = false;
  ASSERT_TRUE(Run().ok());
  std::vector<std::string> undisturbed = Output();
  std::ranges::sort(undisturbed);
  EXPECT_EQ(again, undisturbed);
  EXPECT_FALSE(std::filesystem::exists(options_.output_path + ".retry"));
}

TEST_F(JobTest, AJobKeepsTheDateOfItsStart) {
  WriteInput("{\"id\": \"a\", \"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}\n");
  engine_.sees_date = true;
  options_.date = "2026-01-02";
  ASSERT_TRUE(Run().ok());
  const std::vector<std::string> expected = Output();
  WriteFile(options_.output_path, "");
  options_.resume = true;
  options_.date = "";  // the manifest's, not today's
  ASSERT_TRUE(Run().ok());
  EXPECT_EQ(Output(), expected);
  options_.date = "2026-01-03";
  ExpectFault(Fault::kInput, {"--date 2026-01-03", "2026-01-02"});
}

TEST_F(JobTest, SeveralAnswersOfARequestHaveSeedsOfTheirOwn) {
  WriteInput("{\"id\": \"a\", \"prompt\": \"x\", \"n\": 5}\n{\"id\": \"b\", \"prompt\": \"x\"}\n");
  ASSERT_TRUE(Run().ok());
  const json::value body = Result("a").at("response").at("body");
  const json::array& choices = body.at("choices").as_array();
  ASSERT_EQ(choices.size(), 5u);
  std::set<std::string> texts;
  for (size_t i = 0; i < choices.size(); ++i) {
    EXPECT_EQ(choices[i].at("index").as_int64(), static_cast<int64_t>(i));
    texts.emplace(choices[i].at("text").as_string());
  }
  EXPECT_EQ(texts.size(), 5u);
  EXPECT_EQ(body.at("usage").at("prompt_tokens").as_int64(), 1);
}

TEST_F(JobTest, AfterASignalRequestsUnderWayFinish) {
  engine_.max_steps = 8;
  WriteInput(ManyRequests(40));
  const auto stopped = RunJob(
      options_,
      [&](const InputReport&) -> absl::StatusOr<std::unique_ptr<Engine>> {
        class Signalled : public FakeEngine {
         public:
          Signalled(const FakeEngineOptions& options, std::atomic<bool>& stop) : FakeEngine(options), stop_(stop) {}
          absl::StatusOr<std::vector<Completion>> Step() override {
            if (++num_steps_ == 3) stop_ = true;
            EXPECT_TRUE(num_steps_ != 4 || num_waiting() == 0);
            return FakeEngine::Step();
          }

         private:
          std::atomic<bool>& stop_;
          int num_steps_ = 0;
        };
        return std::make_unique<Signalled>(engine_, stop_);
      },
      stop_);
  EXPECT_EQ(ExitCode(stopped.status()), 7);
  const size_t num_done = Output().size();
  EXPECT_GT(num_done, 4u);
  EXPECT_LT(num_done, 40u);
  stop_ = false;
  options_.resume = true;
  ASSERT_TRUE(Run().ok());
  EXPECT_EQ(Output().size(), 40u);
}

TEST_F(JobTest, AnOutputThatOthersChangeIsNoticedAndMendedByResume) {
  for (const std::string change : {"remove", "cut", "append"}) {
    SCOPED_TRACE(change);
    std::filesystem::remove(options_.output_path);
    std::filesystem::remove(options_.output_path + ".manifest.json");
    options_.resume = false;
    WriteInput(ManyRequests(30));
    const auto summary = RunJob(
        options_,
        [&](const InputReport&) -> absl::StatusOr<std::unique_ptr<Engine>> {
          class Meddling : public FakeEngine {
           public:
            Meddling(const FakeEngineOptions& options, std::string path, std::string change)
                : FakeEngine(options), path_(std::move(path)), change_(std::move(change)) {}
            absl::StatusOr<std::vector<Completion>> Step() override {
              if (++num_steps_ == 5) {
                if (change_ == "remove") std::filesystem::remove(path_);
                if (change_ == "cut") std::filesystem::resize_file(path_, 10);
                if (change_ == "append") std::ofstream(path_, std::ios::app) << "x\n";
              }
              return FakeEngine::Step();
            }

           private:
            std::string path_, change_;
            int num_steps_ = 0;
          };
          return std::make_unique<Meddling>(engine_, options_.output_path, change);
        },
        stop_);
    EXPECT_EQ(ExitCode(summary.status()), 5) << summary.status();
    EXPECT_THAT(Message(summary.status()), HasSubstr("another program has"));
    options_.resume = true;
    ASSERT_TRUE(Run().ok());
    EXPECT_EQ(Output().size(), 30u);
  }
}

TEST_F(JobTest, NoOtherFileMayBeTheJobs) {
  WriteInput("{\"prompt\": \"x\"}\n");
  for (const std::string& path :
       {options_.output_path, options_.input_paths[0], options_.output_path + ".manifest.json"}) {
    options_.other_files = {{"--trace", path}};
    ExpectFault(Fault::kUsage, {"--trace", "the job itself uses this file"});
  }
  options_.stats_path = dir_ + "/stats.json";
  options_.other_files = {{"--trace", ""}, {"--trace-html", options_.stats_path}};
  ExpectFault(Fault::kUsage, {"--trace-html", "--stats"});
  EXPECT_EQ(num_opened_, 0);
}

TEST_F(JobTest, ADiskThatIsGoneStopsTheJobInsteadOfFailingAllOfIt) {
  engine_.on_bad_disk = "burned";
  std::string input;
  for (int i = 0; i < 50; ++i) input += "{\"prompt\": \"x\"}\n{\"prompt\": \"burned\"}\n";
  WriteInput(input);
  ExpectFault(Fault::kIo, {"Input/output error", "continue with --resume"});
  EXPECT_LT(Output().size(), 50u);
  // When the disk is mended, nothing is missing.
  engine_.on_bad_disk = "(never)";
  options_.resume = true;
  const auto summary = Run();
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(Output().size(), 100u);
  EXPECT_EQ(summary->numbers.num_failed, 0);
}

TEST_F(JobTest, RefusalsOfTheInput) {
  struct Case {
    std::string input;
    Fault fault;
    std::string message;
  };
  const Case cases[] = {
      {"{\"id\": \"a\", \"prompt\": \"x\"}\n\n{\"custom_id\": \"a\", \"prompt\": \"y\"}\n", Fault::kInput,
       "line 3: id 'a' was already used in line 1"},
      {"{\"question_id\": 81, \"turns\": [\"x\"]}\n{\"id\": \"81\", \"prompt\": \"y\"}\n", Fault::kInput,
       "line 2: id '81'"},
      {"{\"id\": \"line-2\", \"prompt\": \"x\"}\n{\"prompt\": \"y\"}\n", Fault::kInput, "line 2: id 'line-2'"},
      {"\x1f\x8b\x08 gz", Fault::kInput, "gzip"},
      {"\x28\xb5\x2f\xfd zst", Fault::kInput, "zstd"},
      {std::string("\xff\xfe{\0", 4), Fault::kInput, "UTF-16"},
  };
  for (const Case& c : cases) {
    WriteInput(c.input);
    ExpectFault(c.fault, {c.message, options_.input_paths[0]});
    EXPECT_FALSE(std::filesystem::exists(options_.output_path));
  }
  options_.input_paths[0] = dir_ + "/absent.jsonl";
  ExpectFault(Fault::kIo, {"absent.jsonl", "No such file"});
  options_.input_paths[0] = dir_;
  ExpectFault(Fault::kIo, {"directory"});
  EXPECT_EQ(num_opened_, 0);
}

TEST_F(JobTest, RefusalsOfTheOutput) {
  WriteInput(ManyRequests(4));
  const auto with_output = [&](const std::string& path, const std::string& message) {
    options_.output_path = path;
    ExpectFault(Fault::kIo, {message});
  };
  WriteFile(dir_ + "/theirs.txt", "precious\n");
  with_output(dir_ + "/theirs.txt", "the output exists; use --resume");
  options_.resume = true;
  with_output(dir_ + "/theirs.txt", "manifest.json is missing");
  options_.resume = false;
  EXPECT_EQ(ReadAll(dir_ + "/theirs.txt"), "precious\n");
  with_output(options_.input_paths[0], "the output is the input");
  ASSERT_EQ(::link(options_.input_paths[0].c_str(), (dir_ + "/hard").c_str()), 0);
  with_output(dir_ + "/hard", "the output is the input");
  with_output(dir_, "is a directory");
  with_output(dir_ + "/absent/out.jsonl", "folder does not exist");
  with_output(options_.input_paths[0] + "/out.jsonl", "Not a directory");
  with_output("/proc/out.jsonl", "");
  options_.output_path = dir_ + "/out.jsonl";
  options_.stats_path = options_.output_path;
  ExpectFault(Fault::kUsage, {"--stats"});
  options_.stats_path = dir_ + "/absent/stats.json";
  ExpectFault(Fault::kIo, {"statistics"});
  options_.stats_path.clear();
  options_.input_paths[0] = options_.output_path + ".manifest.json";
  WriteInput(ManyRequests(1));
  ExpectFault(Fault::kIo, {"overwritten"});
  EXPECT_EQ(num_opened_, 0);
}

TEST_F(JobTest, AnEmptyInputAndAnEmptyOutputAreFine) {
  WriteInput("");
  WriteFile(options_.output_path, "");
  const auto summary = Run();
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->numbers.num_requests, 0);
}

TEST_F(JobTest, APipeIsReadLikeAFile) {
  WriteInput(ManyRequests(30));
  ASSERT_TRUE(Run().ok());
  const auto from_file = SortedOutput();
  const std::string fifo = dir_ + "/fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const std::string text = ManyRequests(30);
  std::thread writer([&] { WriteFile(fifo, text); });
  options_.input_paths[0] = fifo;
  options_.output_path = dir_ + "/piped.jsonl";
  const auto summary = Run();
  writer.join();
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(SortedOutput(), from_file);
}

TEST_F(JobTest, ResultsDependOnTheRequestAlone) {
  WriteInput(ManyRequests(50));
  ASSERT_TRUE(Run().ok());
  const auto expected = SortedOutput();
  for (const int64_t batch_size : {1, 3, 64}) {
    std::filesystem::remove(options_.output_path);
    engine_.batch_size = batch_size;
    ASSERT_TRUE(Run().ok());
    EXPECT_EQ(SortedOutput(), expected);
  }
  std::filesystem::remove(options_.output_path);
  options_.seed = 1;
  ASSERT_TRUE(Run().ok());
  EXPECT_NE(SortedOutput(), expected);
}

TEST_F(JobTest, EachLineHasASeedOfItsOwn) {
  WriteInput(ManyRequests(9));
  ASSERT_TRUE(Run().ok());
  EXPECT_NE(Result("r0").at("response").at("body").at("choices"), Result("r4").at("response").at("body").at("choices"));
}

TEST_F(JobTest, TurnsAreAnsweredInOrderWithTheChatSoFar) {
  WriteInput("{\"id\": \"t\", \"turns\": [\"one\", \"two\"], \"seed\": 9}\n");
  ASSERT_TRUE(Run().ok());
  const json::object result = Result("t");
  const json::value& body = result.at("response").at("body");
  const json::array turns = body.at("choices").at(0).at("turns").as_array();
  ASSERT_EQ(turns.size(), 2u);
  EXPECT_EQ(body.at("choices").at(0).at("message").at("content"), turns[1]);
  FakeEngine engine(engine_);
  const std::string chat1 = R"([{"role":"user","content":"one"}])";
  const std::string chat2 = fmt::format(R"([{{"role":"user","content":"one"}},{{"role":"assistant","content":"{}"}},)"
                                        R"({{"role":"user","content":"two"}}])",
                                        turns[0].as_string().c_str());
  SamplingParams sampling = engine.default_sampling();
  sampling.seed = 9;
  ASSERT_TRUE(engine.Submit({*engine.TokenizeChat(*Chat::FromJson(chat1)), sampling}).ok());
  sampling.seed = RequestSeed(9, -1);
  ASSERT_TRUE(engine.Submit({*engine.TokenizeChat(*Chat::FromJson(chat2)), sampling}).ok());
  std::vector<std::string> answers(2);
  while (!engine.idle()) {
    const auto finished = engine.Step();
    ASSERT_TRUE(finished.ok());
    for (const Completion& c : *finished) answers[c.request_id - 1] = c.text;
  }
  EXPECT_EQ(turns[0].as_string(), answers[0]);
  EXPECT_EQ(turns[1].as_string(), answers[1]);
  EXPECT_EQ(body.at("usage").at("prompt_tokens").as_int64(), static_cast<int64_t>(chat1.size() + chat2.size() + 4));
}

TEST_F(JobTest, AnswersToChatsAreSplitIntoTheirParts) {
  engine_.has_parts = true;
  const std::string messages = R"("messages": [{"role": "user", "content": "x"}])";
  WriteInput("{\"id\": \"plain\", " + messages + ", \"n\": 2}\n{\"id\": \"tools\", " + messages +
             ", \"n\": 2, \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]}\n" +
             "{\"id\": \"text\", \"prompt\": \"x\"}\n{\"id\": \"turns\", \"turns\": [\"one\", \"two\"]}\n");
  ASSERT_TRUE(Run().ok());
  for (const std::string id : {"plain", "tools"}) {
    const json::value choices = Result(id).at("response").at("body").at("choices");
    for (size_t i = 0; i < 2; ++i) {
      const json::object& message = choices.at(i).at("message").as_object();
      EXPECT_EQ(message.at("reasoning_content").as_string(), "answer");
      EXPECT_FALSE(message.at("content").as_string().starts_with("answer"));
      EXPECT_EQ(message.contains("tool_calls"), id == "tools");
      if (id == "tools") {
        EXPECT_EQ(message.at("tool_calls").at(0).at("function").at("name").as_string(), "f");
      } else {
        EXPECT_NE(choices.at(i).at("finish_reason").as_string(), "tool_calls");
      }
    }
  }
  const json::value text = Result("text").at("response").at("body").at("choices").at(0);
  EXPECT_TRUE(text.at("text").as_string().starts_with("answer"));
  const json::value turns = Result("turns").at("response").at("body").at("choices").at(0).at("turns");
  for (const json::value& turn : turns.as_array()) {
    EXPECT_FALSE(turn.as_string().starts_with("answer"));
  }
}

TEST_F(JobTest, NoChatTemplateIsAnErrorOfTheLine) {
  engine_.has_template = false;
  WriteInput("{\"id\": \"t\", \"turns\": [\"one\"]}\n{\"id\": \"p\", \"prompt\": \"x\"}\n");
  const auto summary = Run();
  ASSERT_TRUE(summary.ok());
  EXPECT_EQ(summary->numbers.num_failed, 1);
  EXPECT_THAT(std::string(Result("t").at("error").at("message").as_string().c_str()), HasSubstr("no chat template"));
}

TEST_F(JobTest, AModelThatCanAnswerNoRequestIsRefusedAtOnce) {
  engine_.has_template = false;
  WriteInput("{\"turns\": [\"one\"]}\n{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}\nbroken\n");
  ExpectFault(Fault::kInput, {"no chat template"});
  EXPECT_TRUE(Output().empty());
  std::filesystem::remove(options_.output_path);
  engine_.has_tokenizer = false;
  WriteInput("{\"prompt\": \"x\"}\n{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}\n");
  ExpectFault(Fault::kInput, {"no tokenizer"});
  WriteInput("{\"prompt\": [1]}\n{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}\n");
  ASSERT_TRUE(Run().ok());
  EXPECT_EQ(Output().size(), 2u);
}

TEST_F(JobTest, ASystemMessageComesFirst) {
  // The fake engine's answer depends on its prompt alone, which is the text of the messages.
  const std::string own = R"("messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}])";
  const std::string plain = R"("messages": [{"role": "user", "content": "q"}])";
  WriteInput(R"({"id": "own", )" + own + ", \"seed\": 1}\n" + R"({"id": "field", "system": "s", )" + plain +
             ", \"seed\": 1}\n" + R"({"id": "none", )" + plain + ", \"seed\": 1}\n" +
             R"({"id": "turns", "turns": ["q"], "system": "s", "seed": 1})" + "\n" +
             R"({"id": "bare", "turns": ["q"], "seed": 1})" + "\n");
  ASSERT_TRUE(Run().ok());
  const auto text_of = [&](const char* id) {
    return Result(id).at("response").at("body").at("choices").at(0).at("message").at("content");
  };
  EXPECT_EQ(text_of("field"), text_of("own"));
  EXPECT_EQ(text_of("turns"), text_of("own"));
  EXPECT_EQ(text_of("bare"), text_of("none"));
  EXPECT_NE(text_of("none"), text_of("own"));
  const json::value own_text = text_of("own");
  options_.output_path = dir_ + "/flag.jsonl";
  options_.system = "s";
  ASSERT_TRUE(Run().ok());
  for (const char* id : {"own", "field", "none", "turns", "bare"}) EXPECT_EQ(text_of(id), own_text) << id;
}

TEST_F(JobTest, AFailureOfTheEngineKeepsWhatIsFinished) {
  WriteInput(ManyRequests(50));
  engine_.fail_at_step = 12;
  ExpectFault(Fault::kIo, {"model.safetensors", "--resume"});
  EXPECT_GT(Output().size(), 5u);
  engine_.fail_at_step = -1;
  options_.resume = true;
  ASSERT_TRUE(Run().ok());
  EXPECT_EQ(Output().size(), 50u);
}

TEST_F(JobTest, StopsAtAStepAndResumes) {
  WriteInput(ManyRequests(10));
  stop_ = true;
  ExpectFault(Fault::kStopped, {"stopped"});
  stop_ = false;
  // The signal comes while the model loads.
  const auto summary = RunJob(
      options_,
      [&](const InputReport&) -> absl::StatusOr<std::unique_ptr<Engine>> {
        stop_ = true;
        return std::make_unique<FakeEngine>(engine_);
      },
      stop_);
  EXPECT_EQ(ExitCode(summary.status()), 7);
  stop_ = false;
  options_.resume = true;
  ASSERT_TRUE(Run().ok());
  EXPECT_EQ(Output().size(), 10u);
}

// One batch runs, and as many requests wait, so that the engine can choose among them.
TEST_F(JobTest, HoldsTwoBatches) {
  WriteInput(ManyRequests(300));
  int64_t max = 0;
  class Watched : public FakeEngine {
   public:
    Watched(const FakeEngineOptions& options, int64_t& max) : FakeEngine(options), max_(max) {}
    ~Watched() override { max_ = max_held(); }

   private:
    int64_t& max_;
  };
  ASSERT_TRUE(RunJob(
                  options_,
                  [&](const InputReport&) -> absl::StatusOr<std::unique_ptr<Engine>> {
                    return std::make_unique<Watched>(engine_, max);
                  },
                  stop_)
                  .ok());
  EXPECT_EQ(max, 8);
}

TEST_F(JobTest, StandardOutputTakesResults) {
  WriteInput(ManyRequests(20));
  ASSERT_TRUE(Run().ok());
  const std::vector<std::string> expected = SortedOutput();
  const std::string path = dir_ + "/stdout";
  std::fflush(stdout);
  const int old_stdout = ::dup(STDOUT_FILENO), file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  ::dup2(file, STDOUT_FILENO);
  options_.output_path = "-";
  const auto summary = Run();
  ::dup2(old_stdout, STDOUT_FILENO);
  ::close(old_stdout);
  ::close(file);
  ASSERT_TRUE(summary.ok()) << summary.status();
  std::vector<std::string> lines = Lines(ReadAll(path));
  std::sort(lines.begin(), lines.end());
  EXPECT_EQ(lines, expected);
  EXPECT_FALSE(std::filesystem::exists("-.manifest.json"));
  options_.resume = true;
  ExpectFault(Fault::kIo, {"standard output is not a regular file"});
}

TEST_F(JobTest, ARefusedRunLeavesNoOldStatistics) {
  WriteInput("{\"prompt\": \"x\"}\n");
  options_.stats_path = dir_ + "/stats.json";
  ASSERT_TRUE(Run().ok());
  EXPECT_THAT(ReadAll(options_.stats_path), HasSubstr("\"requests\":1"));
  ExpectFault(Fault::kIo, {"the output exists"});
  const json::value stats = *ParseJson(ReadAll(options_.stats_path), Fault::kInternal);
  EXPECT_EQ(stats.at("exit_code"), json::value(5));
  EXPECT_THAT(std::string(stats.at("error").as_string()), HasSubstr("the output exists"));
  EXPECT_FALSE(stats.as_object().contains("requests"));
}

TEST_F(JobTest, ARunWithNothingToDoLeavesTheStatistics) {
  WriteInput("{\"prompt\": \"x\"}\n");
  options_.stats_path = dir_ + "/stats.json";
  ASSERT_TRUE(Run().ok());
  const std::string before = ReadAll(options_.stats_path);
  options_.resume = true;
  const auto again = Run();
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(again->nothing_to_do);
  EXPECT_EQ(ReadAll(options_.stats_path), before);
}

TEST_F(JobTest, ValidateCounts) {
  WriteInput(ManyRequests(40) + "\n");
  const auto job = ValidateJob(options_, stop_);
  ASSERT_TRUE(job.ok());
  const InputReport* report = &job->report;
  EXPECT_EQ(report->num_lines, 41);
  EXPECT_EQ(report->num_requests, 40);
  EXPECT_EQ(report->num_bad, 10);
  EXPECT_EQ(report->num_blank, 1);
  EXPECT_EQ(report->num_completions + report->num_chats + report->num_turns_requests, 30);
  EXPECT_THAT(FormatBadLines(report->bad_lines, report->num_bad),
              HasSubstr("line 4: invalid_request: max_tokens: expected"));
  EXPECT_THAT(FormatInputReport(*report), HasSubstr("ignored fields: category (10 requests)\n"));
  EXPECT_THAT(FormatInputReport({}), HasSubstr("the input holds no requests\n"));
  EXPECT_FALSE(std::filesystem::exists(options_.output_path));
}

TEST_F(JobTest, ValidatingTakesNoMoreMemoryThanItMay) {
  options_.max_input_bytes = 4096;
  const std::vector<std::string> texts = {"in.jsonl: line 2", "4.00 KiB", "cut the file"};
  for (const std::string& line : {R"({"id": "b", "prompt": ")" + std::string(600, 'x') + R"("})",
                                  R"({"id": "b", "prompt": "x", "y": [)" + std::string(60, ',') + "]}"}) {
    WriteInput(ManyRequests(1) + line + "\n");
    ExpectFault(Fault::kResources, texts);
  }
  WriteInput(ManyRequests(1) + std::string(400, '\n'));
  ExpectFault(Fault::kResources, {"in.jsonl: line 257", "4.00 KiB"});
  EXPECT_FALSE(std::filesystem::exists(options_.output_path));
  WriteInput(ManyRequests(2));
  EXPECT_TRUE(Run().ok());
}

TEST_F(JobTest, StatsHaveTheirKeys) {
  WriteInput(ManyRequests(10));
  options_.stats_path = dir_ + "/stats.json";
  WriteFile(options_.stats_path, std::string(100000, 'x'));
  ASSERT_TRUE(Run().ok());
  const json::value stats = *ParseJson(ReadAll(options_.stats_path), Fault::kInternal);
  std::vector<std::string> keys;
  for (const auto& [key, value] : stats.as_object()) keys.emplace_back(key.data(), key.size());
  EXPECT_THAT(keys, testing::UnorderedElementsAre(
                        "model", "device", "schedule", "policy", "requests", "prompt_tokens", "computed_prompt_tokens",
                        "generated_tokens", "seconds", "tokens_per_second", "speculation", "prefix_dir", "bytes",
                        "directories", "lanes", "expert_cache", "prefetch", "peak_rss_bytes", "memory", "bound",
                        "bound_fraction", "failed", "failures", "labels", "done_before"));
  EXPECT_EQ(stats.at("requests").as_int64(), 10);
  EXPECT_GT(stats.at("generated_tokens").as_int64(), 0);
  EXPECT_GT(stats.at("peak_rss_bytes").as_int64(), 1 << 20);
}

}  // namespace
}  // namespace penstock
