// Reads panels of GGUF's types IQ1 to IQ3, whose codes name entries of a codebook, and of the ternary TQ types
// (tensor/codebook_formats.cc says where a block has what). A word is 32 bits of each output.
//
// An entry is looked up for each output on its own, which takes longer than to read the codes of other formats.
// Therefore all 8 quads of a group are unpacked together, and always into chunks, also for one row.
#pragma once

#include "penstock/kernels/cpu/gemm/block_codes-inl.h"
#include "penstock/tensor/codebook_formats.h"

namespace penstock::kernels {
namespace {

#include "penstock/tensor/codebooks.inc"

// A codebook with four values in an entry: its bytes in words for gathers, and in planes for byte permutes.
template <size_t kSize>
struct BookOfFours {
  alignas(64) uint32_t words[kSize];
  alignas(64) uint8_t planes[4][kSize];
};
// A codebook with eight values in an entry, of which it holds the numbers, 2 bits each: 0 to 3 in the first plane.
template <size_t kSize>
struct BookOfEights {
  alignas(64) uint32_t words[kSize];
  alignas(64) uint8_t planes[2][kSize];
  uint8_t values[16];
};

template <size_t kSize>
constexpr BookOfFours<kSize> MakeBook(const uint16_t (&entries)[kSize], const uint8_t (&values)[8]) {
  BookOfFours<kSize> book{};
  for (size_t entry = 0; entry < kSize; ++entry) {
    for (int i = 0; i < 4; ++i) {
      const uint8_t value = values[entries[entry] >> 3 * i & 7];
      book.words[entry] |= uint32_t{value} << 8 * i;
      book.planes[i][entry] = value;
    }
  }
  return book;
}
template <size_t kSize>
constexpr BookOfEights<kSize> MakeBook(const uint16_t (&entries)[kSize], const uint8_t (&values)[3]) {
  BookOfEights<kSize> book{};
  for (size_t entry = 0; entry < kSize; ++entry) {
    book.words[entry] = entries[entry];
    book.planes[0][entry] = static_cast<uint8_t>(entries[entry] & 255);
    book.planes[1][entry] = static_cast<uint8_t>(entries[entry] >> 8);
  }
  for (int i = 0; i < 3; ++i) book.values[i] = values[i];
  return book;
}

// Eight times the number of a value of IQ1, whose codes count eighths.
constexpr uint8_t kIq1Eighths[] = {0, 8, 16};

constexpr auto kIq2XxsWords = MakeBook(kIq2XxsBook, kIq2Values);
constexpr auto kIq2XsWords = MakeBook(kIq2XsBook, kIq2Values);
constexpr auto kIq2SWords = MakeBook(kIq2SBook, kIq2Values);
constexpr auto kIq3XxsWords = MakeBook(kIq3XxsBook, kIq3XxsValues);
constexpr auto kIq3SWords = MakeBook(kIq3SBook, kIq3SValues);
constexpr auto kIq1Words = MakeBook(kIq1Book, kIq1Eighths);

template <class I>
[[gnu::always_inline]] inline typename I::Codes WordAt(const std::byte* words, int idx) {
  return I::Load(words + kQuadBytes * idx);
}
// Returns the numbers of the entries that byte n of each word names: its low 8 bits, and those above in `high`.
template <class I, int kHighBits, int kByte>
[[gnu::always_inline]] inline typename I::Codes NumbersOf(const typename I::Codes& low, const typename I::Codes& high) {
  const auto number = I::Field(low, 8 * kByte, 8);
  if constexpr (kHighBits == 0) return number;
  return I::Or(number, I::ShiftWordsLeft(I::Field(high, 8 * kByte, kHighBits), 8));
}

// Looks up the entries that the bytes of each word name: quad n are the four values of byte n.
template <class I, int kHighBits, size_t kSize>
[[gnu::always_inline]] inline void LookupFours(const BookOfFours<kSize>& book, const typename I::Codes& low,
                                               const typename I::Codes& high, typename I::Codes* quads) {
  static_assert(kSize == size_t{256} << kHighBits);
  if constexpr (I::kHasBytePermutes) {
    I::template LookupFours<kSize>(book.planes, low, high, quads);
  } else {
    Unrolled<4>([&](auto n) __attribute__((always_inline)) {
      quads[n] = I::Entries(book.words, NumbersOf<I, kHighBits, n>(low, high));
    });
  }
}
// As LookupFours; quads 2 n and 2 n + 1 are the eight values of byte n.
template <class I, int kHighBits, size_t kSize>
[[gnu::always_inline]] inline void LookupEights(const BookOfEights<kSize>& book, const typename I::Codes& low,
                                                const typename I::Codes& high, typename I::Codes (&quads)[8]) {
  static_assert(kSize == size_t{256} << kHighBits);
  if constexpr (I::kHasBytePermutes) {
    I::template LookupEights<kSize>(book.planes, book.values, low, high, quads);
  } else {
    Unrolled<4>([&](auto n) __attribute__((always_inline)) {
      const auto eight = I::Entries(book.words, NumbersOf<I, kHighBits, n>(low, high));
      quads[2 * n] = I::Lookup(book.values, I::template Spread<2>(eight, 0));
      quads[2 * n + 1] = I::Lookup(book.values, I::template Spread<2>(eight, 8));
    });
  }
}

// Gives the quads of a group their signs, a bit for each input in a word, and adds kOffset.
template <class I, int kOffset>
[[gnu::always_inline]] inline void AddSigns(const typename I::Codes& signs, typename I::Codes (&quads)[8]) {
  Unrolled<8>([&](auto i) __attribute__((always_inline)) {
    quads[i] = I::Subtract(I::Negate(quads[i], signs, 4 * i), -kOffset);
  });
}
// Returns the 32 signs of words with 4 x 7 of them.
template <class I>
[[gnu::always_inline]] inline typename I::Codes SignsOf(const typename I::Codes& words) {
  return I::EvenBits(I::template Spread<7>(words, 0));
}
// Returns a byte of each word in all its bytes.
template <class I, int kByte>
[[gnu::always_inline]] inline typename I::Codes InAllBytes(const typename I::Codes& words) {
  const auto one = I::Field(words, 8 * kByte, 8), two = I::Or(one, I::ShiftWordsLeft(one, 8));
  return I::Or(two, I::ShiftWordsLeft(two, 16));
}

// Returns a field of each word of 16 outputs as floats.
template <class V>
[[gnu::always_inline]] inline V FloatsOfField(const std::byte* words, int first, uint32_t mask) {
  Words16 own;
  __builtin_memcpy(&own, words, sizeof(own));
  return ToVec<V>(__builtin_convertvector((Ints16)(own >> first & mask), Floats16));
}
// Returns the nibbles of 16 bytes: the low ones for half 0.
template <class V>
[[gnu::always_inline]] inline V FloatsOfNibbles(const std::byte* source, int half) {
  return UnsignedFloats<V>(LoadBytes16(source) >> static_cast<uint8_t>(4 * half) & 15);
}

// The f16 scales of a block of 256, and the scales of its groups.
template <class V>
struct CodebookScales {
  V scale[kVecsPerPanel];
  const std::byte* block = nullptr;

