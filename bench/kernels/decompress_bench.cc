// Speed and ratio of the lossless compression of bf16 weights, on one thread: decoding with each instruction set, with
// the checksums of its blocks, and packing. Rates count decoded bytes. Zstandard and LZ4 stand beside them if CMake
// finds their libraries.
//
// The weights are drawn from a normal distribution. They come from memory that does not fit any cache.
#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>
#ifdef PENSTOCK_BENCH_ZSTD
#include <zstd.h>
#endif
#ifdef PENSTOCK_BENCH_LZ4
#include <lz4.h>
#endif

#include "penstock/kernels/decompress.h"
#include "penstock/kernels/kernels.h"
#include "penstock/memory/arena.h"
#include "penstock/tensor/dtype.h"
#include "penstock/tensor/exponent_code.h"

namespace penstock {
namespace {

constexpr size_t kMatrixBytes = 4 << 20, kNumMatrices = 32;

using Bytes = std::vector<std::byte>;

const std::vector<Bytes>& Matrices() {
  static const std::vector<Bytes> matrices = [] {
    std::mt19937 random(1);
    std::normal_distribution<float> weight(0, 0.02F);
    std::vector<Bytes> drawn(kNumMatrices, Bytes(kMatrixBytes));
    for (Bytes& matrix : drawn) {
      std::vector<BF16> values(kMatrixBytes / sizeof(BF16));
      for (BF16& value : values) value = ToBF16(weight(random));
      std::memcpy(matrix.data(), values.data(), kMatrixBytes);
    }
    return drawn;
  }();
  return matrices;
}

// Compresses all matrices with compress(matrix), then measures decode(compressed, target).
template <typename Compress, typename Decode>
void Run(benchmark::State& state, const Compress& compress, const Decode& decode) {
  // Memory of the kind that slots have.
  const Arena sources = HostMemory().Map(kNumMatrices * kMatrixBytes * 2).value();
  const Arena targets = HostMemory().Map(kNumMatrices * kMatrixBytes).value();
  std::vector<std::span<const std::byte>> compressed;
  size_t total = 0;
  for (const Bytes& matrix : Matrices()) {
    const Bytes bytes = compress(matrix);
    std::byte* const target = sources.data() + compressed.size() * kMatrixBytes * 2;
    std::copy(bytes.begin(), bytes.end(), target);
    compressed.emplace_back(target, bytes.size());
    total += bytes.size();
  }
  const auto target_of = [&](size_t idx) { return std::span(targets.data() + idx * kMatrixBytes, kMatrixBytes); };
  size_t idx = 0;
  for (auto _ : state) {
    if (!decode(compressed[idx], target_of(idx))) state.SkipWithError("the bytes could not be decoded");
    idx = (idx + 1) % kNumMatrices;
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * kMatrixBytes));
  state.counters["ratio"] = static_cast<double>(kNumMatrices * kMatrixBytes) / static_cast<double>(total);
  if (!std::ranges::equal(target_of(0), Matrices()[0])) state.SkipWithError("the decoded bytes differ");
}

Bytes CompressExponents(const Bytes& matrix) {
  Bytes compressed;
  for (size_t begin = 0; begin < matrix.size(); begin += kExponentBlockBytes) {
    const size_t size = std::min<size_t>(kExponentBlockBytes, matrix.size() - begin);
    AppendExponentBlock(std::span(matrix).subspan(begin, size), compressed);
  }
  return compressed;
}

void PackExponents(benchmark::State& state) {
  const Bytes& matrix = Matrices()[0];
  for (auto _ : state) benchmark::DoNotOptimize(CompressExponents(matrix));
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * kMatrixBytes));
}
BENCHMARK(PackExponents)->Name("exponents/pack");

#ifdef PENSTOCK_BENCH_ZSTD
void Zstd(benchmark::State& state) {
  const auto compress = [](const Bytes& matrix) {
    Bytes target(ZSTD_compressBound(matrix.size()));
    target.resize(ZSTD_compress(target.data(), target.size(), matrix.data(), matrix.size(), 1));
    return target;
  };
  Run(state, compress, [](std::span<const std::byte> source, std::span<std::byte> target) {
    return ZSTD_decompress(target.data(), target.size(), source.data(), source.size()) == target.size();
  });
}
BENCHMARK(Zstd)->Name("zstd-1");
#endif

#ifdef PENSTOCK_BENCH_LZ4
void Lz4(benchmark::State& state) {
  const auto compress = [](const Bytes& matrix) {
    Bytes target(static_cast<size_t>(LZ4_compressBound(static_cast<int>(matrix.size()))));
    target.resize(static_cast<size_t>(
        LZ4_compress_default(reinterpret_cast<const char*>(matrix.data()), reinterpret_cast<char*>(target.data()),
                             static_cast<int>(matrix.size()), static_cast<int>(target.size()))));
    return target;
  };
  Run(state, compress, [](std::span<const std::byte> source, std::span<std::byte> target) {
    return LZ4_decompress_safe(reinterpret_cast<const char*>(source.data()), reinterpret_cast<char*>(target.data()),
                               static_cast<int>(source.size()),
                               static_cast<int>(target.size())) == static_cast<int>(target.size());
  });
}
BENCHMARK(Lz4)->Name("lz4");
#endif

const int kRegistered = [] {
  for (const kernels::Isa isa : kernels::SupportedIsas()) {
    const std::string name = "exponents/" + std::string(kernels::IsaName(isa));
    benchmark::RegisterBenchmark(name.c_str(), [isa](benchmark::State& state) {
      Bytes scratch(kExponentScratchBytes);
      Run(state, CompressExponents, [&](std::span<const std::byte> source, std::span<std::byte> target) {
        return kernels::Decompress(kernels::KernelsFor(isa), source, scratch, target).has_value();
      });
    });
  }
  return 0;
}();

}  // namespace
}  // namespace penstock
