#include "penstock/base/text.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

namespace penstock {
namespace {

constexpr size_t kMaxPrintableBytes = 2000;

// The length of the sequence that a lead byte announces (0: not a lead byte) and the allowed range of its second byte
// (Unicode table 3-7).
struct LeadInfo {
  int num_bytes;
  uint8_t second_min;
  uint8_t second_max;
};

LeadInfo ClassifyLead(uint8_t lead) {
  if (lead < 0x80) return {1, 0, 0};
  if (lead >= 0xC2 && lead <= 0xDF) return {2, 0x80, 0xBF};
  if (lead == 0xE0) return {3, 0xA0, 0xBF};
  if (lead == 0xED) return {3, 0x80, 0x9F};
  if (lead >= 0xE1 && lead <= 0xEF) return {3, 0x80, 0xBF};
  if (lead == 0xF0) return {4, 0x90, 0xBF};
  if (lead >= 0xF1 && lead <= 0xF3) return {4, 0x80, 0xBF};
  if (lead == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

// Returns how many bytes at `pos` begin a well-formed sequence; sets `complete` when they are a whole one.
int WellFormedPrefix(std::string_view text, size_t pos, bool& complete) {
  const LeadInfo info = ClassifyLead(static_cast<uint8_t>(text[pos]));
  complete = info.num_bytes == 1;
  if (info.num_bytes <= 1) return info.num_bytes;
  int num_good = 1;
  while (num_good < info.num_bytes && pos + num_good < text.size()) {
    const uint8_t byte = static_cast<uint8_t>(text[pos + num_good]);
    const uint8_t low = num_good == 1 ? info.second_min : 0x80;
    const uint8_t high = num_good == 1 ? info.second_max : 0xBF;
    if (byte < low || byte > high) break;
    ++num_good;
  }
  complete = num_good == info.num_bytes;
  return num_good;
}

// Is `c` a code point that moves a terminal's cursor, ends a line, or reverses the direction of the text?
bool IsControl(char32_t c) {
  return c < 0x20 || (c >= 0x7F && c < 0xA0) || c == 0x200E || c == 0x200F || (c >= 0x2028 && c <= 0x202E) ||
         (c >= 0x2066 && c <= 0x2069) || c == 0xFEFF;
}

}  // namespace

DecodedRune DecodeUtf8(std::string_view text, size_t pos) {
  bool complete = false;
  const int num_bytes = WellFormedPrefix(text, pos, complete);
  if (!complete) return {0xFFFD, 1, false};
  const auto byte = [&](int i) { return static_cast<char32_t>(static_cast<uint8_t>(text[pos + i])); };
  switch (num_bytes) {
    case 1: return {byte(0), 1, true};
    case 2: return {(byte(0) & 0x1F) << 6 | (byte(1) & 0x3F), 2, true};
    case 3: return {(byte(0) & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F), 3, true};
    default:
      return {(byte(0) & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F), 4, true};
  }
}

void AppendUtf8(char32_t c, std::string& out) {
  const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6);
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12);
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | c >> 18);
    put(0x80 | (c >> 12 & 0x3F));
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

size_t FindInvalidUtf8(std::string_view text) {
  size_t pos = 0;
  while (pos < text.size()) {
    if (static_cast<uint8_t>(text[pos]) < 0x80) {
      ++pos;
      continue;
    }
    bool complete = false;
    const int num_bytes = WellFormedPrefix(text, pos, complete);
    if (!complete) return pos;
    pos += num_bytes;
  }
  return std::string_view::npos;
}

std::string ReplaceInvalidUtf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  size_t pos = 0;
  while (pos < text.size()) {
    bool complete = false;
    const int num_bytes = WellFormedPrefix(text, pos, complete);
    if (complete) {
      out.append(text.substr(pos, num_bytes));
    } else {
      AppendUtf8(0xFFFD, out);
    }
    pos += num_bytes > 0 ? num_bytes : 1;
  }
  return out;
}

std::string Excerpt(std::string_view text, size_t max_bytes) {
  if (text.size() <= max_bytes) return std::string(text);
  size_t end = max_bytes;
  while (end > 0 && (static_cast<uint8_t>(text[end]) & 0xC0) == 0x80) --end;
  return std::string(text.substr(0, end)) + "...";
}

std::string Printable(std::string_view text) {
  std::string out;
  size_t pos = 0;
  while (pos < text.size()) {
    if (out.size() > kMaxPrintableBytes) {
      out += "...";
      break;
    }
    const DecodedRune rune = DecodeUtf8(text, pos);
    if (!rune.valid) {
      out += fmt::format("\\x{:02x}", static_cast<uint8_t>(text[pos]));
    } else if (rune.code_point == '\n') {
      out += "\\n";
    } else if (rune.code_point == '\t') {
      out += "\\t";
    } else if (IsControl(rune.code_point)) {
      const uint32_t code = static_cast<uint32_t>(rune.code_point);
      out += code < 0x100 ? fmt::format("\\x{:02x}", code) : fmt::format("\\u{:04x}", code);
    } else {
      out.append(text.substr(pos, rune.num_bytes));
    }
    pos += rune.num_bytes;
  }
  return out;
}

std::string EscapeXml(std::string_view text) {
  std::string escaped;
  for (const char c : ReplaceInvalidUtf8(text)) {
    switch (c) {
      case '&': escaped += "&amp;"; break;
      case '<': escaped += "&lt;"; break;
      case '>': escaped += "&gt;"; break;
      case '"': escaped += "&quot;"; break;
      case '\'': escaped += "&#39;"; break;
      default:
        // Neither HTML nor XML allows other control characters.
        if (static_cast<unsigned char>(c) >= 0x20 && c != 0x7f) {
          escaped += c;
        } else {
          escaped += ' ';
        }
    }
  }
  return escaped;
}

size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1), above = row, two_above = row;
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    two_above.swap(above);
    above.swap(row);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      const bool is_swap = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (is_swap) row[j] = std::min(row[j], two_above[j - 2] + 1);
    }
  }
  return row[b.size()];
}

std::string SimplifiedName(std::string_view name) {
  std::string simple;
  for (const char c : name) {
    if (c != '_' && c != '-') simple += static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
  }
  return simple;
}

static constexpr std::string_view kWhiteSpace = " \t\r\n\f\v";

std::string_view WithoutLeadingSpace(std::string_view text) {
  return text.substr(std::min(text.size(), text.find_first_not_of(kWhiteSpace)));
}

std::string_view WithoutTrailingSpace(std::string_view text) {
  return text.substr(0, text.find_last_not_of(kWhiteSpace) + 1);
}

}  // namespace penstock
