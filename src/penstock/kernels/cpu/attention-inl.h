// Attention of some consecutive positions over the pages of one KV head.
//
// The query heads of these positions share every read of K and V. The tiles and their order change only the speed. A
// head's result depends only on its own query, the positions that it attends to, and the law of sums.
#pragma once

#include "penstock/kernels/cpu/exp-inl.h"
#include "penstock/kernels/cpu/gemm/gemm-inl.h"
#include "penstock/kernels/cpu/prepare-inl.h"
#include "penstock/kernels/kernel_table.h"
#include "penstock/tensor/kv_block.h"

namespace penstock::kernels {
namespace {

template <class V, KvFormat kFormat>
[[gnu::always_inline]] inline V LoadKv(const std::byte* source) {
  if constexpr (kFormat == KvFormat::kF32) return V::template LoadAs<Dtype::kF32>(source);
  if constexpr (kFormat == KvFormat::kBF16) return V::template LoadAs<Dtype::kBF16>(source);
  if constexpr (kFormat == KvFormat::kInt8) return V::LoadSignedCodes(source);
}

// Calls put(element, its bytes) for 16 elements of a row at a time; those beyond head_dim are zeros.
template <class V, KvFormat kFormat, class Put>
void ForEachKvPiece(const float* source, int64_t dim, const CodeScale& scale, const Put& put) {
  alignas(64) std::byte piece[64];
  for (int64_t d = 0; d < dim; d += 16) {
    const V x = scale.is_used ? LoadOfGroup<V>(source, d, dim) : V::Zero();
    if constexpr (kFormat == KvFormat::kF32) x.Store(reinterpret_cast<float*>(piece));
    if constexpr (kFormat == KvFormat::kBF16) x.StoreBf16(reinterpret_cast<BF16*>(piece));
    if constexpr (kFormat == KvFormat::kInt8)
      Add(Mul(x, V::Set(scale.inverse)), V::Set(kRoundShift)).StoreLowBytes(piece);
    put(d, piece);
  }
}

// Calls body(IntConstant<n>, head) for tiles of kMax, 8, 4, 2 and 1 heads that together cover [first, end).
template <int kMax, class Body>
inline void ForHeadTiles(int64_t first, int64_t end, const Body& body) {
  for (; first + kMax <= end; first += kMax) body(IntConstant<kMax>{}, first);
  if constexpr (kMax > 1) ForHeadTiles<kMax == 12 ? 8 : kMax / 2>(first, end, body);
}

// The type that scores are summed in, and the type of a step of K for all tokens of a page.
template <class V, class Ints, KvFormat kFormat>
struct ScoreTypes {
  using Sum = V;
  using Step = V;
};
template <class V, class Ints>
struct ScoreTypes<V, Ints, KvFormat::kInt8> {
  using Sum = Ints;
  using Step = typename Ints::Codes;
};

// Holds queries, and multiplies them by keys. `Ints`: see ints_scalar-inl.h.
template <class V, class Ints, KvFormat kFormat>
class KeyProducts {
 public:
  // `scratch` [num_heads, head_dim in whole vectors].
  KeyProducts(int64_t num_heads, int64_t head_dim, float* scratch)
      : num_heads_(num_heads),
        head_dim_(head_dim),
        q_(scratch),
        codes_(reinterpret_cast<std::byte*>(scratch)),
        scales_(scratch + num_heads * ((head_dim + 15) / 16 * 16) / 4),
        offsets_(reinterpret_cast<int32_t*>(scales_ + num_heads)) {}

  // Prepares a query; for int8 K it becomes codes as well.
  void Prepare(int64_t head, const float* q) const {
    if constexpr (kFormat == KvFormat::kInt8) {
      const CodeScale scale = CodeScaleOf<V>(q, head_dim_);
      int32_t sum = 0;
      ForEachKvPiece<V, kFormat>(q, head_dim_, scale, [&](int64_t d, const std::byte* codes) {
        for (int64_t i = 0; i < 16; i += 4) {
          __builtin_memcpy(codes_ + ((d + i) / 4 * num_heads_ + head) * 4, codes + i, 4);
        }
        for (int64_t i = 0; i < 16; ++i) sum += static_cast<int8_t>(codes[i]);
      });
      scales_[head] = scale.scale;
      offsets_[head] = -kKvCodeOffset * sum;
    } else {
      for (int64_t d = 0; d < head_dim_; ++d) q_[d * num_heads_ + head] = q[d];
    }
  }

