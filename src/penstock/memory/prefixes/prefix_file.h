// A file of the KV entries of one page, or of the recurrent state behind it, which later sequences can load.
//
// The header holds the model, its formats, and all tokens up to the page's end. The reader knows them, and compares the
// header with the expected one, byte by byte. So a file is accepted only for the tokens that it was computed from; no
// digest stands for them. Behind the header is a checksum (XXH3) of each page, then the pages. Numbers are
// little-endian.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "penstock/token_id.h"

namespace penstock {

// A file holds one of these: the entries of a KV page, or the state behind the page's last token.
enum class PrefixPart : uint8_t { kEntries, kState };

// Names the tokens of a sequence up to the end of a page: a digest, by which files are found.
struct PrefixName {
  uint64_t high = 0, low = 0;

  // Returns the name of these tokens and a page of others behind them. REQUIRES: at most kKvPageTokens.
  PrefixName Then(std::span<const TokenId> page) const;
  std::string Hex() const;  // 32 digits
};

struct PrefixFileSpec {
  std::string_view identity;        // of the model and its formats
  std::span<const TokenId> tokens;  // all up to the page's end
  PrefixPart part = PrefixPart::kEntries;
  uint64_t page_bytes = 0;
  int64_t num_pages = 0;

  // Returns the bytes of the file, and of the part before its pages.
  uint64_t FileBytes() const { return FrontBytes() + static_cast<uint64_t>(num_pages) * page_bytes; }
  uint64_t FrontBytes() const;
};

// Returns a file whose pages are not filled in yet: from FrontBytes() on. SealPrefixFile() then sets their checksums.
std::vector<std::byte> NewPrefixFile(const PrefixFileSpec& spec);
void SealPrefixFile(std::span<std::byte> file, uint64_t page_bytes, int64_t num_pages);

// Reads a file. Errors say that it is not complete, damaged, of other tokens, or not of this process's user.
class PrefixFileReader {
 public:
  // `path` appears in errors.
  PrefixFileReader(int fd, std::string_view path, const PrefixFileSpec& spec) : fd_(fd), path_(path), spec_(spec) {}

  // Reads all but the pages.
  absl::Status ReadFront();
  // Reads one page after ReadFront(). REQUIRES: out.size() == page_bytes.
  absl::Status ReadPage(int64_t page_idx, std::span<std::byte> out) const;

 private:
  int fd_;
  std::string_view path_;
  PrefixFileSpec spec_;
  std::vector<uint64_t> checksums_;
};

}  // namespace penstock
