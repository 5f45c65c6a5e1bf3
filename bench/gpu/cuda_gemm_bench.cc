// Speed of an expert's GEMMs on a GPU by rows, format and kind of tiles, in Mixtral-8x7B's shape. Prints one JSON
// object for each, with its shares of the device's measured peaks: memory reads, and products of registers.
//
// Runs of few rows cycle through matrices that do not fit any cache. Eight experts run at once, as in a layer.
#include <cstdio>
#include <vector>

#include "bench/gpu/device_timing.h"
#include "penstock/base/status.h"
#include "penstock/device/device.h"
#include "penstock/kernels/cuda/cuda_kernels.h"
#include "penstock/kernels/cuda/status.h"
#include "penstock/kernels/kernels.h"

namespace penstock {
namespace {

using kernels::RowFormat;

constexpr int64_t kModelDim = 4096, kExpertDim = 14336;
constexpr int kNumExperts = 8;

struct Kind {
  const char* name;
  RowFormat x_format;
  WeightFormat w_format;
};
constexpr Kind kKinds[] = {
    {"bf16", RowFormat::kBF16, WeightFormat::kBF16},   {"int8", RowFormat::kInt8, WeightFormat::kInt8},
    {"hqq4", RowFormat::kInt8, WeightFormat::kHqq4},   {"q8_0", RowFormat::kInt8, WeightFormat::kQ8_0},
    {"q4_k", RowFormat::kInt8, WeightFormat::kQ4_K},   {"q6_k", RowFormat::kInt8, WeightFormat::kQ6_K},
    {"mxfp4", RowFormat::kInt8, WeightFormat::kMxfp4}, {"fp8", RowFormat::kF32, WeightFormat::kFp8},
    {"f32xbf16", RowFormat::kF32, WeightFormat::kBF16}};

absl::Status Measure(const DeviceSpec& spec) {
  cuda::Stream stream = nullptr;
  PENSTOCK_CUDA_RETURN_IF_ERROR(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  constexpr int64_t kMaxRows = 4096;
  const DeviceBytes x(static_cast<uint64_t>(kNumExperts * kMaxRows) * 4 * kModelDim);
  const DeviceBytes y(static_cast<uint64_t>(kNumExperts * kMaxRows) * 4 * kExpertDim);
  const DeviceBytes w(2 * kNumExperts * PackedBytes(WeightFormat::kBF16, kExpertDim, kModelDim));
  const DeviceBytes offsets((kNumExperts + 1) * sizeof(int64_t));
  for (const DeviceBytes* bytes : {&x, &y, &w, &offsets}) PENSTOCK_RETURN_IF_ERROR(bytes->status());
  PENSTOCK_CUDA_RETURN_IF_ERROR(cudaDeviceSynchronize());
  auto* const results = reinterpret_cast<float*>(y.data());
  for (const Kind& kind : kKinds) {
    const int num_blocks = 4 * spec.num_processors;
    const double peak = cuda::PeakOps(kind.x_format, num_blocks) /
                        Seconds(stream, [&] { cuda::Peak(kind.x_format, num_blocks, results, stream); });
    constexpr int64_t kReadBytes = int64_t{1} << 30;
    const double read = static_cast<double>(kReadBytes) /
                        Seconds(stream, [&] { cuda::ReadAll(w.data(), kReadBytes, results, stream); });
    const uint64_t matrix_bytes = PackedBytes(kind.w_format, kExpertDim, kModelDim);
    for (const int64_t num_rows : {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096}) {
      std::vector<int64_t> ends;
      for (int64_t e = 0; e <= kNumExperts; ++e) ends.push_back(e * num_rows);
      PENSTOCK_CUDA_RETURN_IF_ERROR(
          cudaMemcpy(offsets.data(), ends.data(), ends.size() * sizeof(int64_t), cudaMemcpyHostToDevice));
      PENSTOCK_CUDA_RETURN_IF_ERROR(cudaDeviceSynchronize());  // other streams do not wait for it
      for (const bool tiled : {false, true}) {
        const bool has_tiles = kind.x_format != RowFormat::kF32 && !IsBlocks(kind.w_format);
        if (tiled && !has_tiles) continue;
        if (!tiled && num_rows > 1024) continue;
        cuda::GemmLaunch launch{.x_format = kind.x_format,
                                .w_format = kind.w_format,
                                .num_cols = kExpertDim,
                                .inner_dim = kModelDim,
                                .x = x.data(),
                                .x_stride_bytes = kernels::RowBytes(kind.x_format, kModelDim),
                                .y = results,
                                .y_stride = kExpertDim,
                                .groups = {.num_groups = kNumExperts,
                                           .offsets = reinterpret_cast<const int64_t*>(offsets.data()),
                                           .max_rows = num_rows},
                                .tuning = {.tiled_from = tiled ? 1 : int64_t{1} << 40}};
        for (int e = 0; e < kNumExperts; ++e) {
          launch.weights.w[e] = w.data() + static_cast<uint64_t>(e) * matrix_bytes;
          launch.groups.expert_idx[e] = e;
        }
        const double seconds = Seconds(stream, [&] { cuda::Gemm(launch, stream); });
        PENSTOCK_CUDA_RETURN_IF_ERROR(cudaGetLastError());
        const double ops = 2.0 * kNumExperts * static_cast<double>(num_rows) * kExpertDim * kModelDim;
        const double bytes = static_cast<double>(kNumExperts * matrix_bytes);
        std::printf(
            "{\"kind\": \"gemm\", \"format\": \"%s\", \"rows\": %ld, \"tiled\": %s, \"seconds\": %.3e, \"tflops\": "
            "%.2f, "
            "\"of_peak\": %.3f, \"gb_per_s\": %.1f, \"of_read\": %.3f, \"peak_tflops\": %.1f, \"read_gb_per_s\": "
            "%.1f}\n",
            kind.name, static_cast<long>(num_rows), tiled ? "true" : "false", seconds, 1e-12 * ops / seconds,
            ops / seconds / peak, 1e-9 * bytes / seconds, bytes / seconds / read, 1e-12 * peak, 1e-9 * read);
      }
    }
  }
  return PENSTOCK_CUDA_STATUS(cudaStreamDestroy(stream));
}

}  // namespace
}  // namespace penstock

int main() { return penstock::MeasureFirstGpu("cuda_gemm_bench", penstock::Measure); }
