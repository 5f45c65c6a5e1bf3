#include "penstock/kernels/kernels.h"

#include <string>

#include "penstock/base/check.h"
#include "penstock/base/checked.h"
#include "penstock/base/status.h"
#include "penstock/hardware/cpu_features.h"
#include "penstock/kernels/cpu/tables.h"
#include "penstock/tensor/kv_block.h"

namespace penstock::kernels {
namespace {

constexpr Isa kAllIsas[] = {Isa::kScalar,     Isa::kAvx2,      Isa::kAvx512, Isa::kAvx512Vnni,
                            Isa::kAvx512Bf16, Isa::kAvx512Amx, Isa::kNeon};

#if defined(__x86_64__)
// Equal bits matter more than speed: a machine whose instruction sums in another order has no use for it. Cooper Lake,
// which has no VBMI, counts as Cascade Lake.
bool HasLawfulAvx512Bf16() {
  const CpuFeatures& cpu = MachineCpuFeatures();
  static const bool answer = cpu.avx512_vnni && cpu.avx512_vbmi && cpu.avx512_bf16 && kAvx512Bf16FollowsTheLaw();
  return answer;
}

bool IsSupported(Isa isa) {
  switch (isa) {
    case Isa::kScalar: return true;
    case Isa::kAvx2: return MachineCpuFeatures().avx2;
    case Isa::kAvx512: return MachineCpuFeatures().avx512;
    case Isa::kAvx512Vnni: return MachineCpuFeatures().avx512_vnni;
    case Isa::kAvx512Bf16: return HasLawfulAvx512Bf16();
    case Isa::kAvx512Amx: return MachineCpuFeatures().amx_int8 && IsSupported(Isa::kAvx512Bf16);
    case Isa::kNeon: return false;
  }
  return false;
}

KernelTable Changed(KernelTable table, const KernelChanges& changes) {
  if (changes.prepare_rows != nullptr) table.prepare_rows = changes.prepare_rows;
  if (changes.gemm != nullptr) table.gemm = changes.gemm;
  if (changes.attention != nullptr) table.attention = changes.attention;
  if (changes.index_scores != nullptr) table.index_scores = changes.index_scores;
  return table;
}

const KernelTable& Avx512VnniKernels() {
  static const KernelTable table = Changed(kAvx512Kernels, kAvx512VnniChanges);
  return table;
}

const KernelTable& Avx512Bf16Kernels() {
  static const KernelTable table = Changed(Avx512VnniKernels(), kAvx512Bf16Changes);
  return table;
}

const KernelTable& Avx512AmxKernels() {
  static const KernelTable table = Changed(Avx512Bf16Kernels(), kAvx512AmxChanges);
  return table;
}
#elif defined(__aarch64__)
bool IsSupported(Isa isa) { return isa == Isa::kScalar || (isa == Isa::kNeon && MachineCpuFeatures().asimd_dot); }
#else
bool IsSupported(Isa isa) { return isa == Isa::kScalar; }
#endif

std::string Names(const std::vector<Isa>& isas) {
  std::string names;
  for (const Isa isa : isas) {
    if (!names.empty()) names += ", ";
    names += IsaName(isa);
  }
  return names;
}

}  // namespace

std::string_view IsaName(Isa isa) {
  switch (isa) {
    case Isa::kScalar: return "scalar";
    case Isa::kAvx2: return "avx2";
    case Isa::kAvx512: return "avx512";
    case Isa::kAvx512Vnni: return "avx512vnni";
    case Isa::kAvx512Bf16: return "avx512bf16";
    case Isa::kAvx512Amx: return "avx512amx";
    case Isa::kNeon: return "neon";
  }
  return "unknown";
}

std::vector<Isa> SupportedIsas() {
  std::vector<Isa> isas;
  for (const Isa isa : kAllIsas) {
    if (IsSupported(isa)) isas.push_back(isa);
  }
  return isas;
}

Isa BestIsa() { return SupportedIsas().back(); }

absl::StatusOr<Isa> ChooseIsa(std::string_view forced) {
  if (forced.empty()) return BestIsa();
  for (const Isa isa : kAllIsas) {
    if (IsaName(isa) != forced) continue;
    if (IsSupported(isa)) return isa;
    return UsageError("instruction set '{}' was asked for, but this machine cannot run it; it has {}", forced,
                      Names(SupportedIsas()));
  }
  return UsageError("unknown instruction set '{}'; this machine has {}", forced, Names(SupportedIsas()));
}

const KernelTable& KernelsFor(Isa isa) {
  PENSTOCK_CHECK(IsSupported(isa));
#if defined(__x86_64__)
  switch (isa) {
    case Isa::kScalar: return kScalarKernels;
    case Isa::kAvx2: return kAvx2Kernels;
    case Isa::kAvx512: return kAvx512Kernels;
    case Isa::kAvx512Vnni: return Avx512VnniKernels();
    case Isa::kAvx512Bf16: return Avx512Bf16Kernels();
    case Isa::kAvx512Amx: return Avx512AmxKernels();
    case Isa::kNeon: break;
  }
#elif defined(__aarch64__)
  if (isa == Isa::kNeon) return kNeonKernels;
#endif
  return kScalarKernels;
}

int64_t RowBytes(RowFormat format, int64_t dim) {
  const auto groups = static_cast<int64_t>(CeilDiv(static_cast<uint64_t>(dim), kInt8Group));
  const int64_t bytes = format == RowFormat::kInt8 ? groups * kInt8RowGroupBytes : 4 * dim;
  // Avoids strides that are multiples of 2 KiB. With these, the dozen rows of a tile would share few sets of the L1
  // cache.
  const auto rounded = static_cast<int64_t>(RoundUp(static_cast<uint64_t>(bytes), 64));
  return rounded % 2048 == 0 ? rounded + 512 : rounded;
}

int64_t AttentionScratchFloats(int64_t num_heads, int64_t head_dim, int64_t num_positions) {
  // For each head: scores over whole pages plus one page, which spreads the heads' scores over the cache; q, p . V and
  // the total. If V is a part of K, also V of a page.
  const int64_t scores = (num_positions + kKvPageTokens - 1) / kKvPageTokens * kKvPageTokens + kKvPageTokens;
  const int64_t padded_dim = KvBlock{KvFormat::kF32, head_dim}.padded_dim();
  return num_heads * (scores + 2 * padded_dim + 1) + kKvPageTokens * padded_dim;
}

int64_t IndexScratchFloats(int64_t num_heads, int64_t head_dim) {
  return num_heads * KvBlock{KvFormat::kF32, head_dim}.padded_dim();
}

}  // namespace penstock::kernels
