// Removes spaces before punctuation and English clitics from a text that arrives in parts, as transformers'
// clean_up_tokenization does.
#pragma once

#include <array>
#include <string>
#include <string_view>

namespace penstock {

class SpaceCleaner {
 public:
  // Returns the part of the text so far that can no longer change.
  std::string Push(std::string_view text);
  // Returns the rest, and begins a new text.
  std::string Finish();

 private:
  // Each pass reads the output of the pass before it, and holds back what may begin a string that it replaces.
  static constexpr size_t kNumPasses = 3;
  std::string Run(std::string_view text, bool is_end);

  std::array<std::string, kNumPasses> held_;
};

}  // namespace penstock
