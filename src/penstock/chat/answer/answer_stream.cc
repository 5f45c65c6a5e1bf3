#include "penstock/chat/answer/answer_stream.h"

#include <algorithm>
#include <deque>
#include <string>
#include <utility>

#include "penstock/base/text.h"
#include "penstock/chat/answer/call_reader.h"
#include "penstock/chat/answer/json_pieces.h"
#include "penstock/chat/answer/marked_text.h"
#include "penstock/chat/answer/whole_answer.h"
#include "penstock/chat/chat_parts.h"
#include "penstock/chat/harmony.h"

namespace penstock {
namespace {

using Deltas = std::vector<AnswerDelta>;
using Kind = AnswerDelta::Kind;
constexpr size_t npos = std::string_view::npos;

// Returns how many last bytes of the text may begin the mark. The whole mark is not in the text.
size_t NumHeldBack(std::string_view text, std::string_view mark) {
  for (size_t length = std::min(text.size(), mark.size() - 1); length > 0; --length) {
    if (text.ends_with(mark.substr(0, length))) return length;
  }
  return 0;
}

// Splits text at marks that are spelled in it.
class MarkStream : public AnswerStream {
 public:
  MarkStream(const AnswerFormat& format, AnswerStart start, const Chat& chat, const AnswerRule& rule,
             const Tokenizer& tokenizer)
      : format_(format),
        marked_(tokenizer, format.hidden),
        has_tools_(!chat.parts().tools.is_null()),
        has_rule_(rule.content.has_value()) {
    if (has_rule_) fixed_space_ = SpaceBehindReasoning(format, *rule.content);
    if (format.has_tags() || format.form == CallForm::kBareJson) types_ = ToolTypes(chat.parts().tools);
    if (start == AnswerStart::kInReasoning) {
      BeginPart(Part::kReasoning);
    } else if (format.only_closes && start == AnswerStart::kUnknown) {
      part_ = Part::kUnknown;
    }
    has_content_ = start == AnswerStart::kInContent;
    if (format.has_reasoning()) plain_marks_ = {format.open};
    plain_marks_.insert(plain_marks_.end(), format.dropped.begin(), format.dropped.end());
  }

  Deltas Push(std::span<const TokenId> ids, std::string_view text) override {
    bool has_bracket = false;
    for (const MarkedPiece& piece : marked_.Push(ids, text)) {
      if (piece.mark >= 0 && !Matters(piece.text)) continue;
      rest_ += piece.text;
      for (const size_t start : piece.token_starts) token_starts_.push_back(num_pushed_ + start);
      num_pushed_ += piece.text.size();
      has_bracket |= piece.text.find_first_of(">{}]") != npos;
    }
    // A call ends in a bracket, and so do its parts. Until one comes, a long one need not be read again.
    constexpr size_t kShort = 256;
    if (has_bracket || !in_call_ || rest_.size() < kShort) Advance();
    TakeTokens(num_pushed_ - rest_.size());
    return std::exchange(deltas_, {});
  }

  Deltas Finish() override {
    at_end_ = true;
    Advance();
    if (!space_.empty()) Add(part_ == Part::kReasoning ? Kind::kReasoning : Kind::kContent, space_);
    return std::exchange(deltas_, {});
  }

  int64_t num_reasoning_tokens() const override { return num_reasoning_tokens_; }

 private:
  enum class Part : uint8_t {
    kUnknown,  // content or reasoning: the closing mark tells
    kReasoning,
    kContent,
    kArguments,  // of a call
    kInCalls,    // behind the arguments, but in the object or the list where the call stands
    kBehindCall,
  };

  // Whether the answer to this chat may have the mark.
  bool Matters(std::string_view mark) const {
    const auto has = [&](const std::vector<std::string>& marks) {
      return std::ranges::find(marks, mark) != marks.end();
    };
    return has_tools_ || (!has(format_.starts) && !has(format_.ends));
  }

  void Add(Kind kind, std::string_view text) {
    if (!deltas_.empty() && deltas_.back().kind == kind) {
      deltas_.back().text += text;
    } else {
      deltas_.push_back({kind, std::string(text)});
    }
  }

  void BeginPart(Part part) {
    part_ = part;
    space_.clear();
    behind_mark_ = true;
  }

  // Adds text, without white space that stands beside a mark.
  void AddText(Kind kind, std::string_view text) {
    if (behind_mark_) text = WithoutLeadingSpace(text);
    const std::string_view body = WithoutTrailingSpace(text);
    if (!body.empty()) {
      Add(kind, space_ + std::string(body));
      space_.clear();
      behind_mark_ = false;
      has_content_ |= kind == Kind::kContent;
    }
    space_ += text.substr(body.size());
  }

  // Forgets the tokens that begin before this place of all text. Returns how many they are.
  int64_t TakeTokens(uint64_t end) {
    int64_t num_taken = 0;
    for (; !token_starts_.empty() && token_starts_.front() < end; token_starts_.pop_front()) ++num_taken;
    return num_taken;
  }

