#include "penstock/tokenizer/space_cleaner.h"

#include <algorithm>
#include <span>
#include <utility>

namespace penstock {
namespace {

struct Replacement {
  std::string_view from;
  std::string_view to;
};
// One pass cannot create a new match for itself, but it can create one for a later pass.
constexpr Replacement kSpacedPunctuation[] = {{" .", "."}, {" ?", "?"}, {" !", "!"}, {" ,", ","}};
constexpr Replacement kApostrophe[] = {{" ' ", "'"}};
constexpr Replacement kClitics[] = {{" n't", "n't"}, {" 'm", "'m"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
constexpr std::span<const Replacement> kPasses[] = {kSpacedPunctuation, kApostrophe, kClitics};

// Appends to `out` the part of `text` that can no longer change, and returns the rest.
std::string_view Replace(std::span<const Replacement> replacements, std::string_view text, bool is_end,
                         std::string& out) {
  while (!text.empty()) {
    const size_t space = std::min(text.find(' '), text.size());
    out += text.substr(0, space);
    text.remove_prefix(space);
    const auto matches = [&](const Replacement& r) { return text.starts_with(r.from); };
    const auto may_match = [&](const Replacement& r) { return r.from.starts_with(text); };
    const auto match = std::find_if(replacements.begin(), replacements.end(), matches);
    if (match != replacements.end()) {
      out += match->to;
      text.remove_prefix(match->from.size());
    } else if (!is_end && std::any_of(replacements.begin(), replacements.end(), may_match)) {
      return text;
    } else if (!text.empty()) {
      out += text[0];
      text.remove_prefix(1);
    }
  }
  return text;
}

}  // namespace

std::string SpaceCleaner::Run(std::string_view text, bool is_end) {
  std::string part(text);
  for (size_t i = 0; i < kNumPasses; ++i) {
    const std::string all = std::exchange(held_[i], {}) + part;
    part.clear();
    held_[i] = Replace(kPasses[i], all, is_end, part);
  }
  return part;
}

std::string SpaceCleaner::Push(std::string_view text) { return Run(text, false); }

std::string SpaceCleaner::Finish() { return Run({}, true); }

}  // namespace penstock
