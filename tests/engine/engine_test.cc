// Proves the engine's contract: which requests Submit refuses, and that a refusal leaves the engine unchanged. A
// request too long for the free pages waits instead of failing. Memory of the KV cache is taken at the start on
// request.
#include <filesystem>
#include <fstream>
#include <map>

#include <gmock/gmock.h>
#include <unistd.h>

#include "penstock/base/status.h"
#include "tests/engine/answers.h"

namespace penstock {
namespace {

std::unique_ptr<Engine> OpenTiny(EngineOptions options = {}) {
  options.model_dir = Golden("mixtral-tiny").dir();
  if (options.memory_bytes == 0) options.memory_bytes = 64 << 20;
  auto engine = Engine::Open(options);
  EXPECT_TRUE(engine.ok()) << engine.status();
  return *std::move(engine);
}

TEST(Engine, SubmitRefusesWhatCannotWork) {
  const auto engine = OpenTiny({.context_length = 64});
  const auto refusal = [&](Request request) {
    const auto id = engine->Submit(std::move(request));
    EXPECT_FALSE(id.ok());
    EXPECT_EQ(ExitCodeOf(id.status()), 4);
    return std::string(id.status().message());
  };
  EXPECT_THAT(refusal({}), testing::HasSubstr("no tokens"));
  EXPECT_THAT(refusal({.prompt_ids = {-1}}), testing::HasSubstr("token id -1"));
  EXPECT_THAT(refusal({.prompt_ids = {96}}), testing::HasSubstr("vocabulary of 96"));
  EXPECT_THAT(refusal({.prompt_ids = std::vector<TokenId>(64, 1)}), testing::HasSubstr("context length of 64"));
  EXPECT_THAT(refusal({.prompt_ids = {1}, .sampling = {.top_p = 2}}), testing::HasSubstr("top_p"));
  EXPECT_THAT(refusal({.prompt_ids = {1}, .rivals = {1}}), testing::HasSubstr("rivals: only a prompt that is scored"));
  EXPECT_THAT(refusal(ScoringRequest({1, 2}, 2, {})),
              testing::HasSubstr("first_scored: expected a number from 0 to 1"));
  EXPECT_THAT(refusal(ScoringRequest({1, 2}, 2, {96})), testing::HasSubstr("vocabulary of 96"));
  EXPECT_TRUE(engine->idle());
}

// The last token of a text takes a position only if something is predicted behind it.
TEST(Engine, ATextThatIsOnlyScoredFillsTheContext) {
  const auto engine = OpenTiny({.context_length = 64});
  const auto text = [](size_t size) { return std::vector<TokenId>(size, 1); };
  EXPECT_TRUE(engine->Submit(ScoringRequest(text(65), 60, {})).ok());
  EXPECT_TRUE(engine->Submit(ScoringRequest(text(64), 64, {5})).ok());
  for (const Request& too_long : {ScoringRequest(text(66), 60, {}), ScoringRequest(text(65), 65, {5})}) {
    const auto id = engine->Submit(too_long);
    EXPECT_THAT(std::string(id.status().message()), testing::HasSubstr("all but its last one must fit the context"));
  }
  size_t num_finished = 0;
  while (!engine->idle()) {
    const std::vector<Completion> finished = engine->Step().value();
    for (const Completion& completion : finished) {
      EXPECT_TRUE(completion.status.ok());
      EXPECT_EQ(completion.prompt_logprobs.size() + completion.rivals.size(), completion.rivals.empty() ? 5u : 1u);
      ++num_finished;
    }
  }
  EXPECT_EQ(num_finished, 2u);
}

TEST(Engine, MaxTokensIsCutToTheContext) {
  const auto engine = OpenTiny({.context_length = 64});
  ASSERT_TRUE(
      engine->Submit({.prompt_ids = std::vector<TokenId>(60, 1), .sampling = {.max_tokens = 1000, .ignore_eos = true}})
          .ok());
  std::vector<Completion> all;
  while (!engine->idle()) {
    std::vector<Completion> finished = engine->Step().value();
    for (Completion& completion : finished) all.push_back(std::move(completion));
  }
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].token_ids.size(), 4u);
  EXPECT_EQ(all[0].finish_reason, FinishReason::kLength);
}

