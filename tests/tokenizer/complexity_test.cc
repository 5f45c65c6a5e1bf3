// Proves that hostile texts cost no more than n log n steps. The merge engine's steps are counted, and a megabyte of
// each hostile kind passes through whole tokenizers. A quadratic part would take hours, far beyond the test's time
// limit.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "penstock/base/file.h"
#include "penstock/tokenizer/bpe.h"
#include "penstock/tokenizer/tokenizer.h"
#include "penstock/tokenizer/unigram.h"
#include "tests/tokenizer/small_ranks.h"

namespace penstock {
namespace {

constexpr size_t kMegabyte = 1 << 20;

std::string Repeat(std::string_view unit, size_t num_bytes) {
  std::string text;
  while (text.size() + unit.size() <= num_bytes) text += unit;
  return text;
}

TEST(BpeStepsTest, GrowLinearlyWithTheWord) {
  Vocabulary vocabulary;
  ASSERT_TRUE(vocabulary.Add("a", 0, "test").ok());
  MergeTable merges;
  for (int level = 1; level <= 20; ++level) {  // a, aa, aaaa ... each merges with itself
    ASSERT_TRUE(vocabulary.Add(std::string(size_t{1} << level, 'a'), level, "test").ok());
    merges.Add(level - 1, level - 1, static_cast<uint32_t>(level), level);
  }
  const BpeModel model(std::move(vocabulary), std::move(merges), BpeOptions());
  for (const size_t size : {size_t{1000}, size_t{10'000}, size_t{100'000}, kMegabyte}) {
    BpeModel::Scratch scratch;
    std::vector<TokenId> ids;
    model.Encode(std::string(size, 'a'), scratch, ids);
    EXPECT_LE(scratch.num_steps, static_cast<int64_t>(size) * 4) << size;
  }
  BpeModel::Scratch scratch;
  std::vector<TokenId> ids;
  model.Encode(std::string(kMegabyte, 'a'), scratch, ids);
  EXPECT_THAT(ids, testing::ElementsAre(20));
}

TEST(UnigramStepsTest, GrowLinearlyWithTheWord) {
  Vocabulary vocabulary;
  std::vector<double> scores;
  for (int64_t length = 1; length <= 16; ++length) {  // a, aa, aaa ... all match everywhere
    ASSERT_TRUE(vocabulary.Add(std::string(length, 'a'), length - 1, "test").ok());
    scores.push_back(-static_cast<double>(length));
  }
  const UnigramModel model(std::move(vocabulary), std::move(scores), {.unknown_score = -100});
  for (const size_t size : {size_t{1000}, size_t{10'000}, size_t{100'000}, kMegabyte}) {
    UnigramModel::Scratch scratch;
    std::vector<TokenId> ids;
    model.Encode(std::string(size, 'a'), scratch, ids);
    EXPECT_LE(scratch.num_steps, static_cast<int64_t>(size) * 16) << size;
    EXPECT_GE(ids.size(), size / 16);
  }
}

TEST(TiktokenTest, AMegabyteOfEachKindIsEncoded) {
  std::vector<std::string> tokens;
  for (size_t size = 2; size <= 512; size *= 2) tokens.emplace_back(size, 'a');
  for (size_t size = 2; size <= 512; size *= 2) tokens.emplace_back(size, ' ');
  const auto tokenizer =
      Tokenizer::FromTiktoken(testing_tokenizers::SmallRanks(tokens), "tiktoken.model", /*tokenizer_config=*/"");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  for (const std::string unit : {"a", " ", "1", "\n ", "\u4e2d", "Aa", "'", "\u0301\u0327", " a"}) {
    const std::string text = Repeat(unit, kMegabyte);
    const std::vector<TokenId> ids = (*tokenizer)->Encode(text, Origin::kMessage, AddSpecial::kNo);
    EXPECT_EQ((*tokenizer)->Decode(ids, SkipSpecial::kNo), text);
  }
}

class HostileTextTest : public testing::TestWithParam<std::string> {};

TEST_P(HostileTextTest, AMegabyteOfEachKindIsEncoded) {
  const auto bytes = ReadFile(PENSTOCK_TOKENIZER_DIR "/" + GetParam(), 1 << 26);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  const auto tokenizer = GetParam().ends_with(".json") ? Tokenizer::FromTokenizerJson(*bytes, "")
                                                       : Tokenizer::FromSentencePiece(*bytes, "");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  // Marks in the wrong canonical order, which a normalizer has to sort.
  for (const std::string& unit :
       {std::string("a"), std::string(" "), std::string("\u0301\u0327"), std::string("\U0001F469\u200D"),
        std::string(1, '\0'), std::string("\n "), std::string("<s>"), std::string("'"), std::string("1"),
        std::string("\u4e2d"), std::string("|||")}) {
    const std::string text = Repeat(unit, kMegabyte);
    const std::vector<TokenId> ids = (*tokenizer)->Encode(text, Origin::kMessage, AddSpecial::kNo);
    EXPECT_FALSE(ids.empty());
    EXPECT_FALSE((*tokenizer)->Decode(ids, SkipSpecial::kNo).empty());
  }
}

INSTANTIATE_TEST_SUITE_P(All, HostileTextTest,
                         testing::Values("mixtral.tokenizer.json", "olmoe.tokenizer.json", "mistral.tokenizer.model"),
                         [](const auto& one) { return one.param.substr(0, one.param.find('.')); });

}  // namespace
}  // namespace penstock
