// Proves that stop texts end a sequence and are cut off, and that text which may begin one is held back.
#include "penstock/engine/sequence.h"

#include <gtest/gtest.h>

namespace penstock {
namespace {

// One token per letter, enough to follow stop texts through a sequence.
class LetterTokenizer : public Tokenizer {
 public:
  void GuardTemplate(std::string_view) override {}
  std::vector<TokenId> Encode(std::span<const TextSegment>, AddSpecial) const override { return {}; }
  void DecodeNext(TokenId id, SkipSpecial, DecodeState&, std::string& out) const override {
    out.push_back(static_cast<char>(id));
  }
  std::string_view TokenText(TokenId) const override { return ""; }
  bool IsSpecial(TokenId) const override { return false; }
  TokenId FindToken(std::string_view) const override { return -1; }
  int64_t vocab_size() const override { return 128; }
  TokenId bos_id() const override { return -1; }
  TokenId eos_id() const override { return -1; }
  std::vector<std::pair<std::string, std::string>> NamedTokens() const override { return {}; }
  uint64_t memory_bytes() const override { return 0; }
};

TEST(Sequence, StopTextsEndItAndAreNeverStreamed) {
  const LetterTokenizer tokenizer;
  Sequence sequence(1, {.prompt_ids = {1}, .sampling = {.max_tokens = 100, .stop = {"STOP", "END."}}}, &tokenizer);
  std::string streamed;
  for (const char c : std::string("STO, EN STOP and more")) {
    if (sequence.finished()) break;
    sequence.Append(c, false, {});
    sequence.HandOut([&](const AnswerPiece& piece) { streamed += piece.text; });
  }
  ASSERT_TRUE(sequence.finished());
  const Completion completion = sequence.Release();
  EXPECT_EQ(completion.text, "STO, EN ");
  EXPECT_EQ(streamed, "STO, EN ");
  EXPECT_EQ(completion.finish_reason, FinishReason::kStop);
}

// Like Llama's tokenizer: the first token of a text loses its leading space.
class StrippingTokenizer : public LetterTokenizer {
 public:
  void DecodeNext(TokenId id, SkipSpecial, DecodeState& state, std::string& out) const override {
    if (state.num_tokens++ > 0) out.push_back(' ');
    out.push_back(static_cast<char>(id));
  }
};

TEST(Sequence, ATextThatContinuesThePromptKeepsItsFirstSpace) {
  const StrippingTokenizer tokenizer;
  for (const bool continues : {false, true}) {
    Sequence sequence(1, {.prompt_ids = {1}, .sampling = {.max_tokens = 2}, .continues_text = continues}, &tokenizer);
    for (const char c : {'a', 'b'}) sequence.Append(c, false, {});
    EXPECT_EQ(sequence.Release().text, continues ? " a b" : "a b");
  }
}

TEST(Sequence, AStopTextMayBeAPartOfTheAnswer) {
  const LetterTokenizer tokenizer;
  Sequence sequence(1,
                    {.prompt_ids = {1}, .sampling = {.max_tokens = 100, .stop = {"P.", "STOP"}, .includes_stop = true}},
                    &tokenizer);
  for (const char c : std::string("a STOP.")) {
    if (!sequence.finished()) sequence.Append(c, false, {});
  }
  EXPECT_EQ(sequence.Release().text, "a STOP");
}

TEST(Sequence, NoStopTextEndsItBeforeMinTokens) {
  const LetterTokenizer tokenizer;
  Sequence sequence(1, {.prompt_ids = {1}, .sampling = {.max_tokens = 100, .min_tokens = 6, .stop = {"STOP"}}},
                    &tokenizer);
  for (const char c : std::string("STOP STOP")) {
    ASSERT_FALSE(sequence.finished());
    sequence.Append(c, false, {});
  }
  EXPECT_EQ(sequence.Release().text, "STOP ");
}

TEST(Sequence, HeldBackTextComesOutAtTheEnd) {
  const LetterTokenizer tokenizer;
  Sequence sequence(1, {.prompt_ids = {1}, .sampling = {.max_tokens = 3, .stop = {"STOP"}}}, &tokenizer);
  std::string streamed;
  for (const char c : std::string("xST")) {
    sequence.Append(c, false, {});
    sequence.HandOut([&](const AnswerPiece& piece) { streamed += piece.text; });
  }
  EXPECT_TRUE(sequence.finished());
  EXPECT_EQ(streamed, "xST");
  EXPECT_EQ(sequence.Release().finish_reason, FinishReason::kLength);
}

}  // namespace
}  // namespace penstock
