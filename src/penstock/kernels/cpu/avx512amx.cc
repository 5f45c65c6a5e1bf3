// GEMM of codes in tiles of AMX, from a few rows on: the same exact integer sums of a group's codes as with VPDPBUSD,
// and the same float operations after them.
#include <immintrin.h>

#include "penstock/kernels/cpu/gemm/gemm_blocks-inl.h"
#include "penstock/kernels/cpu/gemm/gemm_quantised-inl.h"
#include "penstock/kernels/cpu/ints_avx512-inl.h"
#include "penstock/kernels/cpu/tables.h"
#include "penstock/kernels/cpu/vec_avx512-inl.h"

namespace penstock::kernels {
namespace {

using Ints = Avx512IntsOf<true>;
using V = Avx512Vec;

constexpr int64_t kTileRows = 16;
constexpr int64_t kTileInputs = 64;
constexpr int64_t kTileBytes = kTileInputs / 4 * kQuadBytes;  // of a panel's codes: 16 quads of both vectors
constexpr int64_t kPairRows = 2 * kTileRows;
constexpr int64_t kBlockRows = 256;  // sums of so many rows lie on the stack
constexpr int64_t kMaxGroups = 4;    // groups of a chunk
// Fewer rows wait for memory in any case, and vectors ask for it sooner.
constexpr int64_t kMinRows = 17;
// Block formats are unpacked in any case. With 12 instead of 17, 64 sequences of Q8_0 gained 3 %.
constexpr int64_t kMinRowsOfBlocks = 12;

// The operand of LDTILECFG. Tiles 0 to 3 are sums, [rows, 16] each; 4 and 5 rows of x, 6 and 7 codes of the panel.
struct alignas(64) TileShapes {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t num_rows[16] = {};

  TileShapes(int64_t first_rows, int64_t second_rows, int64_t num_inputs) {
    for (int tile = 0; tile < 8; ++tile) {
      const bool is_second = tile == 2 || tile == 3 || tile == 5;
      const int64_t rows = tile >= 6 ? num_inputs / 4 : is_second ? second_rows : first_rows;
      num_rows[tile] = static_cast<uint8_t>(rows);
      row_bytes[tile] = rows == 0 ? 0 : tile == 4 || tile == 5 ? static_cast<uint16_t>(num_inputs) : 64;
    }
  }
  // The intrinsic does not tell the compiler that all of the bytes are read.
  void Load() const { asm volatile("ldtilecfg %0" : : "m"(*this)); }
};

// Codes of int8 lie in a panel as tiles take them.
struct Int8Chunks {
  static constexpr int64_t kGroupInputs = kInt8Group;
  static constexpr int64_t kChunkInputs = kMaxGroups * kGroupInputs;
  static constexpr int64_t kChunkBytes = kMaxGroups * kInt8BlockBytes;

  struct Factors {
    V scales[2];

    void Set(const std::byte* chunk, int64_t group) {
      const std::byte* stored = chunk + group * kInt8BlockBytes + kInt8Group * kPanelCols;
      for (int v = 0; v < 2; ++v) scales[v] = V::LoadAs<Dtype::kBF16>(stored + 32 * v);
    }
    void Add(const __m512i (&dots)[2], const std::byte* row_group, int64_t, float* sum) const {
      const V x_scale = V::Set(FloatAt(row_group));
      int32_t offset;
      __builtin_memcpy(&offset, row_group + offsetof(Int8RowGroup, code_offset), 4);
      for (int v = 0; v < 2; ++v) {
        const V dot = {_mm512_cvtepi32_ps(_mm512_add_epi32(dots[v], _mm512_set1_epi32(offset)))};
        Fma(dot, Mul(scales[v], x_scale), V::Load(sum + 16 * v)).Store(sum + 16 * v);
      }
    }
  };

  static const std::byte* Codes(const std::byte* chunk, int64_t group, std::byte*) {
    return chunk + group * kInt8BlockBytes;
  }
};

// Codes of HQQ are unpacked for all rows of a block.
template <WeightFormat kFormat>
struct HqqChunks {
  using Steps = HqqSteps<Ints, kFormat>;
  static constexpr int64_t kGroupInputs = 64;
  static constexpr int64_t kChunkInputs = kHqqBlock;
  static constexpr int64_t kChunkBytes = Steps::kBlockBytes;

  struct Factors {
    V scales[2], minus_zeros[2];