  // Calls put(h, i, products) with the products of query `head` + h and the tokens of block i. `next` are blocks to
  // prefetch.
  template <int kHeads, int kCount, class Put>
  [[gnu::always_inline]] void Tile(const KvBlock& block, const std::byte* const (&blocks)[kCount],
                                   const std::byte* const (&next)[kCount], int64_t head, const Put& put) const {
    constexpr bool kIsInt8 = kFormat == KvFormat::kInt8;
    typename ScoreTypes<V, Ints, kFormat>::Sum sums[kHeads][kCount];
    Unrolled<kCount>([&](auto i) __attribute__((always_inline)) {
      Unrolled<kHeads>([&](auto h) __attribute__((always_inline)) {
        if constexpr (kIsInt8) {
          sums[h][i] = Ints::StartInt8(reinterpret_cast<const std::byte*>(offsets_ + head + h));
        } else {
          sums[h][i] = V::Zero();
        }
      });
    });
    // Reads 4 bytes of each head: an element of its query, or four codes.
    const std::byte* q = reinterpret_cast<const std::byte*>(q_ + head);
    const int64_t q_stride = 4 * num_heads_;
    const int64_t k_bytes = block.v_offset();
    constexpr int64_t kStepBytes = KvBlock{kFormat, 0}.k_step_bytes();
#pragma GCC unroll 4
    for (int64_t k = 0; k < k_bytes; k += kStepBytes) {
      typename ScoreTypes<V, Ints, kFormat>::Step step[kCount];
      Unrolled<kCount>([&](auto i) __attribute__((always_inline)) {
        if constexpr (kIsInt8) {
          step[i] = Ints::Load(blocks[i] + k);
        } else {
          step[i] = LoadKv<V, kFormat>(blocks[i] + k);
        }
        __builtin_prefetch(next[i] + k);
      });
      Unrolled<kHeads>([&](auto h) __attribute__((always_inline)) {
        Unrolled<kCount>([&](auto i) __attribute__((always_inline)) {
          if constexpr (kIsInt8) {
            sums[h][i] = Ints::DotInt8(step[i], q + 4 * h, sums[h][i]);
          } else {
            sums[h][i] = Fma(V::Set(FloatAt(q + 4 * h)), step[i], sums[h][i]);
          }
        });
      });
      q += q_stride;
    }
    Unrolled<kCount>([&](auto i) __attribute__((always_inline)) {
      Unrolled<kHeads>([&](auto h) __attribute__((always_inline)) {
        V score;
        if constexpr (kIsInt8) {
          const V scale =
              Mul(V::template LoadAs<Dtype::kF32>(blocks[i] + block.k_scales_offset()), V::Set(scales_[head + h]));
          score = Mul(sums[h][i].template ToFloats<V>(), scale);
        } else {
          score = sums[h][i];
        }
        put(h, i, score);
      });
    });
  }

 private:
  int64_t num_heads_;
  int64_t head_dim_;
  float* q_;          // [head_dim, num_heads], or for int8 the next three
  std::byte* codes_;  // [padded head_dim / 4, num_heads, 4]
  float* scales_;     // [num_heads]
  int32_t* offsets_;  // [num_heads]: added to a product of codes, removes kKvCodeOffset
};

// The layout of the scratch memory, and the positions that each query head attends to.
struct AttentionLayout {
  int64_t num_heads;   // rows times group
  int64_t padded_key;  // head_dim in whole vectors
  int64_t padded_dim;  // of V
  int64_t base;        // the first position of the first page; scores are counted from here
  int64_t num_pages;
  int64_t stride;  // from one head's scores to the next's
  float* scores;   // [num_heads, stride]
  float* q;        // [num_heads, padded_key]: those of KeyProducts
  float* sums;     // [num_heads, padded_dim]: p . V
  float* totals;   // [num_heads]: sums of p
  float* values;   // [kKvPageTokens, padded_dim]: V of a page if V is a part of K

