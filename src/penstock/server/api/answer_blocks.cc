#include "penstock/server/api/answer_blocks.h"

#include <utility>

namespace penstock::server {

std::vector<AnswerBlock> BlocksOf(const ChatAnswer& answer) {
  std::vector<AnswerBlock> blocks;
  if (!answer.reasoning.empty()) blocks.push_back({.kind = BlockKind::kReasoning, .text = answer.reasoning});
  if (!answer.content.empty() || answer.tool_calls.empty()) blocks.push_back({.text = answer.content});
  for (size_t i = 0; i < answer.tool_calls.size(); ++i) {
    blocks.push_back({.kind = BlockKind::kCall,
                      .name = answer.tool_calls[i].name,
                      .text = answer.tool_calls[i].arguments,
                      .call_idx = static_cast<int64_t>(i)});
  }
  return blocks;
}

void BlockStream::Begin(AnswerBlock block) {
  End();
  is_open_ = true;
  blocks_.push_back(std::move(block));
  sink_.begin(blocks_.size() - 1, blocks_.back());
}

void BlockStream::End() {
  if (std::exchange(is_open_, false)) sink_.end(blocks_.size() - 1, blocks_.back());
}

void BlockStream::Add(std::span<const AnswerDelta> deltas) {
  for (const AnswerDelta& delta : deltas) {
    const BlockKind kind = delta.kind == AnswerDelta::Kind::kReasoning ? BlockKind::kReasoning
                           : delta.kind == AnswerDelta::Kind::kContent ? BlockKind::kText
                                                                       : BlockKind::kCall;
    if (delta.kind == AnswerDelta::Kind::kCallBegin) {
      Begin({.kind = kind, .name = delta.text, .call_idx = delta.call_idx});
      continue;
    }
    if (delta.text.empty()) continue;
    if (!is_open_ || blocks_.back().kind != kind) Begin({.kind = kind, .call_idx = delta.call_idx});
    blocks_.back().text += delta.text;
    sink_.grow(blocks_.size() - 1, blocks_.back(), delta.text);
  }
}

void BlockStream::Finish() {
  if (blocks_.empty()) Begin({});
  End();
}

}  // namespace penstock::server
