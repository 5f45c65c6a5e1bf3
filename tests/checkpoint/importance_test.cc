// Proves that statistics of inputs are read as they were written, that experts that saw little get the mean of their
// layer, and that damaged files are refused with a reason.
#include "penstock/checkpoint/importance.h"

#include <unistd.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>

#include <gmock/gmock.h>

#include "penstock/base/status.h"
#include "penstock/tensor/error_weights.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;

class ImportanceTest : public testing::Test {
 protected:
  ImportanceTest() : path_(testing::TempDir() + "/importance-" + std::to_string(::getpid())) {
    experts_.dim = 3;
    experts_.rows = {1000, 10, 3000};
    experts_.squares = {1, 2, 3, 100, 100, 100, 5, 6, 7};
    experts_.products.resize(static_cast<size_t>(3 * 3 * kInputBlock));
    for (size_t i = 0; i < experts_.products.size(); ++i) experts_.products[i] = static_cast<float>(i);
    attention_.dim = 2;
    attention_.rows = {10};
    attention_.squares = {0.5f, 0.25f};
  }
  ~ImportanceTest() override { ::unlink(path_.c_str()); }

  std::string Write() {
    EXPECT_TRUE(WriteImportance(path_, {{SiteName(4, InputSite::kExpertsHidden), experts_},
                                        {SiteName(4, InputSite::kAttended), attention_}})
                    .ok());
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void Replace(const std::string& bytes) { std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes; }
  static std::string Damaged(std::string bytes, const std::string& from, const std::string& to) {
    const size_t at = bytes.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return bytes.replace(at, from.size(), to);
  }
  void ExpectRefused(const std::string& bytes, const std::string& text) {
    Replace(bytes);
    const auto importance = Importance::Open(path_);
    ASSERT_FALSE(importance.ok()) << text;
    EXPECT_EQ(FaultOf(importance.status()), Fault::kInput);
    EXPECT_THAT(Message(importance.status()), HasSubstr(text));
  }

  std::string path_;
  SiteStatistics experts_, attention_;
};

TEST_F(ImportanceTest, WhatWasWrittenIsRead) {
  Write();
  const auto importance = Importance::Open(path_).value();
  const auto last = importance.Read({4, InputSite::kExpertsHidden, 2}, 3, 3).value();
  EXPECT_EQ(last.rows, 3000);
  EXPECT_EQ(last.squares, (std::vector<float>{5, 6, 7}));
  EXPECT_EQ(last.products, std::vector<float>(experts_.products.end() - 3 * kInputBlock, experts_.products.end()));
  const auto attended = importance.Read({4, InputSite::kAttended}, 1, 2).value();
  EXPECT_EQ(attended.rows, 10);
  EXPECT_EQ(attended.squares, attention_.squares);
  EXPECT_TRUE(attended.products.empty());
}

TEST_F(ImportanceTest, AnExpertThatSawLittleGetsTheMeanOfItsLayer) {
  Write();
  const auto rare = Importance::Open(path_).value().Read({4, InputSite::kExpertsHidden, 1}, 3, 3).value();
  EXPECT_EQ(rare.rows, 10);
  EXPECT_TRUE(rare.products.empty());
  for (int k = 0; k < 3; ++k) {
    EXPECT_NEAR(rare.squares[k], (1000.0 * (k + 1) + 10.0 * 100 + 3000.0 * (k + 5)) / 4010, 1e-5);
  }
}

TEST_F(ImportanceTest, AnotherModelIsRefused) {
  Write();
  const auto importance = Importance::Open(path_).value();
  EXPECT_THAT(Message(importance.Read({5, InputSite::kAttended}, 1, 2).status()), HasSubstr("has no 'model.layers.5."));
  EXPECT_THAT(Message(importance.Read({4, InputSite::kAttended}, 1, 3).status()), HasSubstr("expected 1 x 3"));
  EXPECT_THAT(Message(importance.Read({4, InputSite::kExpertsHidden, 0}, 4, 3).status()), HasSubstr("3 x 3 inputs"));
}

TEST_F(ImportanceTest, WhatIsNoNumberIsRefused) {
  experts_.squares[7] = std::numeric_limits<float>::quiet_NaN();
  attention_.squares[0] = -1;
  Write();
  const auto importance = Importance::Open(path_).value();
  EXPECT_THAT(Message(importance.Read({4, InputSite::kExpertsHidden, 2}, 3, 3).status()), HasSubstr("NaN"));
  EXPECT_THAT(Message(importance.Read({4, InputSite::kAttended}, 1, 2).status()), HasSubstr("negative"));
  EXPECT_TRUE(importance.Read({4, InputSite::kExpertsHidden, 0}, 3, 3).ok());
}

TEST_F(ImportanceTest, DamagedFilesAreRefused) {
  const std::string good = Write();
  ExpectRefused("", "too few");
  ExpectRefused(good.substr(0, good.size() - 1), "short");
  ExpectRefused(good + "x", "belong to no tensor");
  ExpectRefused(Damaged(good, "penstock_importance", "penstock_impertinenc"), "");
  ExpectRefused(Damaged(good, "penstock_importance\":\"1", "penstock_importance\":\"2"), "penstock calibrate");
  ExpectRefused(Damaged(good, ".rows", ".raws"), "none of importances");
  ExpectRefused(Damaged(good, "[3,3,256]", "[3,6,128]"), "no shape of importances");
  ExpectRefused(Damaged(good, "\"shape\":[3,3]", "\"shape\":[9,1]"), "no shape of importances");
  ExpectRefused(Damaged(good, "\"I64\"", "\"F32\""), "");
}

TEST_F(ImportanceTest, WhatIsNoFileIsRefused) {
  EXPECT_THAT(Message(Importance::Open(path_ + "-none").status()), HasSubstr("cannot be opened"));
  EXPECT_THAT(Message(Importance::Open(testing::TempDir()).status()), HasSubstr("no regular file"));
}

}  // namespace
}  // namespace penstock
