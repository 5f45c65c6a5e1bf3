// The outputs of experts as they travel between ranks: f32, or rounded.
//
// Coded rows are packed one behind the other. A row of bf16 takes two bytes for each value. A row of int8 takes one
// byte for each value, and a scale in f32: the largest magnitude / 127.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "penstock/formats.h"

namespace penstock {

// Returns the bytes of a coded row of `dim` values.
int64_t OutputRowBytes(CommFormat format, int64_t dim);

// Writes rows of `dim` floats as codes. `codes` has OutputRowBytes() for each row. A row that is not finite becomes NaN
// in int8.
void EncodeOutputs(CommFormat format, std::span<const float> rows, int64_t dim, std::byte* codes);

// Turns codes at the beginning of the buffer `rows` into floats, in place. REQUIRES: dim >= 2.
void DecodeOutputs(CommFormat format, std::span<float> rows, int64_t dim);

// Rounds rows as if they had travelled.
void RoundOutputs(CommFormat format, std::span<float> rows, int64_t dim);

}  // namespace penstock
