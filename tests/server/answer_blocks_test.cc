// Proves that deltas become blocks that begin, grow and end one after the other.
#include <gtest/gtest.h>

#include "penstock/server/api/answer_blocks.h"

namespace penstock::server {
namespace {

using DeltaKind = AnswerDelta::Kind;

std::string Told(const std::vector<AnswerDelta>& deltas) {
  std::string told;
  BlockStream stream({.begin =
                          [&](size_t index, const AnswerBlock& block) {
                            told +=
                                "[" + std::to_string(index) + "rtc"[static_cast<size_t>(block.kind)] + block.name + ":";
                          },
                      .grow = [&](size_t, const AnswerBlock&, const std::string& text) { told += text + ","; },
                      .end = [&](size_t, const AnswerBlock& block) { told += block.text + "]"; }});
  stream.Add(deltas);
  stream.Finish();
  return told;
}

TEST(AnswerBlocks, EachKindIsABlock) {
  EXPECT_EQ(Told({{DeltaKind::kReasoning, "a"},
                  {DeltaKind::kReasoning, "b"},
                  {DeltaKind::kContent, ""},
                  {DeltaKind::kContent, "c"}}),
            "[0r:a,b,ab][1t:c,c]");
  EXPECT_EQ(
      Told({{DeltaKind::kCallBegin, "f", 0}, {DeltaKind::kCallArguments, "{}", 0}, {DeltaKind::kCallBegin, "g", 1}}),
      "[0cf:{},{}][1cg:]");
}

TEST(AnswerBlocks, AnEmptyAnswerIsAnEmptyText) {
  EXPECT_EQ(Told({}), "[0t:]");
  ASSERT_EQ(BlocksOf({}).size(), 1);
  EXPECT_EQ(BlocksOf({})[0].kind, BlockKind::kText);
}

TEST(AnswerBlocks, WholeAnswersHaveReasoningTextAndCalls) {
  const std::vector<AnswerBlock> blocks = BlocksOf({.content = "c", .reasoning = "r", .tool_calls = {{"f", "{}"}}});
  ASSERT_EQ(blocks.size(), 3);
  EXPECT_EQ(blocks[0].text, "r");
  EXPECT_EQ(blocks[1].text, "c");
  EXPECT_EQ(blocks[2].name, "f");
  EXPECT_EQ(BlocksOf({.content = "", .tool_calls = {{"f", "{}"}}}).size(), 1);
}

}  // namespace
}  // namespace penstock::server
