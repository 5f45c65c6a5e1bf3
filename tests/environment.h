// Numbers that the environment gives to random tests: PENSTOCK_TEST_COMBINATIONS, PENSTOCK_TEST_SEED.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>

namespace penstock {

inline uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::stoull(text);
}

}  // namespace penstock
