// Proves that a run which learns keeps its choices for later plans of the same model, and that a damaged or foreign
// file counts as none.
#include "penstock/measure/learned_routing.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>

#include <unistd.h>

#include "penstock/engine/instrumented_engine.h"
#include "tests/engine/answers.h"

namespace penstock {
namespace {

class LearnedRoutingTest : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = testing::TempDir() + "/learned-routing-" + std::to_string(::getpid());
    std::filesystem::create_directories(dir_);
    ::setenv("XDG_CACHE_HOME", dir_.c_str(), 1);
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  // Answers all requests. Returns about how many of their tokens went through the layers.
  int64_t Run(bool learns) const {
    EngineOptions options{.model_dir = golden_.dir(), .memory_bytes = uint64_t{256} << 20, .threads = 1};
    options.learns_routing = learns;
    options.shares_prefixes = false;
    const std::unique_ptr<Engine> engine = Engine::Open(options).value();
    for (Request& request : Requests(golden_)) EXPECT_TRUE(engine->Submit(std::move(request)).ok());
    int64_t num_rows = 0;
    while (!engine->idle()) {
      const std::vector<Completion> completions = engine->Step().value();
      for (const Completion& done : completions) {
        num_rows += done.num_prompt_tokens + static_cast<int64_t>(done.token_ids.size()) - 1;
      }
    }
    EXPECT_TRUE(engine->CloseTraces().ok());
    return num_rows;
  }
  std::string KeptFile() const { return std::filesystem::directory_iterator(dir_ + "/penstock")->path().string(); }

  std::string dir_;
  const Golden golden_{"qwen3moe-tiny"};
  const DescribedModel model_ = DescribedModel::FromFolder(golden_.dir()).value();
  const ModelConfig& config_ = model_.config();
  const std::string& fingerprint_ = model_.loaded()->fingerprint;
};

TEST_F(LearnedRoutingTest, RunsAddToWhatIsKept) {
  Run(/*learns=*/false);
  EXPECT_FALSE(LearnedRouting(fingerprint_, config_).has_value());
  EXPECT_EQ(ExpectedRouting(model_).skew, TypicalRouting().skew);
  const int64_t num_rows = Run(/*learns=*/true);
  const std::optional<RoutingCounts> once = LearnedRouting(fingerprint_, config_);
  ASSERT_TRUE(once.has_value());
  for (const std::vector<int64_t>& of_layer : once->chosen) {
    // Tokens that end an answer went through the layers, too, or not at all.
    const int64_t num_choices = std::reduce(of_layer.begin(), of_layer.end());
    EXPECT_NEAR(static_cast<double>(num_choices / config_.num_topk), static_cast<double>(num_rows), 8);
    EXPECT_EQ(num_choices, once->num_choices());
  }
  EXPECT_GT(once->num_following, 0);
  Run(/*learns=*/true);
  EXPECT_EQ(LearnedRouting(fingerprint_, config_)->num_choices(), 2 * once->num_choices());
  EXPECT_EQ(ExpectedRouting(model_).counts.size(), static_cast<size_t>(config_.num_moe_layers()));
  EXPECT_FALSE(LearnedRouting("another model", config_).has_value());
}

TEST_F(LearnedRoutingTest, DamagedFilesCountAsNone) {
  Run(/*learns=*/true);
  std::string text;
  {
    std::ifstream in(KeptFile());
    text.assign(std::istreambuf_iterator<char>(in), {});
  }
  const auto damaged = [&](const std::string& content) {
    std::ofstream(KeptFile()) << content;
    return !LearnedRouting(fingerprint_, config_).has_value();
  };
  EXPECT_FALSE(damaged(text));
  EXPECT_TRUE(damaged(text.substr(0, text.size() / 2)));
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    changed.replace(changed.find(from), from.size(), to);
    return changed;
  };
  EXPECT_TRUE(damaged(with("\"chosen\":[[", "\"chosen\":[[-")));
  EXPECT_TRUE(damaged(with("\"chosen\":[[", "\"chosen\":[[1,")));
  EXPECT_TRUE(damaged(with("\"chosen\":[[", "\"chosen\":[[1],[")));
  EXPECT_TRUE(damaged(with("\"following\":", "\"following\":0,\"then\":")));
  EXPECT_TRUE(damaged(with("\"chosen\":[[", "\"chosen\":[[9223372036854775807,")));
  EXPECT_FALSE(damaged(text));
}

}  // namespace
}  // namespace penstock