    void Set(const std::byte* chunk, int64_t group) {
      for (int v = 0; v < 2; ++v) {
        const int64_t place = kPanelCols * group + 16 * v;
        scales[v] = Fma(V::LoadCodes(chunk + 64 + place), V::Set(FloatAt(chunk)), V::Set(FloatAt(chunk + 4)));
        if constexpr (kFormat == WeightFormat::kTernary) {
          minus_zeros[v] = V::Set(-1);
        } else {
          minus_zeros[v] = Sub(V::Zero(), Fma(V::LoadCodes(chunk + 192 + place), V::Set(FloatAt(chunk + 8)),
                                              V::Set(FloatAt(chunk + 12))));
        }
      }
    }
    void Add(const __m512i (&dots)[2], const std::byte* row_group, int64_t group, float* sum) const {
      const V x_scale = V::Set(FloatAt(row_group));
      const V code_sum = V::Set(FloatAt(row_group + offsetof(Int8RowGroup, code_sums) + 4 * (group % 2)));
      for (int v = 0; v < 2; ++v) {
        const V dot = Fma(minus_zeros[v], code_sum, V{_mm512_cvtepi32_ps(dots[v])});
        Fma(dot, Mul(scales[v], x_scale), V::Load(sum + 16 * v)).Store(sum + 16 * v);
      }
    }
  };

