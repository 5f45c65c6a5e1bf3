// Proves that normal forms equal those of Hugging Face's tokenizers 0.23, whose tables are older than ours. Marks that
// are newer than Unicode 9 do not count as marks there, and models were trained with those tables.
#include "penstock/tokenizer/split/unicode.h"

#include <gtest/gtest.h>

#include <string>

namespace penstock::unicode {
namespace {

struct Case {
  const char* text;
  const char* nfc;
  const char* nfd;
  const char* nfkc;
};

std::string Normalized(std::string_view text, NormalForm form) {
  std::string out;
  AppendNormalized(text, form, out);
  return out;
}

TEST(UnicodeTest, NormalFormsAreThoseOfHuggingFace) {
  // Each row is a text and the results of tokenizers.normalizers.NFC() and so on.
  const Case cases[] = {
      {"\u1df6\u0344", "\u1df6\u0308\u0301", "\u1df6\u0308\u0301", "\u1df6\u0308\u0301"},
      {"\u0635\u07fd\u064b", "\u0635\u07fd\u064b", "\u0635\u07fd\u064b", "\u0635\u07fd\u064b"},
      {"\u1de9\u1df8", "\u1de9\u1df8", "\u1de9\u1df8", "\u1de9\u1df8"},
      {"c\u1df6\u0301", "c\u1df6\u0301", "c\u1df6\u0301", "c\u1df6\u0301"},
      {"c\u0301\u1df6", "\u0107\u1df6", "c\u0301\u1df6", "\u0107\u1df6"},
      {"\U00011935\U00011930", "\U00011935\U00011930", "\U00011935\U00011930", "\U00011935\U00011930"},
      {"\U00011938\u0301", "\U00011938\u0301", "\U00011938\u0301", "\U00011938\u0301"},
      {"a\u0323\u0307", "\u1ea1\u0307", "a\u0323\u0307", "\u1ea1\u0307"},
      {"a\u0307\u0323", "\u1ea1\u0307", "a\u0323\u0307", "\u1ea1\u0307"},
      {"\u1100\u1161\u11a8", "\uac01", "\u1100\u1161\u11a8", "\uac01"},
      {"\u09c7\u09be", "\u09cb", "\u09c7\u09be", "\u09cb"},
      {"\u212b\u0301", "\u01fa", "A\u030a\u0301", "\u01fa"},
      {"\u0958", "\u0915\u093c", "\u0915\u093c", "\u0915\u093c"},
      {"\ufb01\u0301", "\ufb01\u0301", "\ufb01\u0301", "f\u00ed"},
      {"e\u0301\u0301", "\u00e9\u0301", "e\u0301\u0301", "\u00e9\u0301"},
      {"\u0301e", "\u0301e", "\u0301e", "\u0301e"},
      {"\u1e9b\u0323", "\u1e9b\u0323", "\u017f\u0323\u0307", "\u1e69"},
      {"c\U0001e4ec\u0301", "c\U0001e4ec\u0301", "c\U0001e4ec\u0301", "c\U0001e4ec\u0301"},
      {"\uac00\u11a8", "\uac01", "\u1100\u1161\u11a8", "\uac01"},
      {"q\u0307\u0323\u034f\u0301", "q\u0323\u0307\u034f\u0301", "q\u0323\u0307\u034f\u0301",
       "q\u0323\u0307\u034f\u0301"},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(Normalized(c.text, NormalForm::kNfc), c.nfc) << c.text;
    EXPECT_EQ(Normalized(c.text, NormalForm::kNfd), c.nfd) << c.text;
    EXPECT_EQ(Normalized(c.text, NormalForm::kNfkc), c.nfkc) << c.text;
  }
}

}  // namespace
}  // namespace penstock::unicode