  explicit AttentionLayout(const AttentionArgs& args)
      : num_heads(args.num_rows * args.group),
        padded_key((args.head_dim + 15) / 16 * 16),
        padded_dim(KvBlock{args.kv_format, args.head_dim, args.values_in_key, false, args.value_dim}.padded_dim()),
        base(FirstPos(args, 0) / kKvPageTokens * kKvPageTokens),
        num_pages((EndPos(args, args.num_rows - 1) - base + kKvPageTokens - 1) / kKvPageTokens),
        stride((num_pages + 1) * kKvPageTokens),
        scores(args.scratch),
        q(scores + num_heads * stride),
        sums(q + num_heads * padded_key),
        totals(sums + num_heads * padded_dim),
        values(totals + num_heads) {}

  static int64_t FirstPos(const AttentionArgs& args, int64_t row) {
    const int64_t first = args.pos + row + 1 - args.window;
    if (args.window == 0) return args.first;
    return first > 0 ? first : 0;
  }
  static int64_t EndPos(const AttentionArgs& args, int64_t row) { return args.end > 0 ? args.end : args.pos + row + 1; }
};

// `Ints`: see ints_scalar-inl.h.
template <class V, class Ints, KvFormat kFormat>
class AttentionOf {
 public:
  explicit AttentionOf(const AttentionArgs& args)
      : args_(args),
        block_{kFormat, args.head_dim, args.values_in_key, false, args.value_dim},
        layout_(args),
        products_(layout_.num_heads, args.head_dim, layout_.q) {}

  void Run() const {
    for (int64_t head = 0; head < layout_.num_heads; ++head) {
      products_.Prepare(head, args_.q + head / args_.group * args_.q_stride + head % args_.group * args_.head_dim);
    }
    __builtin_memset(layout_.sums, 0, static_cast<size_t>(layout_.num_heads * layout_.padded_dim) * sizeof(float));
    int64_t page = 0;
    for (; page + kPages <= layout_.num_pages; page += kPages) Scores<kPages>(page);
    for (; page < layout_.num_pages; ++page) Scores<1>(page);
    ValuesAhead ahead = {*this, args_.values_in_key > 0 ? layout_.num_pages : 0, nullptr, nullptr};
    for (int64_t head = 0; head < layout_.num_heads; ++head) Softmax(head, ahead);
    // Positions that all rows attend to are added in tiles of all heads; the others row by row. The order is increasing
    // position.
    const int64_t last_row = args_.num_rows - 1;
    const int64_t shared_end = AttentionLayout::EndPos(args_, 0);
    const int64_t last_first = AttentionLayout::FirstPos(args_, last_row);
    const int64_t shared_first = last_first < shared_end ? last_first : shared_end;
    for (int64_t row = 0; row < last_row; ++row) AddRow(row, AttentionLayout::FirstPos(args_, row), shared_first);
    AddValues(0, layout_.num_heads, shared_first, shared_end);
    for (int64_t row = 1; row <= last_row; ++row) {
      const int64_t first = AttentionLayout::FirstPos(args_, row);
      AddRow(row, first > shared_end ? first : shared_end, AttentionLayout::EndPos(args_, row));
    }
    for (int64_t head = 0; head < layout_.num_heads; ++head) {
      float* out = args_.out + head / args_.group * args_.out_stride + head % args_.group * block_.value_dim();
      const float* sums = layout_.sums + head * layout_.padded_dim;
      for (int64_t d = 0; d < block_.value_dim(); ++d) out[d] = sums[d] / layout_.totals[head];
    }
  }

 private:
  static constexpr int64_t kSize = KvBlock{kFormat, 0}.size();
  static constexpr int kPages = V::kPanelVecs;  // pages that a tile of scores takes at once
  static constexpr int kDims = V::kPanelVecs;   // vectors of a V that a tile adds at once

