// The formats in which a model computes.
//
// Kernels include this header with the flags of every instruction set, so it defines nothing but these types.
#pragma once

#include <cstdint>

namespace penstock {

// kF32: weights as they are stored, activations in f32.
// kBF16: float weights of other types are rounded to bf16 when they are loaded. The inputs of the FFNs and of lm_head,
// which do nearly all the work, are rounded too. Attention, router and norms keep f32 inputs, because an error there
// can choose other experts (measured: docs/decisions/dtype.md). kBF16 is faster on CPUs with AVX512-BF16; logits are
// within 2e-2.
enum class ComputeDtype : uint8_t { kF32, kBF16 };

// How activations are multiplied by weights in block formats (GGUF's, MXFP4).
// kF32: the weights as floats, exactly as the file means them.
// kInt8: activations are rounded to codes, 128 with one scale, and multiplied by the weights' codes in integers.
// Several times as fast; docs/quantisation.md has its cost in perplexity. Stores packed in int8, hqq4 and hqq3 always
// take codes; weights in floats, FP8 and slow formats never do.
enum class ActivationFormat : uint8_t { kF32, kInt8 };

// Formats of KV entries. Per token, kBF16 takes half the memory of kF32, and kInt8 about a quarter.
enum class KvFormat : uint8_t { kF32, kBF16, kInt8 };

// The form in which the outputs of experts travel between ranks. kBF16 sends half as many bytes as kF32, and kInt8
// about a quarter. They round the outputs of all experts, also of those that do not travel. So answers do not depend on
// the number of ranks.
enum class CommFormat : uint8_t { kF32, kBF16, kInt8 };

}  // namespace penstock
