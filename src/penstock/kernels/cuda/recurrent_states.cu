// The rules that change the states of recurrent layers. A state changes row by row, so the rows of a sequence follow
// each other in one block. Sequences, heads and columns are independent: a block has 32 columns of one matrix, one for
// each lane, and keeps them in shared memory.
#include "penstock/kernels/cuda/math.cuh"
#include "penstock/kernels/cuda/recurrent.cuh"

namespace penstock::cuda {
namespace {

constexpr int kRowBuffers = 3;  // the row at hand, the next one, and the one that is being loaded

// Begins to copy floats into shared memory; a warp does it. `source` is aligned to 16 bytes if `count` is a multiple of
// four.
PENSTOCK_DEVICE void Fetch(const float* source, int count, float* shared) {
  if (count % 4 != 0) {
    for (int i = Lane(); i < count; i += kWarpThreads) shared[i] = source[i];
    return;
  }
  for (int i = 4 * Lane(); i < count; i += 4 * kWarpThreads) {
    CopyPiece(reinterpret_cast<std::byte*>(shared + i), reinterpret_cast<const std::byte*>(source + i));
  }
}

// Begins to copy `count` columns of a state, [key_dim, stride], to shared memory [key_dim, 32].
PENSTOCK_DEVICE void FetchColumns(const float* state, int key_dim, int stride, int count, float* shared) {
  if (stride % 4 != 0) {
    for (int dim = 0; dim < key_dim && Lane() < count; ++dim) {
      shared[dim * kWarpThreads + Lane()] = state[dim * stride + Lane()];
    }
    return;
  }
  const int pieces = count / 4;
  for (int i = Lane(); i < key_dim * pieces; i += kWarpThreads) {
    const int dim = i / pieces, col = i % pieces * 4;
    CopyPiece(reinterpret_cast<std::byte*>(shared + dim * kWarpThreads + col),
              reinterpret_cast<const std::byte*>(state + dim * stride + col));
  }
}

enum class StateKind : uint8_t { kDelta, kDeltaOfDims, kNoDelta };

constexpr int kDimsAtOnce = 8;  // of keys, loaded while those before are computed

// Consecutive dims of a vector in shared memory.
struct alignas(16) Dims {
  float of[kDimsAtOnce];
};

// Keys, queries and, for kDeltaOfDims, decays of a row, in shared memory. Vectors are padded to kDimsAtOnce.
template <StateKind kKind>
struct RowInputs {
  static constexpr int kNumVectors = kKind == StateKind::kDeltaOfDims ? 3 : 2;

  PENSTOCK_DEVICE RowInputs(float* buffers, int padded_dim, int64_t row)
      : k(buffers + static_cast<int>(row % kRowBuffers) * kNumVectors * padded_dim),
        q(k + padded_dim),
        decays(q + padded_dim) {}

  // Begins to fetch a row. `first`: where its vectors begin in those of all rows.
  PENSTOCK_DEVICE void Fetch(const StateRuleLaunch& args, int64_t first) const {
    const int key_dim = static_cast<int>(args.key_dim);
    cuda::Fetch(args.k + first, key_dim, k);
    cuda::Fetch(args.q + first, key_dim, q);
    if constexpr (kKind == StateKind::kDeltaOfDims) cuda::Fetch(args.decay + first, key_dim, decays);
  }
  // Returns k . q; all lanes get it.
  PENSTOCK_DEVICE float KeyQuery(int key_dim) const {
    float products = 0;
    for (int i = 0; i < key_dim; i += 16) {
      const int dim = i + Lane() % 16;
      products = __fmaf_rn(dim < key_dim ? k[dim] : 0.0f, dim < key_dim ? q[dim] : 0.0f, products);
    }
    return SumOf16Lanes(products);
  }
  PENSTOCK_DEVICE static Dims Load(const float* vector, int dim) {
    return *reinterpret_cast<const Dims*>(vector + dim);
  }

  float *k, *q, *decays;
};

// S^T k and S^T q of one column.
template <StateKind kKind>
struct ColumnSums {
  float of_key = 0, of_query = 0;

