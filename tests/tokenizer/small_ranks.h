// A tiny tiktoken rank file: the 256 bytes (ranks 0 to 255), then `more` in order.
#pragma once

#include <string>
#include <vector>

#include <fmt/format.h>

#include "absl/strings/escaping.h"

namespace penstock::testing_tokenizers {

inline std::string RankLine(const std::string& token, int rank) {
  std::string base64;
  absl::Base64Escape(token, &base64);
  return fmt::format("{} {}\n", base64, rank);
}

inline std::string SmallRanks(const std::vector<std::string>& more) {
  std::string ranks;
  int rank = 0;
  for (; rank < 256; ++rank) ranks += RankLine(std::string(1, static_cast<char>(rank)), rank);
  for (const std::string& token : more) ranks += RankLine(token, rank++);
  return ranks;
}

}  // namespace penstock::testing_tokenizers
