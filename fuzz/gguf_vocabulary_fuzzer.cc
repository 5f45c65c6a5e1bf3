// Feeds vocabularies of GGUF files, written as JSON, and then texts.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "penstock/base/check.h"
#include "penstock/base/text.h"
#include "penstock/tokenizer/tokenizer.h"
#include "tests/tokenizer/gguf_json.h"

namespace penstock {
namespace {

void Run(const uint8_t* data, size_t size) {
  const auto file = testing_tokenizers::GgufFromJson(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!file.ok()) return;
  const auto tokenizer = Tokenizer::FromGguf(*file);
  if (!tokenizer.ok()) return;
  for (const std::string_view text :
       {"", " Hello  world\r\n 123 don't", "<s>a\xE2\x96\x81<0x0A> b", "\xF0\x9F\x91\xA9\xE2\x80\x8D\xCC\x81\xFF"}) {
    const TextSegment segments[2] = {{std::string(text), Origin::kTemplate}, {std::string(text), Origin::kMessage}};
    const std::vector<TokenId> ids = (*tokenizer)->Encode(segments, AddSpecial::kYes);
    for (const TokenId id : ids) PENSTOCK_CHECK(id >= 0 && id < (*tokenizer)->vocab_size());
    std::string streamed;
    StreamDecoder stream(**tokenizer);
    for (const TokenId id : ids) streamed += stream.Push(id);
    streamed += stream.Finish();
    PENSTOCK_CHECK(streamed == ReplaceInvalidUtf8((*tokenizer)->Decode(ids, SkipSpecial::kYes)));
  }
}

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  penstock::Run(data, size);
  return 0;
}
