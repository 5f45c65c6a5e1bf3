#include "penstock/memory/prefixes/prefix_file.h"

#include <array>
#include <bit>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "penstock/base/file.h"
#include "penstock/base/status.h"
#include "penstock/tensor/kv_block.h"

namespace penstock {
namespace {

static_assert(std::endian::native == std::endian::little);

// The header begins with this. Behind it are the identity and the tokens.
struct Beginning {
  char magic[8] = {'P', 'S', 'P', 'R', 'E', 'F', 'I', 'X'};
  uint32_t version = 2;
  uint32_t part = 0;
  uint64_t num_tokens = 0;
  uint64_t identity_bytes = 0;
  uint64_t page_bytes = 0;
  uint64_t num_pages = 0;
};
static_assert(sizeof(Beginning) == 48);

uint64_t HeaderBytes(const PrefixFileSpec& spec) {
  return sizeof(Beginning) + spec.identity.size() + spec.tokens.size_bytes();
}

// Writes the header to the beginning of `out`.
void WriteHeader(const PrefixFileSpec& spec, std::span<std::byte> out) {
  const Beginning beginning{.part = static_cast<uint32_t>(spec.part),
                            .num_tokens = spec.tokens.size(),
                            .identity_bytes = spec.identity.size(),
                            .page_bytes = spec.page_bytes,
                            .num_pages = static_cast<uint64_t>(spec.num_pages)};
  std::memcpy(out.data(), &beginning, sizeof(beginning));
  out = out.subspan(sizeof(beginning));
  std::memcpy(out.data(), spec.identity.data(), spec.identity.size());
  std::memcpy(out.data() + spec.identity.size(), spec.tokens.data(), spec.tokens.size_bytes());
}

// A page's place is the seed, so pages that have changed places are found.
uint64_t ChecksumOf(std::span<const std::byte> page, int64_t page_idx) {
  return XXH3_64bits_withSeed(page.data(), page.size(), static_cast<uint64_t>(page_idx));
}

}  // namespace

PrefixName PrefixName::Then(std::span<const TokenId> page) const {
  std::array<std::byte, sizeof(PrefixName) + kKvPageTokens * sizeof(TokenId)> bytes = {};
  std::memcpy(bytes.data(), this, sizeof(*this));
  std::memcpy(bytes.data() + sizeof(*this), page.data(), page.size_bytes());
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {.high = hash.high64, .low = hash.low64};
}

std::string PrefixName::Hex() const { return fmt::format("{:016x}{:016x}", high, low); }

uint64_t PrefixFileSpec::FrontBytes() const {
  return HeaderBytes(*this) + static_cast<uint64_t>(num_pages) * sizeof(uint64_t);
}

std::vector<std::byte> NewPrefixFile(const PrefixFileSpec& spec) {
  std::vector<std::byte> file(spec.FileBytes());
  WriteHeader(spec, file);
  return file;
}

void SealPrefixFile(std::span<std::byte> file, uint64_t page_bytes, int64_t num_pages) {
  const std::span<std::byte> pages = file.last(static_cast<uint64_t>(num_pages) * page_bytes);
  std::byte* checksum = pages.data() - static_cast<uint64_t>(num_pages) * sizeof(uint64_t);
  for (int64_t i = 0; i < num_pages; ++i, checksum += sizeof(uint64_t)) {
    const uint64_t value = ChecksumOf(pages.subspan(static_cast<uint64_t>(i) * page_bytes, page_bytes), i);
    std::memcpy(checksum, &value, sizeof(value));
  }
}

absl::Status PrefixFileReader::ReadFront() {
  struct stat info = {};
  if (::fstat(fd_, &info) != 0) return IoError("{}: cannot stat: {}", path_, ErrnoText(errno));
  if (!S_ISREG(info.st_mode) || info.st_uid != ::geteuid()) return IoError("{}: not a file of this user", path_);
  if (static_cast<uint64_t>(info.st_size) != spec_.FileBytes()) {
    return IoError("{}: expected {} bytes, found {}", path_, spec_.FileBytes(), info.st_size);
  }
  std::vector<std::byte> expected(HeaderBytes(spec_)), front(spec_.FrontBytes());
  WriteHeader(spec_, expected);
  PENSTOCK_RETURN_IF_ERROR(PreadFully(fd_, front, 0, path_));
  if (std::memcmp(front.data(), expected.data(), expected.size()) != 0) {
    return IoError("{}: the header is not that of these tokens", path_);
  }
  checksums_.resize(static_cast<size_t>(spec_.num_pages));
  std::memcpy(checksums_.data(), front.data() + expected.size(), checksums_.size() * sizeof(uint64_t));
  return absl::OkStatus();
}

absl::Status PrefixFileReader::ReadPage(int64_t page_idx, std::span<std::byte> out) const {
  const uint64_t offset = spec_.FrontBytes() + static_cast<uint64_t>(page_idx) * spec_.page_bytes;
  PENSTOCK_RETURN_IF_ERROR(PreadFully(fd_, out, offset, path_));
  if (ChecksumOf(out, page_idx) == checksums_[static_cast<size_t>(page_idx)]) return absl::OkStatus();
  return IoError("{}: wrong checksum of page {}", path_, page_idx);
}

}  // namespace penstock