  // Returns null beyond the last page.
  const std::byte* Block(int64_t page) const {
    return page < layout_.num_pages ? args_.pages[layout_.base / kKvPageTokens + page] + args_.head_offset_bytes
                                    : nullptr;
  }

  template <int kCount>
  void Scores(int64_t page) const {
    const std::byte* blocks[kCount];
    const std::byte* next[kCount];
    for (int i = 0; i < kCount; ++i) {
      blocks[i] = Block(page + i);
      next[i] = Block(page + kCount + i);
      if (next[i] == nullptr) next[i] = blocks[i];
    }
    ForHeadTiles<V::kPanelRows>(0, layout_.num_heads, [&](auto num_heads, int64_t head) {
      float* const scores = layout_.scores + head * layout_.stride + page * kKvPageTokens;
      products_.template Tile<num_heads.value, kCount>(
          block_, blocks, next, head, [&](int h, int i, const V& score) __attribute__((always_inline)) {
            score.Store(scores + h * layout_.stride + kKvPageTokens * i);
          });
    });
  }

  // Prefetches V, page by page, during the softmax, when memory would otherwise be idle.
  struct ValuesAhead {
    const AttentionOf& attention;
    int64_t page;
    const std::byte* next;
    const std::byte* end;

    // Prefetches two lines for 16 exponentials; four lines slow the cheaper formats down.
    [[gnu::always_inline]] void Ask() {
      if (next == end) {
        if (page == attention.layout_.num_pages) return;
        next = attention.Block(page++) + attention.block_.v_offset();
        end = next + kKvPageTokens * attention.block_.v_stride();
      }
      __builtin_prefetch(next, 0, 2);
      __builtin_prefetch(next + 64, 0, 2);
      next += 128;
    }
  };

  // Computes p of the positions that the head attends to, and their total. For int8, p includes the scale of V.
  void Softmax(int64_t head, ValuesAhead& ahead) const {
    const int64_t row = head / args_.group;
    const int64_t first = AttentionLayout::FirstPos(args_, row);
    const int64_t count = AttentionLayout::EndPos(args_, row) - first;
    float* scores = layout_.scores + head * layout_.stride;
    float* own = scores + (first - layout_.base);
    if (args_.bias != nullptr) AddBias(head % args_.group, first - (args_.pos + row), count, own);
    // A sink acts as one more position without a V. The stride has room for it.
    const bool has_sink = args_.sinks != nullptr;
    if (has_sink) own[count] = args_.sinks[head % args_.group] / args_.scale;
    ExpMinusMax<V>(own, count + (has_sink ? 1 : 0), args_.scale, [&] { ahead.Ask(); });
    layout_.totals[head] = SumOf<V>(own, count + (has_sink ? 1 : 0));
    if constexpr (kFormat == KvFormat::kInt8) {
      for (int64_t page = 0; page < layout_.num_pages; ++page) {
        float* p = scores + page * kKvPageTokens;
        const int64_t scales = args_.values_in_key > 0 ? block_.k_scales_offset() : block_.v_scales_offset();
        Mul(V::Load(p), V::template LoadAs<Dtype::kF32>(Block(page) + scales)).Store(p);
      }
    }
  }

  // Adds a head's biases to the scores of `count` positions, the first of which is `distance` away from the row.
  void AddBias(int64_t head, int64_t distance, int64_t count, float* scores) const {
    const int64_t reach = args_.bias_reach;
    const float* bias = args_.bias + head * (2 * reach + 1) + reach;
    int64_t i = 0;
    for (; i < count && distance + i < -reach; ++i) scores[i] += bias[-reach];
    for (; i < count && distance + i <= reach; ++i) scores[i] += bias[distance + i];
    for (; i < count; ++i) scores[i] += bias[reach];
  }

  void AddRow(int64_t row, int64_t first, int64_t end) const {
    if (first < end) AddValues(row * args_.group, (row + 1) * args_.group, first, end);
  }

  // Prefetches V of the next pages as GEMMs do (Prefetch): in alternation the second half of a page and the first half
  // of the page after it.
  struct NextValues {
    const std::byte* second_half;
    const std::byte* first_half;

