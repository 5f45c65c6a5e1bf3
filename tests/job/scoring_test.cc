// Proves that given choices are scored as lm-evaluation-harness does, that a prompt is submitted once for all of them,
// and that accuracy counts every labelled request once, also over several runs.
#include "penstock/job/scoring.h"

#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "job_fixture.h"
#include "penstock/base/status.h"
#include "penstock/chat/chat_parts.h"

namespace penstock {
namespace {

// Tokenizes by words: a space begins a new one and belongs to it, as in many vocabularies. A text begins with token 0.
std::vector<std::string> Words(std::string_view text) {
  std::vector<std::string> words;
  for (const char c : text) {
    if (words.empty() || (c == ' ' && words.back() != " ")) words.emplace_back();
    words.back() += c;
  }
  return words;
}

PromptMaker WordMaker() {
  const auto ids_of = [](std::string_view text) {
    std::vector<TokenId> ids;
    for (const std::string& word : Words(text))
      ids.push_back(static_cast<TokenId>(std::hash<std::string>()(word) >> 34));
    return ids;
  };
  const auto with_bos = [ids_of](std::string_view text) -> absl::StatusOr<std::vector<TokenId>> {
    std::vector<TokenId> ids = ids_of(text);
    ids.insert(ids.begin(), 0);
    return ids;
  };
  return {.model = {},
          .tokenize = with_bos,
          .tokenize_piece = [ids_of](std::string_view text) -> absl::StatusOr<std::vector<TokenId>> {
            return ids_of(text);
          },
          .tokenize_chat = [with_bos](const penstock::Chat&) { return with_bos("chat"); },
          .system = {}};
}

ScoredPrompt Scored(const std::string& line) {
  RequestLine parsed = ParseRequestLine(line, 1);
  EXPECT_FALSE(parsed.error.has_value()) << line;
  return ScoredPromptOf(WordMaker(), parsed.request).value();
}

TEST(ScoredPrompt, AChoiceContinuesTheTextOfThePrompt) {
  const std::vector<TokenId> prompt = *WordMaker().tokenize("the sky"), blue = *WordMaker().tokenize_piece(" blue");
  // A space at the prompt's end belongs to the choice.
  for (const char* line :
       {R"({"prompt": "the sky", "choices": [" blue"]})", R"({"prompt": "the sky ", "choices": ["blue"]})"}) {
    const ScoredPrompt scored = Scored(line);
    EXPECT_EQ(scored.prompt, prompt) << line;
    EXPECT_EQ(scored.choices, (std::vector<std::vector<TokenId>>{blue})) << line;
  }
  // The choice's first letters may belong to a word that the prompt begins: the tokens behind the prompt's count.
  const ScoredPrompt joined = Scored(R"({"prompt": "the sky", "choices": ["line is"]})");
  EXPECT_EQ(joined.prompt, prompt);
  EXPECT_EQ(joined.choices[0], *WordMaker().tokenize_piece(" is"));
}

TEST(ScoredPrompt, BehindTokensAndChatsAChoiceStandsAlone) {
  const ScoredPrompt of_ids = Scored(R"({"prompt": [4, 5], "choices": [" blue", [6, 7]]})");
  EXPECT_EQ(of_ids.prompt, (std::vector<TokenId>{4, 5}));
  EXPECT_EQ(of_ids.choices[0], *WordMaker().tokenize_piece(" blue"));
  EXPECT_EQ(of_ids.choices[1], (std::vector<TokenId>{6, 7}));
  const ScoredPrompt of_chat = Scored(R"({"messages": [{"role": "user", "content": "x"}], "choices": ["yes"]})");
  EXPECT_EQ(of_chat.prompt, *WordMaker().tokenize("chat"));
  EXPECT_EQ(of_chat.choices[0], *WordMaker().tokenize_piece("yes"));
}

TEST(ScoredPrompt, AChoiceWithoutTokensIsRefused) {
  RequestLine parsed = ParseRequestLine(R"({"prompt": "sky", "choices": [" a", "line"]})", 1);
  const absl::Status status = ScoredPromptOf(WordMaker(), parsed.request).status();
  EXPECT_EQ(FaultOf(status), Fault::kInput);
  EXPECT_THAT(Message(status), testing::HasSubstr("choices: number 2 adds no token"));
}

TEST(ScoredPrompt, TheLastRowOfThePromptScoresFirstTokens) {
  const ScoredPrompt scored{.prompt = {1, 2, 3}, .choices = {{4}, {5, 6}}};
  const Request first = FirstScoringRequest(scored, -1);
  EXPECT_EQ(first.prompt_ids, scored.prompt);
  EXPECT_EQ(first.first_scored, 3);
  EXPECT_EQ(first.rivals, (std::vector<TokenId>{4, 5}));
  EXPECT_EQ(first.sampling.max_tokens, 0);
  EXPECT_EQ(first.sampling.prompt_logprobs, 1);
  const Request further = FurtherScoringRequest(scored, 1, 5);
  EXPECT_EQ(further.prompt_ids, (std::vector<TokenId>{1, 2, 3, 5, 6}));
  EXPECT_EQ(further.first_scored, 4);
  EXPECT_EQ(further.sampling.prompt_logprobs, 5);
}

TEST(BestChoice, FirstOfTheLargest) {
  EXPECT_EQ(BestChoice({{.logprob = -3}, {.logprob = -1}, {.logprob = -1}}), 1);
  EXPECT_EQ(BestChoice({{.logprob = -3}, {.logprob = -1}}, {30, 5}), 0);
  EXPECT_EQ(BestChoice({{.logprob = -3}, {.logprob = -1}}, {0, 0}), 1);
}

// Calls back before each step and each request.
class WatchedEngine : public FakeEngine {
 public:
  struct Callbacks {
    std::function<void(int num_steps)> on_step = [](int) {};
    std::function<void(const Engine&, const Request&)> on_submit = [](const Engine&, const Request&) {};
  };
  WatchedEngine(const FakeEngineOptions& options, Callbacks callbacks)
      : FakeEngine(options), callbacks_(std::move(callbacks)) {}
  absl::StatusOr<RequestId> Submit(Request request) override {
    callbacks_.on_submit(*this, request);
    return FakeEngine::Submit(std::move(request));
  }
  absl::StatusOr<std::vector<Completion>> Step() override {
    callbacks_.on_step(++num_steps_);
    return FakeEngine::Step();
  }

