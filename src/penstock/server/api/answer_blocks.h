// The parts of an answer as a series of blocks, as the APIs of Messages and Responses have them: each begins, grows and
// ends before the next one begins.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "penstock/chat_answer.h"

namespace penstock::server {

enum class BlockKind : uint8_t { kReasoning, kText, kCall };

struct AnswerBlock {
  BlockKind kind = BlockKind::kText;
  std::string name = {};  // of a call
  std::string text = {};  // so far; of a call, its arguments
  int64_t call_idx = 0;
};

// Returns the blocks of a whole answer: reasoning, text, calls. At least one.
std::vector<AnswerBlock> BlocksOf(const ChatAnswer& answer);

// Makes blocks of deltas.
class BlockStream {
 public:
  struct Sink {
    std::function<void(size_t index, const AnswerBlock& block)> begin;
    std::function<void(size_t index, const AnswerBlock& block, const std::string& text)> grow;
    std::function<void(size_t index, const AnswerBlock& block)> end;
  };
  explicit BlockStream(Sink sink) : sink_(std::move(sink)) {}

  void Add(std::span<const AnswerDelta> deltas);
  // Ends the last block. An answer without any gets an empty text.
  void Finish();
  // Returns all blocks so far, whole ones and the last one.
  const std::vector<AnswerBlock>& blocks() const { return blocks_; }

 private:
  void Begin(AnswerBlock block);
  void End();

  Sink sink_;
  std::vector<AnswerBlock> blocks_;
  bool is_open_ = false;
};

}  // namespace penstock::server
