#include "penstock/chat/answer/json_pieces.h"

#include <algorithm>
#include <optional>

namespace penstock {
namespace {

constexpr std::string_view kSpace = " \t\n\r";

// Returns the offset behind the string that begins at text[pos]. Returns npos for one that is cut off, and nothing for
// one that has a control character.
std::optional<size_t> StringEnd(std::string_view text, size_t pos) {
  for (size_t i = pos + 1; i < text.size(); ++i) {
    if (text[i] == '"') return i + 1;
    if (static_cast<unsigned char>(text[i]) < 0x20) return std::nullopt;
    if (text[i] == '\\') ++i;
  }
  return std::string_view::npos;
}

// Whether JSON has this character outside of strings.
bool IsPlain(char c) {
  return (c >= '0' && c <= '9') || std::string_view("{}[],:+-.eEtrufalsn \t\n\r").find(c) != std::string_view::npos;
}

// Returns the offset behind the value that begins at text[pos].
size_t ValueEnd(std::string_view text, size_t pos) {
  if (text[pos] == '"') return std::min(text.size(), StringEnd(text, pos).value_or(text.size()));
  if (text[pos] != '{' && text[pos] != '[') return std::min(text.size(), text.find_first_of(",]} \t\n\r", pos));
  const JsonExtent extent = FindJsonEnd(text.substr(pos));
  return extent.kind == JsonExtent::Kind::kWhole ? pos + extent.num_bytes : text.size();
}

}  // namespace

JsonExtent FindJsonEnd(std::string_view text) {
  int64_t depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') {
      const std::optional<size_t> end = StringEnd(text, i);
      if (!end.has_value()) return {JsonExtent::Kind::kBroken};
      if (*end == std::string_view::npos) return {JsonExtent::Kind::kCutOff};
      i = *end - 1;
      continue;
    }
    if (!IsPlain(c)) return {JsonExtent::Kind::kBroken};
    if (c == '{' || c == '[') ++depth;
    if ((c == '}' || c == ']') && --depth <= 0) return {JsonExtent::Kind::kWhole, i + 1};
  }
  return {JsonExtent::Kind::kCutOff};
}

std::vector<JsonMember> SplitJson(std::string_view text) {
  std::vector<JsonMember> members;
  const bool has_keys = text.starts_with('{');
  size_t pos = 1;
  while (true) {
    JsonMember member;
    pos = text.find_first_not_of(" \t\n\r,", pos);
    if (pos == std::string_view::npos || text[pos] == '}' || text[pos] == ']') return members;
    if (has_keys) {
      const size_t end = ValueEnd(text, pos);
      member.key = text.substr(pos, end - pos);
      pos = text.find(':', end);
      if (pos != std::string_view::npos) pos = text.find_first_not_of(kSpace, pos + 1);
      if (pos == std::string_view::npos) return members;
    }
    const size_t end = ValueEnd(text, pos);
    member.value = text.substr(pos, end - pos);
    members.push_back(member);
    pos = end;
  }
}

}  // namespace penstock