  // Adds text of rest_ and removes it from there.
  void TakeText(Kind kind, size_t num_bytes) {
    AddText(kind, std::string_view(rest_).substr(0, num_bytes));
    rest_.erase(0, num_bytes);
  }

  void Advance() {
    in_call_ = false;
    bool goes_on = true;
    while (goes_on) {
      switch (part_) {
        case Part::kUnknown: goes_on = AdvanceUnknown(); break;
        case Part::kReasoning: goes_on = AdvanceReasoning(); break;
        case Part::kContent: goes_on = AdvanceContent(); break;
        case Part::kArguments: goes_on = AdvanceArguments(); break;
        case Part::kInCalls: goes_on = AdvanceInCalls(); break;
        case Part::kBehindCall: goes_on = AdvanceBehindCall(); break;
      }
    }
  }

  // These return whether there is more to read.
  bool AdvanceUnknown() {
    const std::string_view text = WithoutLeadingSpace(rest_);
    const bool may_open = text.starts_with(format_.open) || std::string_view(format_.open).starts_with(text);
    if (text.starts_with(format_.open) || (at_end_ && rest_.find(format_.close) == npos)) {
      part_ = Part::kContent;
      return true;
    }
    if (may_open || rest_.find(format_.close) == npos) return false;
    BeginPart(Part::kReasoning);
    return true;
  }

  bool AdvanceReasoning() {
    const size_t found = rest_.find(format_.close);
    const size_t num_held = at_end_ ? 0 : NumHeldBack(rest_, format_.close);
    const size_t num_bytes = found == npos ? rest_.size() - num_held : found;
    const uint64_t begin = num_pushed_ - rest_.size();
    TakeTokens(begin);
    num_reasoning_tokens_ += TakeTokens(begin + num_bytes);
    TakeText(Kind::kReasoning, num_bytes);
    if (found == npos) return false;
    rest_.erase(0, format_.close.size());
    BeginPart(Part::kContent);
    return true;
  }

  // Removes the white space that the format of the answer demands before its content. Returns whether all of it came.
  bool DropsFixedSpace() {
    if (rest_.starts_with(*fixed_space_)) {
      rest_.erase(0, fixed_space_->size());
    } else if (fixed_space_->starts_with(rest_)) {
      if (!at_end_) return false;
      rest_.clear();
    }
    behind_mark_ = false;
    return true;
  }

  // Takes content that follows a format as it is. Returns whether the text so far is that.
  bool TakesRuledContent() {
    if (!has_content_) {
      if (behind_mark_ && fixed_space_.has_value() && !DropsFixedSpace()) return true;
      const std::string_view text = WithoutLeadingSpace(rest_);
      const auto may_begin = [&](const std::string& mark) { return text.starts_with(mark) || mark.starts_with(text); };
      const bool may_call = has_tools_ && std::ranges::any_of(format_.starts, may_begin);
      if (may_call || std::ranges::any_of(plain_marks_, may_begin)) return false;
      if (behind_mark_) rest_.erase(0, rest_.size() - text.size());
      rest_.insert(0, std::exchange(space_, {}));
      has_content_ = true;
    }
    if (!rest_.empty()) Add(Kind::kContent, std::exchange(rest_, {}));
    return true;
  }

  bool AdvanceContent() {
    if (has_rule_ && TakesRuledContent()) return false;
    size_t first = npos, num_held = 0;
    const std::string* mark = nullptr;
    const auto look_for = [&](const std::vector<std::string>& marks) {
      for (const std::string& one : marks) {
        const size_t found = rest_.find(one);
        if (found < first) {
          first = found;
          mark = &one;
        }
        num_held = std::max(num_held, NumHeldBack(rest_, one));
      }
    };
    look_for(plain_marks_);
    if (has_tools_) look_for(format_.starts);
    if (mark == nullptr) {
      TakeText(Kind::kContent, rest_.size() - (at_end_ ? 0 : num_held));
      return false;
    }
    TakeText(Kind::kContent, first);
    if (has_tools_ && std::ranges::find(format_.starts, *mark) != format_.starts.end()) return AdvanceCall(*mark);
    // Only an answer that has said nothing yet begins to think.
    if (*mark == format_.open && has_content_) {
      TakeText(Kind::kContent, mark->size());
      return true;
    }
    rest_.erase(0, mark->size());
    BeginPart(*mark == format_.open ? Part::kReasoning : Part::kContent);
    return true;
  }

  bool AdvanceCall(const std::string& start) {
    const bool may_call = format_.form != CallForm::kBareJson || !has_content_;
    const CallRead read = may_call ? ReadCalls(format_, types_, rest_) : CallRead();
    if (read.kind == CallRead::Kind::kCutOff && !at_end_) {
      in_call_ = true;
      return false;
    }
    if (read.calls.empty()) {
      TakeText(Kind::kContent, start.size());
      return true;
    }
    TakeCalls(read);
    return true;
  }

