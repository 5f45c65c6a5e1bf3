// Proves that prompts with common beginnings are computed once, and that their answers are those of an engine that
// shares nothing: bit for bit, with every schedule, KV format, window and budget, also when a sequence fails, and
// behind an encoder, where equal prompts are read once.
#include <filesystem>
#include <map>

#include <gmock/gmock.h>
#include <unistd.h>

#include "penstock/base/status.h"
#include "penstock/plan/described_model.h"
#include "penstock/schedule/schedule.h"
#include "tests/choices.h"
#include "tests/engine/answers.h"

namespace penstock {
namespace {

using Tokens = std::vector<TokenId>;

Tokens operator+(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Request RequestOf(Tokens prompt, int64_t max_tokens, uint64_t seed) {
  return {.prompt_ids = std::move(prompt),
          .sampling = {.temperature = seed % 2 == 0 ? 0 : 0.8,
                       .seed = seed,
                       .max_tokens = max_tokens,
                       .ignore_eos = true,
                       .logprobs = 1}};
}

// Prompts that begin alike for 20 or for 70 tokens, some of them equal, and a few that share nothing.
std::vector<Request> CommonBeginnings() {
  std::vector<Request> requests;
  const Tokens system = DrawTokens(20, 1), examples = system + DrawTokens(50, 2);
  for (uint32_t i = 0; i < 12; ++i) {
    const Tokens own = DrawTokens(1 + i, 100 + i / 2 * 2);  // pairs of prompts begin alike, too
    requests.push_back(RequestOf((i % 3 == 0 ? examples : i % 3 == 1 ? system : Tokens{}) + own, 3 + i % 4 * 6, i));
  }
  for (uint32_t i = 0; i < 3; ++i) requests.push_back(RequestOf(examples + DrawTokens(9, 7), 4, 50 + i));
  for (uint32_t i = 0; i < 6; ++i) {
    const Tokens prompt = (i % 2 == 0 ? examples : system) + DrawTokens(3, i);
    requests.push_back(ScoringRequest(prompt, std::ssize(prompt), {4, 5}));
    requests.push_back(ScoringRequest(prompt + DrawTokens(2 + i, 7), std::ssize(prompt) + 1, {}));
    requests.push_back(ScoringRequest(prompt, 4 * i, {}));
  }
  return requests;
}

// Prompts for an encoder, each several times: to be answered, and to score choices of several tokens. Some begin alike.
std::vector<Request> EqualPrompts(const Golden& golden) {
  std::vector<Request> requests;
  for (uint32_t i = 0; i < 24; ++i) {
    Tokens prompt = golden.prompt(static_cast<int>(i / 4 % 4));
    if (i % 3 == 2) prompt.resize(1 + prompt.size() * (1 + i % 2) / 4);
    const int64_t num_encoded = std::ssize(prompt);
    const Tokens begun = prompt + Tokens{golden.text(0)[golden.prompt(0).size()]};
    if (i % 4 == 0) requests.push_back(RequestOf(prompt, 3 + i % 6, i));
    if (i % 4 == 1) requests.push_back(ScoringRequest(begun, num_encoded + 1, {5, 6}, num_encoded));
    if (i % 4 >= 2) {
      const Tokens choice = {static_cast<TokenId>(5 + i % 2), static_cast<TokenId>(i), 9};
      requests.push_back(ScoringRequest(begun + choice, num_encoded + 2, {}, num_encoded));
    }
  }
  return requests;
}

struct SharingSetting {
  std::string variant = "qwen3moe-tiny";
  std::string schedule = "auto";
  std::string device = "cpu";
  std::string kv_dtype = "auto";
  int64_t window = 0;
  int64_t batch_size = 4;
  int64_t prefill_chunk = 32;
  double budget = 2;  // in least budgets
};

std::string NameOfSharing(const testing::TestParamInfo<SharingSetting>& info) {
  const SharingSetting& s = info.param;
  std::string name = fmt::format("{}_{}_{}_{}_{}_{}", s.variant, s.schedule, s.device.substr(0, 3), s.kv_dtype,
                                 s.window, s.batch_size);
  std::ranges::replace_if(
      name, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return name;
}

class PrefixSharingTest : public testing::TestWithParam<SharingSetting> {};

TEST_P(PrefixSharingTest, AnswersAreThoseWithoutSharing) {
  const SharingSetting& setting = GetParam();
  const Golden golden(setting.variant);
  EngineOptions options{.model_dir = golden.dir(),
                        .kv_dtype = KvFormatCalled(setting.kv_dtype),
                        .device = setting.device,
                        .threads = 2,
                        .batch_size = setting.batch_size,
                        .context_length = 128,
                        .attention_window = setting.window,
                        .prefill_chunk = setting.prefill_chunk};
  if (setting.schedule != "auto") options.policy.schedule = ScheduleCalled(setting.schedule);
  if (setting.device != "cpu") options.device_memory_bytes = 64 << 20;
  options.memory_bytes = static_cast<uint64_t>(setting.budget * static_cast<double>(MinBudget(options)));
  if (setting.device != "cpu") options.device_memory_bytes = 2 * MinDeviceMemory(options);
  const std::vector<Request> requests = golden.has_encoder() ? EqualPrompts(golden) : CommonBeginnings();
  const std::vector<Answer> shared = RunAll(options, requests);
  options.shares_prefixes = false;
  EXPECT_EQ(shared, RunAll(options, requests));
}

INSTANTIATE_TEST_SUITE_P(
    Sharing, PrefixSharingTest,
    testing::Values(SharingSetting{}, SharingSetting{.batch_size = 1},
                    SharingSetting{.batch_size = 15, .prefill_chunk = 256, .budget = 8},
                    SharingSetting{.kv_dtype = "int8"}, SharingSetting{.kv_dtype = "bf16", .prefill_chunk = 16},
                    SharingSetting{.window = 20}, SharingSetting{.window = 64, .batch_size = 8, .budget = 4},
                    SharingSetting{.variant = "deepseek3-tiny"},
                    SharingSetting{.variant = "deepseek3-tiny", .kv_dtype = "int8"},
                    SharingSetting{.variant = "glm5-odd"}, SharingSetting{.variant = "glm5-odd", .window = 20},
                    SharingSetting{.variant = "glm5-odd", .schedule = "zigzag", .device = "emulated"},
                    SharingSetting{.variant = "glm5-odd", .schedule = "cgopipe", .device = "emulated"},
                    SharingSetting{.variant = "deepseek32-tiny", .kv_dtype = "int8", .prefill_chunk = 16, .budget = 4},
                    SharingSetting{.variant = "gptoss-tiny", .batch_size = 8}, SharingSetting{.schedule = "klotski"},
                    SharingSetting{.schedule = "zigzag", .device = "emulated"},
                    SharingSetting{.schedule = "cgopipe", .device = "emulated"},
                    SharingSetting{.schedule = "hybrid", .device = "emulated"},
                    SharingSetting{.schedule = "zero", .device = "emulated", .batch_size = 6},
                    SharingSetting{.variant = "qwen3next-tiny"},
                    SharingSetting{.variant = "gemma4-odd", .kv_dtype = "int8", .prefill_chunk = 16, .budget = 4},
                    SharingSetting{.variant = "gemma4-tiny", .schedule = "zigzag", .device = "emulated"},
                    SharingSetting{.variant = "gemma4-odd", .schedule = "cgopipe", .device = "emulated"},
                    SharingSetting{.variant = "gemma4-tiny", .schedule = "hybrid", .device = "emulated"},
                    SharingSetting{.variant = "mimo-odd", .kv_dtype = "int8", .prefill_chunk = 16, .budget = 4},
                    SharingSetting{.variant = "mimo-odd", .schedule = "zigzag", .device = "emulated"},
                    SharingSetting{.variant = "laguna-odd", .schedule = "cgopipe", .device = "emulated"},
                    SharingSetting{.variant = "cohere2moe-odd", .schedule = "hybrid", .device = "emulated"},
                    SharingSetting{.variant = "ling3-tiny", .kv_dtype = "int8", .prefill_chunk = 16, .budget = 4},
                    SharingSetting{.variant = "ling3-odd", .schedule = "zigzag", .device = "emulated"},
                    SharingSetting{.variant = "qwen3next-tiny", .batch_size = 1},
                    SharingSetting{.variant = "qwen3next-tiny", .batch_size = 15, .prefill_chunk = 256, .budget = 8},
                    SharingSetting{.variant = "qwen3next-odd", .kv_dtype = "int8", .prefill_chunk = 16, .budget = 4},
                    SharingSetting{.variant = "qwen3next-odd", .window = 20},
                    SharingSetting{.variant = "qwen3next-tiny", .schedule = "zigzag", .device = "emulated"},
                    SharingSetting{.variant = "qwen3next-odd", .schedule = "cgopipe", .device = "emulated"},
                    SharingSetting{.variant = "qwen3next-tiny", .schedule = "hybrid", .device = "emulated"},
                    SharingSetting{.variant = "lfm2moe-tiny", .batch_size = 15, .prefill_chunk = 256, .budget = 8},
                    SharingSetting{.variant = "lfm2moe-odd", .kv_dtype = "int8", .prefill_chunk = 16, .budget = 4},
                    SharingSetting{.variant = "lfm2moe-odd", .window = 20},
                    SharingSetting{.variant = "lfm2moe-tiny", .schedule = "cgopipe", .device = "emulated"},
                    SharingSetting{.variant = "lfm2moe-odd", .schedule = "zigzag", .device = "emulated"},
                    SharingSetting{.variant = "granite4h-tiny", .batch_size = 15, .prefill_chunk = 256, .budget = 8},
                    SharingSetting{.variant = "granite4h-odd", .kv_dtype = "int8", .prefill_chunk = 16, .budget = 4},
                    SharingSetting{.variant = "granite4h-odd", .window = 20},
                    SharingSetting{.variant = "granite4h-tiny", .schedule = "cgopipe", .device = "emulated"},
                    SharingSetting{.variant = "granite4h-odd", .schedule = "zigzag", .device = "emulated"},
                    SharingSetting{.variant = "nemotronh-tiny", .batch_size = 15, .prefill_chunk = 256, .budget = 8},
                    SharingSetting{.variant = "nemotronh-odd", .kv_dtype = "int8", .prefill_chunk = 16, .budget = 4},
                    SharingSetting{.variant = "nemotronh-odd", .window = 20},
                    SharingSetting{.variant = "nemotronh-tiny", .schedule = "cgopipe", .device = "emulated"},
                    SharingSetting{.variant = "nemotronh-odd", .schedule = "zigzag", .device = "emulated"},
                    SharingSetting{.variant = "kimilinear-tiny", .batch_size = 15, .prefill_chunk = 256, .budget = 8},
                    SharingSetting{.variant = "kimilinear-odd", .kv_dtype = "int8", .prefill_chunk = 16, .budget = 4},
                    SharingSetting{.variant = "kimilinear-odd", .window = 20},
                    SharingSetting{.variant = "kimilinear-tiny", .schedule = "cgopipe", .device = "emulated"},
                    SharingSetting{.variant = "kimilinear-odd", .schedule = "zigzag", .device = "emulated"},
                    SharingSetting{.variant = "jamba-tiny", .batch_size = 15, .prefill_chunk = 256, .budget = 8},
                    SharingSetting{.variant = "jamba-odd", .kv_dtype = "int8", .prefill_chunk = 16, .budget = 4},
                    SharingSetting{.variant = "jamba-odd", .window = 20},
                    SharingSetting{.variant = "jamba-tiny", .schedule = "cgopipe", .device = "emulated"},
                    SharingSetting{.variant = "jamba-odd", .schedule = "zigzag", .device = "emulated"},
                    SharingSetting{.variant = "switch-tiny", .batch_size = 1},
                    SharingSetting{.variant = "switch-odd", .batch_size = 7, .budget = 8},
                    SharingSetting{.variant = "switch-odd", .kv_dtype = "int8"},
                    SharingSetting{.variant = "switch-tiny", .schedule = "cgopipe", .device = "emulated"},
                    SharingSetting{.variant = "switch-odd", .schedule = "zigzag", .device = "emulated"}),
    NameOfSharing);

class SharedPrefixes : public testing::Test {
 protected:
  std::unique_ptr<Engine> Open(int64_t batch_size) const {
    const EngineOptions options{.model_dir = golden_.dir(),
                                .memory_bytes = 64 << 20,
                                .device = "cpu",
                                .threads = 2,
                                .batch_size = batch_size,
                                .context_length = 256};
    return Engine::Open(options).value();
  }
  static std::map<RequestId, Completion> Finish(Engine& engine) {
    std::map<RequestId, Completion> done;
    while (!engine.idle()) {
      std::vector<Completion> finished = engine.Step().value();
      for (Completion& completion : finished) {
        const RequestId id = completion.request_id;
        done.emplace(id, std::move(completion));
      }
    }
    return done;
  }

  Golden golden_{"qwen3moe-tiny"};
};

TEST_F(SharedPrefixes, APromptIsComputedOnceForAllThatIsScoredBehindIt) {
  constexpr int64_t kPrompt = 75;  // the last page is not full
  const auto engine = Open(8);
  const Tokens prompt = DrawTokens(kPrompt, 1);
  const std::vector<Tokens> choices = {{7}, {8, 9, 10}, {8, 9, 11, 12}, {13, 14}};
  ASSERT_TRUE(engine->Submit(ScoringRequest(prompt, kPrompt, {7, 8, 8, 13})).ok());
  const Completion first = Finish(*engine).begin()->second;
  EXPECT_TRUE(first.prompt_logprobs.empty());
  ASSERT_EQ(first.rivals.size(), 4u);
  EXPECT_EQ(engine->stats().computed_prompt_tokens, kPrompt);
  std::map<RequestId, size_t> choice_of;
  for (size_t i = 1; i < choices.size(); ++i) {
    choice_of[engine->Submit(ScoringRequest(prompt + choices[i], kPrompt + 1, {})).value()] = i;
  }
  const std::map<RequestId, Completion> others = Finish(*engine);
  // A choice's last token predicts nothing, so it is not computed.
  EXPECT_EQ(engine->stats().computed_prompt_tokens, kPrompt + 2 + 3 + 1);
  const auto alone = Open(1);
  for (size_t i = 0; i < choices.size(); ++i) {
    const std::vector<double> scores = alone->ScoreTokens(prompt + choices[i]).value();
    EXPECT_EQ(first.rivals[i].chosen.token_id, choices[i][0]);
    EXPECT_EQ(first.rivals[i].chosen.logprob, scores[kPrompt - 1]);
  }
  for (const auto& [id, completion] : others) {
    const Tokens& choice = choices[choice_of.at(id)];
    const std::vector<double> scores = alone->ScoreTokens(prompt + choice).value();
    ASSERT_EQ(completion.prompt_logprobs.size(), choice.size() - 1);
    for (size_t i = 0; i + 1 < choice.size(); ++i) {
      EXPECT_EQ(completion.prompt_logprobs[i].chosen.token_id, choice[i + 1]);
      EXPECT_EQ(completion.prompt_logprobs[i].chosen.logprob, scores[kPrompt + i]);
    }
  }
}

// All choices behind a prompt use the entries that its encoder has made.
TEST(EncodedPrompts, AreReadOnceForAllChoices) {
  const Golden golden("switch-tiny");
  for (const size_t num_encoded : {5, 16, 39}) {
    Tokens prompt = golden.prompt(3);
    prompt.resize(num_encoded);
    const auto count = static_cast<int64_t>(num_encoded);
    const EngineOptions options{
        .model_dir = golden.dir(), .memory_bytes = 64 << 20, .device = "cpu", .threads = 2, .context_length = 128};
    const auto engine = Engine::Open(options).value();
    const Tokens begun = prompt + Tokens{engine->model().decoder_start_id.value()};
    ASSERT_TRUE(engine->Submit(ScoringRequest(begun, count + 1, {7, 8}, count)).ok());
    while (!engine->idle()) ASSERT_TRUE(engine->Step().ok());
    for (TokenId id = 7; id < 10; ++id) {
      ASSERT_TRUE(engine->Submit(ScoringRequest(begun + Tokens{id, 11, 12}, count + 2, {}, count)).ok());
    }
    while (!engine->idle()) ASSERT_TRUE(engine->Step().ok());
    // The prompt and the decoder's first row, then two rows of each choice.
    EXPECT_EQ(engine->stats().computed_prompt_tokens, count + 1 + 3 * 2);
  }
}

TEST_F(SharedPrefixes, AreComputedOnce) {
  constexpr int64_t kRequests = 20, kCommon = 101, kOwn = 7;
  const auto engine = Open(8);
  for (uint32_t i = 0; i < kRequests; ++i) {
    ASSERT_TRUE(
        engine
            ->Submit(RequestOf(
                DrawTokens(kCommon, 1) + Tokens(1, static_cast<TokenId>(5 + i)) + DrawTokens(kOwn - 1, i), 4, i))
            .ok());
  }
  EXPECT_EQ(Finish(*engine).size(), static_cast<size_t>(kRequests));
  EXPECT_EQ(engine->stats().prompt_tokens, kRequests * (kCommon + kOwn));
  EXPECT_EQ(engine->stats().computed_prompt_tokens, kCommon + kRequests * kOwn);
}

// Writes a model with LongRoPE whose original length is 32.
void WriteLongRopeModel(const std::filesystem::path& dir) {
  std::filesystem::copy(Golden("phimoe-tiny").dir(), dir);
  const std::string path = (dir / "config.json").string();
  json::object config = ParseJson(ReadFile(path, 1 << 20).value(), Fault::kInput)->as_object();
  const int64_t num_factors = config.at("hidden_size").as_int64() / config.at("num_attention_heads").as_int64() / 2;
  config["original_max_position_embeddings"] = 32;
  config["rope_scaling"] = json::object{{"type", "longrope"},
                                        {"short_factor", json::array(static_cast<size_t>(num_factors), 1.0)},
                                        {"long_factor", json::array(static_cast<size_t>(num_factors), 4.0)},
                                        {"short_mscale", 1.1},
                                        {"long_mscale", 1.2},
                                        {"original_max_position_embeddings", 32}};
  std::filesystem::remove(path);
  ASSERT_TRUE(WriteFile(path, json::serialize(config)).ok());
}

// Under LongRoPE, entries depend on whether prompt and answer may get longer than the original length.
TEST_F(SharedPrefixes, LongSequencesOfLongRopeShareNothingWithShortOnes) {
  const std::filesystem::path dir = testing::TempDir() + "/longrope-" + std::to_string(::getpid());
  WriteLongRopeModel(dir);
  EngineOptions options{.model_dir = dir.string(), .memory_bytes = 64 << 20, .device = "cpu", .threads = 2};
  options.batch_size = 1;
  options.context_length = 128;
  std::vector<Request> requests;
  for (uint32_t i = 0; i < 9; ++i) {  // within the original length, beyond it only with the answer, beyond it
    requests.push_back(RequestOf(DrawTokens(18, 1) + DrawTokens(i % 3 == 2 ? 30 : 2, 10 + i), i % 3 == 0 ? 12 : 13, 0));
  }
  const std::vector<Answer> shared = RunAll(options, requests);
  options.shares_prefixes = false;
  EXPECT_EQ(shared, RunAll(options, requests));
  std::filesystem::remove_all(dir);
}

// A sequence that grows over the original length has the long factors from its first token on, so its answer is that of
// a pass over the whole text.
TEST_F(SharedPrefixes, SequencesOfLongRopeHaveOneKindOfFactors) {
  const std::filesystem::path dir = testing::TempDir() + "/longrope-" + std::to_string(::getpid());
  WriteLongRopeModel(dir);
  EngineOptions options{.model_dir = dir.string(), .memory_bytes = 64 << 20, .device = "cpu", .threads = 2};
  options.context_length = 128;
  const auto engine = Engine::Open(options);
  ASSERT_TRUE(engine.ok()) << Message(engine.status());
  const auto vocab_size = static_cast<size_t>((*engine)->model().vocab_size);
  for (const int64_t max_tokens : {12, 60}) {
    SCOPED_TRACE(max_tokens);
    const Tokens prompt = DrawTokens(20, 1);
    const RequestId id = (*engine)->Submit(RequestOf(prompt, max_tokens, 0)).value();
    const Tokens answer = std::move(Finish(**engine).at(id)).token_ids;
    ASSERT_GT(std::ssize(answer), 0);
    const Tokens text = prompt + answer;
    const std::vector<float> logits = (*engine)->Logits(text).value();
    for (size_t i = 0; i < answer.size(); ++i) {
      const auto row = logits.begin() + static_cast<int64_t>((prompt.size() - 1 + i) * vocab_size);
      EXPECT_EQ(std::max_element(row, row + static_cast<int64_t>(vocab_size)) - row, answer[i]) << i;
    }
  }
  std::filesystem::remove_all(dir);
}

TEST_F(SharedPrefixes, ATurnFindsTheAnswerBeforeIt) {
  const auto engine = Open(2);
  Tokens chat = DrawTokens(40, 1);
  int64_t num_distinct = 0, num_known = 0;
  for (uint32_t turn = 0; turn < 5; ++turn) {
    num_distinct += std::ssize(chat) - num_known;
    const RequestId id = engine->Submit(RequestOf(chat, 21, turn)).value();
    const Completion completion = std::move(Finish(*engine).at(id));
    num_known = std::ssize(chat) + 20;  // the entries of the last generated token were not needed
    chat = chat + completion.token_ids + DrawTokens(6, 10 + turn);
  }
  EXPECT_EQ(engine->stats().computed_prompt_tokens, num_distinct);
}

TEST_F(SharedPrefixes, RequestsThatBeginLikeTheLastOnesGoFirstButNobodyStarves) {
  const auto engine = Open(1);
  const Tokens a = DrawTokens(64, 1), b = DrawTokens(64, 2);
  std::vector<RequestId> of_a, of_b;
  // One by one, requests of `b` wait while there are others that begin like the present one.
  for (uint32_t i = 0; i < 120; ++i) {
    const bool is_b = i % 2 == 1;
    const RequestId id = engine->Submit(RequestOf((is_b ? b : a) + DrawTokens(3, 100 + i), 1, i)).value();
    (is_b ? of_b : of_a).push_back(id);
  }
  std::vector<RequestId> order;
  while (!engine->idle()) {
    const std::vector<Completion> finished = engine->Step().value();
    for (const Completion& completion : finished) order.push_back(completion.request_id);
  }
  const auto place = [&](RequestId id) { return std::ranges::find(order, id) - order.begin(); };
  EXPECT_LT(place(of_a[20]), place(of_b[0]));
  EXPECT_LE(place(of_b[0]), 66);
  EXPECT_EQ(order.size(), 120u);
}

}  // namespace
}  // namespace penstock
