// Proves that an engine writes the files of its trace options. A Chrome trace has lanes with the pass's operations and
// reads. There is a page, and a routing trace with every row of every MoE layer of every step. Answers are the same
// with and without them. A file that cannot be written is an error.
#include <set>

#include <unistd.h>

#include "penstock/base/status.h"
#include "penstock/routing/routing_trace.h"
#include "tests/choices.h"
#include "tests/engine/answers.h"

namespace penstock {
namespace {

class TracesTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    dir_ = testing::TempDir() + "/traces-" + GetParam() + std::to_string(::getpid());
    std::filesystem::remove_all(dir_);
    std::filesystem::create_directories(dir_);
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }
  std::string dir_;
};

TEST_P(TracesTest, AreWritten) {
  const Golden golden("qwen3moe-tiny");
  const std::vector<Request> requests = Requests(golden);
  EngineOptions options{.model_dir = golden.dir(), .threads = 1};
  options.batch_size = 3;
  options.context_length = 192;
  options.policy.schedule = ScheduleCalled(GetParam());
  options.policy.micro_batch_size = 2;
  options.memory_bytes = MinBudget(options) + (100 << 10);
  const std::vector<Answer> expected = RunAll(options, requests);
  options.trace_path = dir_ + "/trace.json";
  options.trace_html_path = dir_ + "/trace.html";
  options.routing_path = dir_ + "/routing.bin";
  options.memory_bytes = MinBudget(options) + (100 << 10);
  const auto engine = Engine::Open(options).value();
  int64_t num_steps = 0, num_tokens = 0;
  for (const Request& request : requests) ASSERT_TRUE(engine->Submit(request).ok());
  std::map<RequestId, Answer> answers;
  while (!engine->idle()) {
    const std::vector<Completion> finished = engine->Step().value();
    for (const Completion& completion : finished) {
      // The last token of an answer predicts nothing.
      num_tokens += completion.num_prompt_tokens + std::max<int64_t>(0, std::ssize(completion.token_ids) - 1);
      EXPECT_EQ(completion.token_ids, expected[completion.request_id - 1].token_ids);
    }
    ++num_steps;
  }
  num_tokens -= engine->stats().prompt_tokens - engine->stats().computed_prompt_tokens;  // shared ones are no rows
  ASSERT_TRUE(engine->CloseTraces().ok());

  const json::value trace = ParseJson(ReadFile(options.trace_path, 1 << 28).value(), Fault::kInput).value();
  std::set<std::string> names;
  int64_t num_spans = 0;
  for (const json::value& event : trace.as_array()) {
    names.insert(std::string(event.at("name").as_string()));
    num_spans += event.at("name").as_string() == "step" ? 1 : 0;
  }
  EXPECT_EQ(num_spans, num_steps);
  for (const char* name : {"attention", "route", "group", "experts", "combine", "logits", "sample", "read expert"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
  const std::string page = ReadFile(options.trace_html_path, 1 << 28).value();
  EXPECT_NE(page.find("host_compute"), std::string::npos);
  EXPECT_NE(page.find("disk_to_dram"), std::string::npos);

  const auto reader = RoutingTraceReader::Open(options.routing_path).value();
  const int64_t num_layers = reader->header().num_layers;
  RoutingTraceRecord record;
  int64_t num_records = 0, num_rows = 0;
  for (;;) {
    const RoutingTraceEvent event = reader->Next(record).value();
    if (event == RoutingTraceEvent::kEnd) break;
    ASSERT_EQ(event, RoutingTraceEvent::kRecord);
    EXPECT_EQ(record.step_idx, num_records / num_layers);
    EXPECT_EQ(record.layer_idx, num_records % num_layers);
    ++num_records;
    num_rows += record.num_rows();
  }
  EXPECT_EQ(num_records, num_steps * num_layers);
  EXPECT_EQ(num_rows, num_tokens * num_layers);
}

INSTANTIATE_TEST_SUITE_P(Schedules, TracesTest, testing::Values("on-demand", "zero", "zigzag", "klotski"),
                         [](const auto& param) { return param.param == "on-demand" ? "on_demand" : param.param; });

TEST(Traces, WhatKlotskiLearntIsWrittenAndUsed) {
  const Golden golden("qwen3moe-tiny");
  const std::vector<Request> requests = Requests(golden);
  EngineOptions options{.model_dir = golden.dir(), .threads = 1};
  options.batch_size = 3;
  options.context_length = 192;
  options.policy.schedule = ScheduleKind::kKlotski;
  options.memory_bytes = MinBudget(options);
  const std::vector<Answer> expected = RunAll(options, requests);
  const std::string path = testing::TempDir() + "/correlation-" + std::to_string(::getpid());
  for (const int64_t path_length : {1, 3}) {
    options.policy.path_length = path_length;
    options.policy.correlation_table.clear();
    std::filesystem::remove(path);
    options.correlation_path = path;
    options.memory_bytes = MinBudget(options);
    const auto learning = Engine::Open(options).value();
    for (const Request& request : requests) ASSERT_TRUE(learning->Submit(request).ok());
    while (!learning->idle()) ASSERT_TRUE(learning->Step().ok());
    ASSERT_TRUE(learning->CloseTraces().ok());
    const std::string learnt = ReadFile(path, 1 << 24).value();
    EXPECT_GT(learnt.size(), 500u);
    // Another engine can begin with the table that one engine learnt.
    options.policy.correlation_table = path;
    options.correlation_path = path + ".again";
    ASSERT_TRUE(Engine::Open(options).value()->CloseTraces().ok());
    EXPECT_EQ(ReadFile(options.correlation_path, 1 << 24).value(), learnt);
    EXPECT_EQ(RunAll(options, requests), expected);
  }
  options.policy.path_length = 1;  // the file has length 3
  options.correlation_path.clear();
  EXPECT_EQ(FaultOf(Engine::Open(options).status()), Fault::kInput);
  options.policy.correlation_table.clear();
  options.correlation_path = "/nonexistent/table";
  EXPECT_EQ(FaultOf(Engine::Open(options).status()), Fault::kIo);
  options.policy.schedule = ScheduleKind::kZigzag;
  EXPECT_EQ(FaultOf(Engine::Open(options).status()), Fault::kUsage);
  std::filesystem::remove(path);
  std::filesystem::remove(path + ".again");
}

TEST(Traces, WhatCannotBeWrittenIsAnError) {
  const Golden golden("mixtral-tiny");
  EngineOptions options{.model_dir = golden.dir(), .memory_bytes = 64 << 20, .threads = 1};
  options.trace_path = "/nonexistent/trace.json";
  EXPECT_EQ(FaultOf(Engine::Open(options).status()), Fault::kIo);
  options.trace_path.clear();
  options.routing_path = "/dev/null";  // already exists
  EXPECT_EQ(FaultOf(Engine::Open(options).status()), Fault::kIo);
  options.routing_path.clear();
  options.trace_html_path = "/nonexistent/page.html";
  EXPECT_EQ(FaultOf(Engine::Open(options).status()), Fault::kIo);
}

}  // namespace
}  // namespace penstock
