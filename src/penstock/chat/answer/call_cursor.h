// Reads the parts of a tool call, one after another.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "penstock/base/text.h"
#include "penstock/chat/answer/call_values.h"
#include "penstock/chat/answer/json_pieces.h"

namespace penstock {

// Reads a call from its beginning. Each method returns whether it could read on. If not, all further ones fail, too,
// and is_cut_off() says whether the reason was only that the text ends.
class Cursor {
 public:
  explicit Cursor(std::string_view text) : text_(text) {}

  bool ok() const { return state_ == State::kOk; }
  bool is_cut_off() const { return state_ == State::kCutOff; }
  size_t pos() const { return pos_; }
  std::string_view rest() const { return text_.substr(pos_); }
  bool NextIs(char c) { return HasMore() && text_[pos_] == c; }

  void Skip(size_t num_bytes) { pos_ += num_bytes; }

  // Takes the mark, which must come next.
  bool Take(std::string_view mark) { return TakeIf(mark) || Fail(); }

  // Takes the mark if it comes next. A text that ends inside of it is cut off.
  bool TakeIf(std::string_view mark) {
    if (!ok()) return false;
    if (rest().starts_with(mark)) {
      pos_ += mark.size();
      return true;
    }
    if (mark.starts_with(rest())) state_ = State::kCutOff;
    return false;
  }

  void SkipSpace() { pos_ = text_.size() - WithoutLeadingSpace(rest()).size(); }

  // Takes a name, which ends before another character.
  bool TakeName(std::string& name) {
    const size_t begin = pos_;
    while (ok() && pos_ < text_.size() && IsNameCharacter(text_[pos_])) ++pos_;
    if (!HasMore()) return false;
    name = text_.substr(begin, pos_ - begin);
    return !name.empty() || Fail();
  }

  // Takes all text up to the mark, and the mark.
  bool TakeUntil(std::string_view mark, std::string& out) {
    if (!ok()) return false;
    const size_t end = text_.find(mark, pos_);
    if (end == std::string_view::npos) {
      state_ = State::kCutOff;
      return false;
    }
    out = text_.substr(pos_, end - pos_);
    pos_ = end + mark.size();
    return true;
  }

  // Takes a JSON object or list, behind white space.
  bool TakeJson(std::string_view& out) {
    SkipSpace();
    if (!HasMore()) return false;
    if (text_[pos_] != '{' && text_[pos_] != '[') return Fail();
    const JsonExtent extent = FindJsonEnd(text_.substr(pos_));
    if (extent.kind == JsonExtent::Kind::kBroken) return Fail();
    if (extent.kind == JsonExtent::Kind::kCutOff) {
      state_ = State::kCutOff;
      return false;
    }
    out = text_.substr(pos_, extent.num_bytes);
    pos_ += extent.num_bytes;
    return true;
  }

  // Takes what the function reads (call_values.h). Of a value that is cut off, `json` is the beginning.
  bool TakeValue(ValueRead (*read)(std::string_view), std::string& json) {
    if (!HasMore()) return false;
    ValueRead value = read(text_.substr(pos_));
    if (value.kind == JsonExtent::Kind::kBroken) return Fail();
    json = std::move(value.json);
    if (value.kind == JsonExtent::Kind::kCutOff) {
      state_ = State::kCutOff;
      return false;
    }
    pos_ += value.num_bytes;
    return true;
  }

  // Makes the text no call. Returns false.
  bool Fail() {
    if (ok()) state_ = State::kFailed;
    return false;
  }

 private:
  enum class State : uint8_t { kOk, kCutOff, kFailed };

  static bool IsNameCharacter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("_-.:/$").find(c) != std::string_view::npos;
  }
  bool HasMore() {
    if (ok() && pos_ == text_.size()) state_ = State::kCutOff;
    return ok();
  }

  std::string_view text_;
  size_t pos_ = 0;
  State state_ = State::kOk;
};

}  // namespace penstock
