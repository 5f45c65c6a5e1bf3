// Speed of recurrent layers on a GPU, in Qwen3.6's shape (gated DeltaNet): the rule that changes a layer's states, and
// the convolution before it. Prints one JSON object for each number of sequences and rows. Single rows are compared
// with what the device reads of its memory; prompts with its multiplications and additions in f32.
#include <cstdio>
#include <vector>

#include "bench/gpu/device_timing.h"
#include "penstock/base/status.h"
#include "penstock/device/device.h"
#include "penstock/kernels/cuda/cuda_kernels.h"
#include "penstock/kernels/cuda/recurrent.h"

namespace penstock {
namespace {

constexpr int64_t kKeyHeads = 16, kValueHeads = 32, kDim = 128;
constexpr int64_t kKeysDim = kKeyHeads * kDim, kValuesDim = kValueHeads * kDim;
constexpr int64_t kChannels = 2 * kKeysDim + kValuesDim, kPartChannels = 512, kConvParts = kChannels / kPartChannels;
constexpr int64_t kConvWidth = 4;
constexpr int64_t kMatrixFloats = kDim * kDim, kConvFloats = (kConvWidth - 1) * kPartChannels;

struct Case {
  int64_t num_sequences, rows_of_each;
};
constexpr Case kCases[] = {{1, 1},   {4, 1},    {16, 1},   {64, 1},    {256, 1},
                           {1, 512}, {1, 2048}, {16, 128}, {16, 1024}, {64, 64}};

// Tables of sequences with the same number of rows, whose states lie one after another.
struct Tables {
  Tables(const Case& c, int64_t num_parts, int64_t part_floats, float* states)
      : bytes(static_cast<uint64_t>(c.num_sequences * (num_parts + 1) + 1) * 8) {
    std::vector<int64_t> begins;
    std::vector<float*> parts;
    for (int64_t i = 0; i <= c.num_sequences; ++i) begins.push_back(i * c.rows_of_each);
    for (int64_t i = 0; i < c.num_sequences * num_parts; ++i) parts.push_back(states + i * part_floats);
    (void)cudaMemcpy(bytes.data(), begins.data(), begins.size() * 8, cudaMemcpyHostToDevice);
    std::byte* const after = bytes.data() + begins.size() * 8;
    (void)cudaMemcpy(after, parts.data(), parts.size() * 8, cudaMemcpyHostToDevice);
    (void)cudaDeviceSynchronize();  // other streams do not wait for it
    runs = {.num_runs = c.num_sequences,
            .num_parts = num_parts,
            .begins = reinterpret_cast<const int64_t*>(bytes.data()),
            .parts = reinterpret_cast<float* const*>(after)};
  }

  DeviceBytes bytes;
  cuda::StateRuns runs;
};

void Print(const char* kind, const Case& c, double seconds, double bytes, double ops, double read, double peak) {
  std::printf(
      "{\"kind\": \"%s\", \"sequences\": %ld, \"rows\": %ld, \"seconds\": %.3e, \"gb_per_s\": %.1f, \"of_read\": %.3f, "
      "\"gflops\": %.1f, \"of_peak\": %.3f, \"rows_per_s\": %.0f}\n",
      kind, static_cast<long>(c.num_sequences), static_cast<long>(c.rows_of_each), seconds, 1e-9 * bytes / seconds,
      bytes / seconds / read, 1e-9 * ops / seconds, ops / seconds / peak,
      static_cast<double>(c.num_sequences * c.rows_of_each) / seconds);
}

absl::Status Measure(const DeviceSpec& spec) {
  cuda::Stream stream = nullptr;
  PENSTOCK_CUDA_RETURN_IF_ERROR(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  constexpr int64_t kMaxSequences = 256, kMaxRows = 16384;
  const auto floats = [](int64_t count) { return DeviceBytes(static_cast<uint64_t>(count) * 4); };
  const DeviceBytes states = floats(kMaxSequences * kValueHeads * kMatrixFloats);
  const DeviceBytes q = floats(kMaxRows * kKeysDim), k = floats(kMaxRows * kKeysDim), v = floats(kMaxRows * kValuesDim);
  const DeviceBytes out = floats(kMaxRows * kValuesDim), gates = floats(kMaxRows * kValueHeads);
  const DeviceBytes weight = floats(kConvWidth * kChannels);
  for (const DeviceBytes* bytes : {&states, &q, &k, &v, &out, &gates, &weight}) {
    PENSTOCK_RETURN_IF_ERROR(bytes->status());
  }
  const auto of = [](const DeviceBytes& bytes) { return reinterpret_cast<float*>(bytes.data()); };
  const int num_blocks = 4 * spec.num_processors;
  const double peak = cuda::PeakOps(kernels::RowFormat::kF32, num_blocks) /
                      Seconds(stream, [&] { cuda::Peak(kernels::RowFormat::kF32, num_blocks, of(out), stream); });
  constexpr int64_t kReadBytes = int64_t{1} << 29;
  const double read = static_cast<double>(kReadBytes) /
                      Seconds(stream, [&] { cuda::ReadAll(states.data(), kReadBytes, of(out), stream); });
  std::printf("{\"kind\": \"device\", \"read_gb_per_s\": %.1f, \"peak_gflops\": %.1f}\n", 1e-9 * read, 1e-9 * peak);
  for (const Case& c : kCases) {
    const auto num_rows = static_cast<double>(c.num_sequences * c.rows_of_each);
    const auto num_sequences = static_cast<double>(c.num_sequences);
    {
      const Tables tables(c, kValueHeads, kMatrixFloats, of(states));
      const cuda::StateRuleLaunch launch{.runs = tables.runs,
                                         .num_key_heads = kKeyHeads,
                                         .num_value_heads = kValueHeads,
                                         .key_dim = kDim,
                                         .value_dim = kDim,
                                         .part_cols = kDim,
                                         .q = of(q),
                                         .k = of(k),
                                         .v = of(v),
                                         .decay = of(gates),
                                         .beta = of(gates),
                                         .out = of(out)};
      const double seconds = Seconds(stream, [&] { cuda::StateRule(launch, stream); });
      PENSTOCK_CUDA_RETURN_IF_ERROR(cudaGetLastError());
      // A state is read and written once. A row takes two sums and the change, each a product and a sum, and the decay.
      Print("rule", c, seconds, 2 * 4 * num_sequences * kValueHeads * kMatrixFloats,
            7 * num_rows * kValueHeads * kMatrixFloats, read, peak);
    }
    const Tables tables(c, kConvParts, kConvFloats, of(states));
    const cuda::ShortConvLaunch launch{.runs = tables.runs,
                                       .num_channels = kChannels,
                                       .part_channels = kPartChannels,
                                       .width = kConvWidth,
                                       .inputs = {{of(q), kKeysDim, of(weight), kChannels},
                                                  {of(k), kKeysDim, of(weight) + kKeysDim, kChannels},
                                                  {of(v), kValuesDim, of(weight) + 2 * kKeysDim, kChannels}}};
    const double seconds = Seconds(stream, [&] { cuda::ShortConv(launch, stream); });
    PENSTOCK_CUDA_RETURN_IF_ERROR(cudaGetLastError());
    Print("convolution", c, seconds, 2 * 4 * num_rows * kChannels, 2 * num_rows * kChannels * kConvWidth, read, peak);
  }
  return PENSTOCK_CUDA_STATUS(cudaStreamDestroy(stream));
}

}  // namespace
}  // namespace penstock

int main() { return penstock::MeasureFirstGpu("cuda_recurrent_bench", penstock::Measure); }
