// Proves that answers are the same bits when KV entries come from files: with every kind of model, schedule and KV
// format, after a restart, and when files are damaged.
#include <filesystem>
#include <fstream>
#include <map>
#include <random>

#include <gmock/gmock.h>

#include "penstock/base/status.h"
#include "penstock/schedule/schedule.h"
#include "tests/choices.h"
#include "tests/engine/answers.h"
#include "tests/temporary_folder.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;
using Tokens = std::vector<TokenId>;

// Questions on one text of 70 tokens, and turns that continue an answer: greedy, sampled and scored.
std::vector<Request> Questions(uint32_t first) {
  const Tokens text = DrawTokens(70, 1);
  std::vector<Request> requests;
  for (uint32_t i = first; i < first + 6; ++i) {
    Tokens prompt = text;
    const Tokens question = DrawTokens(3 + i % 20, 100 + i);
    prompt.insert(prompt.end(), question.begin(), question.end());
    if (i % 6 == 5) {
      requests.push_back(ScoringRequest(prompt, std::ssize(prompt), {4, 5}));
      continue;
    }
    requests.push_back({.prompt_ids = std::move(prompt),
                        .sampling = {.temperature = i % 2 == 0 ? 0 : 0.8,
                                     .seed = i,
                                     .max_tokens = 4 + i % 3 * 10,
                                     .ignore_eos = true,
                                     .logprobs = 1}});
  }
  return requests;
}

struct EngineRun {
  std::vector<Answer> answers;
  EngineStats stats;
};

EngineRun RunEngine(const EngineOptions& options, const std::vector<Request>& requests) {
  EngineRun run;
  auto engine = Engine::Open(options);
  EXPECT_TRUE(engine.ok()) << engine.status();
  if (!engine.ok()) return run;
  std::map<RequestId, Answer> answers;
  for (const Request& request : requests) EXPECT_TRUE((*engine)->Submit(request).ok());
  while (!(*engine)->idle()) {
    const auto finished = (*engine)->Step();
    EXPECT_TRUE(finished.ok()) << finished.status();
    if (!finished.ok()) return run;
    for (const Completion& completion : *finished) answers[completion.request_id] = AnswerOf(completion);
  }
  EXPECT_TRUE((*engine)->CloseTraces().ok());
  for (auto& [id, answer] : answers) run.answers.push_back(std::move(answer));
  run.stats = (*engine)->stats();
  return run;
}

struct FileSetting {
  std::string variant = "qwen3moe-tiny";
  std::string schedule = "auto";
  std::string device = "cpu";
  std::string kv_dtype = "auto";
  int64_t batch_size = 4;
  int64_t prefill_chunk = 32;
};