  static const std::byte* Codes(const std::byte* chunk, int64_t group, std::byte* unpacked) {
    std::byte* const target = unpacked + group * kTileBytes;
    HqqCodes<Ints, kFormat, 2>::ForEachQuad(
        chunk, static_cast<int>(group), chunk + kHqqHeaderBytes + group * Steps::kGroupBytes, [] {},
        [&](const auto& codes, int64_t offset) {
          for (int v = 0; v < 2; ++v) _mm512_store_si512(target + offset / 4 * kQuadBytes + 64 * v, codes[v]);
        });
    return target;
  }
};

// Sets dots[row] to the products of the rows' codes and those of a group: [rows, kPanelCols].
template <int64_t kInputs>
void MultiplyGroup(const std::byte* x, int64_t x_stride, bool has_second, const std::byte* codes, int32_t* dots) {
  constexpr long kDotsStride = kPanelCols * sizeof(int32_t);
  asm volatile("" : : : "memory");  // the intrinsics do not say that they read memory
  _tile_zero(0);
  _tile_zero(1);
  if (has_second) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t input = 0; input < kInputs; input += kTileInputs) {
    const std::byte* w = codes + input / 4 * kQuadBytes;
    _tile_loadd(4, x + input, x_stride);
    _tile_loadd(6, w, kQuadBytes);
    _tile_loadd(7, w + 64, kQuadBytes);
    _tile_dpbsud(0, 4, 6);
    _tile_dpbsud(1, 4, 7);
    if (!has_second) continue;
    _tile_loadd(5, x + kTileRows * x_stride + input, x_stride);
    _tile_dpbsud(2, 5, 6);
    _tile_dpbsud(3, 5, 7);
  }
  _tile_stored(0, dots, kDotsStride);
  _tile_stored(1, dots + 16, kDotsStride);
  if (!has_second) return;
  _tile_stored(2, dots + kTileRows * kPanelCols, kDotsStride);
  _tile_stored(3, dots + kTileRows * kPanelCols + 16, kDotsStride);
}

// Neighbouring rows of x, and their sums for a panel.
struct RowPair {
  const std::byte* x;
  const std::byte* groups;
  int64_t num_rows;
  float* sums;
};

template <class Chunks>
void MultiplyChunk(const RowPair& rows, int64_t x_stride, const std::byte* chunk, const std::byte* const* codes,
                   int64_t num_groups, NextChunk& next) {
  // The products of a group are begun before the sums of the group before it: tiles and vectors compute side by side.
  alignas(64) int32_t dots[2][kPairRows * kPanelCols];
  const auto multiply = [&](int64_t group) {
    next.Issue();
    MultiplyGroup<Chunks::kGroupInputs>(rows.x + group * Chunks::kGroupInputs, x_stride, rows.num_rows > kTileRows,
                                        codes[group], dots[group % 2]);
  };
  typename Chunks::Factors factors;
  multiply(0);
  for (int64_t group = 0; group < num_groups; ++group) {
    if (group + 1 < num_groups) multiply(group + 1);
    factors.Set(chunk, group);
    const std::byte* row_group =
        rows.groups + group * Chunks::kGroupInputs / kInt8Group * static_cast<int64_t>(sizeof(Int8RowGroup));
    for (int64_t row = 0; row < rows.num_rows; ++row) {
      const int32_t* own = dots[group % 2] + row * kPanelCols;
      const __m512i of_row[2] = {_mm512_load_si512(own), _mm512_load_si512(own + 16)};
      factors.Add(of_row, row_group + row * x_stride, group, rows.sums + row * kPanelCols);
    }
  }
}

// Multiplies rows [first, first + num_rows) of x by one panel.
template <class Chunks>
void MultiplyPanel(const GemmArgs& args, int64_t first, int64_t num_rows, int64_t panel) {
  alignas(64) float sums[kBlockRows * kPanelCols];
  alignas(64) std::byte unpacked[kMaxGroups * kTileBytes];
  __builtin_memset(sums, 0, static_cast<size_t>(num_rows) * kPanelCols * sizeof(float));
  const int64_t num_pairs = (num_rows + kPairRows - 1) / kPairRows;
  const EvenParts pair_rows(num_rows, num_pairs);
  const int64_t groups_offset = (args.inner_dim + kInt8Group - 1) / kInt8Group * kInt8Group;
  const std::byte* chunk = args.w + panel * args.panel_bytes;
  int64_t shaped_for = 0;
  for (int64_t begin = 0; begin < args.inner_dim; begin += Chunks::kChunkInputs, chunk += Chunks::kChunkBytes) {
    const int64_t rest = (args.inner_dim - begin + Chunks::kGroupInputs - 1) / Chunks::kGroupInputs;
    const int64_t num_groups = rest < kMaxGroups ? rest : kMaxGroups;
    const std::byte* codes[kMaxGroups];
    for (int64_t group = 0; group < num_groups; ++group) codes[group] = Chunks::Codes(chunk, group, unpacked);
    NextChunk next = NextChunk::For(chunk + Chunks::kChunkBytes, Chunks::kChunkBytes, num_pairs * num_groups);
    RowPair rows = {.x = args.x + first * args.x_stride_bytes + begin, .groups = nullptr, .num_rows = 0, .sums = sums};
    for (int64_t pair = 0; pair < num_pairs; ++pair) {
      rows.num_rows = pair_rows.min + (pair < pair_rows.num_larger ? 1 : 0);
      if (rows.num_rows != shaped_for) {
        const int64_t first_rows = rows.num_rows < kTileRows ? rows.num_rows : kTileRows;
        TileShapes(first_rows, rows.num_rows - first_rows, kTileInputs).Load();
        shaped_for = rows.num_rows;
      }
      rows.groups = rows.x - begin + groups_offset + begin / kInt8Group * static_cast<int64_t>(sizeof(Int8RowGroup));
      MultiplyChunk<Chunks>(rows, args.x_stride_bytes, chunk, codes, num_groups, next);
      rows.x += rows.num_rows * args.x_stride_bytes;
      rows.sums += rows.num_rows * kPanelCols;
    }
  }
  StorePanel<V>(args, first, num_rows, panel, sums);
}

template <class Chunks>
void RunTileGemm(const GemmArgs& args) {
  if (args.num_rows < kMinRows) return kAvx512Bf16Changes.gemm(args);
  const int64_t num_blocks = (args.num_rows + kBlockRows - 1) / kBlockRows;
  const EvenParts block_rows(args.num_rows, num_blocks);
  int64_t first = 0;
  for (int64_t block = 0; block < num_blocks; ++block) {
    const int64_t num_rows = block_rows.min + (block < block_rows.num_larger ? 1 : 0);
    for (int64_t panel = 0; panel * kPanelCols < args.num_cols; ++panel) {
      MultiplyPanel<Chunks>(args, first, num_rows, panel);
    }
    first += num_rows;
  }
  _tile_release();  // otherwise the system saves 8 KiB of tiles with each switch of threads
}

// Block formats with a scale for 32 inputs. Their sums are stored after each group, because tiles hold no floats.
constexpr int kGroupsOf128 = kInt8Group / kGroupInputs;

// Products of a unit: a tile of rows and 128 inputs of a chunk.
using UnitDots = int32_t[kGroupsOf128][kTileRows][kPanelCols];

struct BlockUnit {
  const std::byte* x;           // codes of the tile's first row
  const std::byte* row_groups;  // of the first row that counts
  const std::byte* code_sums;
  const std::byte* codes;
  const float* scales;  // [groups, kPanelCols]; CodeChunk::mins lie behind
  float* sums;          // of the first row that counts
  int num_groups;
  int64_t num_rows;   // that count
  int64_t first_row;  // of them, in the tile
};

// Begins the products of a group.
[[gnu::always_inline]] inline void BeginGroup(const BlockUnit& unit, int64_t x_stride, int group, UnitDots& dots) {
  constexpr long kDotsStride = kPanelCols * sizeof(int32_t);
  const std::byte *const x = unit.x + group * kGroupInputs, *const w = unit.codes + group * kGroupInputs * kPanelCols;
  int32_t* const own = dots[group][0];
  asm volatile("" : : : "memory");  // see MultiplyGroup
  _tile_zero(0);
  _tile_zero(1);
  _tile_loadd(4, x, x_stride);
  _tile_loadd(6, w, kQuadBytes);
  _tile_loadd(7, w + 64, kQuadBytes);
  _tile_dpbssd(0, 4, 6);
  _tile_dpbssd(1, 4, 7);
  _tile_stored(0, own, kDotsStride);
  _tile_stored(1, own + 16, kDotsStride);
}

// Adds the products of rows [begin, end) to their sums, in the order of CodeTile.
template <bool kHasMin>
[[gnu::always_inline]] inline void AddRows(const BlockUnit& unit, int64_t x_stride, int64_t begin, int64_t end,
                                           const UnitDots& dots) {
  for (int64_t row = begin; row < end; ++row) {
    V parts[2] = {V::Zero(), V::Zero()};
    for (int group = 0; group < unit.num_groups; ++group) {
      const float* scales = unit.scales + group * kPanelCols;
      V code_sum;
      if constexpr (kHasMin) {
        code_sum = Ints::SumOfPair(unit.code_sums + row * x_stride + 4 * group, 1, 1).template ToFloats<V>();
      }
      for (int v = 0; v < 2; ++v) {
        const V dot = {_mm512_cvtepi32_ps(_mm512_load_si512(dots[group][unit.first_row + row] + 16 * v))};
        parts[v] = Fma(dot, V::Load(scales + 16 * v), parts[v]);
        if constexpr (kHasMin) {
          parts[v] = Fma(code_sum, V::Load(scales + kChunkInputs / 16 * kPanelCols + 16 * v), parts[v]);
        }
      }
    }
    const V x_scale = V::Set(FloatAt(unit.row_groups + row * x_stride));
    for (int v = 0; v < 2; ++v) {
      float* sum = unit.sums + row * kPanelCols + 16 * v;
      Fma(parts[v], x_scale, V::Load(sum)).Store(sum);
    }
  }
}

// The units of a block and a chunk: all tiles with the first 128 inputs, then with the others.
class BlockUnits {
 public:
  BlockUnits(const GemmArgs& args, const TileBlock& block, int64_t first_input, int64_t num_inputs,
             const CodeChunk& chunk, float* sums)
      : args_(args),
        block_(block),
        first_input_(first_input),
        num_inputs_(num_inputs),
        num_row_groups_((args.inner_dim + kInt8Group - 1) / kInt8Group),
        chunk_(chunk),
        sums_(sums) {}

