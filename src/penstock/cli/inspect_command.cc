#include "penstock/cli/commands.h"

#include <algorithm>
#include <bit>

#include <unistd.h>

#include "penstock/base/bytes.h"
#include "penstock/base/file.h"
#include "penstock/base/json.h"
#include "penstock/base/logging.h"
#include "penstock/base/status.h"
#include "penstock/checkpoint/packed_index.h"
#include "penstock/checkpoint/tensor_rows.h"
#include "penstock/cli/flags/described_flags.h"
#include "penstock/cli/inspect_report.h"
#include "penstock/kernels/checksum.h"
#include "penstock/kernels/decompress.h"
#include "penstock/kernels/kernels.h"
#include "penstock/plan/loaded_model.h"
#include "penstock/tensor/block_formats.h"
#include "penstock/tensor/exponent_code.h"

namespace penstock::cli {
namespace {

int64_t NumNotFinite(std::span<const float> values) {
  return std::ranges::count_if(values,
                               [](float value) { return (std::bit_cast<uint32_t>(value) & 0x7F800000) == 0x7F800000; });
}

// Reads a compressed tensor, compares its checksums, and returns the number of its values that are not finite.
absl::StatusOr<int64_t> VerifyCompressed(const TensorInfo& tensor, const OpenedFile& file) {
  const uint64_t value_bytes = PackedStoreBytes(tensor, *tensor.packed);
  std::vector<std::byte> bytes(MaxCompressedBytes(value_bytes)), scratch(kExponentScratchBytes);
  const auto values = std::span(bytes).first(value_bytes), compressed = std::span(bytes).last(tensor.extent.size_bytes);
  PENSTOCK_RETURN_IF_ERROR(PreadFully(file.fd.get(), compressed, tensor.extent.offset_bytes, file.path));
  PENSTOCK_RETURN_IF_ERROR(CheckSum(tensor, kernels::Checksum(compressed)));
  const kernels::KernelTable& table = kernels::KernelsFor(kernels::BestIsa());
  if (!kernels::Decompress(table, compressed, scratch, values).has_value()) return CannotDecompress(tensor);
  std::vector<float> floats(kMiB);
  int64_t num_bad = 0;
  for (size_t done = 0; done < value_bytes; done += 2 * floats.size()) {
    floats.resize(std::min<size_t>(floats.size(), (value_bytes - done) / 2));
    ToFloats(Dtype::kBF16, values.data() + done, floats);
    num_bad += NumNotFinite(floats);
  }
  return num_bad;
}

// The same for any other tensor. `chunk` is room for a part of it.
absl::StatusOr<int64_t> VerifyStored(const TensorInfo& tensor, const OpenedFile& file, std::span<std::byte> chunk) {
  const bool is_blocks = tensor.packed.has_value() && IsBlocks(*tensor.packed);
  const bool is_float =
      tensor.packed.has_value() ? IsFloat(*tensor.packed) : IsFloat(tensor.dtype) || tensor.dtype == Dtype::kF8E4M3;
  const Dtype dtype = is_float && tensor.packed.has_value() ? DtypeOf(*tensor.packed) : tensor.dtype;
  const uint64_t block_bytes = is_blocks ? static_cast<uint64_t>(BlockBytes(*tensor.packed)) : 64;
  const uint64_t chunk_bytes = chunk.size() / block_bytes * block_bytes;
  kernels::RunningChecksum checksum;
  std::vector<float> values;
  int64_t num_bad = 0;
  for (uint64_t done = 0; done < tensor.extent.size_bytes; done += chunk_bytes) {
    const auto part = chunk.first(std::min<uint64_t>(chunk_bytes, tensor.extent.size_bytes - done));
    PENSTOCK_RETURN_IF_ERROR(PreadFully(file.fd.get(), part, tensor.extent.offset_bytes + done, file.path));
    checksum.Add(part);
    if (is_blocks) {
      values.resize(part.size() / block_bytes * static_cast<uint64_t>(BlockElements(*tensor.packed)));
      DequantiseBlocks(*tensor.packed, part, values);
    } else if (is_float) {
      values.resize(part.size() / SizeOf(dtype));
      ToFloats(dtype, part.data(), values);
    } else {
      continue;  // packing has refused such values, and codes of four bits have none
    }
    num_bad += NumNotFinite(values);
  }
  PENSTOCK_RETURN_IF_ERROR(CheckSum(tensor, checksum.value()));
  return num_bad;
}

// Reads every tensor, compares its checksum if it has one, and counts values that are NaN or infinite.
absl::Status VerifyWeights(const LoadedModel& model) {
  std::vector<std::byte> chunk(kMiB);
  std::string faults;
  int64_t num_faulty = 0;
  for (const TensorInfo& tensor : model.checkpoint.tensors()) {
    const OpenedFile& file = model.checkpoint.files()[tensor.file_idx];
    PENSTOCK_ASSIGN_OR_RETURN(const int64_t num_bad, tensor.is_compressed ? VerifyCompressed(tensor, file)
                                                                          : VerifyStored(tensor, file, chunk));
    if (num_bad == 0) continue;
    if (++num_faulty <= 10) faults += fmt::format("{}{} has {}", faults.empty() ? "" : "; ", tensor.name, num_bad);
  }
  if (num_faulty == 0) {
    LogInfo("verified {} tensors: no value is NaN or infinite, and checksums are right where the model has them",
            model.checkpoint.tensors().size());
    return absl::OkStatus();
  }
  return ModelError("values that are NaN or infinite: {}{} ({} tensors in all)", faults, num_faulty > 10 ? "; ..." : "",
                    num_faulty);
}

}  // namespace

absl::StatusOr<int> InspectCommand(const InspectFlags& flags) {
  PENSTOCK_ASSIGN_OR_RETURN(const DescribedModel model, DescribeModel(flags.model_dir, flags.config));
  if (flags.verify && model.loaded() == nullptr) return UsageError("--verify: --config has no weights");
  if (flags.verify) PENSTOCK_RETURN_IF_ERROR(VerifyWeights(*model.loaded()));
  const json::object report = InspectReport(model);
  const std::string text = flags.as_json ? json::serialize(report) + "\n" : InspectTable(report);
  PENSTOCK_RETURN_IF_ERROR(WriteFully(STDOUT_FILENO, text, "stdout"));
  return 0;
}

}  // namespace penstock::cli
