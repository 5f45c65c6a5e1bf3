#include "penstock/chat/harmony.h"

#include "penstock/base/check.h"

namespace penstock {
namespace {

// Returns the word after `to=` in a header, or "" if there is none.
std::string_view RecipientOf(std::string_view header) {
  const size_t pos = header.find("to=");
  if (pos == std::string_view::npos) return {};
  const std::string_view rest = header.substr(pos + 3);
  return rest.substr(0, rest.find_first_of(" \t\n"));
}

}  // namespace

std::optional<HarmonyTokens> HarmonyTokens::Find(const Tokenizer& tokenizer) {
  HarmonyTokens tokens;
  const auto find = [&](std::string_view text, TokenId& id) {
    id = tokenizer.FindToken(text);
    return id >= 0 && tokenizer.IsSpecial(id);
  };
  const bool has_all = find("<|start|>", tokens.start) && find("<|channel|>", tokens.channel) &&
                       find("<|message|>", tokens.message) && find("<|end|>", tokens.end) &&
                       find("<|return|>", tokens.last) && find("<|call|>", tokens.call);
  find("<|constrain|>", tokens.constrain);
  if (!has_all) return std::nullopt;
  return tokens;
}

HarmonyStream::HarmonyStream(const Tokenizer& tokenizer, AnswerStart start)
    : marked_(tokenizer, hidden_), part_(start == AnswerStart::kInContent ? Part::kMessage : Part::kBefore) {
  const std::optional<HarmonyTokens> tokens = HarmonyTokens::Find(tokenizer);
  PENSTOCK_CHECK(tokens.has_value());
  tokens_ = *tokens;
  for (const TokenId id :
       {tokens_.start, tokens_.channel, tokens_.constrain, tokens_.message, tokens_.end, tokens_.last, tokens_.call}) {
    if (id >= 0) hidden_.emplace(id, "");
  }
}

// Begins a message behind its header, which is [assistant] [to=x] <|channel|> name [to=x] [<|constrain|> type].
void HarmonyStream::BeginMessage(std::vector<AnswerDelta>& deltas) {
  std::string_view recipient = RecipientOf(channel_);
  if (recipient.empty()) recipient = RecipientOf(before_);
  part_ = Part::kMessage;
  constexpr std::string_view kFunctions = "functions.";
  if (recipient.starts_with(kFunctions)) {
    kind_ = AnswerDelta::Kind::kCallArguments;
    deltas.push_back({AnswerDelta::Kind::kCallBegin, std::string(recipient.substr(kFunctions.size())), num_calls_++});
  } else {
    const bool is_thought = channel_.starts_with("analysis") || !recipient.empty();
    kind_ = is_thought ? AnswerDelta::Kind::kReasoning : AnswerDelta::Kind::kContent;
  }
}

void HarmonyStream::TakeMark(TokenId mark, std::vector<AnswerDelta>& deltas) {
  const bool ends_message =
      mark == tokens_.end || mark == tokens_.last || mark == tokens_.call || mark == tokens_.start;
  if (part_ == Part::kMessage) {
    if (!ends_message) return;
    part_ = Part::kBefore;
    before_.clear();
    channel_.clear();
    has_channel_ = false;
    is_named_ = true;
  } else if (mark == tokens_.message) {
    BeginMessage(deltas);
  } else if (mark == tokens_.channel) {
    part_ = has_channel_ ? part_ : Part::kChannel;
    has_channel_ = true;
  } else if (mark == tokens_.constrain) {
    part_ = Part::kType;
  } else {
    is_named_ |= mark == tokens_.start;
  }
}

std::vector<AnswerDelta> HarmonyStream::Push(std::span<const TokenId> ids, std::string_view text) {
  std::vector<AnswerDelta> deltas;
  for (MarkedPiece& piece : marked_.Push(ids, text)) {
    if (piece.mark >= 0) {
      TakeMark(piece.mark, deltas);
    } else if (part_ == Part::kBefore) {
      before_ += piece.text;
    } else if (part_ == Part::kChannel) {
      channel_ += piece.text;
    } else if (part_ == Part::kMessage) {
      if (kind_ == AnswerDelta::Kind::kReasoning) num_reasoning_tokens_ += std::ssize(piece.token_starts);
      deltas.push_back({kind_, std::move(piece.text), kind_ == AnswerDelta::Kind::kCallArguments ? num_calls_ - 1 : 0});
    }
  }
  return deltas;
}

std::vector<AnswerDelta> HarmonyStream::Finish() {
  // Text without a header is content. A header that was cut off is nothing.
  const bool is_text = part_ != Part::kMessage && !has_channel_ && !is_named_ && !before_.empty();
  if (!is_text) return {};
  return {{AnswerDelta::Kind::kContent, before_}};
}

}  // namespace penstock