  CodebookScales() = default;
  [[gnu::always_inline]] explicit CodebookScales(const std::byte* start) : block(start) {
    for (int v = 0; v < kVecsPerPanel; ++v) scale[v] = Halves<V>(block, v);
  }
  // Returns scale * (0.5 + code) * factor.
  [[gnu::always_inline]] V HalfSteps(int vec, V code, float factor) const {
    return Mul(Mul(scale[vec], Add(V::Set(0.5f), code)), V::Set(factor));
  }
  // Returns scale * (1 + 2 * code) * factor.
  [[gnu::always_inline]] V OddSteps(int vec, V code, float factor) const {
    return Mul(Mul(scale[vec], Add(V::Set(1), Mul(V::Set(2), code))), V::Set(factor));
  }
};

constexpr int64_t kBehindScale = 2 * kPanelCols;

template <class I>
struct BlockCodes<I, WeightFormat::kIq3_Xxs> {
  using V = typename I::Vec;
  static constexpr int kGroup = 32, kOffset = 62, kMaxCode = 2 * kOffset;
  static constexpr bool kHasMin = false;

  struct Scales : CodebookScales<V> {
    using CodebookScales<V>::CodebookScales;
    [[gnu::always_inline]] V Scale(int vec, int second, int group, int) const {
      const std::byte* words = this->block + kBehindScale + kQuadBytes * (16 + 4 * second + group) + 64 * vec;
      return this->HalfSteps(vec, FloatsOfField<V>(words, 28, 15), 0.5f);
    }
  };
  // Words 0 to 15: four entries; words 16 to 23: signs and scale of a group.
  [[gnu::always_inline]] static void Group(const std::byte* block, int second, int group,
                                           typename I::Codes (&quads)[8]) {
    const std::byte* words = block + kBehindScale;
    const int idx = 4 * second + group;
    Unrolled<2>([&](auto half) __attribute__((always_inline)) {
      const auto low = WordAt<I>(words, 2 * idx + half);
      LookupFours<I, 0>(kIq3XxsWords, low, low, quads + 4 * half);
    });
    AddSigns<I, kOffset>(SignsOf<I>(WordAt<I>(words, 16 + idx)), quads);
  }
};

template <class I>
struct BlockCodes<I, WeightFormat::kIq3_S> {
  using V = typename I::Vec;
  static constexpr int kGroup = 32, kOffset = 15, kMaxCode = 2 * kOffset;
  static constexpr bool kHasMin = false;

