#include "penstock/grammar/byte_classes.h"

#include <string_view>

namespace penstock::grammar {

ByteClasses ClassOf(uint8_t ascii) {
  // Each of these has a class of its own, because strings and patterns often end with it.
  constexpr std::string_view kSingle = "\"\\\n.<' ,";
  if (const size_t found = kSingle.find(static_cast<char>(ascii)); found != std::string_view::npos) return 1 << found;
  constexpr int kLower = 8, kUpper = 9, kDigit = 10, kControl = 11, kSign = 12;
  const auto is_in = [&](char first, char last) { return ascii >= first && ascii <= last; };
  if (is_in('a', 'z')) return 1 << kLower;
  if (is_in('A', 'Z')) return 1 << kUpper;
  if (is_in('0', '9')) return 1 << kDigit;
  return ascii < 0x20 || ascii == 0x7F ? 1 << kControl : 1 << kSign;
}

}  // namespace penstock::grammar
