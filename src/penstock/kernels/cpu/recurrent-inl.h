// Kernels of recurrent layers: the short convolution, the gates, and the rules that change a head's state.
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
    const V bias = args.bias == nullptr ? V::Zero() : LoadUpTo16<V>(args.bias + channel, count);
    for (int64_t row = 0; row < args.num_rows; ++row) {
      const V input = LoadUpTo16<V>(args.x + row * args.x_stride + channel, count);
      V sum = bias;
      for (int64_t i = 0; i < num_kept; ++i) {
        sum = Fma(LoadUpTo16<V>(args.weight + i * args.weight_stride + channel, count), kept[i], sum);
        kept[i] = i + 1 < num_kept ? kept[i + 1] : input;
      }
      sum = Fma(LoadUpTo16<V>(args.weight + num_kept * args.weight_stride + channel, count), input, sum);
      if (args.has_silu) sum = Mul(sum, Sigmoid(sum));
      StoreUpTo16(sum, args.out + row * args.out_stride + channel, count);
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
void RecurrentGates(const RecurrentGatesArgs& args) {
  const bool has_logs = args.decay_log != nullptr;
  const auto gate = [&](int64_t i, int64_t count, const V& log) {
    const V sum = Add(LoadUpTo16<V>(args.decay + i, count), LoadUpTo16<V>(args.decay_bias + i, count));
    if (args.decay_floor < 0) {
      return StoreUpTo16(Exp(Mul(V::Set(args.decay_floor), Sigmoid(Mul(Exp(log), sum)))), args.decay + i, count);
    }
    const V step = Softplus(sum);
    if (args.beta_is_step) StoreUpTo16(step, args.beta + i, count);
    StoreUpTo16(has_logs ? Exp(Sub(V::Zero(), Mul(Exp(log), step))) : step, args.decay + i, count);
  };
  if (!has_logs || args.decays_of_log == 1) {
    ForEachPiece(args.num_decays, [&](int64_t i, int64_t count) {
      gate(i, count, has_logs ? LoadUpTo16<V>(args.decay_log + i, count) : V::Zero());
    });
  } else {
    for (int64_t first = 0; first < args.num_decays; first += args.decays_of_log) {
      const V log = V::Set(args.decay_log[first / args.decays_of_log]);
      ForEachPiece(args.decays_of_log, [&](int64_t i, int64_t count) { gate(first + i, count, log); });
    }
  }
  if (args.beta_is_step) return;
  ForEachPiece(args.num_betas, [&](int64_t i, int64_t count) {
    StoreUpTo16(Sigmoid(LoadUpTo16<V>(args.beta + i, count)), args.beta + i, count);
  });
}

enum class StateRuleKind : uint8_t { kDelta, kDeltaOfDims, kNoDelta };

// Computes 16 * (kVecs - 1) + `tail` columns of the state, from `col` on.
template <class V, int kVecs, StateRuleKind kKind>
void StateColumns(const StateRuleArgs& args, int64_t col, int64_t tail) {
  constexpr bool kHasDelta = kKind != StateRuleKind::kNoDelta, kDecaysDims = kKind == StateRuleKind::kDeltaOfDims;
  const auto count_of = [=](int i) { return i + 1 < kVecs ? int64_t{16} : tail; };
  float* const state = args.state + col;
  V of_key[kVecs], of_query[kVecs];  // S^T k and S^T q of the next row
  const auto clear = [&] {
    for (int i = 0; i < kVecs; ++i) of_key[i] = of_query[i] = V::Zero();
  };
  // Adds a dim of the state to the sums of a row.
  const auto add = [&](int64_t row, int64_t dim, int i, const V& s) {
    float k = args.k[row * args.k_stride + dim], q = args.q[row * args.k_stride + dim];
    if constexpr (kDecaysDims) {
      const float decay = args.decay[row * args.decay_stride + dim];
      k *= decay;
      q *= decay;
    }
    if constexpr (kHasDelta) of_key[i] = Fma(V::Set(k), s, of_key[i]);
    of_query[i] = Fma(V::Set(q), s, of_query[i]);
  };
  clear();
  for (int64_t dim = 0; dim < args.key_dim; ++dim) {
    for (int i = 0; i < kVecs; ++i) {
      add(0, dim, i, LoadUpTo16<V>(state + dim * args.value_dim + 16 * i, count_of(i)));
    }
  }
  for (int64_t row = 0; row < args.num_rows; ++row) {
    const float* const decays = args.decay + row * args.decay_stride;
    const V decay = V::Set(kDecaysDims ? 1 : *decays), beta = V::Set(args.beta[row * args.beta_stride]);
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
      delta[i] = Mul(kHasDelta ? Sub(v, Mul(decay, of_key[i])) : v, beta);
      V out = Fma(key_query, delta[i], Mul(decay, of_query[i]));
      if constexpr (!kHasDelta) out = Fma(V::Set(args.skip), v, out);
      StoreUpTo16(out, args.out + row * args.out_stride + col + 16 * i, count_of(i));
    }
    clear();
    // One walk through the state changes it and sums it up for the next row.
    const int64_t next = row + 1 < args.num_rows ? row + 1 : row;
    for (int64_t dim = 0; dim < args.key_dim; ++dim) {
      const V own = V::Set(k[dim]), own_decay = kDecaysDims ? V::Set(decays[dim]) : decay;
      for (int i = 0; i < kVecs; ++i) {
        float* place = state + dim * args.value_dim + 16 * i;
        const V s = Fma(own, delta[i], Mul(own_decay, LoadUpTo16<V>(place, count_of(i))));
        StoreUpTo16(s, place, count_of(i));
        add(next, dim, i, s);
      }
    }
  }
}

