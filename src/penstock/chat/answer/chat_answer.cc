#include "penstock/chat_answer.h"

#include <utility>

#include "penstock/chat/answer/answer_stream.h"

#include "penstock/base/check.h"

namespace penstock {
namespace {

class PlainAnswerStream : public AnswerStream {
 public:
  std::vector<AnswerDelta> Push(std::span<const TokenId>, std::string_view text) override {
    if (text.empty()) return {};
    return {{AnswerDelta::Kind::kContent, std::string(text)}};
  }
  std::vector<AnswerDelta> Finish() override { return {}; }
};

}  // namespace

std::unique_ptr<AnswerStream> NewPlainAnswerStream() { return std::make_unique<PlainAnswerStream>(); }

ChatAnswer ReadAnswer(AnswerStream& stream, std::span<const TokenId> ids, std::string_view text) {
  ChatAnswer answer;
  // Streams look for marks in all text that they hold, so they get a long text in pieces.
  constexpr size_t kMaxPiece = 4096;
  do {
    const std::string_view piece = text.substr(0, kMaxPiece);
    for (AnswerDelta& delta : stream.Push(ids, piece)) AddDelta(std::move(delta), answer);
    text.remove_prefix(piece.size());
    ids = {};
  } while (!text.empty());
  for (AnswerDelta& delta : stream.Finish()) AddDelta(std::move(delta), answer);
  answer.num_reasoning_tokens = stream.num_reasoning_tokens();
  return answer;
}

void AddDelta(AnswerDelta delta, ChatAnswer& answer) {
  switch (delta.kind) {
    case AnswerDelta::Kind::kReasoning: answer.reasoning += delta.text; break;
    case AnswerDelta::Kind::kContent: answer.content += delta.text; break;
    case AnswerDelta::Kind::kCallBegin: answer.tool_calls.push_back({std::move(delta.text), ""}); break;
    case AnswerDelta::Kind::kCallArguments:
      PENSTOCK_CHECK(!answer.tool_calls.empty());
      answer.tool_calls.back().arguments += delta.text;
      break;
  }
}

}  // namespace penstock
