#include "penstock/base/text.h"
#include "penstock/tokenizer/tokenizer.h"

namespace penstock {
namespace {

// Returns how many bytes at the end of `text` begin a UTF-8 sequence that more bytes can complete.
size_t OpenBytes(std::string_view text) {
  for (size_t num_bytes = 1; num_bytes <= 3 && num_bytes <= text.size(); ++num_bytes) {
    const std::string_view tail = text.substr(text.size() - num_bytes);
    const auto lead = static_cast<uint8_t>(tail[0]);
    if (lead >= 0x80 && lead < 0xC0) continue;
    if (lead < 0xC2 || lead > 0xF4) return 0;
    const size_t expected = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    if (num_bytes >= expected) return 0;
    if (num_bytes == 1) return 1;
    // The second byte is present, so any continuation bytes complete the sequence.
    std::string completed(tail);
    completed.append(expected - num_bytes, '\x80');
    return DecodeUtf8(completed, 0).valid ? num_bytes : 0;
  }
  return 0;
}

}  // namespace

std::string Tokenizer::Decode(std::span<const TokenId> ids, SkipSpecial skip_special) const {
  std::string text;
  DecodeState state;
  for (const TokenId id : ids) DecodeNext(id, skip_special, state, text);
  if (!cleans_spaces()) return text;
  SpaceCleaner cleaner;
  std::string cleaned = cleaner.Push(text);
  return cleaned += cleaner.Finish();
}

std::vector<TokenId> Tokenizer::Encode(std::string_view text, Origin origin, AddSpecial add_special) const {
  const TextSegment segment{std::string(text), origin};
  return Encode(std::span<const TextSegment>(&segment, 1), add_special);
}

std::string StreamDecoder::Push(TokenId id) {
  std::string text = std::move(open_);
  open_.clear();
  tokenizer_->DecodeNext(id, skip_special_, state_, text);
  const size_t num_open = OpenBytes(text);
  open_ = text.substr(text.size() - num_open);
  text.resize(text.size() - num_open);
  text = ReplaceInvalidUtf8(text);
  return tokenizer_->cleans_spaces() ? cleaner_.Push(text) : text;
}

std::string StreamDecoder::Finish() {
  std::string text = ReplaceInvalidUtf8(open_);
  open_.clear();
  state_ = {};
  if (!tokenizer_->cleans_spaces()) return text;
  text = cleaner_.Push(text);
  return text += cleaner_.Finish();
}

}  // namespace penstock
