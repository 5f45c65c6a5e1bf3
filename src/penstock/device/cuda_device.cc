// A CUDA device. Streams are its lanes. Its links copy between its memory and page-locked memory of the host.
#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <utility>

#include "penstock/base/bytes.h"
#include "penstock/base/check.h"
#include "penstock/base/checked.h"
#include "penstock/base/clock.h"
#include "penstock/base/logging.h"
#include "penstock/base/text.h"
#include "penstock/device/device.h"
#include "penstock/kernels/cuda/cuda_kernels.h"
#include "penstock/kernels/cuda/status.h"
#include "penstock/kernels/kernels.h"
#include "penstock/memory/cuda_memory.h"
#include "penstock/ops/cuda_operations.h"
#include "penstock/runtime/cuda_stream.h"

namespace penstock {
namespace {

// Rate of PCI Express 4.0 x16. Schedules that plan by times measure the link instead.
constexpr double kLinkBytesPerSecond = 24e9;

kernels::RowFormat FormatOf(Arithmetic arithmetic) {
  switch (arithmetic) {
    case Arithmetic::kF32: return kernels::RowFormat::kF32;
    case Arithmetic::kBf16: return kernels::RowFormat::kBF16;
    case Arithmetic::kInt8: return kernels::RowFormat::kInt8;
  }
  return kernels::RowFormat::kF32;
}

// Sends tables through page-locked memory in two halves: one is filled while copies read the other.
class CudaTables : public DeviceTables {
 public:
  static absl::StatusOr<std::unique_ptr<CudaTables>> Create(Memory& memory, Memory& host_memory, uint64_t size_bytes,
                                                            cuda::Stream stream) {
    auto tables = std::unique_ptr<CudaTables>(new CudaTables(size_bytes / kHalves, stream));
    PENSTOCK_ASSIGN_OR_RETURN(tables->device_, memory.Map(size_bytes));
    PENSTOCK_ASSIGN_OR_RETURN(tables->host_, host_memory.Map(size_bytes));
    for (cudaEvent_t& event : tables->read_) {
      PENSTOCK_CUDA_RETURN_IF_ERROR(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    }
    return tables;
  }
  ~CudaTables() override {
    for (const cudaEvent_t event : read_) {
      if (event != nullptr) (void)cudaEventDestroy(event);
    }
  }

  size_t max_bytes() const override { return half_bytes_; }

  const std::byte* Upload(std::span<const std::byte> bytes) override {
    PENSTOCK_CHECK(bytes.size() <= half_bytes_);
    if (used_ + bytes.size() > half_bytes_) {
      (void)cudaEventRecord(read_[half_], stream_);
      half_ = (half_ + 1) % kHalves;
      used_ = 0;
      (void)cudaEventSynchronize(read_[half_]);  // recorded long ago, so this rarely waits
    }
    const size_t offset = half_ * half_bytes_ + used_;
    std::copy(bytes.begin(), bytes.end(), host_.data() + offset);
    // An error is sticky: the stream's task reports it.
    (void)cudaMemcpyAsync(device_.data() + offset, host_.data() + offset, bytes.size(), cudaMemcpyHostToDevice,
                          stream_);
    used_ = RoundUp(used_ + bytes.size(), kAlignment);
    return device_.data() + offset;
  }

  void Download(void* target, const void* source, size_t num_bytes) override {
    if (num_bytes == 0) return;
    (void)cudaMemcpyAsync(target, source, num_bytes, cudaMemcpyDeviceToHost, stream_);
    if (cudaStreamSynchronize(stream_) != cudaSuccess) std::memset(target, 0, num_bytes);  // the task reports it
  }

 private:
  static constexpr size_t kHalves = 2;
  static constexpr size_t kAlignment = 64;

  CudaTables(size_t half_bytes, cuda::Stream stream) : half_bytes_(half_bytes), stream_(stream) {}

  size_t half_bytes_;
  cuda::Stream stream_;
  Arena device_, host_;
  std::array<cudaEvent_t, kHalves> read_ = {};  // recorded after the last copy from each half
  size_t half_ = 0, used_ = 0;
};

class CudaDevice : public Device {
 public:
  CudaDevice(const DeviceSpec& spec, const CudaWorkspace& workspace, uint64_t budget_bytes)
      : spec_(spec),
        workspace_(workspace),
        own_memory_(spec.device_idx),
        memory_("GPU", own_memory_, budget_bytes),
        host_memory_(spec.device_idx) {}

  Memory& memory() override { return memory_; }
  Memory& host_memory() override { return host_memory_; }
  int num_workers() const override { return 0; }