  struct Scales : CodebookScales<V> {
    using CodebookScales<V>::CodebookScales;
    [[gnu::always_inline]] V Scale(int vec, int second, int group, int) const {
      const std::byte* bytes = this->block + kBehindScale + 26 * kQuadBytes;
      return this->OddSteps(vec,
                            FloatsOfNibbles<V>(bytes + kPanelCols * (2 * second + group / 2) + 16 * vec, group % 2), 1);
    }
  };
  // Words 0 to 15: low bits of four entries; 16 and 17: high bits of 32; 18 to 25: signs of a group.
  [[gnu::always_inline]] static void Group(const std::byte* block, int second, int group,
                                           typename I::Codes (&quads)[8]) {
    const std::byte* words = block + kBehindScale;
    const int idx = 4 * second + group;
    const auto high = WordAt<I>(words, 16 + second);
    Unrolled<2>([&](auto half) __attribute__((always_inline)) {
      LookupFours<I, 1>(kIq3SWords, WordAt<I>(words, 2 * idx + half), I::template Spread<1>(high, 8 * group + 4 * half),
                        quads + 4 * half);
    });
    AddSigns<I, kOffset>(WordAt<I>(words, 18 + idx), quads);
  }
};

template <class I>
struct BlockCodes<I, WeightFormat::kIq2_Xxs> {
  using V = typename I::Vec;
  static constexpr int kGroup = 32, kOffset = 43, kMaxCode = 2 * kOffset;
  static constexpr bool kHasMin = false;

  struct Scales : CodebookScales<V> {
    using CodebookScales<V>::CodebookScales;
    [[gnu::always_inline]] V Scale(int vec, int second, int group, int) const {
      const std::byte* words = this->block + kBehindScale + kQuadBytes * (2 * (4 * second + group) + 1) + 64 * vec;
      return this->HalfSteps(vec, FloatsOfField<V>(words, 28, 15), 0.25f);
    }
  };
  // Two words of a group: four entries; signs and scale.
  [[gnu::always_inline]] static void Group(const std::byte* block, int second, int group,
                                           typename I::Codes (&quads)[8]) {
    const std::byte* words = block + kBehindScale + 2 * kQuadBytes * (4 * second + group);
    const auto low = WordAt<I>(words, 0);
    LookupEights<I, 0>(kIq2XxsWords, low, low, quads);
    AddSigns<I, kOffset>(SignsOf<I>(WordAt<I>(words, 1)), quads);
  }
};

// Scales of 16 inputs in nibbles behind `kNumWords` words.
template <class V, int kNumWords>
struct Iq2Scales : CodebookScales<V> {
  using CodebookScales<V>::CodebookScales;
  [[gnu::always_inline]] V Scale(int vec, int second, int group, int half) const {
    const std::byte* bytes = this->block + kBehindScale + kNumWords * kQuadBytes;
    return this->HalfSteps(vec, FloatsOfNibbles<V>(bytes + kPanelCols * (4 * second + group) + 16 * vec, half), 0.25f);
  }
};

template <class I>
struct BlockCodes<I, WeightFormat::kIq2_Xs> {
  using Scales = Iq2Scales<typename I::Vec, 16>;
  static constexpr int kGroup = 16, kOffset = 43, kMaxCode = 2 * kOffset;
  static constexpr bool kHasMin = false;

  // Each half of a word has the low bits of an entry, then its ninth bit and seven signs.
  [[gnu::always_inline]] static void Group(const std::byte* block, int second, int group,
                                           typename I::Codes (&quads)[8]) {
    const std::byte* words = block + kBehindScale + 2 * kQuadBytes * (4 * second + group);
    const auto first = WordAt<I>(words, 0), last = WordAt<I>(words, 1);
    const auto low = BytesOf<0>(first, last), high = BytesOf<8>(first, last);
    LookupEights<I, 1>(kIq2XsWords, low, I::And(high, 1), quads);
    AddSigns<I, kOffset>(I::EvenBits(I::And(I::ShiftRight(high, 1), 127)), quads);
  }

