// Proves which of a folder's files a tokenizer is read from, and that errors name the folder.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "penstock/base/status.h"
#include "penstock/checkpoint/model_folder.h"
#include "penstock/tokenizer/tokenizer.h"
#include "tests/tokenizer/small_tokenizers.h"

namespace penstock {
namespace {

class LoadTest : public testing::Test {
 protected:
  LoadTest() : path_(std::filesystem::temp_directory_path() / fmt::format("penstock_load_test_{}", getpid())) {
    std::filesystem::create_directories(path_);
  }
  ~LoadTest() override { std::filesystem::remove_all(path_); }

  void Write(const std::string& name, const std::string& bytes) {
    std::ofstream(path_ / name, std::ios::binary) << bytes;
  }

  absl::StatusOr<std::unique_ptr<Tokenizer>> Load() {
    auto folder = ModelFolder::Open(path_.string());
    EXPECT_TRUE(folder.ok()) << folder.status();
    return Tokenizer::Load(*folder);
  }

  std::filesystem::path path_;
};

TEST_F(LoadTest, NothingToReadIsAnErrorThatNamesTheFolder) {
  const auto tokenizer = Load();
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_EQ(FaultOf(tokenizer.status()), Fault::kModel);
  EXPECT_THAT(Message(tokenizer.status()), testing::HasSubstr(path_.string()));
  EXPECT_THAT(Message(tokenizer.status()), testing::HasSubstr("expected tokenizer.json"));
}

TEST_F(LoadTest, TokenizerJsonGoesBeforeOtherFormats) {
  Write("vocab.json", R"({"a": 0, "b": 1, "ab": 2})");
  Write("merges.txt", "#version: 0.2\na b\n");
  Write("tokenizer_config.json", R"({"tokenizer_class": "GPT2Tokenizer", "eos_token": "ab"})");
  auto tokenizer = Load();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->vocab_size(), 3);
  EXPECT_EQ((*tokenizer)->eos_id(), 2);

  Write("tokenizer.model", "no protobuf");
  EXPECT_THAT(Message(Load().status()), testing::HasSubstr("tokenizer.model"));

  Write("tokenizer.json", json::serialize(testing_tokenizers::ByteLevel()));
  tokenizer = Load();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->vocab_size(), 262);
  EXPECT_EQ((*tokenizer)->eos_id(), 256);
}

// transformers combines the two files in the same way.
TEST_F(LoadTest, SpecialTokensMapCountsWithoutAnAddedTokensDecoder) {
  using testing::ElementsAre;
  using testing::Pair;
  Write("tokenizer.json", json::serialize(testing_tokenizers::ByteLevel()));
  Write("tokenizer_config.json", R"({"pad_token": "abc", "mask_token": null})");
  Write("special_tokens_map.json", R"({"bos_token": {"content": "<s>", "lstrip": false}, "eos_token": "ab",
      "pad_token": "<w>", "mask_token": "[R]", "sep_token": "not in the vocabulary",
      "additional_special_tokens": ["[W]"]})");
  auto tokenizer = Load();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->bos_id(), 258);
  EXPECT_EQ((*tokenizer)->eos_id(), 256);
  EXPECT_TRUE((*tokenizer)->IsSpecial(256));
  EXPECT_THAT((*tokenizer)->NamedTokens(),
              ElementsAre(Pair("bos_token", "<s>"), Pair("eos_token", "ab"), Pair("pad_token", "<w>"),
                          Pair("sep_token", "not in the vocabulary"), Pair("mask_token", "[R]")));

  Write("tokenizer_config.json", R"({"pad_token": "abc", "added_tokens_decoder": {}})");
  tokenizer = Load();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_TRUE((*tokenizer)->IsSpecial(257));
  EXPECT_THAT((*tokenizer)->NamedTokens(), ElementsAre(Pair("pad_token", "abc")));

  std::filesystem::remove(path_ / "tokenizer_config.json");
  tokenizer = Load();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->eos_id(), 256);
  EXPECT_FALSE((*tokenizer)->IsSpecial(257));

  Write("special_tokens_map.json", R"({"eos_token": 3})");
  EXPECT_EQ(FaultOf(Load().status()), Fault::kModel);
  EXPECT_THAT(Message(Load().status()), testing::HasSubstr("special_tokens_map.json"));
}

}  // namespace
}  // namespace penstock
