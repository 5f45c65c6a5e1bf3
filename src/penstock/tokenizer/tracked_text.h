// A text that knows the origin of each of its bytes.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "penstock/tokenizer/tokenizer.h"

namespace penstock {

class TrackedText {
 public:
  TrackedText() = default;
  TrackedText(std::string text, Origin origin) : text_(std::move(text)), uniform_(origin) {}

  std::string_view text() const { return text_; }
  size_t size() const { return text_.size(); }
  bool empty() const { return text_.empty(); }

  Origin OriginAt(size_t pos) const { return origins_.empty() ? uniform_ : static_cast<Origin>(origins_[pos]); }

  // Returns whether every byte of [begin, end) is template text.
  bool IsTemplate(size_t begin, size_t end) const {
    if (begin >= end) return true;
    if (origins_.empty()) return uniform_ == Origin::kTemplate;
    return std::string_view(origins_).substr(begin, end - begin).find(static_cast<char>(Origin::kMessage)) ==
           std::string_view::npos;
  }

  // Returns kMessage if any byte of [begin, end) is from a message.
  Origin OriginOf(size_t begin, size_t end) const {
    return IsTemplate(begin, end) ? Origin::kTemplate : Origin::kMessage;
  }

  void Append(std::string_view bytes, Origin origin) {
    if (bytes.empty()) return;
    if (text_.empty()) {
      uniform_ = origin;
    } else if (origins_.empty() && origin != uniform_) {
      origins_.assign(text_.size(), static_cast<char>(uniform_));
    }
    text_.append(bytes);
    if (!origins_.empty()) origins_.append(bytes.size(), static_cast<char>(origin));
  }

  // Appends the bytes [begin, end) of `other` with their origins.
  void Append(const TrackedText& other, size_t begin, size_t end) {
    if (other.origins_.empty()) {
      Append(other.text().substr(begin, end - begin), other.uniform_);
      return;
    }
    while (begin < end) {
      size_t stop = other.origins_.find_first_not_of(other.origins_[begin], begin);
      if (stop == std::string::npos || stop > end) stop = end;
      Append(other.text().substr(begin, stop - begin), static_cast<Origin>(other.origins_[begin]));
      begin = stop;
    }
  }

  TrackedText Slice(size_t begin, size_t end) const {
    TrackedText slice;
    slice.Append(*this, begin, end);
    return slice;
  }

  void Reserve(size_t num_bytes) { text_.reserve(num_bytes); }

 private:
  std::string text_;
  std::string origins_;  // one Origin per byte; empty if all bytes have the origin `uniform_`
  Origin uniform_ = Origin::kTemplate;
};

}  // namespace penstock