 private:
  // Returns one byte of each half word.
  template <int kFirst>
  [[gnu::always_inline]] static typename I::Codes BytesOf(const typename I::Codes& first,
                                                          const typename I::Codes& last) {
    const auto of_word = [](const typename I::Codes& word) __attribute__((always_inline)) {
      return I::Or(I::Field(word, kFirst, 8), I::ShiftWordsLeft(I::Field(word, kFirst + 16, 8), 8));
    };
    return I::Or(of_word(first), I::ShiftWordsLeft(of_word(last), 16));
  }
};

template <class I>
struct BlockCodes<I, WeightFormat::kIq2_S> {
  using Scales = Iq2Scales<typename I::Vec, 18>;
  static constexpr int kGroup = 16, kOffset = 43, kMaxCode = 2 * kOffset;
  static constexpr bool kHasMin = false;

  // Words 0 to 7: low bits of a group's entries; 8 to 15: its signs; 16 and 17: high bits of 16 entries.
  [[gnu::always_inline]] static void Group(const std::byte* block, int second, int group,
                                           typename I::Codes (&quads)[8]) {
    const std::byte* words = block + kBehindScale;
    const int idx = 4 * second + group;
    LookupEights<I, 2>(kIq2SWords, WordAt<I>(words, idx),
                       I::template Spread<2>(WordAt<I>(words, 16 + second), 8 * group), quads);
    AddSigns<I, kOffset>(WordAt<I>(words, 8 + idx), quads);
  }
};

// The codes of IQ1 count eighths. The values of an entry lie an eighth above those of the codebook, or below, where the
// file sets a bit.
constexpr int kIq1Offset = 9;
// Adds two eighths to both quads of byte kByte where bit 1 of this byte is set in `above`.
template <class I, int kByte>
[[gnu::always_inline]] inline void AddTwoEighths(const typename I::Codes& above, typename I::Codes (&quads)[8]) {
  const auto all = InAllBytes<I, kByte>(above);
  quads[2 * kByte] = I::Or(quads[2 * kByte], all);
  quads[2 * kByte + 1] = I::Or(quads[2 * kByte + 1], all);
}

template <class I>
struct BlockCodes<I, WeightFormat::kIq1_S> {
  using V = typename I::Vec;
  static constexpr int kGroup = 32, kOffset = kIq1Offset, kMaxCode = 2 * kOffset;
  static constexpr bool kHasMin = false;

  struct Scales : CodebookScales<V> {
    using CodebookScales<V>::CodebookScales;
    [[gnu::always_inline]] V Scale(int vec, int second, int group, int) const {
      const std::byte* words = this->block + kBehindScale + kQuadBytes * (8 + 2 * second + group / 2) + 64 * vec;
      return this->OddSteps(vec, FloatsOfField<V>(words, 16 * (group % 2) + 12, 7), 0.125f);
    }
  };
  // Words 0 to 7: low bits of a group's entries; 8 to 11: high bits, scales and places of two groups.
  [[gnu::always_inline]] static void Group(const std::byte* block, int second, int group,
                                           typename I::Codes (&quads)[8]) {
    const std::byte* words = block + kBehindScale;
    const int idx = 4 * second + group, first = 16 * (group % 2);
    const auto others = WordAt<I>(words, 8 + idx / 2);
    LookupEights<I, 3>(kIq1Words, WordAt<I>(words, idx), I::template Spread<3>(others, first), quads);
    const auto all = InAllBytes<I, 0>(I::ShiftWordsLeft(I::Field(I::Xor(others, 255), first + 15, 1), 1));
    Unrolled<8>([&](auto i) __attribute__((always_inline)) { quads[i] = I::Or(quads[i], all); });
  }
};

typedef uint16_t Halves16 __attribute__((vector_size(32)));
typedef uint16_t Halves32 __attribute__((vector_size(64)));

template <class I>
struct BlockCodes<I, WeightFormat::kIq1_M> {
  using V = typename I::Vec;
  static constexpr int kGroup = 16, kOffset = kIq1Offset, kMaxCode = 2 * kOffset;
  static constexpr bool kHasMin = false;

