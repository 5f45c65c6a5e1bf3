// The answer to a chat, split into its parts: whole, or piece by piece while the model writes it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/output_format.h"
#include "penstock/token_id.h"

namespace penstock {

struct ToolCall {
  std::string name;
  // JSON of an object as the model wrote it, so it may be invalid, or cut off with the answer.
  std::string arguments;
};

struct ChatAnswer {
  std::string content;
  std::string reasoning = {};  // thoughts, if the model's format separates them
  std::vector<ToolCall> tool_calls = {};
  int64_t num_reasoning_tokens = 0;
};

// A piece of an answer that is final.
struct AnswerDelta {
  enum class Kind : uint8_t {
    kReasoning,
    kContent,
    kCallBegin,      // `text` is the name of the tool
    kCallArguments,  // `text` is a piece of the call's arguments
  } kind = Kind::kContent;
  std::string text;
  int64_t call_idx = 0;  // of a call, in the order of the answer
};

// Adds a piece to an answer. REQUIRES: all pieces before it were added.
void AddDelta(AnswerDelta delta, ChatAnswer& answer);

// Splits one answer while it grows. However the answer is cut into pieces, the joined deltas are the same.
class AnswerStream {
 public:
  virtual ~AnswerStream() = default;

  // Takes the next tokens, and the next text that is final (those of an AnswerPiece). Returns the parts that
  // became final. Text that may be the beginning of a mark or of a tool call is held back.
  virtual std::vector<AnswerDelta> Push(std::span<const TokenId> ids, std::string_view text) = 0;
  // Ends the answer, and returns what was held back.
  virtual std::vector<AnswerDelta> Finish() = 0;
  // Returns how many tokens began in reasoning so far, without its marks.
  virtual int64_t num_reasoning_tokens() const { return 0; }
};

// Splits a whole answer: the tokens and the text of its Completion. REQUIRES: the stream is new.
ChatAnswer ReadAnswer(AnswerStream& stream, std::span<const TokenId> ids, std::string_view text);

// Returns a stream for models whose answers have no parts: all text is content.
std::unique_ptr<AnswerStream> NewPlainAnswerStream();

// A rule for an answer to a chat, behind its reasoning, which is always free.
struct AnswerRule {
  std::optional<OutputFormat> content = {};  // its content follows the format
  bool must_call = false;                    // it is a call, or several ones
  std::string tool = {};                     // the only tool that it may call, if not empty
  bool has_one_call = false;                 // of several calls, only the first counts
};

}  // namespace penstock