  absl::StatusOr<Lanes> AddLanes(RealRuntime& runtime) override {
    std::array<std::unique_ptr<CudaStream>, 3> streams;
    for (auto& stream : streams) {
      PENSTOCK_ASSIGN_OR_RETURN(stream, CudaStream::Create(spec_.device_idx));
    }
    stream_ = streams[0]->get();
    to_device_.emplace(CudaCopier::Direction::kToDevice, spec_.device_idx, streams[1]->get());
    to_host_.emplace(CudaCopier::Direction::kToHost, spec_.device_idx, streams[2]->get());
    return Lanes{.compute = runtime.AddStreamLane("device_compute", std::move(streams[0])),
                 .dram_to_pinned = runtime.AddThreadLane("dram_to_pinned"),
                 .dram_to_device = runtime.AddStreamLane("dram_to_device", std::move(streams[1])),
                 .device_to_dram = runtime.AddStreamLane("device_to_dram", std::move(streams[2]))};
  }
  Copier& to_device() override { return *to_device_; }
  Copier& to_host() override { return *to_host_; }

  absl::StatusOr<std::unique_ptr<Operations>> MakeOperations(const OperationsArgs& args) override {
    PENSTOCK_ASSIGN_OR_RETURN(scores_, memory_.Map(workspace_.scores_bytes));
    PENSTOCK_ASSIGN_OR_RETURN(tables_, CudaTables::Create(memory_, host_memory_, workspace_.tables_bytes, stream_));
    cuda::GemmTuning tuning;
    if (spec_.share < 1) tuning.max_blocks = std::max(1, static_cast<int>(spec_.share * spec_.num_processors));
    tuning.tiled_from = TilesFrom(args, tuning);
    LogDebug("{}: tiles of many rows from {} rows on", spec_.name, tuning.tiled_from);
    return std::make_unique<CudaOperations>(CudaOperations::Args{
        .config = args.config,
        .row_formats = args.row_formats,
        .weights = args.weights,
        .activations = args.activations,
        .attention_scores = {reinterpret_cast<float*>(scores_.data()), scores_.size_bytes() / sizeof(float)},
        .tables = *tables_,
        .stream = stream_,
        .tuning = tuning});
  }

  absl::Status Wait() override {
    PENSTOCK_CUDA_RETURN_IF_ERROR(cudaGetLastError());
    return PENSTOCK_CUDA_STATUS(cudaStreamSynchronize(stream_));
  }

  // Writes results to the buffer of attention's scores, which is free meanwhile.
  ProcessorRates Measure(Arithmetic arithmetic, std::span<const std::byte> bytes, double seconds) override {
    ProcessorRates rates;
    if (!PENSTOCK_CUDA_STATUS(cudaSetDevice(spec_.device_idx)).ok()) return rates;
    auto* const results = reinterpret_cast<float*>(scores_.data());
    const kernels::RowFormat format = FormatOf(arithmetic);
    rates.ops_per_s = cuda::PeakOps(format, num_blocks()) /
                      BestSeconds(seconds, [&] { cuda::Peak(format, num_blocks(), results, stream_); });
    if (bytes.size() >= kMinBytes) {
      rates.memory_bytes_per_s = static_cast<double>(bytes.size()) / BestSeconds(seconds, [&] {
                                   cuda::ReadAll(bytes.data(), std::ssize(bytes), results, stream_);
                                 });
    }
    return rates;
  }

  double MeasureLink(double seconds) override {
    const uint64_t num_bytes = std::min<uint64_t>(16 * kMiB, scores_.size_bytes());
    const absl::StatusOr<Arena> from = host_memory_.Map(num_bytes);
    if (!from.ok()) return spec_.link_bytes_per_s;
    std::memset(from->data(), 1, num_bytes);
    const ByteCopy copy{scores_.data(), from->data(), num_bytes};
    CudaCopier copier(CudaCopier::Direction::kToDevice, spec_.device_idx, stream_);
    return static_cast<double>(num_bytes) / BestSeconds(seconds, [&] { (void)copier.Copy({&copy, 1}); });
  }

 private:
  static constexpr size_t kMinBytes = 4 * kMiB;

  // Returns the number of rows from which an expert's products are faster in tiles of many rows. It measures them in
  // the model's shape (the switch between grouped and dense GEMMs of EPS-MoE, section 3.2). The results mean nothing:
  // the weights are the output layer's bytes, whatever their format.
  int64_t TilesFrom(const OperationsArgs& args, cuda::GemmTuning tuning) {
    const kernels::RowFormat format = args.row_formats.ffn;
    const WeightView& weights = args.weights.outer().lm_head;
    Activations& a = args.activations;
    const int64_t inner_dim = args.config.expert_row_dim(), stride = kernels::RowBytes(format, inner_dim);
    const uint64_t weight_bytes = PackedBytes(weights.format, args.config.vocab_size, inner_dim);
    const auto num_panels = static_cast<int64_t>(weight_bytes / PanelBytes(args.ffn_format, inner_dim));
    const int64_t num_cols = std::min(args.config.expert_dim, kPanelCols * num_panels);
    const int64_t max_rows = std::ssize(a.expert_input) / stride;
    const bool has_tiles = format == kernels::RowFormat::kInt8
                               ? IsCodes(args.ffn_format)
                               : format == kernels::RowFormat::kBF16 && args.ffn_format == WeightFormat::kBF16;
    if (!has_tiles || num_cols == 0 || weights.data == nullptr) return tuning.tiled_from;
    for (const int64_t num_rows : {16, 32, 64, 128, 256, 512}) {
      if (num_rows > max_rows || num_rows * num_cols > std::ssize(a.expert_output)) break;
      const auto seconds = [&](int64_t tiled_from) {
        tuning.tiled_from = tiled_from;
        const cuda::GemmLaunch launch{.x_format = format,
                                      .w_format = args.ffn_format,
                                      .num_cols = num_cols,
                                      .inner_dim = inner_dim,
                                      .x = a.expert_input.data(),
                                      .x_stride_bytes = stride,
                                      .weights = {{weights.data}},
                                      .y = a.expert_output.data(),
                                      .y_stride = num_cols,
                                      .groups = {.max_rows = num_rows},
                                      .tuning = tuning};
        cuda::Gemm(launch, stream_);
        return BestSeconds(kTuningSeconds, [&] { cuda::Gemm(launch, stream_); });
      };
      if (seconds(1) < seconds(num_rows + 1)) return num_rows;
    }
    return kNeverTiled;
  }
  static constexpr double kTuningSeconds = 1e-3;
  static constexpr int64_t kNeverTiled = int64_t{1} << 40;