  PENSTOCK_DEVICE void Add(float k, float q, float decay, float s) {
    if constexpr (kKind == StateKind::kDeltaOfDims) {
      k *= decay;
      q *= decay;
    }
    if constexpr (kKind != StateKind::kNoDelta) of_key = __fmaf_rn(k, s, of_key);
    of_query = __fmaf_rn(q, s, of_query);
  }
};

// The numbers of a row that belong to a column or a head.
struct RowNumbers {
  float v, decay, beta;
};

// A column of a state in shared memory, [padded key_dim], 32 floats apart. `kIsWhole`: there is no padding.
template <StateKind kKind, bool kIsWhole>
struct Column {
  static constexpr bool kDecaysDims = kKind == StateKind::kDeltaOfDims;
  using Inputs = RowInputs<kKind>;

  float* own;
  int key_dim;

  // The loads of a walk for some dims: the column, the row's k, and the next row's k and q.
  struct Loads {
    float s[kDimsAtOnce];
    Dims k, next_k, next_q, decays, next_decays;
  };
  template <bool kIsLast>
  PENSTOCK_DEVICE Loads Load(const Inputs& row, const Inputs& next, int dim) const {
    Loads loads;
#pragma unroll
    for (int i = 0; i < kDimsAtOnce; ++i) loads.s[i] = own[(dim + i) * kWarpThreads];
    loads.k = Inputs::Load(row.k, dim);
    if constexpr (kDecaysDims) loads.decays = Inputs::Load(row.decays, dim);
    if constexpr (!kIsLast) {
      loads.next_k = Inputs::Load(next.k, dim);
      loads.next_q = Inputs::Load(next.q, dim);
      if constexpr (kDecaysDims) loads.next_decays = Inputs::Load(next.decays, dim);
    }
    return loads;
  }

  PENSTOCK_DEVICE ColumnSums<kKind> Sums(const Inputs& row) const {
    ColumnSums<kKind> sums;
    for (int dim = 0; dim < key_dim; dim += kDimsAtOnce) {
      const Dims k = Inputs::Load(row.k, dim), q = Inputs::Load(row.q, dim);
      Dims decays = {};
      if constexpr (kDecaysDims) decays = Inputs::Load(row.decays, dim);
#pragma unroll
      for (int i = 0; i < kDimsAtOnce; ++i) {
        if (!kIsWhole && dim + i >= key_dim) break;
        sums.Add(k.of[i], q.of[i], decays.of[i], own[(dim + i) * kWarpThreads]);
      }
    }
    return sums;
  }

  // Changes the column for a row, and returns its sums for the next one. After the last row, stores it to `state`
  // instead, unless that is null. All loads of kDimsAtOnce dims come before the stores of those before them, because
  // the compiler cannot know that they do not overlap.
  template <bool kIsLast>
  PENSTOCK_DEVICE ColumnSums<kKind> Walk(const Inputs& row, const Inputs& next, float row_decay, float delta,
                                         float* state, int stride) const {
    ColumnSums<kKind> sums;
    Loads loads = Load<kIsLast>(row, next, 0);
    for (int dim = 0; dim < key_dim; dim += kDimsAtOnce) {
      const Loads ahead = Load<kIsLast>(row, next, dim + kDimsAtOnce < key_dim ? dim + kDimsAtOnce : dim);
#pragma unroll
      for (int i = 0; i < kDimsAtOnce; ++i) {
        if (!kIsWhole && dim + i >= key_dim) break;
        const float decay = kDecaysDims ? loads.decays.of[i] : row_decay;
        const float s = __fmaf_rn(loads.k.of[i], delta, decay * loads.s[i]);
        own[(dim + i) * kWarpThreads] = s;
        if constexpr (kIsLast) {
          if (state != nullptr) state[i * stride] = s;
        } else {
          sums.Add(loads.next_k.of[i], loads.next_q.of[i], kDecaysDims ? loads.next_decays.of[i] : 1.0f, s);
        }
      }
      if (kIsLast && state != nullptr) state += kDimsAtOnce * stride;
      loads = ahead;
    }
    return sums;
  }
};

// Each block is one warp, with 32 columns of a head's matrix. One walk through them changes them for a row, and sums
// them up for the next row.
template <StateKind kKind, bool kIsWhole>
class StateRuleBlock {
 public:
  PENSTOCK_DEVICE StateRuleBlock(const StateRuleLaunch& args, int64_t blocks_of_part)
      : args_(args),
        place_(PlaceOf(args.runs, blockIdx.x / blocks_of_part)),
        key_dim_(static_cast<int>(args.key_dim)),
        padded_dim_((key_dim_ + kDimsAtOnce - 1) / kDimsAtOnce * kDimsAtOnce),
        stride_(static_cast<int>(args.part_cols)),
        shared_(reinterpret_cast<float*>(SharedMemory())) {
    const int first_col = static_cast<int>(blockIdx.x % blocks_of_part) * kWarpThreads;
    num_cols_ = stride_ - first_col < kWarpThreads ? stride_ - first_col : kWarpThreads;
    has_col_ = Lane() < num_cols_;
    first_col_ = first_col;
    col_ = place_.part * args.part_cols + first_col + (has_col_ ? Lane() : 0);
    head_ = col_ / args.value_dim;
    key_head_ = args.heads_alternate ? head_ % args.num_key_heads : head_ / (args.num_value_heads / args.num_key_heads);
  }

