// Random choices of a test, the same for the same seed.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <random>
#include <vector>

namespace penstock {

class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}
  template <typename T>
  T From(std::initializer_list<T> values) {
    return values.begin()[random_() % values.size()];
  }
  template <typename T>
  T From(const std::vector<T>& values) {
    return values[random_() % values.size()];
  }
  bool Coin() { return random_() % 2 == 0; }
  uint64_t Below(uint64_t bound) { return random_() % bound; }

 private:
  std::mt19937_64 random_;
};

}  // namespace penstock
