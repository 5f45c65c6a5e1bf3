// Proves that workload specs are parsed correctly and invalid ones are refused. Spread lengths keep their average and
// never exceed their limit.
#include "penstock/plan/workload.h"

#include <gmock/gmock.h>

#include "penstock/base/status.h"

namespace penstock {
namespace {

TEST(Workload, IsReadFromItsSpec) {
  const Workload job = ParseWorkload("prompt=128,gen=32,requests=256").value();
  EXPECT_EQ(job.num_requests, 256);
  EXPECT_EQ(job.prompt_tokens, 128);
  EXPECT_EQ(job.max_prompt_tokens, 128);
  EXPECT_EQ(job.new_tokens, 32);
  EXPECT_EQ(job.PromptTokens(5), 128);
  EXPECT_FALSE(job.draws_tokens);
  EXPECT_TRUE(ParseWorkload("prompt=128,gen=32,sampled=1").value().draws_tokens);
  EXPECT_FALSE(ParseWorkload("prompt=128,gen=32,sampled=0").value().draws_tokens);
  EXPECT_TRUE(ParseWorkload("prompt=128,gen=32", /*model_draws=*/true).value().draws_tokens);
  EXPECT_FALSE(ParseWorkload("prompt=128,gen=32,sampled=0", /*model_draws=*/true).value().draws_tokens);
  const Workload mtbench = ParseWorkload("mtbench").value();
  EXPECT_EQ(mtbench.prompt_tokens, 77);
  EXPECT_EQ(mtbench.max_positions(), 418 + 128);
  EXPECT_EQ(ParseWorkload("mtbench:gen=64").value().new_tokens, 64);
  EXPECT_EQ(ParseWorkload("mtbench:prompt=500").value().max_prompt_tokens, 500);
  EXPECT_EQ(ParseWorkload("max-prompt=418,prompt=77,gen=128").value().max_prompt_tokens, 418);
}

TEST(Workload, RefusesWhatItDoesNotUnderstand) {
  for (const char* spec : {"", "prompt=8", "gen=8", "prompt=0,gen=1", "prompt=8,gen=-1", "prompt=8,gen=1x", "mtbenchx",
                           "prompt=8,gen=1,sampled=2", "prompt=8,gen=1,batch=2", "prompt=8,max-prompt=7,gen=1",
                           "mtbench:gen", "mtbench,gen=4"}) {
    EXPECT_EQ(FaultOf(ParseWorkload(spec).status()), Fault::kUsage) << spec;
  }
}

TEST(Workload, LengthsHaveTheirAverageAndTheirLimit) {
  for (const char* spec : {"mtbench", "summarization", "prompt=10,max-prompt=1000,gen=1"}) {
    const Workload workload = ParseWorkload(spec).value();
    double sum = 0;
    int64_t longest = 0;
    constexpr int64_t kRequests = 2000;
    for (int64_t i = 0; i < kRequests; ++i) {
      const int64_t tokens = workload.PromptTokens(i);
      ASSERT_GE(tokens, 1);
      ASSERT_LE(tokens, workload.max_prompt_tokens);
      sum += static_cast<double>(tokens);
      longest = std::max(longest, tokens);
    }
    EXPECT_NEAR(sum / kRequests, static_cast<double>(workload.prompt_tokens),
                0.05 * static_cast<double>(workload.prompt_tokens))
        << spec;
    EXPECT_GT(longest, workload.max_prompt_tokens * 9 / 10) << spec;
  }
}

}  // namespace
}  // namespace penstock
