// Text that knows, for every byte, who wrote it: the template or a message.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "penstock/tokenizer/tokenizer.h"

namespace penstock::jinja {

// Returns the origin of a mixture of both: the less trusted of the two.
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

  // Returns kMessage if any byte of the text is from a message.
  Origin AnyOrigin() const;

 private:
  size_t FindRun(size_t byte) const;
  void ExtendRun(Origin origin);

  std::string bytes_;
  std::vector<Run> runs_;
};

// Reads a text character by character, with the origin of each.
class RuneReader {
 public:
  explicit RuneReader(const Text& text) : text_(&text) {}

  bool done() const { return pos_ >= text_->size(); }
  size_t pos() const { return pos_; }  // position of the character that Next() returns
  // REQUIRES: !done().
  std::pair<char32_t, Origin> Next();

 private:
  const Text* text_;
  size_t pos_ = 0;
  size_t run_idx_ = 0;
};

// Returns the number of characters, as Python's len() does.
int64_t NumRunes(std::string_view text);
// Returns the byte offset of the character `rune_idx`, or text.size() if there are fewer characters.
size_t RuneOffset(std::string_view text, int64_t rune_idx);

// Returns what Python's str.isspace() says about one character.
bool IsSpace(char32_t code_point);
// Return the end of the white space at the start, and the start of the white space at the end.
size_t SkipSpaceLeft(std::string_view text);
size_t SkipSpaceRight(std::string_view text);

// Returns the first place of `needle` at or after `from`, in linear time, or npos if there is none.
size_t FindText(std::string_view text, std::string_view needle, size_t from = 0);

}  // namespace penstock::jinja
