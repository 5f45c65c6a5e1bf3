// Proves that answers follow their output formats, that tokens which a format forces are computed together, and that
// the bits of such answers are the same for every batch, chunk, budget, thread count and schedule.
#include <gtest/gtest.h>

#include "penstock/base/json.h"
#include "tests/effort.h"
#include "tests/engine/answers.h"

namespace penstock {
namespace {

using Kind = OutputFormat::Kind;

const EngineOptions kBase{
    .model_dir = PENSTOCK_SOURCE_DIR "/models/penstock-demo", .memory_bytes = 64 << 20, .threads = 1};

const OutputFormat kFormats[] = {
    {Kind::kJsonSchema,
     R"({"type": "object", "properties": {"long_name_of_a_member": {"type": "string", "maxLength": 12},
      "another_long_name": {"enum": ["first choice", "second choice", 17]}, "list": {"type": "array", "maxItems": 3,
      "items": {"type": "integer", "minimum": 0, "maximum": 99}}}, "required": ["long_name_of_a_member",
      "another_long_name", "list"], "additionalProperties": false})"},
    {Kind::kRegex, "(?:yes|no), because [a-z ]{3,20}\\. This text is always the same\\."},
    {Kind::kGrammar, "root ::= \"The answer is \" number (\" or \" number){0,3} \"!\"\nnumber ::= [0-9]{1,3}"},
    {Kind::kSequence,
     "",
     {{Kind::kString, R"({"minLength": 20, "maxLength": 40})", {{Kind::kText, "</think>"}}},
      {Kind::kText, "</think>"},
      {Kind::kJsonSchema,
       R"({"type": "object", "properties": {"answer": {"type": "boolean"}}, "required": ["answer"]})"}}}};

// Returns greedy and sampled requests of each format, and one without a format. All have log-probabilities, or none.
std::vector<Request> FormatRequests(const Engine& engine, int logprobs) {
  std::vector<Request> requests;
  for (const OutputFormat& format : kFormats) {
    const auto constraint = engine.CompileFormat(format);
    EXPECT_TRUE(constraint.ok()) << constraint.status();
    for (const double temperature : {0.0, 0.9}) {
      Request request{.prompt_ids = *engine.Tokenize("Once upon a time there was a question."),
                      .constraint = *constraint};
      request.sampling.max_tokens = 150;
      request.sampling.temperature = temperature;
      request.sampling.seed = requests.size();
      request.sampling.logprobs = logprobs;
      request.sampling.repetition_penalty = 1.1;
      requests.push_back(request);
    }
  }
  requests.push_back({.prompt_ids = *engine.Tokenize("Once"), .sampling = {.max_tokens = 20, .logprobs = logprobs}});
  return requests;
}

struct FormatRun {
  std::vector<Completion> completions;  // in the order of the requests
  int64_t num_steps = 0;
};

FormatRun RunFormats(const EngineOptions& options, int logprobs) {
  const auto engine = Engine::Open(options);
  EXPECT_TRUE(engine.ok()) << engine.status();
  std::map<RequestId, Completion> completions;
  for (Request& request : FormatRequests(**engine, logprobs)) {
    EXPECT_TRUE((*engine)->Submit(std::move(request)).ok());
  }
  FormatRun run;
  for (; !(*engine)->idle(); ++run.num_steps) {
    const auto finished = (*engine)->Step();
    EXPECT_TRUE(finished.ok()) << finished.status();
    for (const Completion& completion : *finished) completions[completion.request_id] = completion;
  }
  for (auto& [id, completion] : completions) run.completions.push_back(std::move(completion));
  return run;
}

std::vector<Answer> AnswersOf(const FormatRun& run) {
  std::vector<Answer> answers;
  for (const Completion& completion : run.completions) answers.push_back(AnswerOf(completion));
  return answers;
}

TEST(FormatTest, AnswersFollowTheirFormats) {
  const FormatRun run = RunFormats(kBase, -1);
  for (size_t i = 0; i + 1 < run.completions.size(); ++i) {
    const Completion& completion = run.completions[i];
    ASSERT_TRUE(completion.status.ok()) << completion.status;
    EXPECT_EQ(completion.finish_reason, FinishReason::kStop) << completion.text;
    if (i < 2) {
      const auto value = ParseJson(completion.text, Fault::kInput);
      ASSERT_TRUE(value.ok()) << completion.text;
      EXPECT_EQ(value->get_object().size(), 3u);
    } else if (i < 4) {
      EXPECT_TRUE(completion.text.ends_with(". This text is always the same.")) << completion.text;
    } else if (i < 6) {
      EXPECT_TRUE(completion.text.starts_with("The answer is ") && completion.text.ends_with("!")) << completion.text;
    } else {
      constexpr std::string_view kMark = "</think>";
      const size_t end = completion.text.find(kMark);
      ASSERT_NE(end, std::string::npos) << completion.text;
      EXPECT_TRUE(ParseJson(completion.text.substr(end + kMark.size()), Fault::kInput).ok()) << completion.text;
    }
  }
}

