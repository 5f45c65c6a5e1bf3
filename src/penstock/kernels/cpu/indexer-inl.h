// Kernels of the lightning indexer (Indexer in model/model_config.h): scores of positions, the choice of the largest,
// and the KV entries of chosen positions.
#pragma once

#include "penstock/kernels/cpu/attention-inl.h"
#include "penstock/kernels/kernel_table.h"
#include "penstock/tensor/kv_block.h"

namespace penstock::kernels {
namespace {

// A tile's products are added to the scores of the heads before it, so a score has one accumulator.
template <class V, class Ints, KvFormat kFormat>
class IndexScoresOf {
 public:
  explicit IndexScoresOf(const IndexScoresArgs& args)
      : args_(args),
        block_{kFormat, args.head_dim, args.head_dim},
        products_(args.num_heads, args.head_dim, args.scratch) {}

  void Run() const {
    for (int64_t head = 0; head < args_.num_heads; ++head) products_.Prepare(head, args_.q + head * args_.head_dim);
    int64_t page = 0;
    for (; page + kPages <= args_.num_pages; page += kPages) Pages<kPages>(page);
    for (; page < args_.num_pages; ++page) Pages<1>(page);
  }

 private:
  static constexpr int kPages = V::kPanelVecs;

  template <int kCount>
  void Pages(int64_t page) const {
    const std::byte* blocks[kCount];
    const std::byte* next[kCount];
    for (int i = 0; i < kCount; ++i) {
      blocks[i] = args_.pages[page + i] + args_.block_offset_bytes;
      const int64_t ahead = page + kCount + i;
      next[i] = ahead < args_.num_pages ? args_.pages[ahead] + args_.block_offset_bytes : blocks[i];
    }
    V scores[kCount];
    for (V& score : scores) score = V::Zero();
    ForHeadTiles<V::kPanelRows>(0, args_.num_heads, [&](auto num_heads, int64_t head) {
      products_.template Tile<num_heads.value, kCount>(
          block_, blocks, next, head, [&](int h, int i, const V& product) __attribute__((always_inline)) {
            scores[i] = Fma(V::Set(args_.weights[head + h]), Max(product, V::Zero()), scores[i]);
          });
    });
    for (int i = 0; i < kCount; ++i) scores[i].Store(args_.scores + (page + i) * kKvPageTokens);
  }

  const IndexScoresArgs& args_;
  KvBlock block_;
  KeyProducts<V, Ints, kFormat> products_;
};

template <class V, class Ints, KvFormat kFormat>
void RunIndexScores(const IndexScoresArgs& args) {
  IndexScoresOf<V, Ints, kFormat>(args).Run();
}

// Returns a number that is larger for a larger score; 0 for NaN.
inline uint32_t OrderOf(float score) {
  if (score != score) return 0;
  const uint32_t bits = __builtin_bit_cast(uint32_t, score + 0.0f);  // -0 becomes 0
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}

// Finds the num_topk-th largest score, 11 bits of its order at a time.
struct ScoreThreshold {
  uint32_t order = 0;
  int64_t num_equal = 0;  // how many of the scores equal to it are chosen

  explicit ScoreThreshold(const SelectTopkArgs& args) {
    constexpr int kBits = 11;
    int64_t wanted = args.num_topk;
    uint32_t known = 0;  // the bits of the order that are known
    for (const int shift : {21, 10, 0}) {
      const int num_bits = shift == 0 ? 10 : kBits;
      int32_t counts[1 << kBits] = {};
      for (int64_t i = 0; i < args.count; ++i) {
        const uint32_t score = OrderOf(args.scores[i]);
        if ((score & known) == (order & known)) ++counts[score >> shift & ((1u << num_bits) - 1)];
      }
      uint32_t digit = (1u << num_bits) - 1;
      for (; counts[digit] < wanted; --digit) wanted -= counts[digit];
      order |= digit << shift;
      known |= ((1u << num_bits) - 1) << shift;
    }
    num_equal = wanted;
  }
};

inline void SelectTopk(const SelectTopkArgs& args) {
  ScoreThreshold threshold(args);
  int64_t num_selected = 0;
  for (int64_t i = 0; i < args.count && num_selected < args.num_topk; ++i) {
    const uint32_t score = OrderOf(args.scores[i]);
    if (score < threshold.order || (score == threshold.order && threshold.num_equal-- <= 0)) continue;
    args.selected[num_selected++] = static_cast<int32_t>(i);
  }
}

// Copies 16 tokens into a block: step after step, each with all tokens.
template <class Step>
void GatherBlock(const std::byte* const (&tokens)[kKvPageTokens], int64_t num_steps, std::byte* block) {
  for (int64_t step = 0; step < num_steps; ++step) {
    Step line[kKvPageTokens];
    for (int64_t token = 0; token < kKvPageTokens; ++token) {
      __builtin_memcpy(&line[token], tokens[token] + step * static_cast<int64_t>(sizeof(Step)), sizeof(Step));
    }
    __builtin_memcpy(block + step * static_cast<int64_t>(sizeof(line)), line, sizeof(line));
  }
}

inline void GatherKv(const GatherKvArgs& args) {
  const KvBlock source{args.format, args.head_dim, args.values_in_key, /*is_by_token=*/true};
  const KvBlock target{args.format, args.head_dim, args.values_in_key};
  const int64_t num_steps = (args.head_dim + target.k_step_dims() - 1) / target.k_step_dims();
  for (int64_t first = 0; first < args.count; first += kKvPageTokens) {
    std::byte* const block = args.blocks + first / kKvPageTokens * target.bytes();
    const std::byte* tokens[kKvPageTokens];
    for (int64_t i = 0; i < kKvPageTokens; ++i) {
      // The last block repeats the last position.
      const int64_t pos = args.positions[first + i < args.count ? first + i : args.count - 1];
      const int64_t token = pos % kKvPageTokens;
      const std::byte* const page = args.pages[pos / kKvPageTokens] + args.block_offset_bytes;
      tokens[i] = page + source.k_offset(0, token);
      if (args.format == KvFormat::kInt8) {
        __builtin_memcpy(block + target.k_scales_offset() + 4 * i, page + source.k_scales_offset() + 4 * token, 4);
      }
    }
    target.k_step_bytes() == 2 * kKvPageTokens ? GatherBlock<uint16_t>(tokens, num_steps, block)
                                               : GatherBlock<uint32_t>(tokens, num_steps, block);
  }
}

}  // namespace
}  // namespace penstock::kernels
