// Proves that a window over the KV cache keeps exactly what each row should see. Pages are used in a ring, and no page
// is lost that a row still sees. Answers within the window are those of full attention; longer answers differ. They are
// the same for every chunk, batch, schedule and device.
#include "penstock/memory/kv_window.h"
#include "tests/choices.h"

#include <map>
#include <random>

#include <rapidcheck/gtest.h>

#include "penstock/base/status.h"
#include "penstock/ops/operations.h"
#include "tests/engine/answers.h"

namespace penstock {
namespace {

constexpr int64_t kPageTokens = KvCache::kPageTokens;

RC_GTEST_PROP(KvWindow, KeepsWhatEveryRowSees, ()) {
  const KvWindow window{.num_tokens = *rc::gen::inRange<int64_t>(1, 200),
                        .num_sinks = *rc::gen::inRange<int64_t>(0, 40)};
  const int64_t num_positions = *rc::gen::inRange<int64_t>(1, 3000);
  std::vector<std::byte> memory(window.NumPages(num_positions));  // each byte represents a page
  std::vector<std::byte*> pages;
  for (std::byte& page : memory) pages.push_back(&page);
  std::map<std::byte*, int64_t> holds;  // the logical page that was last written to each page
  RowBatch batch;
  for (int64_t begin = 0; begin < num_positions;) {
    const int64_t end = std::min(num_positions, begin + *rc::gen::inRange<int64_t>(1, KvWindow::kMaxRows + 1));
    batch.Clear();
    for (int64_t pos = begin; pos < end; ++pos) batch.AddRow(0, pos, pages, 7, window);
    for (size_t i = 0; i < batch.positions.size(); ++i) {
      holds[batch.kv_pages[i][batch.kv_positions[i] / kPageTokens]] = batch.positions[i] / kPageTokens;
    }
    for (size_t i = 0; i < batch.positions.size(); ++i) {
      const int64_t pos = batch.positions[i];
      RC_ASSERT(batch.kv_positions[i] % kPageTokens == pos % kPageTokens);
      std::vector<int64_t> seen;
      for (int64_t page = 0; page <= batch.kv_positions[i] / kPageTokens; ++page) {
        seen.push_back(holds.at(batch.kv_pages[i][page]));
      }
      std::vector<int64_t> expected;
      for (int64_t page = 0; page <= pos / kPageTokens; ++page) {
        const bool is_sink = page < KvCache::PagesFor(window.num_sinks);
        if (is_sink || (page + 1) * kPageTokens > pos - window.num_tokens + 1) expected.push_back(page);
      }
      RC_ASSERT(seen == expected);
    }
    begin = end;
  }
}

class WindowTest : public testing::Test {
 protected:
  static constexpr int64_t kContext = 256;

  // Longer than the 13 pages that a window of 20 keeps, so that the ring is reused.
  std::vector<Request> LongRequests() const {
    std::mt19937 random(5);
    std::vector<Request> requests;
    for (const int64_t length : {214, 30, 3, 190}) {
      Request request;
      for (int64_t i = 0; i < length; ++i) request.prompt_ids.push_back(static_cast<TokenId>(random() % 96));
      request.sampling = {.temperature = 0, .max_tokens = 40, .ignore_eos = true, .logprobs = 1};
      requests.push_back(request);
    }
    return requests;
  }
  EngineOptions Options() const {
    EngineOptions options{.model_dir = golden_.dir(), .memory_bytes = 64 << 20, .threads = 2};
    options.context_length = kContext;
    return options;
  }

  Golden golden_{"qwen3moe-tiny"};
};

TEST_F(WindowTest, WithinItNothingChanges) {
  EngineOptions options = Options();
  const std::vector<Answer> expected = RunAll(options, LongRequests());
  options.attention_window = kContext;
  EXPECT_EQ(RunAll(options, LongRequests()), expected);
  options.attention_window = 20;
  const std::vector<Answer> windowed = RunAll(options, LongRequests());
  EXPECT_NE(windowed[0].logprobs, expected[0].logprobs);
  EXPECT_EQ(windowed[2].logprobs[0], expected[2].logprobs[0]);
}

TEST_F(WindowTest, EveryPlanGivesTheSame) {
  EngineOptions base = Options();
  base.attention_window = 20;
  base.attention_sinks = 4;
  const std::vector<Answer> expected = RunAll(base, LongRequests());
  for (const char* schedule :
       {"on-demand", "klotski", "zigzag", "device zigzag", "device klotski", "device zero", "device cgopipe"}) {
    SCOPED_TRACE(schedule);
    EngineOptions options = base;
    const std::string name(schedule);
    const bool on_device = name.starts_with("device ");
    options.policy.schedule = ScheduleCalled(on_device ? name.substr(7) : name);
    if (on_device) {
      options.device = "emulated:link=1GB/s";
      options.device_memory_bytes = MinDeviceMemory(options);
    }
    for (const int64_t chunk : {5, 37, 400}) {
      options.prefill_chunk = chunk;
      options.batch_size = chunk == 37 ? 2 : 4;
      options.policy.micro_batch_size = 2;
      if (options.device != "auto") {
        options.device_memory_bytes = 1ull << 29;
        options.device_memory_bytes = MinDeviceMemory(options);
      }
      EXPECT_EQ(RunAll(options, LongRequests()), expected) << "chunk " << chunk;
    }
  }
}

TEST_F(WindowTest, ScoresAreThoseOfGeneration) {
  EngineOptions options = Options();
  options.attention_window = 20;
  const std::vector<TokenId> ids = LongRequests()[0].prompt_ids;
  options.prefill_chunk = 64;
  const std::vector<double> scores = Engine::Open(options).value()->ScoreTokens(ids).value();
  options.prefill_chunk = 7;
  options.batch_size = 1;
  EXPECT_EQ(Engine::Open(options).value()->ScoreTokens(ids).value(), scores);
}

TEST_F(WindowTest, AModelsOwnWindowIsRefused) {
  EngineOptions options = Options();
  options.model_dir = Golden("mixtral-sliding").dir();
  options.context_length = 100;
  options.attention_window = 20;
  EXPECT_EQ(ExitCodeOf(Engine::Open(options).status()), 2);
}

}  // namespace
}  // namespace penstock
