// Kernels that process rows element by element: normalisation, rotation, SwiGLU, combine and conversions.
#pragma once

#include "penstock/kernels/cpu/exp-inl.h"
#include "penstock/kernels/kernel_table.h"

namespace penstock::kernels {
namespace {

// Calls `piece(offset, 16)` for each full piece of 16 elements, then once for the rest, if any. The constant count lets
// the compiler drop the masks from the full pieces.
template <class Piece>
inline void ForEachPiece(int64_t count, const Piece& piece) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) piece(i, int64_t{16});
  if (i < count) piece(i, count - i);
}

template <class V>
inline V LoadUpTo16(const float* source, int64_t count) {
  return count == 16 ? V::Load(source) : V::LoadPartial(source, count, 0);
}
template <class V>
inline void StoreUpTo16(const V& value, float* target, int64_t count) {
  if (count == 16) {
    value.Store(target);
  } else {
    value.StorePartial(target, count);
  }
}

template <class V, Norm kNorm>
void NormRow(const NormArgs& args, const float* x, float* out) {
  const float mean = kNorm == Norm::kLayer ? SumOf<V>(x, args.dim) / static_cast<float>(args.dim) : 0;
  const auto centred = [&](int64_t i, int64_t count) {  // zeros beyond the row's end
    const V piece = count == 16 ? V::Load(x + i) : V::LoadPartial(x + i, count, mean);
    return kNorm == Norm::kLayer ? Sub(piece, V::Set(mean)) : piece;
  };
  V squares = V::Zero();
  ForEachPiece(args.dim, [&](int64_t i, int64_t count) {
    const V piece = centred(i, count);
    squares = Fma(piece, piece, squares);
  });
  const V scale = V::Set(1.0f / __builtin_sqrtf(squares.ReduceAdd() / static_cast<float>(args.dim) + args.eps));
  ForEachPiece(args.dim, [&](int64_t i, int64_t count) {
    V value = Mul(centred(i, count), scale);
    if (args.weight != nullptr) value = Mul(value, LoadUpTo16<V>(args.weight + i, count));
    if (args.bias != nullptr) value = Add(value, LoadUpTo16<V>(args.bias + i, count));
    StoreUpTo16(value, out + i, count);
  });
}

template <class V>
void NormRows(const NormArgs& args) {
  for (int64_t row = 0; row < args.num_rows; ++row) {
    const float* x = args.x + row * args.x_stride;
    float* out = args.out + row * args.out_stride;
    args.norm == Norm::kRms ? NormRow<V, Norm::kRms>(args, x, out) : NormRow<V, Norm::kLayer>(args, x, out);
  }
}

template <class V>
void Rope(const RopeArgs& args) {
  const int64_t half = args.rotary_dim / 2;
  for (int64_t head = 0; head < args.num_heads; ++head) {
    float* first = args.x + head * args.head_stride;
    if (args.is_interleaved) {
      for (int64_t i = 0; i < half; ++i) {
        const float a = first[2 * i], b = first[2 * i + 1];
        first[2 * i] = a * args.cos[i] - b * args.sin[i];
        first[2 * i + 1] = b * args.cos[i] + a * args.sin[i];
      }
      continue;
    }
    float* second = first + half;
    ForEachPiece(half, [&](int64_t i, int64_t count) {
      const V a = LoadUpTo16<V>(first + i, count);
      const V b = LoadUpTo16<V>(second + i, count);
      const V cos = LoadUpTo16<V>(args.cos + i, count);
      const V sin = LoadUpTo16<V>(args.sin + i, count);
      StoreUpTo16(Sub(Mul(a, cos), Mul(b, sin)), first + i, count);
      StoreUpTo16(Add(Mul(b, cos), Mul(a, sin)), second + i, count);
    });
  }
}

