// Decoders turn tokens back into text, one token at a time.
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
    kStrip,         // removes up to `max_left` / `max_right` times `from` from the ends of the token
    kSpaceBetween,  // puts a space before each token but the first (Hugging Face's default without a decoder)
  };

  Kind kind;
  std::string from = {};
  std::string to = {};
  bool drop_first = false;
  int64_t max_left = 0;
  int64_t max_right = 0;
};

// A chain of decoder steps. Each step handles one token at a time, so a text can be decoded as its tokens arrive. The
// one exception is a Strip behind a Fuse, which removes characters from the beginning of the whole text.
class Decoder {
 public:
  // Reads tokenizer.json's "decoder" (null: none). Returns kModel, naming the type or order that is not implemented.
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
  size_t growth_ = 1;        // a token's text grows at most by this factor
  bool fused_ = false;       // while reading the chain: from here on, all tokens count as one text
  std::string leading_;      // removed from the beginning of the whole text,
  int64_t max_leading_ = 0;  // up to this many times
};

}  // namespace penstock