  PENSTOCK_DEVICE void Run() {
    const int64_t values_dim = args_.num_value_heads * args_.value_dim;
    const float skip = args_.skip == nullptr ? 0.0f : args_.skip[head_];
    const Column<kKind, kIsWhole> column = {shared_ + Lane(), key_dim_};
    FetchColumns(place_.state + first_col_, key_dim_, stride_, num_cols_, shared_);
    Fetch(place_.begin);
    RowNumbers numbers = NumbersOf(place_.begin);
    WaitForCopies<0>();
    __syncwarp();
    Fetch(place_.begin + 1);
    ColumnSums<kKind> sums = column.Sums(InputsOf(place_.begin));  // of the row at hand
    DueCopies copies(args_.runs, place_);
    for (int64_t row = place_.begin; row < place_.end; ++row) {
      WaitForCopies<0>();  // of the next row
      __syncwarp();
      Fetch(row + 2);
      const bool is_last = row + 1 == place_.end;
      const RowInputs<kKind> now = InputsOf(row), next = InputsOf(row + 1);
      const RowNumbers next_numbers = is_last ? numbers : NumbersOf(row + 1);
      const float product = numbers.decay * sums.of_key;
      const float delta = (kHasDelta ? numbers.v - product : numbers.v) * numbers.beta;
      float out = __fmaf_rn(now.KeyQuery(key_dim_), delta, numbers.decay * sums.of_query);
      if (!kHasDelta) out = __fmaf_rn(skip, numbers.v, out);
      if (has_col_) args_.out[row * values_dim + col_] = out;
      if (is_last) {
        float* const state = has_col_ ? place_.state + first_col_ + Lane() : nullptr;
        column.template Walk<true>(now, now, numbers.decay, delta, state, stride_);
      } else {
        sums = column.template Walk<false>(now, next, numbers.decay, delta, nullptr, 0);
      }
      copies.After(row, [&](float* target) {
        for (int dim = 0; dim < key_dim_ && has_col_; ++dim) {
          target[dim * stride_ + first_col_ + Lane()] = column.own[dim * kWarpThreads];
        }
      });
      numbers = next_numbers;
    }
  }

 private:
  static constexpr bool kHasDelta = kKind != StateKind::kNoDelta, kDecaysDims = kKind == StateKind::kDeltaOfDims;

  // Behind the columns [padded_dim, 32] come the inputs of rows.
  PENSTOCK_DEVICE RowInputs<kKind> InputsOf(int64_t row) const {
    return RowInputs<kKind>(shared_ + padded_dim_ * kWarpThreads, padded_dim_, row - place_.begin);
  }
  PENSTOCK_DEVICE void Fetch(int64_t row) const {
    if (row < place_.end) {
      InputsOf(row).Fetch(args_, (row * args_.num_key_heads + key_head_) * args_.key_dim);
    }
    EndCopies();
  }
  PENSTOCK_DEVICE RowNumbers NumbersOf(int64_t row) const {
    const int64_t of_head = row * args_.num_value_heads + head_;
    return {args_.v[row * args_.num_value_heads * args_.value_dim + col_],
            kDecaysDims ? 1.0f : args_.decay[args_.decay_is_constant ? head_ : of_head],
            args_.beta == nullptr ? 1.0f : args_.beta[of_head]};
  }