  int num_blocks() const { return 4 * spec_.num_processors; }

  // Returns the seconds of the fastest of many runs, by the device's own clock. `give` gives the work of one run to the
  // stream.
  double BestSeconds(double seconds, const std::function<void()>& give) {
    cudaEvent_t begin = nullptr, end = nullptr;
    double best = kNever;
    if (cudaEventCreateWithFlags(&begin, cudaEventDefault) == cudaSuccess &&
        cudaEventCreateWithFlags(&end, cudaEventDefault) == cudaSuccess) {
      const auto start = Clock::now();
      do {
        (void)cudaEventRecord(begin, stream_);
        give();
        (void)cudaEventRecord(end, stream_);
        float milliseconds = 0;
        if (cudaEventSynchronize(end) != cudaSuccess ||
            cudaEventElapsedTime(&milliseconds, begin, end) != cudaSuccess) {
          break;
        }
        best = std::min(best, std::max(1e-9, 1e-3 * static_cast<double>(milliseconds)));
      } while (SecondsSince(start) < seconds);
    }
    if (begin != nullptr) (void)cudaEventDestroy(begin);
    if (end != nullptr) (void)cudaEventDestroy(end);
    return best;
  }
  static constexpr double kNever = 1e30;

  DeviceSpec spec_;
  CudaWorkspace workspace_;
  CudaMemory own_memory_;
  BudgetedMemory memory_;
  PageLockedMemory host_memory_;
  cuda::Stream stream_ = nullptr;  // of the compute lane
  std::optional<CudaCopier> to_device_, to_host_;
  Arena scores_;
  std::unique_ptr<CudaTables> tables_;
};

}  // namespace

absl::StatusOr<DeviceSpec> FindCudaDevice(int device_idx) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    (void)cudaGetLastError();
    return ResourceError("this machine has no GPU that CUDA finds ({}); use --device cpu",
                         error == cudaSuccess ? "there is none" : cudaGetErrorString(error));
  }
  if (device_idx >= count) return ResourceError("this machine has {} GPUs, numbered from 0", count);
  cudaDeviceProp properties = {};
  size_t free_bytes = 0, total_bytes = 0;
  PENSTOCK_CUDA_RETURN_IF_ERROR(cudaGetDeviceProperties(&properties, device_idx));
  PENSTOCK_CUDA_RETURN_IF_ERROR(cudaSetDevice(device_idx));
  PENSTOCK_CUDA_RETURN_IF_ERROR(cudaMemGetInfo(&free_bytes, &total_bytes));
  constexpr int kMinMajor = 7, kMinMinor = 5;
  if (std::pair(properties.major, properties.minor) < std::pair(kMinMajor, kMinMinor)) {
    return ResourceError("{} has compute capability {}.{}, and {}.{} is the least", Printable(properties.name),
                         properties.major, properties.minor, kMinMajor, kMinMinor);
  }
  return DeviceSpec{.kind = DeviceKind::kCuda,
                    .name = fmt::format("cuda:{}", device_idx),
                    .model = ReplaceInvalidUtf8(properties.name),
                    .link_bytes_per_s = kLinkBytesPerSecond,
                    .num_threads = 0,
                    .device_idx = device_idx,
                    .free_bytes = free_bytes,
                    .total_bytes = total_bytes,
                    .num_processors = properties.multiProcessorCount,
                    .shared_bytes = properties.sharedMemPerBlockOptin};
}

absl::StatusOr<std::unique_ptr<Device>> MakeCudaDevice(const DeviceSpec& spec, const CudaWorkspace& workspace,
                                                       uint64_t budget_bytes) {
  PENSTOCK_CUDA_RETURN_IF_ERROR(cudaSetDevice(spec.device_idx));
  return std::make_unique<CudaDevice>(spec, workspace, budget_bytes);
}

}  // namespace penstock
