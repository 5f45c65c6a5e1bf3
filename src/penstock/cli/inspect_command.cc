#include "penstock/cli/commands.h"

#include <xxhash.h>

#include <bit>
#include <memory>

#include <unistd.h>

#include "penstock/base/bytes.h"
#include "penstock/base/file.h"
#include "penstock/base/json.h"
#include "penstock/base/logging.h"
#include "penstock/base/status.h"
#include "penstock/checkpoint/packed_index.h"
#include "penstock/cli/flags/described_flags.h"
#include "penstock/cli/inspect_report.h"
#include "penstock/plan/loaded_model.h"
#include "penstock/tensor/block_formats.h"

namespace penstock::cli {
namespace {

// Reads every tensor, compares its checksum if it has one, and counts values that are NaN or infinite.
absl::Status VerifyWeights(const LoadedModel& model) {
  std::vector<std::byte> chunk(kMiB);
  std::vector<float> values;
  std::string faults;
  int64_t num_faulty = 0;
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> digest(XXH3_createState(), &XXH3_freeState);
  for (const TensorInfo& tensor : model.checkpoint.tensors()) {
    const OpenedFile& file = model.checkpoint.files()[tensor.file_idx];
    const bool is_blocks = tensor.packed.has_value() && IsBlocks(*tensor.packed);
    const bool is_float =
        tensor.packed.has_value() ? IsFloat(*tensor.packed) : IsFloat(tensor.dtype) || tensor.dtype == Dtype::kF8E4M3;
    const Dtype dtype = is_float && tensor.packed.has_value() ? DtypeOf(*tensor.packed) : tensor.dtype;
    const uint64_t block_bytes = is_blocks ? static_cast<uint64_t>(BlockBytes(*tensor.packed)) : 64;
    const uint64_t chunk_bytes = chunk.size() / block_bytes * block_bytes;
    XXH3_64bits_reset(digest.get());
    int64_t num_bad = 0;
    for (uint64_t done = 0; done < tensor.extent.size_bytes; done += chunk_bytes) {
      const uint64_t size = std::min<uint64_t>(chunk_bytes, tensor.extent.size_bytes - done);
      PENSTOCK_RETURN_IF_ERROR(
          PreadFully(file.fd.get(), std::span(chunk).first(size), tensor.extent.offset_bytes + done, file.path));
      XXH3_64bits_update(digest.get(), chunk.data(), size);
      if (is_blocks) {
        values.resize(size / block_bytes * static_cast<uint64_t>(BlockElements(*tensor.packed)));
        DequantiseBlocks(*tensor.packed, std::span(chunk).first(size), values);
      } else if (is_float) {
        values.resize(size / SizeOf(dtype));
        ToFloats(dtype, chunk.data(), values);
      } else {
        continue;  // packing has refused such values, and codes of four bits have none
      }
      for (const float value : values) num_bad += (std::bit_cast<uint32_t>(value) & 0x7F800000) == 0x7F800000 ? 1 : 0;
    }
    PENSTOCK_RETURN_IF_ERROR(CheckSum(tensor, XXH3_64bits_digest(digest.get())));
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
