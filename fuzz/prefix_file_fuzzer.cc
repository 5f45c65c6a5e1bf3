// Feeds bytes as a file of KV entries. An accepted file is, to the last byte, the one that would be written for these
// tokens and entries. If the first byte is even, the bytes change such a file in place of being one.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

#include "penstock/base/file.h"
#include "penstock/memory/prefixes/prefix_file.h"

namespace {

using penstock::PrefixFileSpec;
using Bytes = std::vector<std::byte>;

constexpr uint64_t kPageBytes = 64;
constexpr int64_t kNumPages = 3;

void Require(bool holds) {
  if (!holds) std::abort();
}

// Returns the file's pages; nothing if it is refused.
Bytes ReadPages(const PrefixFileSpec& spec, std::span<const std::byte> file) {
  const penstock::UniqueFd fd(::memfd_create("fuzz", MFD_CLOEXEC));
  Require(fd.valid() && ::write(fd.get(), file.data(), file.size()) == static_cast<ssize_t>(file.size()));
  Bytes pages(kNumPages * kPageBytes);
  penstock::PrefixFileReader reader(fd.get(), "fuzz", spec);
  if (!reader.ReadFront().ok()) return {};
  for (int64_t i = 0; i < kNumPages; ++i) {
    if (!reader.ReadPage(i, std::span(pages).subspan(static_cast<size_t>(i) * kPageBytes, kPageBytes)).ok()) return {};
  }
  return pages;
}

Bytes FileOf(const PrefixFileSpec& spec, std::span<const std::byte> pages) {
  Bytes file = penstock::NewPrefixFile(spec);
  std::ranges::copy(pages, file.begin() + static_cast<int64_t>(spec.FrontBytes()));
  penstock::SealPrefixFile(file, kPageBytes, kNumPages);
  return file;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  const std::span bytes(reinterpret_cast<const std::byte*>(data + 1), size - 1);
  const std::vector<penstock::TokenId> tokens = {1, 2, 3, 1 << 20};
  const PrefixFileSpec spec{.identity = "a model",
                            .tokens = tokens,
                            .part = penstock::PrefixPart::kState,
                            .page_bytes = kPageBytes,
                            .num_pages = kNumPages};
  if (data[0] % 2 == 1) {
    const Bytes pages = ReadPages(spec, bytes);
    Require(pages.empty() || std::ranges::equal(FileOf(spec, pages), bytes));
    return 0;
  }
  Bytes pages(kNumPages * kPageBytes);
  std::copy_n(bytes.begin(), std::min(bytes.size(), pages.size()), pages.begin());
  const Bytes good = FileOf(spec, pages);
  Require(ReadPages(spec, good) == pages);
  Bytes changed = good;
  for (size_t i = 0; i + 1 < bytes.size(); i += 2) {
    changed[static_cast<size_t>(bytes[i]) * changed.size() / 256] ^= bytes[i + 1];
  }
  Require(changed == good || ReadPages(spec, changed).empty());
  return 0;
}