  const StateRuleLaunch& args_;
  StatePlace place_;
  int key_dim_, padded_dim_, stride_;
  float* shared_;
  int num_cols_, first_col_;
  bool has_col_;
  int64_t col_, head_, key_head_;  // `col_` is among those of all heads
};

template <StateKind kKind, bool kIsWhole>
PENSTOCK_KERNEL(kWarpThreads)
StateRuleKernel(const StateRuleLaunch args, const int64_t blocks_of_part) {
  StateRuleBlock<kKind, kIsWhole>(args, blocks_of_part).Run();
}

// Each block is one warp, with 32 columns.
PENSTOCK_KERNEL(kWarpThreads) SelectiveScanKernel(const SelectiveScanLaunch args, const int64_t blocks_of_part) {
  const StatePlace place = PlaceOf(args.runs, blockIdx.x / blocks_of_part);
  const int64_t first_col = static_cast<int64_t>(blockIdx.x % blocks_of_part) * kWarpThreads;
  if (Lane() >= args.part_cols - first_col) return;
  const int64_t col = place.part * args.part_cols + first_col + Lane(), key_dim = args.key_dim;
  float* const state = reinterpret_cast<float*>(SharedMemory()) + Lane();  // [key_dim, 32]
  float* const rates = state + key_dim * kWarpThreads;                     // [key_dim, 32]
  float* const kept = place.state + first_col + Lane();
  for (int64_t dim = 0; dim < key_dim; ++dim) {
    state[dim * kWarpThreads] = kept[dim * args.part_cols];
    rates[dim * kWarpThreads] = 0.0f - Exp(args.decay_log[dim * args.num_cols + col]);
  }
  const auto store_to = [&](float* target) {
    for (int64_t dim = 0; dim < key_dim; ++dim) target[dim * args.part_cols] = state[dim * kWarpThreads];
  };
  const float skip = args.skip[col];
  DueCopies copies(args.runs, place);
  for (int64_t row = place.begin; row < place.end; ++row) {
    const float v = args.v[row * args.num_cols + col], step = args.step[row * args.num_cols + col], input = step * v;
    float sum = 0;
    for (int64_t dim = 0; dim < key_dim; ++dim) {
      float* const own = state + dim * kWarpThreads;
      *own = __fmaf_rn(args.k[row * key_dim + dim], input, Exp(rates[dim * kWarpThreads] * step) * *own);
      sum = __fmaf_rn(args.q[row * key_dim + dim], *own, sum);
    }
    args.out[row * args.num_cols + col] = __fmaf_rn(skip, v, sum);
    copies.After(row, [&](float* target) { store_to(target + first_col + Lane()); });
  }
  store_to(kept);
}

template <StateKind kKind>
void LaunchStateRule(const StateRuleLaunch& launch, Stream stream) {
  const int64_t blocks_of_part = BlocksFor(launch.part_cols, kWarpThreads);
  const int64_t padded_dim = BlocksFor(launch.key_dim, kDimsAtOnce) * kDimsAtOnce;
  const LaunchShape shape = BlocksShape(launch.runs.num_runs * launch.runs.num_parts * blocks_of_part, kWarpThreads,
                                        padded_dim * (kWarpThreads + kRowBuffers * RowInputs<kKind>::kNumVectors));
  if (padded_dim == launch.key_dim) {
    Launch(StateRuleKernel<kKind, true>, shape, stream, launch, blocks_of_part);
  } else {
    Launch(StateRuleKernel<kKind, false>, shape, stream, launch, blocks_of_part);
  }
}

}  // namespace

void StateRule(const StateRuleLaunch& launch, Stream stream) {
  if (!launch.has_delta) return LaunchStateRule<StateKind::kNoDelta>(launch, stream);
  if (launch.decays_dims) return LaunchStateRule<StateKind::kDeltaOfDims>(launch, stream);
  LaunchStateRule<StateKind::kDelta>(launch, stream);
}

void SelectiveScan(const SelectiveScanLaunch& launch, Stream stream) {
  const int64_t blocks_of_part = BlocksFor(launch.part_cols, kWarpThreads);
  Launch(SelectiveScanKernel,
         BlocksShape(launch.runs.num_runs * launch.runs.num_parts * blocks_of_part, kWarpThreads,
                     2 * launch.key_dim * kWarpThreads),
         stream, launch, blocks_of_part);
}

}  // namespace penstock::cuda