// Whatever the chunks, the batch and the common beginnings are, a prompt's log-probabilities are those of ScoreTokens.
TEST(Engine, LogprobsOfAPromptAreItsScores) {
  std::vector<std::vector<TokenId>> prompts;
  for (int i = 0; i < 6; ++i) {
    std::vector<TokenId>& prompt = prompts.emplace_back();
    for (int pos = 0; pos < 5 + 13 * i; ++pos) prompt.push_back(pos < 30 ? 3 + pos % 7 : (pos * (i + 3)) % 90);
  }
  const auto scoring = OpenTiny({.context_length = 128});
  for (const EngineOptions& options : {EngineOptions{.batch_size = 1, .context_length = 128, .prefill_chunk = 7},
                                       EngineOptions{.batch_size = 6, .context_length = 128}}) {
    const auto engine = OpenTiny(options);
    std::map<RequestId, size_t> prompt_of;
    for (size_t i = 0; i < prompts.size(); ++i) {
      const SamplingParams sampling{.temperature = 0,
                                    .max_tokens = i % 2 == 0 ? 0 : 3,
                                    .ignore_eos = true,
                                    .prompt_logprobs = i == 3 ? -1 : static_cast<int>(i)};
      if (sampling.prompt_logprobs < 0 && sampling.max_tokens == 0) continue;
      prompt_of[engine->Submit({.prompt_ids = prompts[i], .sampling = sampling}).value()] = i;
    }
    while (!engine->idle()) {
      const std::vector<Completion> finished = engine->Step().value();
      for (const Completion& completion : finished) {
        const size_t i = prompt_of.at(completion.request_id);
        ASSERT_TRUE(completion.status.ok());
        EXPECT_EQ(completion.token_ids.size(), i % 2 == 0 ? 0u : 3u);
        EXPECT_EQ(completion.finish_reason, FinishReason::kLength);
        if (i == 3) {
          EXPECT_TRUE(completion.prompt_logprobs.empty());
          continue;
        }
        ASSERT_EQ(completion.prompt_logprobs.size(), prompts[i].size());
        const std::vector<double> scores = scoring->ScoreTokens(prompts[i]).value();
        EXPECT_EQ(completion.prompt_logprobs[0].chosen.token_id, prompts[i][0]);
        for (size_t pos = 1; pos < prompts[i].size(); ++pos) {
          const TokenLogprobs& logprobs = completion.prompt_logprobs[pos];
          EXPECT_EQ(logprobs.chosen.token_id, prompts[i][pos]);
          EXPECT_EQ(logprobs.chosen.logprob, scores[pos - 1]) << i << " " << pos;
          EXPECT_EQ(logprobs.top.size(), i);
          if (i > 0) {
            EXPECT_GE(logprobs.top[0].logprob, logprobs.chosen.logprob);
          }
        }
      }
    }
  }
  EXPECT_EQ(ExitCodeOf(scoring->Submit({.prompt_ids = {1, 2}, .sampling = {.max_tokens = 0}}).status()), 4);
}

TEST(Engine, ManyRequestsShareFewPages) {
  EngineOptions options{.batch_size = 3, .context_length = 128};
  options.model_dir = Golden("mixtral-tiny").dir();
  options.memory_bytes = 1;
  const std::string message(Engine::Open(options).status().message());
  options.memory_bytes = std::stoull(message.substr(message.find("the least budget is ") + 20));
  auto engine = Engine::Open(options);
  ASSERT_TRUE(engine.ok()) << engine.status();
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(
        (*engine)->Submit({.prompt_ids = std::vector<TokenId>(1 + i * 5, 2), .sampling = {.max_tokens = 30}}).ok());
  }
  size_t num_finished = 0;
  int64_t num_running_max = 0;
  while (!(*engine)->idle()) {
    const auto finished = (*engine)->Step();
    ASSERT_TRUE(finished.ok());
    num_finished += finished->size();
    num_running_max = std::max(num_running_max, (*engine)->num_running());
  }
  EXPECT_EQ(num_finished, 20u);
  EXPECT_LE(num_running_max, 3);
}

TEST(Engine, TakesTheMemoryOfTheKvCacheAtTheStart) {
  const auto resident_bytes = [] {
    int64_t num_pages = 0, num_resident = 0;
    std::ifstream("/proc/self/statm") >> num_pages >> num_resident;
    return num_resident * ::sysconf(_SC_PAGESIZE);
  };
  const int64_t before = resident_bytes();
  const auto lazy = OpenTiny({.batch_size = 256, .context_length = 128});
  const int64_t without = resident_bytes();
  const auto engine = OpenTiny({.batch_size = 256, .context_length = 128, .touches_kv_cache = true});
  const auto kv_bytes = static_cast<int64_t>(engine->memory_plan().kv_bytes);
  ASSERT_GT(kv_bytes, 8 << 20);
  EXPECT_LT(without - before, kv_bytes);
  EXPECT_GE(resident_bytes() - without, kv_bytes * 9 / 10);
}

TEST(Engine, OptionsOutOfRangeAreUsageErrors) {
  const std::string dir = Golden("mixtral-tiny").dir();
  const auto exit_code = [&](EngineOptions options) {
    options.model_dir = dir;
    return ExitCodeOf(Engine::Open(options).status());
  };
  EXPECT_EQ(exit_code({.threads = -1}), 2);
  EXPECT_EQ(exit_code({.context_length = 1 << 20}), 2);
  EXPECT_EQ(exit_code({.memory_bytes = 1ull << 60}), 6);
}

// A model whose weights contain NaN must be reported, not sampled from. Only requests that meet these weights fail.
TEST(Engine, NanWeightsAreTheModelsFault) {
  const std::filesystem::path dir = std::filesystem::path(testing::TempDir()) / "nan-model";
  std::filesystem::remove_all(dir);
  std::filesystem::copy(Golden("mixtral-tiny").dir(), dir);
  std::filesystem::permissions(dir / "model.safetensors", std::filesystem::perms::owner_all);
  {
    std::fstream file(dir / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
    uint64_t header_bytes = 0;
    file.read(reinterpret_cast<char*>(&header_bytes), 8);
    file.seekp(static_cast<std::streamoff>(8 + header_bytes));
    const std::vector<char> ones(4096, '\xff');
    file.write(ones.data(), static_cast<std::streamsize>(ones.size()));
  }
  auto engine = Engine::Open({.model_dir = dir.string(), .memory_bytes = 64 << 20});
  ASSERT_TRUE(engine.ok()) << engine.status();
  ASSERT_TRUE((*engine)->Submit({.prompt_ids = {1, 2, 3}}).ok());
  ASSERT_TRUE((*engine)->Submit({.prompt_ids = {4, 5}}).ok());
  int num_failed = 0;
  while (!(*engine)->idle()) {
    const auto finished = (*engine)->Step();
    ASSERT_TRUE(finished.ok()) << finished.status();
    for (const Completion& completion : *finished) {
      EXPECT_EQ(ExitCodeOf(completion.status), 3) << completion.status;
      ++num_failed;
    }
  }
  EXPECT_EQ(num_failed, 2);
}

}  // namespace
}  // namespace penstock
