// Requests on a golden model and the engine's answers, down to the last bit of every log-probability.
#pragma once

#include <map>
#include <random>
#include <string>
#include <vector>

#include "penstock/engine.h"
#include "penstock/engine/instrumented_engine.h"
#include "tests/engine/golden.h"

namespace penstock {

struct Answer {
  std::vector<TokenId> token_ids;
  std::vector<double> logprobs;
  bool operator==(const Answer&) const = default;
};

// Returns tokens of a small vocabulary.
inline std::vector<TokenId> DrawTokens(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<TokenId> tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back(static_cast<TokenId>(3 + random() % 90));
  return tokens;
}

// Returns a request that generates nothing: it scores the prompt from `first_scored` on, and there also `rivals`.
inline Request ScoringRequest(std::vector<TokenId> prompt, int64_t first_scored, std::vector<TokenId> rivals,
                              int64_t num_encoded = 0) {
  return {.prompt_ids = std::move(prompt),
          .sampling = {.temperature = 0, .max_tokens = 0, .prompt_logprobs = 1},
          .first_scored = first_scored,
          .num_encoded = num_encoded,
          .rivals = std::move(rivals)};
}

// Returns greedy, sampled and scored requests of different lengths, more than fit into a small batch.
inline std::vector<Request> Requests(const Golden& golden) {
  std::vector<Request> requests;
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < golden.num_prompts(); ++i) {
      Request request{.prompt_ids = golden.prompt(i)};
      request.sampling.max_tokens = 5 + 7 * i;
      request.sampling.ignore_eos = true;
      request.sampling.logprobs = 2;
      request.sampling.seed = static_cast<uint64_t>(i);
      request.sampling.temperature = round == 0 ? 0 : 0.9;
      request.sampling.top_p = 0.9;
      requests.push_back(request);
    }
  }
  if (golden.has_encoder()) {
    std::vector<TokenId> begun = golden.text(0);
    begun.resize(golden.num_encoded(0) + 1);
    requests.push_back(ScoringRequest(begun, std::ssize(begun), {5, 6, 5}, golden.num_encoded(0)));
    requests.push_back(ScoringRequest(golden.text(1), golden.num_encoded(1) + 9, {}, golden.num_encoded(1)));
    return requests;
  }
  requests.push_back(ScoringRequest(golden.prompt(0), std::ssize(golden.prompt(0)), {5, 6, 5}));
  requests.push_back(ScoringRequest(golden.prompt(1), std::ssize(golden.prompt(1)) / 2, {}));
  return requests;
}

inline Answer AnswerOf(const Completion& completion) {
  Answer answer{.token_ids = completion.token_ids, .logprobs = {}};
  for (const auto* entries : {&completion.logprobs, &completion.prompt_logprobs, &completion.rivals}) {
    for (const TokenLogprobs& entry : *entries) {
      answer.logprobs.push_back(entry.chosen.logprob);
      for (const TokenLogprob& other : entry.top) answer.logprobs.push_back(other.logprob);
    }
  }
  return answer;
}

inline std::vector<Answer> RunAll(const EngineOptions& options, const std::vector<Request>& requests,
                                  const EngineHooks& hooks = {}) {
  auto engine = OpenInstrumentedEngine(options, hooks);
  EXPECT_TRUE(engine.ok()) << engine.status();
  if (!engine.ok()) return {};
  std::map<RequestId, Answer> answers;
  for (const Request& request : requests) {
    const auto id = (*engine)->Submit(request);
    EXPECT_TRUE(id.ok()) << id.status();
  }
  while (!(*engine)->idle()) {
    const auto finished = (*engine)->Step();
    EXPECT_TRUE(finished.ok()) << finished.status();
    if (!finished.ok()) return {};
    for (const Completion& completion : *finished) {
      EXPECT_TRUE(completion.status.ok()) << completion.status;
      answers[completion.request_id] = AnswerOf(completion);
    }
  }
  std::vector<Answer> in_order;
  for (auto& [id, answer] : answers) in_order.push_back(std::move(answer));
  return in_order;
}

// Returns the bytes that a refusal states after `what`.
inline uint64_t MinBytes(const EngineOptions& options, const std::string& what) {
  const auto refused = Engine::Open(options);
  EXPECT_FALSE(refused.ok());
  EXPECT_EQ(ExitCodeOf(refused.status()), 6);
  const std::string message(refused.status().message());
  const size_t pos = message.find(what);
  EXPECT_NE(pos, std::string::npos) << message;
  return std::stoull(message.substr(pos + what.size()));
}

// Return the least budget, and the least memory of a device, as refusals state them.
inline uint64_t MinBudget(EngineOptions options) {
  options.memory_bytes = 1;
  return MinBytes(options, "the least budget is ");
}
inline uint64_t MinDeviceMemory(EngineOptions options) {
  options.device_memory_bytes = 1;
  return MinBytes(options, "the least device memory is ");
}

}  // namespace penstock