template <class V>
void Swiglu(const SwigluArgs& args) {
  const GluRule& rule = args.rule;
  for (int64_t row = 0; row < args.num_rows; ++row) {
    const float* gate = args.gate + row * args.gate_stride;
    const float* up = args.up + row * args.up_stride;
    float* out = args.out + row * args.out_stride;
    ForEachPiece(args.dim, [&](int64_t i, int64_t count) {
      V g = LoadUpTo16<V>(gate + i, count);
      V u = LoadUpTo16<V>(up + i, count);
      V exponent = Sub(V::Zero(), g);
      if (!rule.is_plain()) {
        if (rule.limit > 0) {
          g = Min(V::Set(rule.limit), g);
          u = Min(V::Set(rule.limit), Max(V::Set(-rule.limit), u));
        }
        V x = g;
        if (rule.cubic != 0) x = Fma(Mul(Mul(g, g), g), V::Set(rule.cubic), g);
        exponent = Sub(V::Zero(), Mul(V::Set(rule.alpha), x));
        u = Add(u, V::Set(rule.up_offset));
      }
      V activated = Div(g, Add(V::Set(1), Exp(exponent)));
      if (rule.output_limit > 0) {
        const V limit = V::Set(rule.output_limit);
        activated = Min(limit, activated);
        u = Min(limit, Max(V::Set(-rule.output_limit), u));
      }
      StoreUpTo16(Mul(activated, u), out + i, count);
    });
  }
}

template <class V>
void SoftCap(float cap, int64_t count, float* x) {
  const V twice = V::Set(2 * cap), whole = V::Set(cap), one = V::Set(1), factor = V::Set(2 / cap);
  ForEachPiece(count, [&](int64_t i, int64_t piece) {
    const V value = LoadUpTo16<V>(x + i, piece);
    StoreUpTo16(Sub(whole, Div(twice, Add(one, Exp(Mul(value, factor))))), x + i, piece);
  });
}

template <class V>
void Combine(const CombineArgs& args) {
  for (int64_t row = 0; row < args.num_rows; ++row) {
    const int64_t* assignments = args.assignments + row * args.num_topk;
    const float* weights = args.weights + row * args.num_topk;
    const float* residual = args.residual + row * args.residual_stride;
    float* y = args.y + row * args.y_stride;
    ForEachPiece(args.dim, [&](int64_t i, int64_t count) {
      V sum = V::Zero();
      for (int64_t j = 0; j < args.num_topk; ++j) {
        sum = Fma(V::Set(weights[j]), LoadUpTo16<V>(args.z + assignments[j] * args.z_stride + i, count), sum);
      }
      StoreUpTo16(Add(LoadUpTo16<V>(residual + i, count), Mul(V::Set(args.scale), sum)), y + i, count);
    });
  }
}

template <class V>
void AddTo(const float* source, float scale, int64_t count, float* target) {
  ForEachPiece(count, [&](int64_t i, int64_t piece) {
    const V scaled = Mul(V::Set(scale), LoadUpTo16<V>(source + i, piece));
    StoreUpTo16(Add(LoadUpTo16<V>(target + i, piece), scaled), target + i, piece);
  });
}

template <class V>
void ToBf16(const float* source, int64_t count, BF16* target) {
  ForEachPiece(count, [&](int64_t i, int64_t piece) {
    const V x = LoadUpTo16<V>(source + i, piece);
    if (piece == 16) {
      x.StoreBf16(target + i);
    } else {
      x.StorePartialBf16(target + i, piece);
    }
  });
}

template <class V, Dtype kDtype>
void WidenTo(const std::byte* source, int64_t count, float* target) {
  constexpr int64_t kSize = kDtype == Dtype::kF32 ? 4 : 2;
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) V::template LoadAs<kDtype>(source + i * kSize).Store(target + i);
  if (i < count) V::template LoadPartialAs<kDtype>(source + i * kSize, count - i).StorePartial(target + i, count - i);
}

template <class V>
void ToF32(Dtype dtype, const std::byte* source, int64_t count, float* target) {
  switch (dtype) {
    case Dtype::kF32: return WidenTo<V, Dtype::kF32>(source, count, target);
    case Dtype::kF16: return WidenTo<V, Dtype::kF16>(source, count, target);
    case Dtype::kBF16: return WidenTo<V, Dtype::kBF16>(source, count, target);
    default: return;  // codes
  }
}

}  // namespace
}  // namespace penstock::kernels
