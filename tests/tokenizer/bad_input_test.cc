// Proves that invalid tokenizer files are refused with kModel and a message that names the faulty part. A SentencePiece
// model with any byte cut or flipped is refused or loads; it does no other harm.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>

#include "penstock/base/status.h"
#include "penstock/tokenizer/tokenizer.h"
#include "tests/tokenizer/small_tokenizers.h"

namespace penstock {
namespace {

using testing::HasSubstr;
using testing_tokenizers::ByteLevel;
using testing_tokenizers::SpaceMark;

struct Case {
  std::string name;
  std::function<void(json::object&)> spoil;
  std::string message;
};

void PrintTo(const Case& bad, std::ostream* out) { *out << bad.name; }

json::object& Model(json::object& file) { return file["model"].as_object(); }
json::object& Vocab(json::object& file) { return Model(file)["vocab"].as_object(); }

class BadJsonTest : public testing::TestWithParam<Case> {};

TEST_P(BadJsonTest, IsRefusedByName) {
  json::object file = SpaceMark();
  GetParam().spoil(file);
  const auto tokenizer = Tokenizer::FromTokenizerJson(json::serialize(file), "");
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_EQ(FaultOf(tokenizer.status()), Fault::kModel);
  EXPECT_THAT(Message(tokenizer.status()), HasSubstr(GetParam().message));
}

json::object Regex(const char* pattern) {
  return {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}};
}

INSTANTIATE_TEST_SUITE_P(
    All, BadJsonTest,
    testing::Values(
        Case{"merge_part_missing", [](auto& f) { Model(f)["merges"] = json::array{"a zz"}; },
             "merge 0: 'zz' is not in"},
        Case{"merge_result_missing", [](auto& f) { Model(f)["merges"] = json::array{"a b"}; },
             "merge 0: 'ab' is not in"},
        Case{"merge_of_one", [](auto& f) { Model(f)["merges"] = json::array{"a"}; }, "merge 0: expected two tokens"},
        Case{"merge_number", [](auto& f) { Model(f)["merges"] = json::array{7}; }, "merge 0: expected a string or"},
        Case{"merges_missing", [](auto& f) { Model(f).erase("merges"); }, "'merges'"},
        Case{"duplicate_id", [](auto& f) { Vocab(f)["a"] = 261; }, "have the same id 261"},
        Case{"id_negative", [](auto& f) { Vocab(f)["a"] = -1; }, "found -1"},
        Case{"id_huge", [](auto& f) { Vocab(f)["a"] = int64_t{1} << 40; }, "found 1099511627776"},
        Case{"id_fraction", [](auto& f) { Vocab(f)["a"] = 1.5; }, "expected an integer id"},
        Case{"id_text", [](auto& f) { Vocab(f)["a"] = "1"; }, "expected an integer id"},
        Case{"empty_token", [](auto& f) { Vocab(f)[""] = 300; }, "the token of id 300 is empty"},
        Case{"no_tokens", [](auto& f) { Model(f)["vocab"] = json::object{}; }, "there are no tokens"},
        Case{"byte_minus", [](auto& f) { Vocab(f)["<0x-1>"] = 300; }, "byte token '<0x-1>'"},
        Case{"byte_letters", [](auto& f) { Vocab(f)["<0xZZ>"] = 300; }, "byte token '<0xZZ>'"},
        Case{"byte_large", [](auto& f) { Vocab(f)["<0x100>"] = 300; }, "byte token '<0x100>'"},
        Case{"unk_missing", [](auto& f) { Model(f)["unk_token"] = "none"; }, "unk_token 'none'"},
        Case{"unigram", [](auto& f) { Model(f)["type"] = "Unigram"; }, "field 'vocab': expected array"},
        Case{"word_level", [](auto& f) { Model(f)["type"] = "WordLevel"; }, "type 'WordLevel' is not implemented"},
        Case{"dropout", [](auto& f) { Model(f)["dropout"] = 0.1; }, "dropout"},
        Case{"suffix", [](auto& f) { Model(f)["end_of_word_suffix"] = "</w>"; }, "end_of_word_suffix '</w>'"},
        Case{"no_model", [](auto& f) { f.erase("model"); }, "'model'"},
        Case{"normalizer",
             [](auto& f) {
               f["normalizer"] = json::object{{"type", "BertNormalizer"}};
             },
             "normalizer BertNormalizer"},
        Case{"precompiled",
             [](auto& f) {
               f["normalizer"] = json::object{{"type", "Precompiled"}};
             },
             "normalizer Precompiled"},
        Case{"normalizer_growth",
             [](auto& f) {
               json::array steps;
               for (int i = 0; i < 20; ++i) {
                 steps.push_back(
                     json::object{{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aaaaaaaa"}});
               }
               f["normalizer"] = json::object{{"type", "Sequence"}, {"normalizers", steps}};
             },
             "times as long"},
        Case{"pre_tokenizer",
             [](auto& f) {
               f["pre_tokenizer"] = json::object{{"type", "UnicodeScripts"}};
             },
             "pre_tokenizer UnicodeScripts"},
        Case{"regex", [](auto& f) { f["pre_tokenizer"] = Regex("(a)\\1"); }, "the pattern (a)\\1 is not implemented"},
        Case{"regex_invalid", [](auto& f) { f["pre_tokenizer"] = Regex("(["); }, "the pattern ([ is not implemented"},
        Case{"behavior",
             [](auto& f) {
               f["pre_tokenizer"] = Regex("\\s+");
               f["pre_tokenizer"].as_object()["behavior"] = "Sideways";
             },
             "behavior 'Sideways'"},
        Case{"post_processor",
             [](auto& f) {
               f["post_processor"] = json::object{{"type", "Sideways"}};
             },
             "post_processor Sideways"},
        Case{"decoder",
             [](auto& f) {
               f["decoder"] = json::object{{"type", "WordPiece"}};
             },
             "decoder WordPiece"},
        Case{"added_conflict", [](auto& f) { f["added_tokens"].as_array()[0].as_object()["id"] = 7; },
             "added token '<unk>'"},
        Case{"added_negative", [](auto& f) { f["added_tokens"].as_array()[0].as_object()["id"] = -1; }, "found -1"},
        Case{"added_long",
             [](auto& f) { f["added_tokens"].as_array()[0].as_object()["content"] = std::string(600, 'x'); },
             "600 bytes"}),
    [](const auto& one) { return one.param.name; });

TEST(BadJsonTest, GapsBetweenIdsAreAllowed) {
  json::object file = SpaceMark();
  Vocab(file)["far"] = 5000;
  const auto tokenizer = Tokenizer::FromTokenizerJson(json::serialize(file), "");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->vocab_size(), 5001);
  EXPECT_EQ((*tokenizer)->TokenText(4000), "");
}

TEST(BadJsonTest, NotJsonNamesTheLine) {
  const auto tokenizer = Tokenizer::FromTokenizerJson("{\n \"model\": }", "");
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_THAT(Message(tokenizer.status()), HasSubstr("tokenizer.json: line 2"));
}

TEST(BadConfigTest, IsRefusedByName) {
  const std::string file = json::serialize(ByteLevel());
  for (const auto& [config, message] : std::vector<std::pair<std::string, std::string>>{
           {R"({"eos_token": "none"})", "eos_token 'none' is not in the vocabulary"},
           {R"({"bos_token": 7})", "bos_token"},
           {R"({"added_tokens_decoder": {"x": {"content": "y"}}})", "added_tokens_decoder 'x'"},
           {R"({"added_tokens_decoder": {"-1": {"content": "y"}}})", "added_tokens_decoder '-1'"},
           {R"({"added_tokens_decoder": {"99999999999": {"content": "y"}}})", "added_tokens_decoder"},
           {R"([])", "expected object"}}) {
    const auto tokenizer = Tokenizer::FromTokenizerJson(file, config);
    ASSERT_FALSE(tokenizer.ok()) << config;
    EXPECT_EQ(FaultOf(tokenizer.status()), Fault::kModel);
    EXPECT_THAT(Message(tokenizer.status()), HasSubstr(message));
  }
}

TEST(BadMergesTextTest, IsRefusedByName) {
  const std::string config = R"({"tokenizer_class": "GPT2Tokenizer"})";
  const auto error = [&](std::string_view merges, std::string_view config_text) {
    const auto tokenizer = Tokenizer::FromVocabAndMerges(R"({"a": 0, "b": 1, "ab": 2})", merges, config_text);
    return tokenizer.ok() ? std::string("OK") : Message(tokenizer.status());
  };
  EXPECT_EQ(error("#version: 0.2\na b\n", config), "OK");
  EXPECT_THAT(error("#version: 0.2\na  b\n", config), HasSubstr("merges.txt: line 2: expected two tokens"));
  EXPECT_THAT(error("a c\n", config), HasSubstr("merges.txt: line 1: 'c'"));
  EXPECT_THAT(error("a b\n", R"({"tokenizer_class": "BertTokenizer"})"), HasSubstr("'BertTokenizer'"));
}

// Writes a SentencePiece model by hand.
std::string LengthField(int number, const std::string& bytes) {
  std::string out(1, static_cast<char>(number << 3 | 2));
  for (size_t size = bytes.size();; size >>= 7) {
    out.push_back(static_cast<char>((size & 0x7F) | (size > 0x7F ? 0x80 : 0)));
    if (size <= 0x7F) break;
  }
  return out + bytes;
}

std::string Piece(const std::string& text, float score, int type) {
  const auto bits = std::bit_cast<uint32_t>(score);
  std::string piece = LengthField(1, text) + '\x15';
  for (int shift = 0; shift < 32; shift += 8) piece.push_back(static_cast<char>(bits >> shift));
  piece += std::string("\x18") + static_cast<char>(type);
  return LengthField(1, piece);
}

std::string SmallModel() {
  return Piece("<unk>", 0, 2) + Piece("<s>", 0, 3) + Piece("</s>", 0, 3) + Piece("\u2581", -3, 1) + Piece("a", -4, 1) +
         Piece(
             "\u2581"
             "a",
             -1, 1) +
         Piece("xy", -2, 1) + Piece("<user>", 0, 4) + LengthField(2, "\x18\x02");
}

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadModel(const std::string& model) {
  return Tokenizer::FromSentencePiece(model, "");
}

TEST(SentencePieceModelTest, EncodesBestScoresFirst) {
  const auto tokenizer = LoadModel(SmallModel());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto encode = [&](std::string_view text) {
    return (*tokenizer)->Encode(text, Origin::kMessage, AddSpecial::kNo);
  };
  EXPECT_THAT(encode(" a  a "), testing::ElementsAre(5, 5));    // extra white space is dropped
  EXPECT_THAT(encode("qrs a"), testing::ElementsAre(3, 0, 5));  // unknown characters become one <unk>
  EXPECT_THAT(encode("xy"), testing::ElementsAre(3, 6));        // x and y are not pieces, but xy is
  EXPECT_THAT(encode("yx"), testing::ElementsAre(3, 0));
  EXPECT_THAT(encode("<user>a<s>"), testing::ElementsAre(3, 7, 4, 0));
  EXPECT_THAT((*tokenizer)->Encode("<s>", Origin::kTemplate, AddSpecial::kNo), testing::ElementsAre(1));
}

TEST(SentencePieceModelTest, InvalidModelsAreRefusedByName) {
  for (const auto& [model, message] : std::vector<std::pair<std::string, std::string>>{
           {"", "there are no pieces"},
           {LengthField(2, "\x18\x02"), "there are no pieces"},
           {SmallModel() + Piece("n", std::nanf(""), 1), "piece 8 'n': the score is nan"},
           {SmallModel() + Piece("a", 0, 1), "token 'a' has two ids"},
           {SmallModel() + Piece("", 0, 1), "is empty"},
           {SmallModel() + Piece("b", 0, 9), "piece 8: unknown type 9"},
           {SmallModel() + Piece("b", 0, 5), "UNUSED"},
           {SmallModel() + Piece("<0x100>", 0, 6), "byte piece 8 '<0x100>'"},
           {SmallModel() + Piece("<0xZZ>", 0, 6), "byte token '<0xZZ>'"},
           {SmallModel() + Piece("\xFF", 0, 1), "is not UTF-8"},
           {SmallModel() + LengthField(2, "\x18\x03"), "model type Word (3) is not implemented"},
           {SmallModel() + LengthField(3, LengthField(2, "map")), "precompiled map"},
           {SmallModel() + LengthField(2, std::string("\x98\x02\x01", 3)), "there is no byte piece <0x00>"},
           {SmallModel() + "\x0B", "unknown wire type 3"},
           {SmallModel() + "\x0A\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x7F", "truncated"}}) {
    const auto tokenizer = LoadModel(model);
    ASSERT_FALSE(tokenizer.ok()) << message;
    EXPECT_EQ(FaultOf(tokenizer.status()), Fault::kModel);
    EXPECT_THAT(Message(tokenizer.status()), HasSubstr(message));
  }
}

TEST(SentencePieceModelTest, CutsAndFlipsAreRefusedOrHarmless) {
  const std::string model = SmallModel();
  int num_refused = 0;
  const auto check = [&](const std::string& bytes) {
    const auto tokenizer = LoadModel(bytes);
    if (!tokenizer.ok()) {
      ++num_refused;
      EXPECT_EQ(FaultOf(tokenizer.status()), Fault::kModel);
      return;
    }
    (void)(*tokenizer)->Encode(" axy<user>\n", Origin::kTemplate, AddSpecial::kYes);
  };
  for (size_t size = 0; size < model.size(); ++size) check(model.substr(0, size));
  // A model that ends behind one of its 8 pieces is valid: it is a smaller Unigram model, because that is the default
  // type.
  EXPECT_EQ(num_refused, static_cast<int>(model.size()) - 8);
  for (size_t i = 0; i < model.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = model;
      flipped[i] = static_cast<char>(flipped[i] ^ (1 << bit));
      check(flipped);
    }
  }
}

}  // namespace
}  // namespace penstock