template <class V, StateRuleKind kKind>
void RunStateRule(const StateRuleArgs& args) {
  constexpr int kVecs = 4;  // a state of 128 x 64 floats nearly fits into the first cache
  int64_t col = 0;
  for (; col + 16 * kVecs <= args.value_dim; col += 16 * kVecs) StateColumns<V, kVecs, kKind>(args, col, 16);
  for (; col < args.value_dim; col += 16) {
    StateColumns<V, 1, kKind>(args, col, args.value_dim - col < 16 ? args.value_dim - col : 16);
  }
}

template <class V>
void StateRule(const StateRuleArgs& args) {
  if (!args.has_delta) return RunStateRule<V, StateRuleKind::kNoDelta>(args);
  if (args.decays_dims) return RunStateRule<V, StateRuleKind::kDeltaOfDims>(args);
  RunStateRule<V, StateRuleKind::kDelta>(args);
}

template <class V>
void SelectiveScan(const SelectiveScanArgs& args) {
  ForEachPiece(args.value_dim, [&](int64_t col, int64_t count) {
    V state[kMaxScanDim], rate[kMaxScanDim];
    for (int64_t dim = 0; dim < args.key_dim; ++dim) {
      state[dim] = LoadUpTo16<V>(args.state + dim * args.value_dim + col, count);
      rate[dim] = Sub(V::Zero(), Exp(LoadUpTo16<V>(args.decay_log + dim * args.log_stride + col, count)));
    }
    const V skip = LoadUpTo16<V>(args.skip + col, count);
    for (int64_t row = 0; row < args.num_rows; ++row) {
      const V v = LoadUpTo16<V>(args.v + row * args.v_stride + col, count);
      const V step = LoadUpTo16<V>(args.step + row * args.v_stride + col, count), input = Mul(step, v);
      V sum = V::Zero();
      for (int64_t dim = 0; dim < args.key_dim; ++dim) {
        const V k = V::Set(args.k[row * args.k_stride + dim]), q = V::Set(args.q[row * args.k_stride + dim]);
        state[dim] = Fma(k, input, Mul(Exp(Mul(rate[dim], step)), state[dim]));
        sum = Fma(q, state[dim], sum);
      }
      StoreUpTo16(Fma(skip, v, sum), args.out + row * args.v_stride + col, count);
    }
    for (int64_t dim = 0; dim < args.key_dim; ++dim) {
      StoreUpTo16(state[dim], args.state + dim * args.value_dim + col, count);
    }
  });
}

template <class V>
void ScaleBySigmoid(const float* gate, int64_t count, float* target) {
  ForEachPiece(count, [&](int64_t i, int64_t piece) {
    StoreUpTo16(Mul(LoadUpTo16<V>(target + i, piece), Sigmoid(LoadUpTo16<V>(gate + i, piece))), target + i, piece);
  });
}

}  // namespace
}  // namespace penstock::kernels
