// Proves that guesses of the next tokens change no answer: greedy and sampled, with log-probabilities, penalties, stops
// and output formats, with every schedule, KV format and budget, also when rows of guesses cannot be computed. Also
// that guesses come from what texts repeat, and that they are drafted where their rows cost little.
#include <map>
#include <memory>

#include <gmock/gmock.h>

#include "penstock/engine/speculation/ngram_table.h"
#include "penstock/engine/speculation/speculator.h"
#include "penstock/schedule/schedule.h"
#include "tests/choices.h"
#include "tests/engine/answers.h"
#include "tests/engine/faulty_disk.h"

namespace penstock {
namespace {

using Tokens = std::vector<TokenId>;

// Prompts that repeat a few tokens. Models with random weights repeat themselves in long answers.
std::vector<Request> RepetitiveRequests() {
  std::vector<Request> requests;
  for (uint32_t i = 0; i < 14; ++i) {
    const Tokens phrase = DrawTokens(4 + i % 5, i / 2);
    Request request;
    for (uint32_t round = 0; round < 2 + i % 4; ++round) {
      request.prompt_ids.insert(request.prompt_ids.end(), phrase.begin(), phrase.end());
    }
    request.sampling = {.temperature = i % 3 == 0 ? 0.5 : 0.0,
                        .repetition_penalty = i % 7 == 3 ? 1.1 : 1.0,
                        .frequency_penalty = i % 7 == 4 ? 0.2 : 0.0,
                        .seed = i,
                        .max_tokens = 1 + 9 * (i % 6),
                        .min_tokens = i % 6 == 0 ? 0 : i % 5,
                        .ignore_eos = i % 2 == 0,
                        .logprobs = i % 4 == 1 ? 2 : -1};
    if (i % 5 == 2) request.sampling.stop_token_ids = {7, 11, 40, 41, 42};
    requests.push_back(request);
  }
  requests.push_back(ScoringRequest(DrawTokens(20, 1), 3, {5, 6}));
  return requests;
}

struct DraftSetting {
  std::string variant = "mixtral-tiny";
  std::string schedule = "auto";
  std::string device = "cpu";
  std::string kv_dtype = "f32";
  int64_t batch_size = 4;
  int64_t prefill_chunk = 32;
  double budget = 1.5;  // times the least one
};

void PrintTo(const DraftSetting& s, std::ostream* out) {
  *out << s.variant << "_" << s.schedule << "_" << s.device << "_" << s.kv_dtype << "_" << s.batch_size << "_"
       << s.prefill_chunk << "_" << s.budget;
}

EngineOptions OptionsOf(const DraftSetting& setting) {
  EngineOptions options{.model_dir = Golden(setting.variant).dir(),
                        .kv_dtype = KvFormatCalled(setting.kv_dtype),
                        .device = setting.device,
                        .threads = 2,
                        .batch_size = setting.batch_size,
                        .context_length = 128,
                        .prefill_chunk = setting.prefill_chunk,
                        .speculates = true};
  if (setting.schedule != "auto") options.policy.schedule = ScheduleCalled(setting.schedule);
  if (setting.device != "cpu") options.device_memory_bytes = 64 << 20;
  options.memory_bytes = static_cast<uint64_t>(setting.budget * static_cast<double>(MinBudget(options)));
  if (setting.device != "cpu") options.device_memory_bytes = 2 * MinDeviceMemory(options);
  return options;
}

class SpeculationTest : public testing::TestWithParam<DraftSetting> {};

TEST_P(SpeculationTest, AnswersAreThoseWithoutGuesses) {
  EngineOptions options = OptionsOf(GetParam());
  const std::vector<Request> requests = RepetitiveRequests();
  options.speculates = false;
  const std::vector<Answer> without = RunAll(options, requests);
  ASSERT_EQ(without.size(), requests.size());
  options.speculates = true;
  EXPECT_EQ(without, RunAll(options, requests, {.drafts_all = true}));
  EXPECT_EQ(without, RunAll(options, requests));
}

INSTANTIATE_TEST_SUITE_P(
    Settings, SpeculationTest,
    testing::Values(DraftSetting{}, DraftSetting{.batch_size = 1}, DraftSetting{.batch_size = 15, .budget = 8},
                    DraftSetting{.kv_dtype = "int8"}, DraftSetting{.kv_dtype = "bf16", .prefill_chunk = 16},
                    DraftSetting{.schedule = "klotski"}, DraftSetting{.schedule = "zigzag"},
                    DraftSetting{.schedule = "zigzag", .device = "emulated"},
                    DraftSetting{.schedule = "cgopipe", .device = "emulated"},
                    DraftSetting{.schedule = "hybrid", .device = "emulated"},
                    DraftSetting{.schedule = "zero", .device = "emulated", .batch_size = 6},
                    DraftSetting{.variant = "gptoss-tiny", .batch_size = 8},
                    DraftSetting{.variant = "deepseek3-tiny", .kv_dtype = "int8"}, DraftSetting{.variant = "glm5-odd"},
                    DraftSetting{.variant = "deepseek32-tiny"},
                    DraftSetting{.variant = "gemma4-odd", .kv_dtype = "int8"},
                    DraftSetting{.variant = "gemma4-tiny", .schedule = "cgopipe", .device = "emulated"},
                    // Recurrent states are taken back, if there is room for copies.
                    DraftSetting{.variant = "qwen3next-tiny"}, DraftSetting{.variant = "qwen3next-tiny", .budget = 8},
                    DraftSetting{.variant = "kimilinear-tiny", .schedule = "klotski", .batch_size = 15, .budget = 8},
                    DraftSetting{.variant = "granite4h-tiny", .kv_dtype = "int8", .budget = 8},
                    DraftSetting{.variant = "lfm2moe-tiny", .schedule = "zigzag", .budget = 8},
                    DraftSetting{.variant = "jamba-tiny", .batch_size = 1, .prefill_chunk = 3, .budget = 8}),
    [](const auto& setting) {
      std::string name = testing::PrintToString(setting.param);
      std::ranges::replace_if(
          name, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
      return name;
    });

EngineStats StatsOf(const EngineOptions& options, const std::vector<Request>& requests) {
  const auto engine = OpenInstrumentedEngine(options, {.drafts_all = true}).value();
  for (const Request& request : requests) EXPECT_TRUE(engine->Submit(request).ok());
  while (!engine->idle()) EXPECT_TRUE(engine->Step().ok());
  return engine->stats();
}

TEST(Speculation, GuessesOfRepetitionsAreRight) {
  const EngineStats stats = StatsOf(OptionsOf({}), RepetitiveRequests());
  EXPECT_GT(stats.accepted_tokens, 5);
  EXPECT_GT(stats.drafted_tokens, stats.accepted_tokens);
  const EngineStats recurrent = StatsOf(OptionsOf({.variant = "qwen3next-tiny", .budget = 8}), RepetitiveRequests());
  EXPECT_GT(recurrent.accepted_tokens, 0);
  EXPECT_GT(recurrent.drafted_tokens, recurrent.accepted_tokens);
}

TEST(Speculation, RowsOfGuessesThatCannotBeComputedFailNothing) {
  EngineOptions options = OptionsOf({.budget = 1.1});
  const std::vector<Request> requests = RepetitiveRequests();
  const std::vector<Answer> clean = RunAll(options, requests);
  for (unsigned seed = 0; seed < 8; ++seed) {
    const auto wrap = [seed](std::unique_ptr<DiskReader> disk) {
      return std::make_unique<FaultyDisk>(std::move(disk), Faults{.failed_reads = 0.01, .seed = seed});
    };
    const auto engine = OpenInstrumentedEngine(options, {.wrap_disk = wrap, .drafts_all = true});
    if (!engine.ok()) continue;  // the fault struck while it opened
    std::map<RequestId, size_t> idx_of;
    for (size_t i = 0; i < requests.size(); ++i) idx_of[(*engine)->Submit(requests[i]).value()] = i;
    while (!(*engine)->idle()) {
      const auto finished = (*engine)->Step();
      ASSERT_TRUE(finished.ok()) << finished.status();
      for (const Completion& completion : *finished) {
        if (completion.status.ok()) {
          EXPECT_EQ(AnswerOf(completion), clean[idx_of[completion.request_id]]);
        }
        idx_of.erase(completion.request_id);
      }
    }
    EXPECT_TRUE(idx_of.empty());
  }
}

TEST(Speculation, AnswersInFormatsStayTheSame) {
  EngineOptions options{.model_dir = PENSTOCK_SOURCE_DIR "/models/penstock-demo",
                        .memory_bytes = 64 << 20,
                        .threads = 2,
                        .batch_size = 4};
  std::vector<std::vector<Answer>> answers;
  for (const bool speculates : {false, true}) {
    options.speculates = speculates;
    const auto engine = OpenInstrumentedEngine(options, {.drafts_all = true}).value();
    const auto constraint =
        engine->CompileFormat({.kind = OutputFormat::Kind::kRegex, .text = "(ab|cd){4,30}e"}).value();
    std::map<RequestId, Answer> by_id;
    for (uint32_t i = 0; i < 6; ++i) {
      Request request{.prompt_ids = DrawTokens(5, i), .constraint = constraint};
      request.sampling = {.temperature = i % 2 == 0 ? 0 : 0.9, .seed = i, .max_tokens = 60, .logprobs = i < 2 ? 1 : -1};
      ASSERT_TRUE(engine->Submit(request).ok());
    }
    while (!engine->idle()) {
      const std::vector<Completion> finished = engine->Step().value();
      for (const Completion& completion : finished) by_id[completion.request_id] = AnswerOf(completion);
    }
    answers.emplace_back();
    for (const auto& [id, answer] : by_id) answers.back().push_back(answer);
  }
  EXPECT_EQ(answers[0], answers[1]);
}

TEST(NgramTable, GuessesWhatFollowedTheLongestKnownContext) {
  NgramTable table(1 << 20);
  const Tokens text = {1, 2, 3, 4, 5, 9, 2, 3, 7};
  for (size_t end = 2; end <= text.size(); ++end) table.Learn(std::span(text).first(end));
  EXPECT_EQ(table.Next(Tokens{2, 3}).token_id, 7);  // 4 was never confirmed
  EXPECT_EQ(table.Next(Tokens{4, 5}).token_id, 9);
  EXPECT_EQ(table.Next(Tokens{6, 6, 2, 3}).token_id, 7);  // only the end of the context is known
  EXPECT_LT(table.Next(Tokens{5, 9, 2, 3}).kind, table.Next(Tokens{2, 3}).kind);  // longer contexts come first
  EXPECT_EQ(table.Next(Tokens{8, 8}).token_id, -1);
  EXPECT_EQ(table.Next(Tokens{}).token_id, -1);
}

TEST(StepCost, ARowCostsWhatTheLimitingLaneDoesForIt) {
  StepCost computing(8, 2), reading(8, 2), sparse(128, 8), hidden(8, 2);
  for (int i = 0; i < 200; ++i) {
    const int64_t num_rows = 16 << (i % 3);
    const double compute_s = 0.01 * static_cast<double>(num_rows);
    computing.Add({.num_decoding = num_rows, .seconds = compute_s, .transfer_s = 0, .compute_s = compute_s});
    reading.Add({.num_decoding = num_rows, .seconds = 0.2, .transfer_s = 0.2, .compute_s = 0.02});
    hidden.Add({.num_decoding = num_rows, .seconds = compute_s, .transfer_s = 0.001, .compute_s = compute_s});
    sparse.Add({.num_decoding = 1, .seconds = 0.2, .transfer_s = 0.2, .compute_s = 0.002});
  }
  EXPECT_NEAR(computing.OfNextRow(32), 0.01, 0.002);
  EXPECT_NEAR(hidden.OfNextRow(32), computing.OfNextRow(32), 1e-4);
  EXPECT_LT(reading.OfNextRow(32), 0.0005);  // all experts are read anyway
  EXPECT_GT(reading.OfNextRow(1), 0.01);     // more experts of eight
  // Alone, a row wants experts that the first one seldom wants.
  EXPECT_NEAR(sparse.OfNextRow(1), 0.2, 0.02);
  EXPECT_LT(sparse.OfNextRow(64), 0.1 * sparse.OfNextRow(1));
}

TEST(StepCost, TheTimeOfStepsCorrectsTheGuess) {
  StepCost same(8, 2), slow(8, 2);
  EXPECT_EQ(same.seconds(), 0);
  for (int i = 0; i < 400; ++i) {
    same.Add({.num_decoding = 64, .seconds = 0.32, .compute_s = 0.32});
    // No lane is busy, and yet rows take their time.
    const int64_t num_rows = 16 << (i % 3);
    slow.Add({.num_decoding = num_rows, .seconds = 0.01 * static_cast<double>(num_rows)});
  }
  EXPECT_NEAR(same.seconds(), 0.32, 1e-9);
  EXPECT_NEAR(same.OfNextRow(64), 0.004, 1e-6);  // steps with one number of rows leave the guess
  EXPECT_GT(slow.OfNextRow(32), 0.007);
}

TEST(MeasuredStep, TakesTheBusiestLanes) {
  MeasuredStep step;
  step.SetWork({}, std::vector<LaneStats>{{"host_compute", 1}, {"disk_to_dram", 2}});
  EXPECT_EQ(step.compute_s, 1);
  EXPECT_EQ(step.transfer_s, 2);
  step = {};
  step.SetWork(std::vector<LaneStats>{{"host_compute", 1}, {"disk_to_dram", 2}, {"device_compute", 0}},
               std::vector<LaneStats>{{"host_compute", 4}, {"disk_to_dram", 2.5}, {"device_compute", 1}});
  EXPECT_EQ(step.compute_s, 3);
  EXPECT_EQ(step.transfer_s, 0.5);
}

// Returns the drafts for a text that repeats a phrase, after steps whose time grows with their rows as given.
int64_t NumDrafts(double exponent) {
  ModelConfig config;
  config.num_experts = 8;
  config.num_topk = 2;
  Speculator speculator(1 << 20, config);
  std::vector<std::unique_ptr<Sequence>> running;
  Tokens text;
  for (int i = 0; i < 80; ++i) {
    for (const TokenId id : {4, 8, 15, 16, 23, 42}) text.push_back(id);
  }
  running.push_back(std::make_unique<Sequence>(
      1, Request{.prompt_ids = {text.begin(), text.begin() + 12}, .sampling = {.temperature = 0, .max_tokens = 1000}},
      nullptr));
  running[0]->AdvanceComputed(12);
  for (size_t i = 12; i < text.size(); ++i) {
    running[0]->Append(text[i], false, {});
    const int64_t num_drafts = static_cast<int64_t>(i % 4) * 4;
    const double seconds = std::pow(static_cast<double>(4 + num_drafts), exponent);
    speculator.Learn(running, {.num_decoding = 4, .num_drafts = num_drafts, .seconds = seconds, .compute_s = seconds});
  }
  // A trial takes both forms in turn.
  int64_t most = 0;
  for (int step = 0; step < 20; ++step) {
    std::vector<SequenceState> states = {{.num_computed = running[0]->num_known() - 1, .num_pending = 1}};
    const std::vector<Tokens> drafts = speculator.Draft(running, states, 1000, /*may_take_pages=*/false);
    const int64_t num_drafts = std::ssize(drafts[0]);
    EXPECT_EQ(states[0].num_drafts, num_drafts);
    for (int64_t i = 0; i < num_drafts; ++i) EXPECT_EQ(drafts[0][i], text[i % 6]);
    most = std::max(most, num_drafts);
    const double seconds = std::pow(static_cast<double>(4 + num_drafts), exponent);
    speculator.Learn(running, {.num_decoding = 4,
                               .num_drafts = num_drafts,
                               .num_generated = 4 + num_drafts,
                               .seconds = seconds,
                               .compute_s = seconds});
  }
  return most;
}

TEST(Speculator, DraftsWhereRowsCostLittle) {
  EXPECT_GT(NumDrafts(0), 12);
  const int64_t some = NumDrafts(0.9);
  EXPECT_GT(some, 0);
  EXPECT_LT(some, Speculator::kMaxDrafts);
  EXPECT_EQ(NumDrafts(1.5), 0);
}

}  // namespace
}  // namespace penstock
