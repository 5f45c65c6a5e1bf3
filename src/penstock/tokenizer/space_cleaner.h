// Takes spaces before punctuation and English clitics away, as transformers' clean_up_tokenization does, from a text
// that comes in parts.
#pragma once

#include <array>
#include <string>
#include <string_view>

namespace penstock {

class SpaceCleaner {
 public:
  // What of the text so far is certain.
  std::string Push(std::string_view text);
  // The rest. Begins a new text.
  std::string Finish();

 private:
  // One goes over what the one before it gives; each keeps what may be the beginning of something it replaces.
  static constexpr size_t kNumPasses = 3;
  std::string Run(std::string_view text, bool is_end);

  std::array<std::string, kNumPasses> held_;
};

}  // namespace penstock
