// Kernels of gated DeltaNet: the short convolution, the gates, and the delta rule on one head's state.
#pragma once

#include "penstock/kernels/cpu/exp-inl.h"
#include "penstock/kernels/cpu/rows-inl.h"
#include "penstock/kernels/kernel_table.h"

namespace penstock::kernels {
namespace {

template <class V>
V Sigmoid(V x) {
  return Div(V::Set(1), Add(V::Set(1), Exp(Sub(V::Zero(), x))));
}

template <class V>
void ShortConv(const ShortConvArgs& args) {
  const int64_t num_kept = args.width - 1;
  ForEachPiece(args.num_channels, [&](int64_t channel, int64_t count) {
    V kept[kMaxConvWidth];  // the inputs before the row, the oldest first
    for (int64_t i = 0; i < num_kept; ++i) {
      kept[i] = LoadUpTo16<V>(args.state + i * args.state_stride + channel, count);
    }
    for (int64_t row = 0; row < args.num_rows; ++row) {
      float* x = args.x + row * args.x_stride + channel;
      const V input = LoadUpTo16<V>(x, count);
      V sum = V::Zero();
      for (int64_t i = 0; i < num_kept; ++i) {
        sum = Fma(LoadUpTo16<V>(args.weight + i * args.weight_stride + channel, count), kept[i], sum);
        kept[i] = i + 1 < num_kept ? kept[i + 1] : input;
      }
      sum = Fma(LoadUpTo16<V>(args.weight + num_kept * args.weight_stride + channel, count), input, sum);
      StoreUpTo16(Mul(sum, Sigmoid(sum)), x, count);
    }
    for (int64_t i = 0; i < num_kept; ++i) {
      StoreUpTo16(kept[i], args.state + i * args.state_stride + channel, count);
    }
  });
}

// log(1 + exp(x)) = max(x, 0) + log(1 + y) with y = exp(-|x|), and log(1 + y) = 2 artanh(z) with z = y / (2 + y) <=
// 1/3.
template <class V>
V Softplus(V x) {
  const V y = Exp(Sub(V::Zero(), x.Abs()));
  const V z = Div(y, Add(V::Set(2), y)), z2 = Mul(z, z);
  V sum = V::Set(1.0f / 13);
  sum = Fma(sum, z2, V::Set(1.0f / 11));
  sum = Fma(sum, z2, V::Set(1.0f / 9));
  sum = Fma(sum, z2, V::Set(1.0f / 7));
  sum = Fma(sum, z2, V::Set(1.0f / 5));
  sum = Fma(sum, z2, V::Set(1.0f / 3));
  sum = Fma(sum, z2, V::Set(1.0f));
  return Fma(Add(z, z), sum, Max(V::Zero(), x));
}

template <class V>
void DeltaGates(const DeltaGatesArgs& args) {
  ForEachPiece(args.num_heads, [&](int64_t head, int64_t count) {
    StoreUpTo16(Sigmoid(LoadUpTo16<V>(args.beta + head, count)), args.beta + head, count);
    const V step = Softplus(Add(LoadUpTo16<V>(args.decay + head, count), LoadUpTo16<V>(args.decay_bias + head, count)));
    const V rate = Exp(LoadUpTo16<V>(args.decay_log + head, count));
    StoreUpTo16(Exp(Sub(V::Zero(), Mul(rate, step))), args.decay + head, count);
  });
}

// Computes 16 * (kVecs - 1) + `tail` columns of the state, from `col` on.
template <class V, int kVecs>
void DeltaColumns(const DeltaRuleArgs& args, int64_t col, int64_t tail) {
  const auto count_of = [=](int i) { return i + 1 < kVecs ? int64_t{16} : tail; };
  float* const state = args.state + col;
  V of_key[kVecs], of_query[kVecs];  // S^T k and S^T q of the next row
  const auto clear = [&] {
    for (int i = 0; i < kVecs; ++i) of_key[i] = of_query[i] = V::Zero();
  };
  clear();
  for (int64_t dim = 0; dim < args.key_dim; ++dim) {
    const V k = V::Set(args.k[dim]), q = V::Set(args.q[dim]);
    for (int i = 0; i < kVecs; ++i) {
      const V s = LoadUpTo16<V>(state + dim * args.value_dim + 16 * i, count_of(i));
      of_key[i] = Fma(k, s, of_key[i]);
      of_query[i] = Fma(q, s, of_query[i]);
    }
  }
  for (int64_t row = 0; row < args.num_rows; ++row) {
    const V decay = V::Set(args.decay[row * args.gate_stride]), beta = V::Set(args.beta[row * args.gate_stride]);
    const float* k = args.k + row * args.k_stride;
    const float* q = args.q + row * args.k_stride;
    V products = V::Zero();
    ForEachPiece(args.key_dim, [&](int64_t i, int64_t count) {
      products = Fma(V::LoadPartial(k + i, count, 0), V::LoadPartial(q + i, count, 0), products);
    });
    const V key_query = V::Set(products.ReduceAdd());
    V delta[kVecs];
    for (int i = 0; i < kVecs; ++i) {
      const V v = LoadUpTo16<V>(args.v + row * args.v_stride + col + 16 * i, count_of(i));
      delta[i] = Mul(Sub(v, Mul(decay, of_key[i])), beta);
      StoreUpTo16(Fma(key_query, delta[i], Mul(decay, of_query[i])), args.out + row * args.out_stride + col + 16 * i,
                  count_of(i));
    }
    clear();
    // One walk through the state changes it and sums it up for the next row.
    const int64_t next = row + 1 < args.num_rows ? args.k_stride : 0;
    for (int64_t dim = 0; dim < args.key_dim; ++dim) {
      const V own = V::Set(k[dim]), next_k = V::Set(k[next + dim]), next_q = V::Set(q[next + dim]);
      for (int i = 0; i < kVecs; ++i) {
        float* place = state + dim * args.value_dim + 16 * i;
        const V s = Fma(own, delta[i], Mul(decay, LoadUpTo16<V>(place, count_of(i))));
        StoreUpTo16(s, place, count_of(i));
        of_key[i] = Fma(next_k, s, of_key[i]);
        of_query[i] = Fma(next_q, s, of_query[i]);
      }
    }
  }
}

template <class V>
void DeltaRule(const DeltaRuleArgs& args) {
  constexpr int kVecs = 4;  // a state of 128 x 64 floats nearly fits into the first cache
  int64_t col = 0;
  for (; col + 16 * kVecs <= args.value_dim; col += 16 * kVecs) DeltaColumns<V, kVecs>(args, col, 16);
  for (; col < args.value_dim; col += 16) {
    DeltaColumns<V, 1>(args, col, args.value_dim - col < 16 ? args.value_dim - col : 16);
  }
}

template <class V>
void ScaleBySigmoid(const float* gate, int64_t count, float* target) {
  ForEachPiece(count, [&](int64_t i, int64_t piece) {
    StoreUpTo16(Mul(LoadUpTo16<V>(target + i, piece), Sigmoid(LoadUpTo16<V>(gate + i, piece))), target + i, piece);
  });
}

}  // namespace
}  // namespace penstock::kernels
