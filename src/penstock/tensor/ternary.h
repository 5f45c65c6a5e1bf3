// Five digits to base 3 in a byte: the byte is 256 / 243 of the number that they make, rounded up. So digits are read
// from the first on: a digit is the whole part of 3 / 256 of the byte, and what is left is 3 times the byte, modulo
// 256.
#pragma once

#include <cstdint>
#include <span>

namespace penstock {

inline constexpr int kDigitsOfByte = 5;

constexpr uint8_t ByteOfDigits(std::span<const uint8_t, kDigitsOfByte> digits) {
  int number = 0;
  for (const uint8_t digit : digits) number = 3 * number + digit;
  return static_cast<uint8_t>((256 * number + 242) / 243);
}

// REQUIRES: 0 <= index < kDigitsOfByte.
constexpr uint8_t DigitOf(uint8_t byte, int index) {
  for (; index > 0; --index) byte = static_cast<uint8_t>(3 * byte);
  return static_cast<uint8_t>(3 * byte >> 8);
}

}  // namespace penstock