  // The tiles of a block have the same shape. A tile with fewer rows of its own also has the last row before them.
  static int64_t TileRows(const TileBlock& block) { return block.min_rows + (block.num_larger > 0 ? 1 : 0); }
  int64_t num_units() const { return (num_inputs_ + kInt8Group - 1) / kInt8Group * block_.num_tiles; }

  BlockUnit Next() {
    const int64_t num_rows = block_.min_rows + (tile_ < block_.num_larger ? 1 : 0);
    const int64_t first_row = TileRows(block_) - num_rows;
    const int64_t k = first_input_ + input_, left = num_inputs_ - input_;
    const std::byte* const x = args_.x + (block_.first_row + row_) * args_.x_stride_bytes;
    const std::byte* const groups = x + num_row_groups_ * kInt8Group;
    constexpr auto kOfGroup = static_cast<int64_t>(sizeof(Int8RowGroup));
    const BlockUnit unit = {
        .x = x - first_row * args_.x_stride_bytes + k,
        .row_groups = groups + k / kInt8Group * kOfGroup,
        .code_sums = groups + num_row_groups_ * kOfGroup + k / 8,
        .codes = chunk_.codes + input_ * kPanelCols,
        .scales = chunk_.scales[input_ / kGroupInputs],
        .sums = sums_ + row_ * kPanelCols,
        .num_groups = static_cast<int>(left < kInt8Group ? (left + kGroupInputs - 1) / kGroupInputs : kGroupsOf128),
        .num_rows = num_rows,
        .first_row = first_row};
    row_ += num_rows;
    if (++tile_ == block_.num_tiles) {
      tile_ = row_ = 0;
      input_ += kInt8Group;
    }
    return unit;
  }

