// Kernels of recurrent layers: the short convolution, the gates, and the rules that change a head's state.
#pragma once

#include <algorithm>

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

constexpr int64_t kCopiedDims = 256;  // the most dims of a state that are copied

enum class StateRuleKind : uint8_t { kDelta, kDeltaOfDims, kNoDelta };

// A row's key, query and decays.
struct StateRow {
  StateRow(const StateRuleArgs& args, int64_t row)
      : k(args.k + row * args.k_stride),
        q(args.q + row * args.k_stride),
        decays(args.decay + row * args.decay_stride) {}

  // Returns k^T q in each lane.
  template <class V>
  V KeyQuery(int64_t key_dim) const {
    V products = V::Zero();
    ForEachPiece(key_dim, [&](int64_t i, int64_t count) {
      products = Fma(V::LoadPartial(k + i, count, 0), V::LoadPartial(q + i, count, 0), products);
    });
    return V::Set(products.ReduceAdd());
  }

  const float *k, *q, *decays;
};

// S^T k and S^T q of a row.
template <class V, int kVecs, StateRuleKind kKind>
struct StateSums {
  void Clear() {
    for (int i = 0; i < kVecs; ++i) of_key[i] = of_query[i] = V::Zero();
  }
  // Adds a dim of the state.
  void Add(const StateRow& row, int64_t dim, const V* s) {
    V k = V::Set(row.k[dim]), q = V::Set(row.q[dim]);
    if constexpr (kKind == StateRuleKind::kDeltaOfDims) {
      const V decay = V::Set(row.decays[dim]);
      k = Mul(k, decay);
      q = Mul(q, decay);
    }
    for (int i = 0; i < kVecs; ++i) {
      if constexpr (kKind != StateRuleKind::kNoDelta) of_key[i] = Fma(k, s[i], of_key[i]);
      of_query[i] = Fma(q, s[i], of_query[i]);
    }
  }

  V of_key[kVecs], of_query[kVecs];
};

// Computes some columns of the state, from `col` on: 16 * kVecs, or with one vector `count`.
template <class V, int kVecs, StateRuleKind kKind>
void StateColumns(const StateRuleArgs& args, int64_t col, int64_t count) {
  constexpr bool kHasDelta = kKind != StateRuleKind::kNoDelta, kDecaysDims = kKind == StateRuleKind::kDeltaOfDims;
  const int64_t key_dim = args.key_dim, last_row = args.num_rows - 1;
  const int64_t lanes = kVecs > 1 ? 16 : count;
  // Many rows walk through a copy of the columns. In the state its dims are apart, and would share few sets of the
  // first cache.
  alignas(64) float copy[kCopiedDims * 16 * kVecs];
  const bool is_copied = last_row > 0 && key_dim <= kCopiedDims;
  float* const state = args.state + col;
  float* const kept = is_copied ? copy : state;
  const int64_t kept_stride = is_copied ? 16 * kVecs : args.value_dim;
  StateSums<V, kVecs, kKind> sums;  // of the next row
  sums.Clear();
  const StateRow first(args, 0);
  for (int64_t dim = 0; dim < key_dim; ++dim) {
    V s[kVecs];
    for (int i = 0; i < kVecs; ++i) {
      s[i] = LoadUpTo16<V>(state + dim * args.value_dim + 16 * i, lanes);
      if (is_copied) StoreUpTo16(s[i], kept + dim * kept_stride + 16 * i, lanes);
    }
    sums.Add(first, dim, s);
  }
  for (int64_t row = 0; row <= last_row; ++row) {
    const StateRow now(args, row), next(args, row < last_row ? row + 1 : row);
    const V decay = V::Set(kDecaysDims ? 1 : *now.decays), beta = V::Set(args.beta[row * args.beta_stride]);
    const V key_query = now.KeyQuery<V>(key_dim);
    V delta[kVecs];
    for (int i = 0; i < kVecs; ++i) {
      const V v = LoadUpTo16<V>(args.v + row * args.v_stride + col + 16 * i, lanes);
      delta[i] = Mul(kHasDelta ? Sub(v, Mul(decay, sums.of_key[i])) : v, beta);
      V out = Fma(key_query, delta[i], Mul(decay, sums.of_query[i]));
      if constexpr (!kHasDelta) out = Fma(V::Set(args.skip), v, out);
      StoreUpTo16(out, args.out + row * args.out_stride + col + 16 * i, lanes);
    }
    // One walk through the state changes it and sums it up for the next row.
    const auto walk = [&](float* target, int64_t stride, const auto& sum_up) {
      V own_decay = decay;  // GCC moves the result of a conditional expression through memory, with AVX2 slowly
      for (int64_t dim = 0; dim < key_dim; ++dim) {
        if constexpr (kDecaysDims) own_decay = V::Set(now.decays[dim]);
        const V own = V::Set(now.k[dim]);
        V s[kVecs];
        for (int i = 0; i < kVecs; ++i) {
          s[i] = Fma(own, delta[i], Mul(own_decay, LoadUpTo16<V>(kept + dim * kept_stride + 16 * i, lanes)));
        }
        for (int i = 0; i < kVecs; ++i) StoreUpTo16(s[i], target + dim * stride + 16 * i, lanes);
        sum_up(dim, s);
      }
    };
    sums.Clear();
    if (row == last_row) {
      walk(state, args.value_dim, [](int64_t, const V*) {});
    } else {
      walk(kept, kept_stride, [&](int64_t dim, const V* s) { sums.Add(next, dim, s); });
    }
  }
}

// Computes as many columns as whole groups of vectors have. Returns the first column that is left.
template <class V, int kVecs, StateRuleKind kKind>
int64_t ColumnGroups(const StateRuleArgs& args) {
  int64_t col = 0;
  for (; col + 16 * kVecs <= args.value_dim; col += 16 * kVecs) StateColumns<V, kVecs, kKind>(args, col, 16);
  return col;
}

template <class V, StateRuleKind kKind>
void RunStateRule(const StateRuleArgs& args) {
  // A row alone waits for memory, and takes long pieces of it. The copy of 128 dims for many rows is 16 KiB, half of a
  // small first cache.
  int64_t col = args.num_rows == 1 ? ColumnGroups<V, 4, kKind>(args) : ColumnGroups<V, 2, kKind>(args);
  for (; col < args.value_dim; col += 16) {
    StateColumns<V, 1, kKind>(args, col, std::min<int64_t>(args.value_dim - col, 16));
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
