// Feeds tokenizer files of all formats, and then texts. The first byte of the input chooses the format.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "penstock/base/check.h"
#include "penstock/base/text.h"
#include "penstock/tokenizer/tokenizer.h"

using namespace std::string_view_literals;

namespace penstock {
namespace {

void Use(const Tokenizer& tokenizer) {
  for (const std::string_view text : {""sv, "Hello  world\r\n 123 don't"sv, "<s>a\xE2\x96\x81<0x0A> b\0"sv,
                                      "\xF0\x9F\x91\xA9\xE2\x80\x8D\xCC\x81\xFF"sv}) {
    const TextSegment segments[2] = {{std::string(text), Origin::kTemplate}, {std::string(text), Origin::kMessage}};
    const std::vector<TokenId> ids = tokenizer.Encode(segments, AddSpecial::kYes);
    std::string streamed;
    StreamDecoder stream(tokenizer);
    for (const TokenId id : ids) streamed += stream.Push(id);
    streamed += stream.Finish();
    PENSTOCK_CHECK(streamed == ReplaceInvalidUtf8(tokenizer.Decode(ids, SkipSpecial::kYes)));
    for (const TokenId id : tokenizer.Encode(text, Origin::kMessage, AddSpecial::kNo)) PENSTOCK_CHECK(id >= 0);
  }
  (void)tokenizer.memory_bytes();
}

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto load = [&]() {
    switch (data[0]) {
      case 'm': return penstock::Tokenizer::FromSentencePiece(bytes, "");
      case 'v': {
        const size_t cut = bytes.find('\n');
        return penstock::Tokenizer::FromVocabAndMerges(bytes.substr(0, cut),
                                                       cut == std::string_view::npos ? ""sv : bytes.substr(cut + 1),
                                                       R"({"tokenizer_class": "Qwen2Tokenizer"})");
      }
      case 'c':
        return penstock::Tokenizer::FromTokenizerJson(R"({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}})",
                                                      bytes);
      default: return penstock::Tokenizer::FromTokenizerJson(bytes, "");
    }
  };
  const auto tokenizer = load();
  if (tokenizer.ok()) penstock::Use(**tokenizer);
  return 0;
}
