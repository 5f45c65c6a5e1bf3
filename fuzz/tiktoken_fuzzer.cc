// Feeds tiktoken rank files, and then texts. The first byte of the input chooses the format.

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>

#include "penstock/base/check.h"
#include "penstock/base/text.h"
#include "penstock/tokenizer/formats/tiktoken.h"
#include "penstock/tokenizer/tokenizer.h"

namespace penstock {
namespace {

void Run(const uint8_t* data, size_t size) {
  if (size == 0) return;
  constexpr std::string_view kNames[] = {"cl100k_base.tiktoken", "o200k_base.tiktoken", "hy.tiktoken",
                                         "tiktoken.model",       "r50k_base.tiktoken",  "other.tiktoken"};
  const std::string_view ranks(reinterpret_cast<const char*>(data) + 1, size - 1);
  (void)LooksLikeTiktoken(ranks);
  const auto tokenizer = Tokenizer::FromTiktoken(ranks, kNames[data[0] % std::size(kNames)],
                                                 R"({"added_tokens_decoder": {"300": {"content": "<s>"}}})");
  if (!tokenizer.ok()) return;
  for (const std::string_view text : {"", "Hello  world\r\n 123 don't", "<s>a\xE4\xB8\xAD\xE3\x81\x82 b",
                                      "\xF0\x9F\x91\xA9\xE2\x80\x8D\xCC\x81\xFF"}) {
    const std::vector<TokenId> ids = (*tokenizer)->Encode(text, Origin::kMessage, AddSpecial::kYes);
    // Every byte has a token, so a text loses only what a normalizer changes.
    if (kNames[data[0] % std::size(kNames)] != "hy.tiktoken") {
      PENSTOCK_CHECK((*tokenizer)->Decode(ids, SkipSpecial::kNo) == ReplaceInvalidUtf8(text));
    }
  }
}

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  penstock::Run(data, size);
  return 0;
}
