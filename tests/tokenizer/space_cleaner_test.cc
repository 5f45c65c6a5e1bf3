// Proves that a text in parts is cleaned as transformers cleans the whole, and that no finished text is held back.
#include "penstock/tokenizer/space_cleaner.h"

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "absl/strings/str_replace.h"

namespace penstock {
namespace {

// Cleans the whole text, one replacement after the other.
std::string Cleaned(std::string text) {
  constexpr std::pair<const char*, const char*> kReplacements[] = {
      {" .", "."},     {" ?", "?"},   {" !", "!"},   {" ,", ","},     {" ' ", "'"},
      {" n't", "n't"}, {" 'm", "'m"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : kReplacements) text = absl::StrReplaceAll(text, {{from, to}});
  return text;
}

TEST(SpaceCleaner, TextsAndWhatTheyBecome) {
  const std::pair<std::string, std::string> cases[] = {{"", ""},
                                                       {"A 'll !!to?'d''d of", "A 'll!!to?'d''d of"},
                                                       {"do n't , I 'm  .", "don't, I'm ."},
                                                       {"x  ' s", "x's"},
                                                       {"x ' .", "x '."},
                                                       {"a  b ", "a  b "}};
  for (const auto& [text, cleaned] : cases) {
    SpaceCleaner cleaner;
    std::string found = cleaner.Push(text);
    found += cleaner.Finish();
    EXPECT_EQ(found, cleaned);
    EXPECT_EQ(found, Cleaned(text));
  }
}

TEST(SpaceCleaner, AnyParts) {
  EXPECT_TRUE(rc::check("as the whole", [] {
    const auto letters = rc::gen::element(' ', ' ', ' ', '\'', '\'', '.', '?', ',', 'n', 't', 's', 'm', 'v', 'r', 'e');
    const auto parts = *rc::gen::container<std::vector<std::string>>(rc::gen::container<std::string>(letters));
    SpaceCleaner cleaner;
    std::string whole, found;
    for (const std::string& part : parts) {
      whole += part;
      found += cleaner.Push(part);
      RC_ASSERT(found.size() + 16 >= Cleaned(whole).size());
    }
    RC_ASSERT(found + cleaner.Finish() == Cleaned(whole));
    RC_ASSERT(cleaner.Push("a") + cleaner.Finish() == "a");
  }));
}

}  // namespace
}  // namespace penstock
