// Decoders of GGUF's types IQ1 to IQ3, whose codes name entries of a codebook, and of the ternary TQ types. Each
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