TEST(FormatTest, EveryPlanGivesTheSameBits) {
  const std::vector<Answer> expected = AnswersOf(RunFormats(kBase, 2)), without = AnswersOf(RunFormats(kBase, -1));
  std::vector<EngineOptions> plans;
  for (const int64_t batch_size : {1, 3, 64}) {
    for (const int64_t chunk : {1, 5, 100}) {
      EngineOptions options = kBase;
      options.batch_size = batch_size;
      options.prefill_chunk = chunk;
      options.threads = batch_size == 3 ? 2 : 1;
      if (chunk == 5) options.memory_bytes = 0, options.memory_bytes = MinBudget(options);
      plans.push_back(options);
    }
  }
  for (const ScheduleKind schedule : {ScheduleKind::kOnDemand, ScheduleKind::kKlotski}) {
    EngineOptions options = kBase;
    options.policy.schedule = schedule;
    options.memory_bytes = MinBudget(options);
    plans.push_back(options);
  }
  for (size_t i = 0; i < plans.size(); i += kSanitized ? 3 : 1) {
    const EngineOptions& plan = plans[i];
    SCOPED_TRACE(testing::Message() << "batch " << plan.batch_size << ", chunk " << plan.prefill_chunk);
    EXPECT_EQ(AnswersOf(RunFormats(plan, 2)), expected);
    EXPECT_EQ(AnswersOf(RunFormats(plan, -1)), without);
  }
}

// Requests with a higher priority take the place of those that run, again and again. These go on later.
TEST(FormatTest, PausesChangeNothing) {
  const std::vector<Answer> expected = AnswersOf(RunFormats(kBase, 2));
  EngineOptions options = kBase;
  options.batch_size = 2;
  const auto engine = Engine::Open(options);
  ASSERT_TRUE(engine.ok()) << engine.status();
  std::map<RequestId, size_t> idx_of;
  for (Request& request : FormatRequests(**engine, 2)) {
    idx_of.emplace(*(*engine)->Submit(std::move(request)), idx_of.size());
  }
  std::vector<Answer> answers(expected.size());
  for (int step = 0; !(*engine)->idle(); ++step) {
    if (step % 7 == 3 && step < 200) {
      Request urgent{.prompt_ids = *(*engine)->Tokenize("Now"), .priority = 1};
      urgent.sampling.max_tokens = 2;
      ASSERT_TRUE((*engine)->Submit(urgent).ok());
      ASSERT_TRUE((*engine)->Submit(std::move(urgent)).ok());
    }
    const auto finished = (*engine)->Step();
    ASSERT_TRUE(finished.ok()) << finished.status();
    for (const Completion& completion : *finished) {
      if (const auto found = idx_of.find(completion.request_id); found != idx_of.end()) {
        answers[found->second] = AnswerOf(completion);
      }
    }
  }
  EXPECT_EQ(answers, expected);
}

// With log-probabilities, forced tokens are computed one by one. The tokens are the same, and the steps are more.
TEST(FormatTest, ForcedTokensAreComputedTogether) {
  EngineOptions options = kBase;
  options.speculates = false;  // guesses save steps, too
  const FormatRun with = RunFormats(options, 0), without = RunFormats(options, -1);
  ASSERT_EQ(with.completions.size(), without.completions.size());
  for (size_t i = 0; i < with.completions.size(); ++i) {
    EXPECT_EQ(with.completions[i].token_ids, without.completions[i].token_ids);
    EXPECT_EQ(with.completions[i].text, without.completions[i].text);
    EXPECT_EQ(with.completions[i].logprobs.size(), with.completions[i].token_ids.size());
  }
  EXPECT_LT(without.num_steps, with.num_steps);
}

TEST(FormatTest, EndsAndLimitsOfAnswers) {
  const auto engine = Engine::Open(kBase);
  ASSERT_TRUE(engine.ok());
  const auto run = [&](const SamplingParams& sampling, const OutputFormat& format) {
    Request request{.prompt_ids = *(*engine)->Tokenize("Once"), .sampling = sampling};
    request.constraint = *(*engine)->CompileFormat(format);
    EXPECT_TRUE((*engine)->Submit(std::move(request)).ok());
    std::vector<Completion> finished;
    while (finished.empty()) finished = *(*engine)->Step();
    return finished[0];
  };
  EXPECT_EQ(run({.temperature = 0, .max_tokens = 3}, kFormats[1]).finish_reason, FinishReason::kLength);
  // It ends when nothing can follow, whatever min_tokens and ignore_eos say.
  const Completion complete =
      run({.temperature = 0, .max_tokens = 50, .min_tokens = 40, .ignore_eos = true}, {Kind::kRegex, "abc"});
  EXPECT_EQ(complete.text, "abc");
  EXPECT_EQ(complete.finish_reason, FinishReason::kStop);
  EXPECT_EQ(run({.temperature = 0, .max_tokens = 9, .ignore_eos = true}, {Kind::kRegex, "a*"}).finish_reason,
            FinishReason::kLength);
  EXPECT_EQ(run({.temperature = 0, .max_tokens = 90, .stop = {", be"}}, kFormats[1]).finish_reason,
            FinishReason::kStop);
  // Fields that exclude what the format demands fail the request alone.
  const std::vector<TokenId> a = *(*engine)->TokenizePiece("a");
  EXPECT_EQ(ExitCodeOf(run({.temperature = 0, .bad_words = {a}}, {Kind::kRegex, "a"}).status), 4);
  EXPECT_EQ(run({.temperature = 0}, {Kind::kRegex, "a"}).text, "a");
}

}  // namespace
}  // namespace penstock
