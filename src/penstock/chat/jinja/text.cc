#include "penstock/chat/jinja/text.h"

#include <string.h>

#include <algorithm>

#include "penstock/base/text.h"

namespace penstock::jinja {

void Text::ExtendRun(Origin origin) {
  if (!runs_.empty() && runs_.back().origin == origin) {
    runs_.back().end = bytes_.size();
  } else {
    runs_.push_back({bytes_.size(), origin});
  }
}

void Text::Append(std::string_view bytes, Origin origin) {
  if (bytes.empty()) return;
  bytes_.append(bytes);
  ExtendRun(origin);
}

void Text::AppendRune(char32_t code_point, Origin origin) {
  AppendUtf8(code_point, bytes_);
  ExtendRun(origin);
}

size_t Text::FindRun(size_t byte) const {
  const auto run =
      std::upper_bound(runs_.begin(), runs_.end(), byte, [](size_t at, const Run& r) { return at < r.end; });
  return static_cast<size_t>(run - runs_.begin());
}

void Text::Append(const Text& other, size_t begin, size_t end) {
  if (begin >= end) return;
  // Indexes instead of iterating, because `other` may be this very text.
  size_t pos = begin;
  for (size_t i = other.FindRun(begin); pos < end; ++i) {
    const Run run = other.runs_[i];
    const size_t stop = std::min(run.end, end);
    bytes_.append(other.bytes_, pos, stop - pos);
    ExtendRun(run.origin);
    pos = stop;
  }
}

Text Text::Sub(size_t begin, size_t end) const {
  Text result;
  result.Append(*this, begin, end);
  return result;
}

Origin Text::AnyOrigin() const {
  for (const Run& run : runs_) {
    if (run.origin == Origin::kMessage) return Origin::kMessage;
  }
  return Origin::kTemplate;
}

std::pair<char32_t, Origin> RuneReader::Next() {
  const DecodedRune rune = DecodeUtf8(text_->bytes(), pos_);
  while (text_->runs()[run_idx_].end <= pos_) ++run_idx_;
  const Origin origin = text_->runs()[run_idx_].origin;
  pos_ += rune.num_bytes;
  return {rune.code_point, origin};
}

int64_t NumRunes(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

size_t RuneOffset(std::string_view text, int64_t rune_idx) {
  size_t pos = 0;
  for (; pos < text.size(); ++pos) {
    if ((text[pos] & 0xC0) == 0x80) continue;
    if (rune_idx-- == 0) return pos;
  }
  return pos;
}

bool IsSpace(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

size_t SkipSpaceLeft(std::string_view text) {
  size_t pos = 0;
  while (pos < text.size()) {
    const DecodedRune rune = DecodeUtf8(text, pos);
    if (!IsSpace(rune.code_point)) break;
    pos += rune.num_bytes;
  }
  return pos;
}

size_t SkipSpaceRight(std::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    size_t start = end - 1;
    while (start > 0 && (text[start] & 0xC0) == 0x80) --start;
    if (!IsSpace(DecodeUtf8(text, start).code_point)) break;
    end = start;
  }
  return end;
}

size_t FindText(std::string_view text, std::string_view needle, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  if (needle.empty()) return from;
  // Uses memmem, which is linear in both sizes; std::string_view::find is not.
  const void* hit = memmem(text.data() + from, text.size() - from, needle.data(), needle.size());
  if (hit == nullptr) return std::string_view::npos;
  return static_cast<size_t>(static_cast<const char*>(hit) - text.data());
}

}  // namespace penstock::jinja
