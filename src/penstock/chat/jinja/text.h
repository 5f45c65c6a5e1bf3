// Text whose every byte knows who wrote it: the template or a message.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "penstock/tokenizer/tokenizer.h"

namespace penstock::jinja {

// The origin of what is made of both: never less careful than either.
constexpr Origin Mixed(Origin a, Origin b) {
  return a == Origin::kMessage || b == Origin::kMessage ? Origin::kMessage : Origin::kTemplate;
}

// Valid UTF-8 with a run-length list of origins. Neighbouring runs differ, and none is empty.
class Text {
 public:
  struct Run {
    size_t end;  // one past the run's last byte
    Origin origin;
  };

  Text() = default;
  Text(std::string_view bytes, Origin origin) { Append(bytes, origin); }

  const std::string& bytes() const { return bytes_; }
  const std::vector<Run>& runs() const { return runs_; }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }

  void Append(std::string_view bytes, Origin origin);
  void Append(const Text& other) { Append(other, 0, other.size()); }
  // Appends the bytes [begin, end) of `other`. REQUIRES: begin <= end <= other.size(), both at character borders.
  void Append(const Text& other, size_t begin, size_t end);
  void AppendRune(char32_t code_point, Origin origin);

  Text Sub(size_t begin, size_t end) const;

  // kMessage when any byte of the text is from a message.
  Origin AnyOrigin() const;

 private:
  size_t FindRun(size_t byte) const;
  void ExtendRun(Origin origin);

  std::string bytes_;
  std::vector<Run> runs_;
};

// Walks a text character by character with each one's origin.
class RuneReader {
 public:
  explicit RuneReader(const Text& text) : text_(&text) {}

  bool done() const { return pos_ >= text_->size(); }
  size_t pos() const { return pos_; }  // of the character that Next() returns
  // REQUIRES: !done().
  std::pair<char32_t, Origin> Next();

 private:
  const Text* text_;
  size_t pos_ = 0;
  size_t run_idx_ = 0;
};

// Number of characters; what Python calls len().
int64_t NumRunes(std::string_view text);
// Byte offset of the character `rune_idx`, or text.size() when there are fewer.
size_t RuneOffset(std::string_view text, int64_t rune_idx);

// Python's str.isspace() for one character.
bool IsSpace(char32_t code_point);
// Byte range of `text` without white space at the start / at the end.
size_t SkipSpaceLeft(std::string_view text);
size_t SkipSpaceRight(std::string_view text);

// First place of `needle` at or after `from`, in linear time; npos when there is none.
size_t FindText(std::string_view text, std::string_view needle, size_t from = 0);

}  // namespace penstock::jinja
