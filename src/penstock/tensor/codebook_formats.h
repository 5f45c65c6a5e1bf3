// Decoders of GGUF's types below 3 bits: codes that name entries of a codebook (IQ), and ternary weights (TQ). Each
// decodes one block of 256 weights; block_formats.h says how.
#pragma once

#include <cstddef>

namespace penstock {

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