  // Takes what was read, and begins the part behind it.
  void TakeCalls(const CallRead& read) {
    for (const ToolCall& call : read.calls) {
      deltas_.push_back({Kind::kCallBegin, call.name, num_calls_});
      if (!call.arguments.empty()) deltas_.push_back({Kind::kCallArguments, call.arguments, num_calls_});
      ++num_calls_;
    }
    rest_.erase(0, read.num_bytes);
    if (read.kind == CallRead::Kind::kCutOff) {  // the answer ends, and what is left of the call belongs to nothing
      rest_.clear();
      return BeginPart(Part::kBehindCall);
    }
    place_ = read.place;
    scanner_ = JsonScanner();
    BeginPart(read.kind == CallRead::Kind::kOpen ? Part::kArguments
              : place_.any()                     ? Part::kInCalls
                                                 : Part::kBehindCall);
  }

  bool AdvanceArguments() {
    const size_t num_bytes = scanner_.Take(rest_);
    if (num_bytes > 0) deltas_.push_back({Kind::kCallArguments, rest_.substr(0, num_bytes), num_calls_ - 1});
    rest_.erase(0, num_bytes);
    if (scanner_.kind() == JsonExtent::Kind::kCutOff) return false;
    const bool goes_on = scanner_.kind() == JsonExtent::Kind::kWhole && place_.any();
    BeginPart(goes_on ? Part::kInCalls : Part::kBehindCall);
    return true;
  }

  bool AdvanceInCalls() {
    const CallRead read = ReadBehindCall(place_, rest_);
    if (read.kind == CallRead::Kind::kCutOff && !at_end_) {
      in_call_ = true;
      return false;
    }
    if (read.kind == CallRead::Kind::kNone) {
      BeginPart(Part::kBehindCall);
    } else {
      TakeCalls(read);
    }
    return true;
  }

  bool AdvanceBehindCall() {
    rest_.erase(0, rest_.size() - WithoutLeadingSpace(rest_).size());
    if (rest_.empty()) return false;
    for (const std::string& end : format_.ends) {
      if (rest_.starts_with(end)) {
        rest_.erase(0, end.size());
        return true;
      }
      if (!at_end_ && end.starts_with(rest_)) return false;
    }
    part_ = Part::kContent;
    return true;
  }

  const AnswerFormat& format_;
  MarkedText marked_;
  bool has_tools_;
  bool has_rule_;  // the content follows a format
  // Between reasoning and the content, if that may begin with white space.
  std::optional<std::string_view> fixed_space_;
  ToolTypes types_;                       // of arguments in tags, or of calls without marks
  std::vector<std::string> plain_marks_;  // marks in content, besides those of calls
  Part part_ = Part::kContent;
  std::string rest_;                   // text that is not yet read
  uint64_t num_pushed_ = 0;            // bytes of all text with marks, up to the end of rest_
  std::deque<uint64_t> token_starts_;  // in all text with marks, of tokens in rest_
  int64_t num_reasoning_tokens_ = 0;
  std::string space_;         // white space that is dropped if a mark follows
  bool behind_mark_ = false;  // white space that comes next is dropped
  bool has_content_ = false;
  bool in_call_ = false;  // rest_ begins with a call that is not complete
  CallPlace place_;       // of the call whose arguments come, or came last
  JsonScanner scanner_;   // of the arguments
  bool at_end_ = false;
  int64_t num_calls_ = 0;
  Deltas deltas_;
};

// Leaves out all calls except the first.
class FirstCallStream : public AnswerStream {
 public:
  explicit FirstCallStream(std::unique_ptr<AnswerStream> stream) : stream_(std::move(stream)) {}
  std::vector<AnswerDelta> Push(std::span<const TokenId> ids, std::string_view text) override {
    return First(stream_->Push(ids, text));
  }
  std::vector<AnswerDelta> Finish() override { return First(stream_->Finish()); }
  int64_t num_reasoning_tokens() const override { return stream_->num_reasoning_tokens(); }

 private:
  static std::vector<AnswerDelta> First(std::vector<AnswerDelta> deltas) {
    std::erase_if(deltas, [](const AnswerDelta& delta) { return delta.call_idx > 0; });
    return deltas;
  }
  std::unique_ptr<AnswerStream> stream_;
};

}  // namespace

std::unique_ptr<AnswerStream> NewAnswerStream(const AnswerFormat& format, AnswerStart start, const Chat& chat,
                                              const AnswerRule& rule, const Tokenizer& tokenizer) {
  std::unique_ptr<AnswerStream> stream;
  if (format.form == CallForm::kHarmony) {
    stream = std::make_unique<HarmonyStream>(tokenizer, start);
  } else {
    stream = std::make_unique<MarkStream>(format, start, chat, rule, tokenizer);
  }
  return rule.has_one_call ? std::make_unique<FirstCallStream>(std::move(stream)) : std::move(stream);
}

}  // namespace penstock
