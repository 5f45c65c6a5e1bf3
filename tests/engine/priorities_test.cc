// Proves that requests with a higher priority take the places of others, which then end with the answers they would
// have had, and that cancelled requests leave their places.
#include <map>

#include <gmock/gmock.h>

#include "tests/engine/answers.h"

namespace penstock {
namespace {

Request RequestOf(const Golden& golden, int idx, int64_t max_tokens, int priority) {
  return {.prompt_ids = golden.prompt(idx % 4),
          .sampling = {.temperature = idx % 2 == 0 ? 0 : 0.8,
                       .presence_penalty = 0.5,
                       .seed = static_cast<uint64_t>(idx),
                       .max_tokens = max_tokens,
                       .ignore_eos = true,
                       .logprobs = 1,
                       .prompt_logprobs = idx % 3 == 0 ? 1 : -1},
          .priority = priority};
}

std::string TextOf(const Completion& completion) {
  std::string text;
  for (size_t i = 0; i < completion.token_ids.size(); ++i) {
    text += fmt::format("{}:{} ", completion.token_ids[i], completion.logprobs[i].chosen.logprob);
  }
  for (const TokenLogprobs& token : completion.prompt_logprobs) text += fmt::format("{} ", token.chosen.logprob);
  return text;
}

std::string AnswerAlone(const Golden& golden, const EngineOptions& options, Request request) {
  const auto engine = *Engine::Open(options);
  EXPECT_TRUE(engine->Submit(std::move(request)).ok()) << golden.dir();
  while (true) {
    const std::vector<Completion> finished = *engine->Step();
    if (!finished.empty()) return TextOf(finished[0]);
  }
}

class PrioritiesTest : public testing::TestWithParam<std::tuple<std::string, bool, int64_t>> {};

TEST_P(PrioritiesTest, PausedAnswersAreThoseOfRequestsAlone) {
  const auto& [variant, shares_prefixes, batch_size] = GetParam();
  const Golden golden(variant);
  const EngineOptions options{.model_dir = golden.dir(),
                              .memory_bytes = 64 << 20,
                              .threads = 2,
                              .batch_size = batch_size,
                              .context_length = 192,
                              .shares_prefixes = shares_prefixes};
  const auto engine = *Engine::Open(options);
  std::map<RequestId, Request> requests;
  std::map<RequestId, std::string> answers;
  const auto step = [&] {
    const std::vector<Completion> finished = *engine->Step();
    for (const Completion& completion : finished) answers[completion.request_id] = TextOf(completion);
  };
  int idx = 0;
  const auto submit = [&](int priority, int64_t max_tokens) {
    const Request request = RequestOf(golden, idx++, max_tokens, priority);
    const RequestId id = *engine->Submit(request);
    requests[id] = request;
    return id;
  };
  for (int i = 0; i < 5; ++i) submit(-1, 20);
  for (int round = 0; round < 4; ++round) {
    for (int i = 0; i < 3; ++i) step();
    const RequestId urgent = submit(round % 2, 2);
    for (int i = 0; i < 40 && !answers.contains(urgent); ++i) step();
    EXPECT_TRUE(answers.contains(urgent));
    EXPECT_FALSE(engine->idle());
  }
  while (!engine->idle()) step();
  ASSERT_EQ(answers.size(), requests.size());
  for (const auto& [id, request] : requests) EXPECT_EQ(answers[id], AnswerAlone(golden, options, request)) << id;
}

INSTANTIATE_TEST_SUITE_P(Sharing, PrioritiesTest,
                         testing::Combine(testing::Values("qwen3moe-tiny"), testing::Bool(),
                                          testing::Values<int64_t>(1, 3)));
// Paused sequences give up their states, too.
INSTANTIATE_TEST_SUITE_P(Recurrent, PrioritiesTest,
                         testing::Combine(testing::Values("qwen3next-odd", "lfm2moe-odd", "granite4h-odd",
                                                          "nemotronh-odd", "kimilinear-odd", "jamba-odd"),
                                          testing::Bool(), testing::Values<int64_t>(3)));

TEST(Cancelling, LeavesPlacesAndOtherAnswers) {
  const Golden golden("qwen3moe-tiny");
  const EngineOptions options{
      .model_dir = golden.dir(), .memory_bytes = 64 << 20, .threads = 2, .batch_size = 2, .context_length = 192};
  const auto engine = *Engine::Open(options);
  std::vector<RequestId> ids;
  for (int i = 0; i < 5; ++i) ids.push_back(*engine->Submit(RequestOf(golden, i, 12, 0)));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(engine->Step().ok());
  EXPECT_EQ(engine->num_running(), 2);
  EXPECT_TRUE(engine->Cancel(ids[0]));
  EXPECT_TRUE(engine->Cancel(ids[4]));
  EXPECT_FALSE(engine->Cancel(ids[0]));
  EXPECT_FALSE(engine->Cancel(1'000));
  EXPECT_EQ(engine->num_running(), 1);
  EXPECT_EQ(engine->num_waiting(), 2);
  std::map<RequestId, std::string> answers;
  while (!engine->idle()) {
    const std::vector<Completion> finished = *engine->Step();
    for (const Completion& completion : finished) answers[completion.request_id] = TextOf(completion);
  }
  ASSERT_EQ(answers.size(), 3);
  for (int i = 1; i < 4; ++i) EXPECT_EQ(answers[ids[i]], AnswerAlone(golden, options, RequestOf(golden, i, 12, 0)));
}

}  // namespace
}  // namespace penstock
