// Decoders: how tokens become text again, token by token.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/base/json.h"
#include "penstock/tokenizer/tokenizer.h"

namespace penstock {

struct DecoderStep {
  enum class Kind : uint8_t {
    kByteLevel,     // characters of the byte alphabet become bytes
    kReplace,       // each `from` becomes `to`
    kByteFallback,  // <0xNN> becomes the byte
    kMetaspace,     // `from` becomes a space; vanishes in the first token when `drop_first`
    kStrip,         // takes up to `max_left` / `max_right` times `from` from the ends of the token
    kSpaceBetween,  // a space before each token but the first (what Hugging Face does without a decoder)
  };

  Kind kind;
  std::string from = {};
  std::string to = {};
  bool drop_first = false;
  int64_t max_left = 0;
  int64_t max_right = 0;
};

// Every supported chain works on one token after the other, but for a Strip behind a Fuse: that one takes characters
// from the beginning of the whole text. So a text can be decoded as its tokens come.
class Decoder {
 public:
  // From tokenizer.json's "decoder" (null: none). kModel names a type or an order that is not implemented.
  static absl::StatusOr<Decoder> FromJson(const json::value& value);

  void Add(DecoderStep step) { steps_.push_back(std::move(step)); }
  void SetLeadingStrip(std::string character, int64_t count);

  // Appends the bytes of the next token. They may begin or end inside a UTF-8 sequence.
  void Append(std::string_view token, DecodeState& state, std::string& out) const;

 private:
  absl::Status AddFromJson(const json::value& value, int depth);
  absl::Status AddStrip(const json::value& value);
  void StripLeading(std::string& text, DecodeState& state) const;

  std::vector<DecoderStep> steps_;
  size_t growth_ = 1;        // a token's text becomes at most this many times as long
  bool fused_ = false;       // while reading: tokens are one text from here on
  std::string leading_;      // taken from the beginning of the whole text,
  int64_t max_leading_ = 0;  // up to this many times
};

}  // namespace penstock
