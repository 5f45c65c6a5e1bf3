// Decoders of GGUF's types IQ1 to IQ3, whose codes name entries of a codebook, and of the ternary TQ types. Each
// decodes one block of 256 weights; block_formats.h says how.
#pragma once

#include <cstddef>
#include <cstdint>

#include "penstock/tensor/packed_matrix.h"

namespace penstock {

// Tells whether the format is one of them.
constexpr bool IsCodebookOrTernary(WeightFormat format) {
  switch (format) {
#define PENSTOCK_CODEBOOK_BLOCK_FORMAT(own, ...) case WeightFormat::k##own:
#include "penstock/tensor/weight_formats.def"
    return true;
    default: return false;
  }
}

// The values that the numbers of a codebook's entries name.
inline constexpr uint8_t kIq2Values[] = {8, 25, 43};
inline constexpr uint8_t kIq3XxsValues[] = {4, 12, 20, 28, 36, 44, 52, 62};
inline constexpr uint8_t kIq3SValues[] = {1, 3, 5, 7, 9, 11, 13, 15};

void DequantiseIq2_Xxs(const std::byte* source, float* target);
void DequantiseIq2_Xs(const std::byte* source, float* target);
void DequantiseIq2_S(const std::byte* source, float* target);
void DequantiseIq3_Xxs(const std::byte* source, float* target);
void DequantiseIq3_S(const std::byte* source, float* target);
void DequantiseIq1_S(const std::byte* source, float* target);
void DequantiseIq1_M(const std::byte* source, float* target);
void DequantiseTq1_0(const std::byte* source, float* target);
void DequantiseTq2_0(const std::byte* source, float* target);

}  // namespace penstock