    [[gnu::always_inline]] void Ask(int64_t num_bytes) {
      __builtin_prefetch(second_half);
      __builtin_prefetch(first_half);
      second_half += num_bytes;
      first_half += num_bytes;
    }
  };

  const std::byte* ValuesOr(int64_t page, const std::byte* other) const {
    const std::byte* block = Block(page);
    return (block == nullptr ? other : block) + block_.v_offset();
  }

  // sums += p . V of the positions [first, end) for the heads [first_head, end_head).
  void AddValues(int64_t first_head, int64_t end_head, int64_t first, int64_t end) const {
    for (int64_t pos = first; pos < end;) {
      const int64_t page = (pos - layout_.base) / kKvPageTokens;
      const int64_t page_end = layout_.base + (page + 1) * kKvPageTokens;
      const int64_t stop = page_end < end ? page_end : end;
      const int64_t first_token = (pos - layout_.base) % kKvPageTokens;
      const std::byte* block = Block(page);
      if (args_.values_in_key > 0) {
        ValuesOfKey(block);
        const auto* values = reinterpret_cast<const std::byte*>(layout_.values + first_token * layout_.padded_dim);
        AddPage<KvFormat::kF32>(first_head, end_head, {pos, stop}, values, {values, values});
      } else {
        AddPage<kFormat>(first_head, end_head, {pos, stop}, block + block_.v_offset() + first_token * block_.v_stride(),
                         {ValuesOr(page + 1, block) + 8 * block_.v_stride(), ValuesOr(page + 2, block)});
      }
      pos = stop;
    }
  }

  // Converts a page's V, which is a part of its K, to floats. For int8 the floats lack the scale, which p includes.
  void ValuesOfKey(const std::byte* block) const {
    for (int64_t dim = 0; dim < layout_.padded_dim; ++dim) {
      alignas(64) float tokens[kKvPageTokens] = {};
      if (dim < args_.values_in_key) {
        if constexpr (kFormat == KvFormat::kInt8) {
          for (int64_t token = 0; token < kKvPageTokens; ++token) {
            const auto code = static_cast<uint8_t>(block[block_.k_offset(dim, token)]);
            tokens[token] = static_cast<float>(static_cast<int>(code) - kKvCodeOffset);
          }
        } else {
          LoadKv<V, kFormat>(block + block_.k_offset(dim, 0)).Store(tokens);
        }
      }
      for (int64_t token = 0; token < kKvPageTokens; ++token) {
        layout_.values[token * layout_.padded_dim + dim] = tokens[token];
      }
    }
  }

  // Some positions of a page, for sums += p . V; `v` points to V of the first one.
  struct Positions {
    int64_t first;
    int64_t end;
  };
  template <KvFormat kValues>
  void AddPage(int64_t first_head, int64_t end_head, const Positions& positions, const std::byte* v,
               const NextValues& next) const {
    constexpr int64_t kValueSize = KvBlock{kValues, 0}.size();
    const int64_t count = positions.end - positions.first;
    ForHeadTiles<V::kPanelRows>(first_head, end_head, [&](auto num_heads, int64_t head) {
      const float* p = layout_.scores + head * layout_.stride + (positions.first - layout_.base);
      float* sums = layout_.sums + head * layout_.padded_dim;
      NextValues ahead = next;
      int64_t dim = 0;
      for (; dim + 16 * kDims <= layout_.padded_dim; dim += 16 * kDims) {
        ValuesTile<kValues, num_heads.value, kDims>(p, count, v + dim * kValueSize, ahead, sums + dim);
      }
      for (; dim < layout_.padded_dim; dim += 16) {
        ValuesTile<kValues, num_heads.value, 1>(p, count, v + dim * kValueSize, ahead, sums + dim);
      }
    });
  }