std::string NameOfSetting(const testing::TestParamInfo<FileSetting>& info) {
  const FileSetting& s = info.param;
  std::string name =
      fmt::format("{}_{}_{}_{}_{}", s.variant, s.schedule, s.device.substr(0, 3), s.kv_dtype, s.batch_size);
  std::ranges::replace_if(
      name, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return name;
}

class PrefixDirTest : public testing::TestWithParam<FileSetting> {
 protected:
  TemporaryFolder folder_;
};

TEST_P(PrefixDirTest, AnswersAreThoseOfAColdRun) {
  const FileSetting& setting = GetParam();
  const Golden golden(setting.variant);
  EngineOptions options{.model_dir = golden.dir(),
                        .memory_bytes = 64 << 20,
                        .kv_dtype = KvFormatCalled(setting.kv_dtype),
                        .device = setting.device,
                        .threads = 2,
                        .batch_size = setting.batch_size,
                        .context_length = 128,
                        .prefill_chunk = setting.prefill_chunk};
  if (setting.schedule != "auto") options.policy.schedule = ScheduleCalled(setting.schedule);
  if (setting.device != "cpu") options.device_memory_bytes = 64 << 20;
  EngineOptions cold = options;
  cold.shares_prefixes = false;
  options.prefix_dir = folder_.path();
  // The first run leaves files, the second one reads them, and the third has other questions.
  for (const uint32_t first : {0, 0, 6}) {
    const std::vector<Request> questions = Questions(first);
    const EngineRun kept = RunEngine(options, questions);
    EXPECT_EQ(kept.answers, RunEngine(cold, questions).answers);
    EXPECT_EQ(kept.stats.prefix_dir.refused_files, 0);
  }
  const EngineRun again = RunEngine(options, Questions(0));
  EXPECT_GE(again.stats.prefix_dir.loaded_tokens, 64);
  EXPECT_GT(again.stats.prefix_dir.read_bytes, 0u);
  // Each prompt is computed from less than a page before its end, or where its beginning is kept.
  EXPECT_LT(again.stats.computed_prompt_tokens, again.stats.prompt_tokens / 2);
  EXPECT_EQ(again.stats.prefix_dir.written_bytes, 0u);
}

INSTANTIATE_TEST_SUITE_P(
    Files, PrefixDirTest,
    testing::Values(FileSetting{}, FileSetting{.batch_size = 1},
                    FileSetting{.kv_dtype = "int8", .batch_size = 8, .prefill_chunk = 256},
                    FileSetting{.kv_dtype = "bf16", .prefill_chunk = 16}, FileSetting{.variant = "deepseek3-tiny"},
                    FileSetting{.variant = "deepseek3-tiny", .kv_dtype = "int8"},
                    FileSetting{.variant = "deepseek32-tiny", .prefill_chunk = 16}, FileSetting{.variant = "glm5-odd"},
                    FileSetting{.variant = "gptoss-tiny", .batch_size = 8}, FileSetting{.schedule = "klotski"},
                    FileSetting{.schedule = "zigzag", .device = "emulated"},
                    FileSetting{.schedule = "cgopipe", .device = "emulated"},
                    FileSetting{.schedule = "hybrid", .device = "emulated"},
                    FileSetting{.schedule = "zero", .device = "emulated", .batch_size = 6},
                    FileSetting{.variant = "gemma4-odd", .kv_dtype = "int8"}, FileSetting{.variant = "mimo-odd"},
                    FileSetting{.variant = "qwen3next-tiny"},
                    FileSetting{.variant = "qwen3next-odd", .kv_dtype = "int8", .batch_size = 1},
                    FileSetting{.variant = "qwen3next-odd", .schedule = "cgopipe", .device = "emulated"},
                    FileSetting{.variant = "lfm2moe-tiny"}, FileSetting{.variant = "granite4h-odd"},
                    FileSetting{.variant = "nemotronh-tiny"}, FileSetting{.variant = "kimilinear-odd"},
                    FileSetting{.variant = "jamba-tiny"}),
    NameOfSetting);

class PrefixDir : public testing::Test {
 protected:
  EngineOptions Options() const {
    return {.model_dir = golden_.dir(),
            .memory_bytes = 64 << 20,
            .device = "cpu",
            .threads = 1,
            .batch_size = 4,
            .context_length = 128,
            .prefix_dir = folder_.path()};
  }
  std::vector<fs::path> Files() const {
    std::vector<fs::path> files;
    for (const auto& entry : fs::recursive_directory_iterator(folder_.path())) {
      if (entry.is_regular_file() && entry.path().filename() != "lock") files.push_back(entry.path());
    }
    std::ranges::sort(files);
    return files;
  }

  Golden golden_{"qwen3moe-tiny"};
  TemporaryFolder folder_;
};

TEST_F(PrefixDir, ANewQuestionIsComputedAlone) {
  RunEngine(Options(), Questions(0));
  EngineOptions options = Options();
  options.batch_size = 1;
  std::vector<Request> questions = Questions(6);
  questions.resize(1);
  const EngineRun run = RunEngine(options, questions);
  // Four pages of the text are kept. The rest of it, and the question, are computed.
  EXPECT_EQ(run.stats.prefix_dir.loaded_tokens, 64);
  EXPECT_EQ(run.stats.computed_prompt_tokens, std::ssize(questions[0].prompt_ids) - 64);
}

TEST_F(PrefixDir, DamagedFilesChangeNoAnswer) {
  const std::vector<Request> questions = Questions(0);
  const std::vector<Answer> expected = RunEngine(Options(), questions).answers;
  std::mt19937 random(1);
  int64_t num_refused = 0;
  for (int round = 0; round < 25; ++round) {
    for (const fs::path& file : Files()) {
      if (random() % 4 != 0) continue;
      const auto place = static_cast<std::streamoff>(random() % fs::file_size(file));
      std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
      stream.seekg(place);
      const char byte = static_cast<char>(stream.get() ^ (1 << random() % 8));
      stream.seekp(place);
      stream.put(byte);
    }
    const EngineRun run = RunEngine(Options(), questions);
    EXPECT_EQ(run.answers, expected);
    num_refused += run.stats.prefix_dir.refused_files;
  }
  EXPECT_GT(num_refused, 10);
}

TEST_F(PrefixDir, OtherFormatsHaveFilesOfTheirOwn) {
  RunEngine(Options(), Questions(0));
  EngineOptions options = Options();
  options.kv_dtype = KvFormat::kInt8;
  EXPECT_EQ(RunEngine(options, Questions(0)).stats.prefix_dir.loaded_tokens, 0);
  options = Options();
  options.dtype = ComputeDtype::kBF16;
  EXPECT_EQ(RunEngine(options, Questions(0)).stats.prefix_dir.loaded_tokens, 0);
  // Budgets, batches and schedules change no bits.
  options = Options();
  options.batch_size = 2;
  options.memory_bytes = 48 << 20;
  options.policy.schedule = ScheduleKind::kKlotski;
  EXPECT_GT(RunEngine(options, Questions(0)).stats.prefix_dir.loaded_tokens, 0);
}

TEST_F(PrefixDir, BuffersAreInTheBudget) {
  EngineOptions options = Options();
  const uint64_t with = MinBudget(options);
  options.prefix_dir.clear();
  EXPECT_GT(with, MinBudget(options));
  options = Options();
  options.memory_bytes = with;
  options.batch_size = 1;
  const EngineRun run = RunEngine(options, Questions(0));
  EXPECT_EQ(run.answers.size(), 6u);
  EXPECT_GT(run.stats.prefix_dir.written_bytes, 0u);
}

TEST_F(PrefixDir, WhatCannotKeepFilesIsRefused) {
  const auto refusal = [](const EngineOptions& options) {
    const auto engine = Engine::Open(options);
    EXPECT_FALSE(engine.ok());
    EXPECT_EQ(ExitCodeOf(engine.status()), 2);
    return std::string(engine.status().message());
  };
  EngineOptions options = Options();
  options.attention_window = 20;
  EXPECT_THAT(refusal(options), testing::HasSubstr("--prefix-dir: with --attention-window"));
  options = Options();
  options.shares_prefixes = false;
  EXPECT_THAT(refusal(options), testing::HasSubstr("--prefix-dir: this run computes every prompt in full"));
  options = Options();
  options.model_dir = Golden("switch-tiny").dir();
  EXPECT_THAT(refusal(options), testing::HasSubstr("have an encoder"));
}

}  // namespace
}  // namespace penstock
