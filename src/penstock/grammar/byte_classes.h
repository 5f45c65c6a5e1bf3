// Classes of bytes, as bits: what texts consist of, by what formats tell apart.
#pragma once

#include <cstdint>

namespace penstock::grammar {

using ByteClasses = uint16_t;

inline constexpr ByteClasses kWideClass = 1 << 14;   // whole characters beyond ASCII, in UTF-8
inline constexpr ByteClasses kOtherClass = 1 << 15;  // other bytes

// Returns the class of a byte of ASCII.
ByteClasses ClassOf(uint8_t ascii);

}  // namespace penstock::grammar