 private:
  Callbacks callbacks_;
  int num_steps_ = 0;
};

class ScoringJob : public JobFixture {
 protected:
  absl::StatusOr<JobSummary> RunWatched(const WatchedEngine::Callbacks& callbacks) {
    return RunJob(
        options_,
        [&](const InputReport&) -> absl::StatusOr<std::unique_ptr<Engine>> {
          return std::make_unique<WatchedEngine>(engine_, callbacks);
        },
        stop_);
  }
  // Returns the sum that the engine gives to the bytes of a choice.
  static double LogprobOf(const std::string& prompt, const std::string& choice) {
    std::vector<TokenId> ids(prompt.begin(), prompt.end());
    double sum = 0;
    for (const char c : choice) {
      sum += FakeEngine::LogprobsAt(ids, c).chosen.logprob;
      ids.push_back(c);
    }
    return sum;
  }
  // Returns lines of which each third has a choice of one token; their labels are the best choices, or wrong.
  static std::string Lines(int count) {
    std::string text;
    for (int i = 0; i < count; ++i) {
      const std::string prompt = fmt::format("prompt {}", i);
      const std::string a = i % 3 == 0 ? "x" : "xyz", b = fmt::format("choice {}", i * i);
      const int best = LogprobOf(prompt, a) >= LogprobOf(prompt, b) ? 0 : 1;
      text += fmt::format(R"({{"id": "r{}", "prompt": "{}", "choices": ["{}", "{}"], "label": {}}})", i, prompt, a, b,
                          i % 4 == 0 ? 1 - best : best) +
              "\n";
    }
    return text;
  }
};

TEST_F(ScoringJob, EveryChoiceHasItsLogLikelihood) {
  WriteInput(R"({"id": "a", "prompt": "ask ", "choices": ["one", "b", "three"], "logprobs": 1})"
             "\n");
  ASSERT_TRUE(Run().ok());
  const json::object result = Result("a");
  const json::value& body = result.at("response").at("body");
  const std::string choices[] = {"one", "b", "three"};
  for (size_t i = 0; i < 3; ++i) {
    const json::value& choice = body.at("choices").at(i);
    EXPECT_EQ(choice.at("text").as_string(), choices[i]);
    EXPECT_EQ(choice.at("num_tokens").to_number<size_t>(), choices[i].size() + 1);  // with the space before it
    EXPECT_DOUBLE_EQ(choice.at("logprob").to_number<double>(), LogprobOf("ask", " " + choices[i]));
    EXPECT_EQ(choice.at("logprobs").at("token_logprobs").as_array().size(), choices[i].size() + 1);
    EXPECT_FALSE(choice.at("is_greedy").as_bool());
  }
  EXPECT_EQ(body.at("usage").at("prompt_tokens").as_int64(), 3);
  EXPECT_EQ(body.at("usage").at("completion_tokens").as_int64(), 12);
  EXPECT_FALSE(body.at("scores").as_object().contains("correct"));
}

TEST_F(ScoringJob, AccuracyCountsEachRequestOnceWhateverStopsTheJob) {
  WriteInput(Lines(40) + "{\"prompt\": \"not labelled\", \"choices\": [\"x\"]}\n{\"prompt\": \"generated\"}\n");
  ASSERT_TRUE(Run().ok());
  const std::vector<std::string> whole = SortedOutput();
  options_.resume = true;
  for (int64_t fail_at : {1, 3, 8, 20}) {
    std::filesystem::remove(options_.output_path);
    std::filesystem::remove(ManifestPath(options_.output_path));
    engine_.fail_at_step = fail_at;
    EXPECT_FALSE(Run().ok());
    engine_.fail_at_step = -1;
    const absl::StatusOr<JobSummary> summary = Run();
    ASSERT_TRUE(summary.ok());
    EXPECT_EQ(summary->numbers.labels.num_labelled, 40);
    EXPECT_EQ(summary->numbers.labels.num_correct, 30);
    EXPECT_EQ(SortedOutput(), whole) << fail_at;
  }
}

TEST_F(ScoringJob, AfterASignalRequestsUnderWayGetAllTheirChoices) {
  WriteInput(Lines(40));
  options_.drain_s = 1000;
  const auto stopped = RunWatched({.on_step = [&](int num_steps) { stop_ = num_steps >= 5; }});
  EXPECT_EQ(FaultOf(stopped.status()), Fault::kStopped);
  const size_t num_done = Output().size();
  EXPECT_GE(num_done, 2u);
  EXPECT_LE(num_done, 20u);
  stop_ = false;
  options_.resume = true;
  ASSERT_TRUE(Run().ok());
  EXPECT_EQ(Output().size(), 40u);
}

TEST_F(ScoringJob, OnlyAsManyRequestsAsPlacesAreUnderWay) {
  WriteInput(Lines(60));
  int64_t num_prompts = 0, max_under_way = 0;
  const auto count = [&](const Engine& engine, const Request& request) {
    num_prompts += request.rivals.empty() ? 0 : 1;
    max_under_way = std::max(max_under_way, num_prompts - std::ssize(Output()));
    EXPECT_LE(engine.num_waiting(), 2 * engine_.batch_size);
  };
  ASSERT_TRUE(RunWatched({.on_submit = count}).ok());
  EXPECT_EQ(num_prompts, 60);
  EXPECT_EQ(max_under_way, engine_.batch_size);
}

TEST_F(ScoringJob, ClassifyWritesTheBestChoice) {
  WriteInput(Lines(8) + "{\"id\": \"g\", \"prompt\": \"generated\"}\n");
  options_.task = JobTask::kClassify;
  const absl::StatusOr<JobSummary> summary = Run();
  ASSERT_TRUE(summary.ok());
  EXPECT_EQ(summary->numbers.num_failed, 1);
  EXPECT_EQ(summary->numbers.labels.num_labelled, 8);
  EXPECT_EQ(summary->numbers.labels.num_correct, 6);
  EXPECT_EQ(Result("g").at("error").at("param").as_string(), "choices");
  const json::object result = Result("r1");
  const json::object& body = result.at("response").at("body").as_object();
  EXPECT_FALSE(body.contains("choices"));
  const json::value& best = body.at("classification");
  EXPECT_EQ(best.at("best"), best.at("label"));
  EXPECT_TRUE(best.at("correct").as_bool());
  EXPECT_EQ(best.at("best_choice").as_string(), best.at("best").as_int64() == 0 ? "xyz" : "choice 1");
  EXPECT_EQ(best.at("logprobs").as_array().size(), 2u);
}

TEST_F(ScoringJob, AnUnreadableChoiceFailsItsRequestOnce) {
  engine_.unreadable = "bad";
  WriteInput(R"({"id": "a", "prompt": "ask", "choices": [" good", " bad", " worse bad", "x"]})"
             "\n"
             R"({"id": "b", "prompt": "ask", "choices": [" good"]})"
             "\n");
  const absl::StatusOr<JobSummary> summary = Run();
  ASSERT_TRUE(summary.ok());
  EXPECT_EQ(summary->numbers.num_failed, 1);
  EXPECT_EQ(Output().size(), 2u);
  EXPECT_EQ(Result("a").at("error").at("code").as_string(), "model_error");
}

TEST_F(ScoringJob, AChoiceThatDoesNotFitIsTheRequestsError) {
  engine_.context_length = 20;
  WriteInput(R"({"id": "a", "prompt": "ask", "choices": ["x", "yy", "a choice of many letters"]})"
             "\n");
  ASSERT_TRUE(Run().ok());
  EXPECT_EQ(Output().size(), 1u);
  EXPECT_EQ(Result("a").at("error").at("code").as_string(), "invalid_request");
}

}  // namespace
}  // namespace penstock
