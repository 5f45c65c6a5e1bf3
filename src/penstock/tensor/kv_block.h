// The layout of K and V in the KV cache: where a page holds its tokens' K and V for one KV head of one layer.
#pragma once

#include <cstdint>

#include "penstock/formats.h"

namespace penstock {

// kInt8: codes in [-127, 127] and one f32 scale for each K and each V, max |x| / 127. A K or V that has an infinity or
// a NaN gets codes 0 and the scale NaN. Codes of K are stored plus kKvCodeOffset, as GEMMs store the codes of weights.

// The number of tokens in a KV page.
inline constexpr int64_t kKvPageTokens = 16;

inline constexpr int kKvCodeOffset = 128;

// In an unnamed namespace because kernels include it: each unit compiles its own copy for its own instruction set.
namespace {

// A block holds K, then V, then (kInt8 only) the scales of K and V, one for each token. K has one token in each lane of
// a vector: [head_dim, kKvPageTokens], or for kInt8 [head_dim / 4, kKvPageTokens, 4]. V is [kKvPageTokens, padded_dim],
// with zeros beyond value_dim(). In a compressed cache (MLA), V is the first values_in_key dimensions of K, and the
// block
//
// If rows attend to a few chosen positions, a compressed block is by token: K is [kKvPageTokens, padded head_dim], so
// that a token's K can be read alone. GatherKvArgs puts the blocks of chosen tokens together.
struct KvBlock {
  KvFormat format;
  int64_t head_dim;           // dimensions of K
  int64_t values_in_key = 0;  // dimensions of K that are also V; 0: V is separate
  bool is_by_token = false;   // needs values_in_key
  int64_t own_values = 0;     // dimensions of a separate V; 0: head_dim

  constexpr int64_t size() const { return format == KvFormat::kF32 ? 4 : format == KvFormat::kBF16 ? 2 : 1; }
  constexpr int64_t value_dim() const {
    return values_in_key > 0 ? values_in_key : own_values > 0 ? own_values : head_dim;
  }
  constexpr int64_t padded_dim() const { return (value_dim() + 15) / 16 * 16; }  // of V
  // The dimensions of K that are stored together for all tokens.
  constexpr int64_t k_step_dims() const { return format == KvFormat::kInt8 ? 4 : 1; }
  constexpr int64_t k_step_bytes() const { return kKvPageTokens * k_step_dims() * size(); }
  constexpr int64_t token_bytes() const { return (head_dim + 15) / 16 * 16 * size(); }  // of K, if by token
  constexpr int64_t k_offset(int64_t dim, int64_t token) const {
    if (is_by_token) return token * token_bytes() + dim * size();
    return dim / k_step_dims() * k_step_bytes() + (token * k_step_dims() + dim % k_step_dims()) * size();
  }
  constexpr int64_t v_stride() const { return padded_dim() * size(); }  // bytes from one token to the next
  constexpr int64_t v_offset() const {
    if (is_by_token) return kKvPageTokens * token_bytes();
    return (head_dim + k_step_dims() - 1) / k_step_dims() * k_step_bytes();
  }
  constexpr int64_t k_scales_offset() const {
    return v_offset() + (values_in_key > 0 ? 0 : kKvPageTokens * v_stride());
  }
  constexpr int64_t v_scales_offset() const { return k_scales_offset() + kKvPageTokens * 4; }
  // Returns a multiple of 64.
  constexpr int64_t bytes() const {
    const int64_t num_scales = format != KvFormat::kInt8 ? 0 : values_in_key > 0 ? 1 : 2;
    const int64_t end = k_scales_offset() + num_scales * kKvPageTokens * 4;
    return (end + 63) / 64 * 64;
  }
};

}  // namespace
}  // namespace penstock
