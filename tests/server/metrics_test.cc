// Proves that histograms count cumulatively and that labels are quoted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "penstock/server/api/metrics.h"

namespace penstock::server {
namespace {

using testing::HasSubstr;

TEST(Metrics, BucketsAreCumulative) {
  Histogram histogram({1, 2});
  histogram.Add(1);
  histogram.Add(1.5, 3);
  histogram.Add(9);
  std::string text;
  histogram.Append("h", "help", "m=\"x\"", text);
  EXPECT_THAT(
      text, HasSubstr("h_bucket{m=\"x\",le=\"1\"} 1\nh_bucket{m=\"x\",le=\"2\"} 4\nh_bucket{m=\"x\",le=\"+Inf\"} 5\n"));
  EXPECT_THAT(text, HasSubstr("h_sum{m=\"x\"} 14.5\nh_count{m=\"x\"} 5\n"));
}

TEST(Metrics, AnIdleServersKvCacheIsUnused) {
  EngineSnapshot engine;
  engine.stats.kv_usage = 0.25;
  EXPECT_THAT(Metrics().Text({}, {}, engine, 0, 0), HasSubstr("vllm:kv_cache_usage_perc{model_name=\"\"} 0\n"));
  engine.num_running = 1;
  EXPECT_THAT(Metrics().Text({}, {}, engine, 0, 0), HasSubstr("vllm:kv_cache_usage_perc{model_name=\"\"} 0.25\n"));
}

TEST(Metrics, RequestsAreCountedByHowTheyEnd) {
  Metrics metrics;
  metrics.AddRequest({.is_good = true, .finish_reason = FinishReason::kLength, .completion_tokens = 3, .total_s = 1});
  metrics.AddRequest({.is_good = false});
  metrics.AddRefusal("too_many_requests");
  ModelInfo model;
  model.name = "a\"b\n";
  const std::string text = metrics.Text(model, {}, {}, 7, 8);
  EXPECT_THAT(text, HasSubstr("vllm:request_success_total{model_name=\"a\\\"b \",finished_reason=\"length\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("finished_reason=\"abort\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("reason=\"too_many_requests\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("penstock:connections{model_name=\"a\\\"b \"} 7\n"));
  EXPECT_THAT(text, HasSubstr("vllm:request_generation_tokens_count{model_name=\"a\\\"b \"} 1\n"));
}

}  // namespace
}  // namespace penstock::server
