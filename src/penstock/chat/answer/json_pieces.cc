#include "penstock/chat/answer/json_pieces.h"

#include <algorithm>

namespace penstock {
namespace {

constexpr std::string_view kSpace = " \t\n\r";

// Returns the offset behind the string that begins at text[pos], or the text's size.
size_t StringEnd(std::string_view text, size_t pos) {
  for (size_t i = pos + 1; i < text.size(); ++i) {
    if (text[i] == '"') return i + 1;
    if (text[i] == '\\') ++i;
  }
  return text.size();
}

// Returns the offset behind the value that begins at text[pos].
size_t ValueEnd(std::string_view text, size_t pos) {
  if (text[pos] == '"') return StringEnd(text, pos);
  if (text[pos] != '{' && text[pos] != '[') return std::min(text.size(), text.find_first_of(",]} \t\n\r", pos));
  const JsonExtent extent = FindJsonEnd(text.substr(pos));
  return extent.kind == JsonExtent::Kind::kWhole ? pos + extent.num_bytes : text.size();
}

}  // namespace

size_t JsonScanner::Take(std::string_view piece) {
  for (size_t i = 0; i < piece.size(); ++i) {
    const char c = piece[i];
    if (in_string_) {
      in_string_ = is_escaped_ || c != '"';
      is_escaped_ = !is_escaped_ && c == '\\';
    } else if (c == '"') {
      in_string_ = true;
    } else if (c == '<' || c == '`') {
      kind_ = JsonExtent::Kind::kBroken;
      return i;
    } else if (c == '{' || c == '[') {
      ++depth_;
    } else if ((c == '}' || c == ']') && --depth_ <= 0) {
      kind_ = JsonExtent::Kind::kWhole;
      return i + 1;
    }
  }
  return piece.size();
}

JsonExtent FindJsonEnd(std::string_view text) {
  JsonScanner scanner;
  const size_t num_bytes = scanner.Take(text);
  return {scanner.kind(), num_bytes};
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