 private:
  const GemmArgs& args_;
  const TileBlock& block_;
  const int64_t first_input_, num_inputs_, num_row_groups_;
  const CodeChunk& chunk_;
  float* const sums_;
  int64_t tile_ = 0, row_ = 0, input_ = 0;
};

// Tiles compute a unit while vectors add up the one before it.
template <bool kHasMin>
void MultiplyUnits(BlockUnits units, int64_t x_stride, NextChunk& next) {
  alignas(64) UnitDots dots[2];
  const auto begin_group = [&](const BlockUnit& unit, int group, UnitDots& of_unit) {
    next.Issue();
    BeginGroup(unit, x_stride, group, of_unit);
  };
  BlockUnit unit = units.Next();
  for (int group = 0; group < unit.num_groups; ++group) begin_group(unit, group, dots[0]);
  const int64_t num_units = units.num_units();
  for (int64_t i = 0; i < num_units; ++i) {
    const BlockUnit following = i + 1 < num_units ? units.Next() : BlockUnit{};
    int64_t begin = 0;
    for (int group = 0; group < kGroupsOf128; ++group) {
      if (group < following.num_groups) begin_group(following, group, dots[(i + 1) % 2]);
      const int64_t end = unit.num_rows * (group + 1) / kGroupsOf128;
      AddRows<kHasMin>(unit, x_stride, begin, end, dots[i % 2]);
      begin = end;
    }
    unit = following;
  }
}

struct BlockTileSteps {
  static constexpr int kRows = kTileRows;
};

template <WeightFormat kFormat>
void RunTileBlocks(const GemmArgs& args) {
  using Codes = BlockCodes<Ints, kFormat>;
  if (args.num_rows < kMinRowsOfBlocks) return kAvx512Bf16Changes.gemm(args);
  // Formats with a scale for 16 inputs store twice as many sums. With 64 rows they were no faster than VPDPBUSD.
  if constexpr (Codes::kGroup < kGroupInputs) {
    kAvx512Bf16Changes.gemm(args);
  } else {
    constexpr int64_t kPanelChunkBytes = kChunkInputs / BlockElements(kFormat) * BlockBytes(kFormat) * kPanelCols;
    CodeChunk chunk;
    const auto multiply = [&](const TileBlock& block, int64_t panel, float* sums) {
      __builtin_memset(sums, 0, static_cast<size_t>(block.num_rows() * kPanelCols) * sizeof(float));
      TileShapes(BlockUnits::TileRows(block), 0, kGroupInputs).Load();
      const std::byte* const w = args.w + panel * args.panel_bytes;
      for (int64_t first = 0; first < args.inner_dim; first += kChunkInputs) {
        const int64_t left = args.inner_dim - first, count = left < kChunkInputs ? left : kChunkInputs;
        NextChunk next = NextChunk::For(w + (first / kChunkInputs + 1) * kPanelChunkBytes, kPanelChunkBytes,
                                        8 * (1 + block.num_tiles));
        MakeCodes<Ints, kFormat, true>(w, first, count, next, &chunk);
        MultiplyUnits<Codes::kHasMin>({args, block, first, count, chunk, sums}, args.x_stride_bytes, next);
      }
      StorePanel<V>(args, block.first_row, block.num_rows(), panel, sums);
    };
    ForEachPanel<BlockTileSteps, kBlockRows / kTileRows>(args, multiply);
    _tile_release();
  }
}
template <>
void RunTileBlocks<WeightFormat::kFp8>(const GemmArgs& args) {
  kAvx512Bf16Changes.gemm(args);
}

void Gemm(const GemmArgs& args) {
  if (args.x_format != RowFormat::kInt8) return kAvx512Bf16Changes.gemm(args);
  switch (args.w_format) {
    case WeightFormat::kInt8: return RunTileGemm<Int8Chunks>(args);
    case WeightFormat::kHqq4: return RunTileGemm<HqqChunks<WeightFormat::kHqq4>>(args);
    case WeightFormat::kHqq3: return RunTileGemm<HqqChunks<WeightFormat::kHqq3>>(args);
    case WeightFormat::kHqq2: return RunTileGemm<HqqChunks<WeightFormat::kHqq2>>(args);
    case WeightFormat::kTernary: return RunTileGemm<HqqChunks<WeightFormat::kTernary>>(args);
#define PENSTOCK_BLOCK_FORMAT(format, ...) \
  case WeightFormat::k##format:            \
    return RunTileBlocks<WeightFormat::k##format>(args);
#include "penstock/tensor/weight_formats.def"
    default: return kAvx512Bf16Changes.gemm(args);
  }
}

}  // namespace

constinit const KernelChanges kAvx512AmxChanges = {
    .prepare_rows = nullptr, .gemm = Gemm, .attention = nullptr, .index_scores = nullptr};

}  // namespace penstock::kernels