  // Four halves have 3 bits for each 16 inputs, and 4 bits of the f16 scale.
  struct Scales : CodebookScales<V> {
    Scales() = default;
    [[gnu::always_inline]] explicit Scales(const std::byte* start) {
      this->block = start + 12 * kQuadBytes;
      alignas(64) Halves32 bits = {};
      for (int i = 0; i < 4; ++i) {
        Halves32 own;
        __builtin_memcpy(&own, this->block + 2 * kPanelCols * i, sizeof(own));
        bits |= own >> 12 << static_cast<uint16_t>(4 * i);
      }
      for (int v = 0; v < kVecsPerPanel; ++v) this->scale[v] = Halves<V>(reinterpret_cast<const std::byte*>(&bits), v);
    }
    [[gnu::always_inline]] V Scale(int vec, int second, int group, int half) const {
      const std::byte* source = this->block + 2 * kPanelCols * (2 * second + group / 2) + 32 * vec;
      Halves16 own;
      __builtin_memcpy(&own, source, sizeof(own));
      own = own >> static_cast<uint16_t>(6 * (group % 2) + 3 * half) & 7;
      return this->OddSteps(vec, ToVec<V>(__builtin_convertvector(own, Floats16)), 0.125f);
    }
  };
  // Words 0 to 7: low bits of a group's entries; 8 to 11: high bits and places of two groups' entries.
  [[gnu::always_inline]] static void Group(const std::byte* block, int second, int group,
                                           typename I::Codes (&quads)[8]) {
    const int idx = 4 * second + group;
    const auto others = I::template Spread<4>(WordAt<I>(block, 8 + idx / 2), 16 * (group % 2));
    LookupEights<I, 3>(kIq1Words, WordAt<I>(block, idx), I::And(others, 7), quads);
    const auto above = I::And(I::ShiftRight(I::Xor(others, 8), 2), 2);
    Unrolled<4>([&](auto n) __attribute__((always_inline)) { AddTwoEighths<I, n>(above, quads); });
  }
};

template <class I>
struct BlockCodes<I, WeightFormat::kTq1_0> {
  using Scales = PlainScales<typename I::Vec>;
  static constexpr int kGroup = 32, kOffset = 1, kMaxCode = 2;
  static constexpr bool kHasMin = false;

  // Digit d of words 0 to 7 is a group, digit d of words 8 to 11 half a group. The last half has the digits of word 12.
  [[gnu::always_inline]] static void Group(const std::byte* block, int second, int group,
                                           typename I::Codes (&quads)[8]) {
    const int idx = 4 * second + group;
    Unrolled<8>([&](auto i) __attribute__((always_inline)) {
      const int sixteen = 2 * idx + i / 4;
      const int digit = idx < 5 ? idx : sixteen < 15 ? sixteen - 10 : i % 4;
      const int word = idx < 5 ? i.value : sixteen < 15 ? 8 + i % 4 : 12;
      auto codes = WordAt<I>(block + kBehindScale, word);
      for (int d = 0; d < digit; ++d) codes = I::Triple(codes);
      quads[i] = I::FirstDigit(codes);
    });
  }
};

template <class I>
struct BlockCodes<I, WeightFormat::kTq2_0> {
  using Scales = PlainScales<typename I::Vec>;
  static constexpr int kGroup = 32, kOffset = 1, kMaxCode = 3;
  static constexpr bool kHasMin = false;

  [[gnu::always_inline]] static void Group(const std::byte* block, int second, int group,
                                           typename I::Codes (&quads)[8]) {
    Unrolled<8>([&](auto i) __attribute__((always_inline)) {
      quads[i] = I::And(I::ShiftRight(WordAt<I>(block + kBehindScale, 8 * second + i), 2 * group), 3);
    });
  }
};

// Stores the codes of a group of a block of 256, without their offset if `kAsSigned`.
template <class I, class Codes, bool kAsSigned>
[[gnu::always_inline]] inline void StoreGroup(const std::byte* block, int group, std::byte* target) {
  for (int v = 0; v < kVecsPerPanel; ++v) {
    typename I::Codes quads[8];
    Codes::Group(block + 64 * v, group / 4, group % 4, quads);
    Unrolled<8>([&](auto i) __attribute__((always_inline)) {
      if constexpr (kAsSigned) quads[i] = I::Subtract(quads[i], Codes::kOffset);
      I::Store(quads[i], target + kQuadBytes * i + 64 * v);
    });
  }
}

}  // namespace
}  // namespace penstock::kernels
