#include "penstock/chat/harmony.h"

#include <algorithm>

#include "penstock/base/text.h"

namespace penstock {
namespace {

// Returns the word after `to=` in a header, or "" if there is none.
std::string_view RecipientOf(std::string_view header) {
  const size_t pos = header.find("to=");
  if (pos == std::string_view::npos) return {};
  const std::string_view rest = header.substr(pos + 3);
  return rest.substr(0, rest.find_first_of(" \t\n"));
}

std::string WithoutEnd(std::string text, size_t num_bytes) {
  text.resize(text.size() - std::min(text.size(), num_bytes));
  // The cut may fall inside a character whose bytes came from two messages.
  return ReplaceInvalidUtf8(text);
}

}  // namespace

std::optional<HarmonyReader> HarmonyReader::For(const Tokenizer& tokenizer) {
  HarmonyReader reader(tokenizer);
  const auto find = [&](std::string_view text, TokenId& id) {
    id = tokenizer.FindToken(text);
    return id >= 0 && tokenizer.IsSpecial(id);
  };
  const bool has_all = find("<|start|>", reader.start_) && find("<|channel|>", reader.channel_) &&
                       find("<|message|>", reader.message_) && find("<|end|>", reader.end_) &&
                       find("<|return|>", reader.return_) && find("<|call|>", reader.call_);
  find("<|constrain|>", reader.constrain_);
  if (!has_all) return std::nullopt;
  return reader;
}

std::string HarmonyReader::Text(std::span<const TokenId> ids) const {
  return ReplaceInvalidUtf8(tokenizer_->Decode(ids, SkipSpecial::kYes));
}

// Adds one message to the answer. Its header, which may begin with "assistant", is [to=x] <|channel|> name [to=x]
// [<|constrain|> type].
void HarmonyReader::AddMessage(std::span<const TokenId> header, std::span<const TokenId> body, size_t num_cut_bytes,
                               ChatAnswer& answer) const {
  const auto channel_at = std::find(header.begin(), header.end(), channel_);
  const auto constrain_at = std::find(header.begin(), header.end(), constrain_);
  const std::string before = Text({header.begin(), std::min(channel_at, constrain_at)});
  const std::string channel =
      channel_at == header.end() ? "" : Text({channel_at + 1, constrain_at > channel_at ? constrain_at : header.end()});
  std::string_view recipient = RecipientOf(channel);
  if (recipient.empty()) recipient = RecipientOf(before);
  std::string text = WithoutEnd(Text(body), num_cut_bytes);
  if (recipient.starts_with("functions.")) {
    answer.tool_calls.push_back({std::string(recipient.substr(10)), std::move(text)});
  } else if (channel.starts_with("analysis") || !recipient.empty()) {
    answer.reasoning += text;
  } else {
    answer.content += text;
  }
}

ChatAnswer HarmonyReader::Read(std::span<const TokenId> ids, std::string_view kept) const {
  const std::string whole = Text(ids);
  const size_t num_cut_bytes = whole.starts_with(kept) ? whole.size() - kept.size() : 0;
  ChatAnswer answer;
  const auto ends_message = [&](TokenId id) { return id == end_ || id == return_ || id == call_ || id == start_; };
  while (!ids.empty()) {
    const auto message_at = std::find(ids.begin(), ids.end(), message_);
    const auto message_end =
        message_at == ids.end() ? ids.end() : std::find_if(message_at + 1, ids.end(), ends_message);
    const auto header = ids.first(message_at - ids.begin());
    if (message_at == ids.end()) {
      // The header was cut off, or the text has none.
      if (std::find(header.begin(), header.end(), channel_) == header.end()) {
        answer.content += WithoutEnd(Text(header), num_cut_bytes);
      }
      break;
    }
    const bool is_last = std::all_of(message_end, ids.end(), ends_message);
    AddMessage(header, {message_at + 1, message_end}, is_last ? num_cut_bytes : 0, answer);
    ids = ids.subspan(message_end - ids.begin());
    while (!ids.empty() && ends_message(ids.front())) ids = ids.subspan(1);
  }
  return answer;
}

}  // namespace penstock
