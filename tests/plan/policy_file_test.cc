// Proves that a policy file sets the values that it names and no others. Every fault in a file gives one line that
// names the file and the key.
#include "penstock/plan/policy_file.h"

#include <gmock/gmock.h>

#include "penstock/base/status.h"

namespace penstock {
namespace {

using testing::HasSubstr;

TEST(PolicyFile, SetsWhatItNames) {
  EngineOptions options{.batch_size = 7};
  ASSERT_TRUE(ApplyPolicy(R"({"schedule": "zigzag", "eviction": "lfu", "micro_batch_size": 3, "reorder": false,
                              "hot_experts": 2, "prefill_chunk": 99, "streaming_slots": 4})",
                          "p.json", options)
                  .ok());
  EXPECT_EQ(options.policy.schedule, ScheduleKind::kZigzag);
  EXPECT_EQ(options.policy.eviction, Eviction::kLfu);
  EXPECT_EQ(options.policy.micro_batch_size, 3);
  EXPECT_EQ(options.policy.hot_experts, 2);
  EXPECT_EQ(options.policy.streaming_slots, 4);
  EXPECT_FALSE(options.policy.reorder);
  EXPECT_TRUE(options.policy.multi_batch && options.policy.hot_prefetch);
  EXPECT_EQ(options.prefill_chunk, 99);
  EXPECT_EQ(options.batch_size, 7);
  ASSERT_TRUE(ApplyPolicy(R"({"batch_size": 5})", "p.json", options).ok());
  EXPECT_EQ(options.batch_size, 5);
}

TEST(PolicyFile, SaysWhatIsNotTheDefault) {
  EXPECT_EQ(PolicyJson({}), json::object());
  EngineOptions options{.batch_size = 48, .prefill_chunk = 512};
  options.policy.schedule = ScheduleKind::kCgopipe;
  options.policy.reorder = false;
  options.memory_bytes = 5'000'000'000;
  options.context_length = 777;
  options.planned_positions = 99;
  options.kv_dtype = KvFormat::kInt8;
  const json::object policy = PolicyJson(options);
  EXPECT_EQ(policy.size(), 8u);
  EngineOptions read;
  ASSERT_TRUE(ApplyPolicy(json::serialize(policy), "p.json", read).ok());
  EXPECT_EQ(PolicyJson(read), policy);
  EXPECT_EQ(read.batch_size, 48);
  EXPECT_FALSE(read.policy.reorder);
  EXPECT_EQ(read.memory_bytes, 5'000'000'000u);
  EXPECT_EQ(read.context_length, 777);
  EXPECT_EQ(read.planned_positions, 99);
  EXPECT_EQ(read.kv_dtype, KvFormat::kInt8);
}

TEST(PolicyFile, APredictorMayHaveAFile) {
  EngineOptions options;
  ASSERT_TRUE(ApplyPolicy(R"({"predictor": "sida:folder:1/net"})", "p.json", options).ok());
  EXPECT_EQ(options.policy.predictor, PredictorKind::kSida);
  EXPECT_EQ(options.policy.predictor_path, "folder:1/net");
  EngineOptions read;
  ASSERT_TRUE(ApplyPolicy(json::serialize(PolicyJson(options)), "p.json", read).ok());
  EXPECT_EQ(read.policy.predictor, PredictorKind::kSida);
  EXPECT_EQ(read.policy.predictor_path, "folder:1/net");
  EXPECT_FALSE(read.policy.predictor_replaces_routers);
  ASSERT_TRUE(ApplyPolicy(R"({"predictor": "sida:a,mode=b/net,mode=replace"})", "p.json", options).ok());
  EXPECT_EQ(options.policy.predictor_path, "a,mode=b/net");
  EXPECT_TRUE(options.policy.predictor_replaces_routers);
  EngineOptions replacing;
  ASSERT_TRUE(ApplyPolicy(json::serialize(PolicyJson(options)), "p.json", replacing).ok());
  EXPECT_EQ(replacing.policy.predictor_path, "a,mode=b/net");
  EXPECT_TRUE(replacing.policy.predictor_replaces_routers);
  ASSERT_TRUE(ApplyPolicy(R"({"predictor": "sida:net,mode=prefetch"})", "p.json", replacing).ok());
  EXPECT_EQ(replacing.policy.predictor_path, "net");
  EXPECT_FALSE(replacing.policy.predictor_replaces_routers);
  ASSERT_TRUE(ApplyPolicy("{}", "p.json", read).ok());  // keeps both
  EXPECT_EQ(read.policy.predictor_path, "folder:1/net");
  ASSERT_TRUE(ApplyPolicy(R"({"predictor": "gate"})", "p.json", read).ok());
  EXPECT_EQ(read.policy.predictor, PredictorKind::kGate);
  EXPECT_EQ(read.policy.predictor_path, "");
  ASSERT_TRUE(ApplyPolicy(R"({"predictor": "auto"})", "p.json", read).ok());
  EXPECT_FALSE(read.policy.predictor.has_value());
  EXPECT_EQ(PolicyJson(read), json::object());
}

TEST(PolicyFile, RefusesWhatIsWrong) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "p.json: "},
      {"[]", "expected a JSON object"},
      {R"({"schedule": 3})", "'schedule': expected a string, found 3"},
      {R"({"batch_size": "many"})", "'batch_size': expected a whole number"},
      {R"({"batch_size": -1})", "'batch_size': expected a whole number of 0 or more, found -1"},
      {R"({"batch_size": 1.5})", "'batch_size'"},
      {R"({"batch_size": 99999999999999999999})", "p.json"},
      {R"({"reorder": 1})", "'reorder': expected true or false, found 1"},
      {R"({"predictor": "sida"})", "predictor sida: give the file of its network, sida:FILE"},
      {R"({"predictor": "sida:"})", "predictor sida: give the file of its network, sida:FILE"},
      {R"({"predictor": "sida:,mode=replace"})", "predictor sida: give the file of its network, sida:FILE"},
      {R"({"predictor": "sida:net,mode=both"})", "mode 'both': expected prefetch or replace"},
      {R"({"predictor": "none:x"})", "predictor none: it has no file"},
      {R"({"predictor": "auto:x"})", "predictor auto: it has no file"},
      {R"({"predictor": "martian:x"})", "predictor 'martian' is unknown"},
      {R"({"predictor": 3})", "'predictor': expected a string, found 3"},
      {R"({"re_order": true})", "unknown key 're_order'; known are schedule"},
      {R"({"reorder": true, "reorder": true})", "p.json"},
  };
  for (const auto& [text, message] : cases) {
    EngineOptions options;
    const absl::Status status = ApplyPolicy(text, "p.json", options);
    ASSERT_FALSE(status.ok()) << text;
    EXPECT_EQ(FaultOf(status), Fault::kUsage) << text;
    EXPECT_THAT(Message(status), HasSubstr("p.json")) << text;
    EXPECT_THAT(Message(status), HasSubstr(message)) << text;
  }
  EngineOptions options;
  EXPECT_EQ(FaultOf(ApplyPolicyFile("/nonexistent/p.json", options)), Fault::kIo);
}

}  // namespace
}  // namespace penstock
