// Proves that ids, pieces, normal forms and decoded texts equal those of Hugging Face's tokenizers, on generated texts
// of many scripts (tests/data/tokenizers), and that a SentencePiece model and its tokenizer.json agree.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "penstock/base/file.h"
#include "penstock/base/json.h"
#include "penstock/base/text.h"
#include "penstock/tokenizer/normalizer.h"
#include "penstock/tokenizer/split/split_pattern.h"
#include "penstock/tokenizer/tokenizer.h"

namespace penstock {
namespace {

std::string ReadText(const std::string& path) {
  auto bytes = ReadFile(path, 1 << 26);
  EXPECT_TRUE(bytes.ok()) << bytes.status();
  return bytes.ok() ? *std::move(bytes) : std::string();
}

json::value ReadJson(const std::string& name) {
  auto value = ParseJson(ReadText(PENSTOCK_SOURCE_DIR "/tests/data/tokenizers/" + name), Fault::kModel);
  EXPECT_TRUE(value.ok()) << value.status();
  return value.ok() ? *std::move(value) : json::value();
}

std::string Text(const json::value& value) { return std::string(value.as_string().data(), value.as_string().size()); }

class WholeTokenizerTest : public testing::TestWithParam<std::string> {};

TEST_P(WholeTokenizerTest, EqualsHuggingFace) {
  const auto tokenizer =
      Tokenizer::FromTokenizerJson(ReadText(PENSTOCK_TOKENIZER_DIR "/" + GetParam() + ".tokenizer.json"), "");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const json::value vectors = ReadJson(GetParam() + ".vectors.json");
  ASSERT_GT(vectors.at("cases").as_array().size(), 200u);
  for (const json::value& one : vectors.at("cases").as_array()) {
    const std::string text = Text(one.at("text"));
    const auto want = json::value_to<std::vector<TokenId>>(one.at("ids"));
    const std::vector<TokenId> ids = (*tokenizer)->Encode(text, Origin::kTemplate, AddSpecial::kYes);
    EXPECT_EQ(ids, want) << Printable(text);
    EXPECT_EQ(ReplaceInvalidUtf8((*tokenizer)->Decode(want, SkipSpecial::kNo)), Text(one.at("decoded")))
        << Printable(text);
    StreamDecoder stream(**tokenizer, SkipSpecial::kNo);
    std::string streamed;
    for (const TokenId id : want) {
      const std::string part = stream.Push(id);
      EXPECT_TRUE(IsUtf8(part));
      streamed += part;
    }
    EXPECT_EQ(streamed + stream.Finish(), Text(one.at("decoded"))) << Printable(text);
  }
}

INSTANTIATE_TEST_SUITE_P(All, WholeTokenizerTest, testing::Values("mixtral", "olmoe"));

TEST(SentencePieceTest, ModelAndJsonAgree) {
  const auto model = Tokenizer::FromSentencePiece(ReadText(PENSTOCK_TOKENIZER_DIR "/mistral.tokenizer.model"), "");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->vocab_size(), 32000);
  EXPECT_EQ((*model)->bos_id(), 1);
  EXPECT_EQ((*model)->eos_id(), 2);
  const json::value vectors = ReadJson("mixtral.vectors.json");
  for (const json::value& one : vectors.at("cases").as_array()) {
    const std::string text = Text(one.at("text"));
    EXPECT_EQ((*model)->Encode(text, Origin::kTemplate, AddSpecial::kYes),
              json::value_to<std::vector<TokenId>>(one.at("ids")))
        << Printable(text);
  }
}

TEST(SplitPatternTest, PiecesEqualHuggingFace) {
  const json::value vectors = ReadJson("parts.vectors.json");
  const json::array& texts = vectors.at("texts").as_array();
  ASSERT_EQ(vectors.at("splits").as_array().size(), 15u);
  for (const json::value& split : vectors.at("splits").as_array()) {
    const auto pattern = SplitPattern::FromRegex(Text(split.at("pattern")), "test");
    ASSERT_TRUE(pattern.ok()) << pattern.status();
    for (size_t i = 0; i < texts.size(); ++i) {
      const std::string text = Text(texts[i]);
      std::vector<std::string> pieces;
      for (size_t pos = 0; pos < text.size();) {
        const SplitPattern::Match match = pattern->Next(text, pos);
        if (match.begin > pos) pieces.push_back(text.substr(pos, match.begin - pos));
        if (match.end > match.begin) pieces.push_back(text.substr(match.begin, match.end - match.begin));
        pos = match.end;
      }
      EXPECT_EQ(pieces, json::value_to<std::vector<std::string>>(split.at("pieces").as_array()[i]))
          << Text(split.at("pattern")) << " on " << Printable(text);
    }
  }
}

TEST(NormalizerTest, TextsEqualHuggingFace) {
  const json::value vectors = ReadJson("parts.vectors.json");
  const json::array& texts = vectors.at("texts").as_array();
  ASSERT_EQ(vectors.at("normalizers").as_array().size(), 7u);
  for (const json::value& one : vectors.at("normalizers").as_array()) {
    const auto normalizer = Normalizer::FromJson(json::object{{"type", one.at("type")}});
    ASSERT_TRUE(normalizer.ok()) << normalizer.status();
    for (size_t i = 0; i < texts.size(); ++i) {
      EXPECT_EQ(normalizer->Apply(Text(texts[i])), Text(one.at("texts").as_array()[i]))
          << Text(one.at("type")) << " of " << Printable(Text(texts[i]));
    }
  }
}

}  // namespace
}  // namespace penstock