  template <KvFormat kValues, int kHeads, int kCount>
  void ValuesTile(const float* p, int64_t num_tokens, const std::byte* v, NextValues& ahead, float* stored) const {
    constexpr int64_t kValueSize = KvBlock{kValues, 0}.size();
    V sums[kHeads][kCount];
    Unrolled<kHeads>([&](auto h) __attribute__((always_inline)) {
      Unrolled<kCount>([&](auto i) __attribute__((always_inline)) {
        sums[h][i] = V::Load(stored + h * layout_.padded_dim + 16 * i);
      });
    });
    RowPointers<kHeads> weights(reinterpret_cast<const std::byte*>(p),
                                layout_.stride * static_cast<int64_t>(sizeof(float)));
    const int64_t v_stride = layout_.padded_dim * kValueSize;
    const std::byte* v_end = v + num_tokens * v_stride;
    NextValues asked = ahead;
#pragma GCC unroll 2
    for (; v != v_end; v += v_stride) {
      V step[kCount];
      Unrolled<kCount>([&](auto i)
                           __attribute__((always_inline)) { step[i] = LoadKv<V, kValues>(v + 16 * kValueSize * i); });
      asked.Ask(8 * kValueSize * kCount);
      Unrolled<kHeads>([&](auto h) __attribute__((always_inline)) {
        const V x = V::Set(FloatAt(weights[h]));
        Unrolled<kCount>([&](auto i) __attribute__((always_inline)) { sums[h][i] = Fma(x, step[i], sums[h][i]); });
      });
      weights.Advance(sizeof(float));
    }
    ahead = asked;
    Unrolled<kHeads>([&](auto h) __attribute__((always_inline)) {
      Unrolled<kCount>([&](auto i) __attribute__((always_inline)) {
        sums[h][i].Store(stored + h * layout_.padded_dim + 16 * i);
      });
    });
  }

  const AttentionArgs& args_;
  KvBlock block_;
  AttentionLayout layout_;
  KeyProducts<V, Ints, kFormat> products_;
};

template <class V, class Ints, KvFormat kFormat>
void RunAttention(const AttentionArgs& args) {
  AttentionOf<V, Ints, kFormat>(args).Run();
}

template <class V, KvFormat kFormat>
void StoreKvAs(const StoreKvArgs& args) {
  const KvBlock block{kFormat, args.head_dim, args.values_in_key, args.is_by_token, args.value_dim};
  constexpr int64_t kSize = KvBlock{kFormat, 0}.size();
  CodeScale k_scale = {1, 1, true}, v_scale = {1, 1, true};
  if constexpr (kFormat == KvFormat::kInt8) {
    k_scale = CodeScaleOf<V>(args.k, args.head_dim);
    __builtin_memcpy(args.block + block.k_scales_offset() + 4 * args.token, &k_scale.scale, 4);
    if (args.values_in_key == 0) {
      v_scale = CodeScaleOf<V>(args.v, block.value_dim());
      __builtin_memcpy(args.block + block.v_scales_offset() + 4 * args.token, &v_scale.scale, 4);
    }
  }
  ForEachKvPiece<V, kFormat>(args.k, args.head_dim, k_scale, [&](int64_t d, const std::byte* piece) {
    const int64_t count = args.head_dim - d < 16 ? args.head_dim - d : 16;
    for (int64_t i = 0; i < count; ++i) {
      std::byte* target = args.block + block.k_offset(d + i, args.token);
      __builtin_memcpy(target, piece + i * kSize, kSize);
      if constexpr (kFormat == KvFormat::kInt8) *target ^= static_cast<std::byte>(kKvCodeOffset);
    }
  });
  if (args.values_in_key > 0) return;
  std::byte* v = args.block + block.v_offset() + args.token * block.v_stride();
  ForEachKvPiece<V, kFormat>(args.v, block.value_dim(), v_scale, [&](int64_t d, const std::byte* piece) {
    __builtin_memcpy(v + d * kSize, piece, 16 * kSize);
  });
}

template <class V>
void StoreKv(const StoreKvArgs& args) {
  switch (args.format) {
    case KvFormat::kF32: return StoreKvAs<V, KvFormat::kF32>(args);
    case KvFormat::kBF16: return StoreKvAs<V, KvFormat::kBF16>(args);
    case KvFormat::kInt8: return StoreKvAs<V, KvFormat::kInt8>(args);
  }
}

}  // namespace
}  // namespace penstock::kernels
