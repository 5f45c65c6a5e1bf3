#include "penstock/tokenizer/charsmap.h"

#include "penstock/base/status.h"
#include "penstock/base/text.h"

namespace penstock {
namespace {

// A unit of the trie: its label, the place of its children (found by exclusive or), and whether a value is there.
struct Unit {
  uint32_t bits;

  uint32_t label() const { return bits & 0x800000FF; }
  uint32_t offset() const { return (bits & 0x200) != 0 ? (bits >> 10) << 8 : bits >> 10; }
  bool has_value() const { return (bits & 0x100) != 0; }
  uint32_t value() const { return bits & 0x7FFFFFFF; }
};

uint32_t ReadUint32(std::string_view bytes, size_t pos) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value |= static_cast<uint32_t>(static_cast<uint8_t>(bytes[pos + i])) << (8 * i);
  return value;
}

}  // namespace

absl::StatusOr<Charsmap> Charsmap::Parse(std::string_view bytes, std::string_view where) {
  if (bytes.size() < 4) return ModelError("{}: a precompiled map of {} bytes is truncated", where, bytes.size());
  const size_t trie_bytes = ReadUint32(bytes, 0);
  if (trie_bytes % 4 != 0 || trie_bytes == 0 || trie_bytes > bytes.size() - 4) {
    return ModelError("{}: the precompiled map says that its trie has {} bytes, but {} are left", where, trie_bytes,
                      bytes.size() - 4);
  }
  Charsmap map;
  map.units_.reserve(trie_bytes / 4);
  for (size_t pos = 4; pos < 4 + trie_bytes; pos += 4) map.units_.push_back(ReadUint32(bytes, pos));
  map.replacements_ = bytes.substr(4 + trie_bytes);
  if (!IsUtf8(map.replacements_)) return ModelError("{}: replacements of the precompiled map are not UTF-8", where);
  if (!map.replacements_.empty() && map.replacements_.back() != '\0') {
    return ModelError("{}: the last replacement of the precompiled map does not end", where);
  }
  for (size_t begin = 0; begin < map.replacements_.size();) {
    const size_t end = map.replacements_.find('\0', begin);
    if (end - begin > kMaxReplacementBytes) {
      return ModelError("{}: a replacement of the precompiled map has {} bytes, the limit is {}", where, end - begin,
                        kMaxReplacementBytes);
    }
    begin = end + 1;
  }
  return map;
}

// A place outside the arrays ends the search, so a malicious map cannot cause a read out of bounds.
Charsmap::Match Charsmap::Find(std::string_view text, bool shortest) const {
  Match found;
  size_t node = Unit{units_[0]}.offset();
  for (size_t i = 0; i < text.size() && text[i] != '\0'; ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    node ^= byte;
    if (node >= units_.size() || Unit{units_[node]}.label() != byte) break;
    const Unit unit{units_[node]};
    node ^= unit.offset();
    if (!unit.has_value()) continue;
    if (node >= units_.size()) break;
    const size_t begin = Unit{units_[node]}.value();
    if (begin >= replacements_.size() || (static_cast<uint8_t>(replacements_[begin]) & 0xC0) == 0x80) break;
    found = {i + 1, std::string_view(replacements_).substr(begin, replacements_.find('\0', begin) - begin)};
    if (shortest) break;
  }
  return found;
}

}  // namespace penstock
