#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "penstock/base/bytes.h"
#include "penstock/base/check.h"
#include "penstock/base/checked.h"
#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "penstock/base/thread_pool.h"
#include "penstock/checkpoint/gguf.h"
#include "penstock/checkpoint/packed_index.h"
#include "penstock/checkpoint/tensor_rows.h"
#include "penstock/memory/arena.h"
#include "penstock/memory/weights.h"
#include "penstock/model/gguf_model.h"
#include "penstock/pack.h"
#include "penstock/pack/pack_output.h"
#include "penstock/plan/loaded_model.h"
#include "penstock/tensor/quantise.h"

namespace penstock {
namespace {

// The files of a model folder, besides its weights, that are copied because they may be asked for.
constexpr std::string_view kSideFiles[] = {"config.json",
                                           "generation_config.json",
                                           "tokenizer.json",
                                           "tokenizer.model",
                                           "tokenizer_config.json",
                                           "added_tokens.json",
                                           "vocab.json",
                                           "merges.txt",
                                           "LICENSE",
                                           "special_tokens_map.json",
                                           "chat_template.jinja",
                                           "chat_template.json",
                                           "tiktoken.model",
                                           "README.md"};

// Bytes of panels that are packed and written at a time.
constexpr uint64_t kChunkBytes = 16 * kMiB;

struct PackFormats {
  std::optional<WeightFormat> quantised;  // format of experts, dense FFNs and attention; empty: not quantised
  ComputeDtype dtype = ComputeDtype::kF32;
};

absl::StatusOr<PackFormats> ChooseFormats(const PackOptions& options) {
  PackFormats formats;
  if (options.quantize != "none") {
    formats.quantised = WeightFormatOf(options.quantize);
    if (!formats.quantised.has_value() || !IsCodes(*formats.quantised)) {
      return UsageError("--quantize '{}' is unknown: expected none, int8, hqq4 or hqq3", options.quantize);
    }
  }
  if (options.dtype == "bf16") {
    formats.dtype = ComputeDtype::kBF16;
  } else if (options.dtype != "auto") {
    return UsageError("--dtype '{}' is unknown: expected auto or bf16", options.dtype);
  }
  if (formats.quantised.has_value() && formats.dtype == ComputeDtype::kBF16) {
    return UsageError("--dtype bf16 goes with --quantize none only: what is not quantised keeps its dtype");
  }
  return formats;
}

class Packer {
 public:
  Packer(const LoadedModel& model, const PackFormats& formats, PackOutput& output, ThreadPool& pool,
         const std::function<void(const PackProgress&)>& on_progress, const std::atomic<bool>& stop)
      : model_(&model), formats_(formats), output_(&output), pool_(&pool), on_progress_(&on_progress), stop_(&stop) {
    progress_.total_bytes = model.checkpoint.total_bytes();
  }

  absl::Status Run();
  std::vector<TensorInfo>& tensors() { return tensors_; }

 private:
  absl::Status Matrix(const TensorInfo* tensor, WeightFormat format);
  absl::Status Rows(const TensorInfo* tensor);
  absl::Status Layer(const LayerTensors& layer);
  absl::Status PackPanels(const TensorInfo& tensor, WeightFormat format, int64_t first, std::span<std::byte> target);
  absl::Status PackOnePanel(const TensorInfo& tensor, WeightFormat format, int64_t col, int64_t count,
                            std::byte* target) const;
  absl::Status BeginBlob() { return output_->Align(kPageBytes); }
  absl::Status Advance(uint64_t bytes);
  void Record(const TensorInfo& tensor, uint64_t offset, uint64_t xxh3, std::optional<WeightFormat> packed);
  WeightFormat MatrixFormat(const TensorInfo& tensor) const {
    return formats_.quantised.value_or(ResidentFormat(tensor, formats_.dtype));
  }

  const LoadedModel* model_;
  PackFormats formats_;
  PackOutput* output_;
  ThreadPool* pool_;
  const std::function<void(const PackProgress&)>* on_progress_;
  const std::atomic<bool>* stop_;
  PackProgress progress_;
  std::vector<TensorInfo> tensors_;
  std::vector<std::byte> chunk_;
  std::vector<std::byte> stored_;  // the matrix being packed, if it is stored transposed
  ReadScales scales_;              // the scales of the matrix being packed
};

absl::Status Packer::Advance(uint64_t bytes) {
  progress_.done_bytes += bytes;
  if (*on_progress_) (*on_progress_)(progress_);
  if (stop_->load()) return MakeError(Fault::kStopped, "packing was stopped; nothing is left of it");
  return absl::OkStatus();
}

void Packer::Record(const TensorInfo& tensor, uint64_t offset, uint64_t xxh3, std::optional<WeightFormat> packed) {
  TensorInfo& written = tensors_.emplace_back(tensor);
  if (tensor.as_floats) written.dtype = Dtype::kF32;
  written.places.reset();
  written.scales.reset();
  written.as_floats = false;
  written.packed = packed;
  written.file_idx = 0;
  written.extent = {offset, output_->weights_bytes() - offset};
  written.xxh3 = xxh3;
}

absl::Status Packer::PackOnePanel(const TensorInfo& tensor, WeightFormat format, int64_t col, int64_t count,
                                  std::byte* target) const {
  const int64_t inner_dim = RowElements(tensor);
  const std::vector<OpenedFile>& files = model_->checkpoint.files();
  std::vector<std::byte> raw(static_cast<uint64_t>(count) * RowBytes(tensor));
  if (stored_.empty()) {
    PENSTOCK_RETURN_IF_ERROR(ReadRows(files, tensor, col, count, raw));
  } else {
    GatherRows(tensor, stored_.data(), col, count, raw.data());
  }
  if (IsBlocks(format)) {  // stored as rows, without padding
    MakeBlockRows(tensor, raw.data(), scales_.bytes(), col, count, target);
    return absl::OkStatus();
  }
  if (IsFloat(format)) {
    PackRows(tensor, raw.data(), scales_.bytes(), col, count, format, nullptr, target);
    return absl::OkStatus();
  }
  std::vector<float> values(count * inner_dim);
  RowsToFloats(tensor, raw.data(), scales_.bytes(), col, count, values.data());
  for (const float value : values) {
    if (!std::isfinite(value)) {
      return ModelError(
          "{}: tensor '{}' has a value that is NaN or infinite and cannot be quantised: find them with "
          "`penstock inspect --verify`",
          files[tensor.file_idx].path, tensor.name);
    }
  }
  QuantisePanel(format, values, count, inner_dim, target);
  return absl::OkStatus();
}

// Packs panels into `target` from panel `first` on, as many as fit. Matrices in block formats are packed as one,
// because nothing lies between them.
absl::Status Packer::PackPanels(const TensorInfo& tensor, WeightFormat format, int64_t first,
                                std::span<std::byte> target) {
  const uint64_t panel_bytes = PanelBytes(format, RowElements(tensor));
  const int64_t matrix_rows = IsBlocks(format) ? NumRows(tensor) : MatrixRows(tensor);
  const int64_t panels_per_matrix = NumPanels(matrix_rows);
  const auto num_panels = static_cast<int64_t>(CeilDiv(target.size(), panel_bytes));
  std::vector<absl::Status> statuses(num_panels);
  pool_->ParallelFor(num_panels, [&](int64_t i, int) {
    const int64_t panel = first + i;
    const int64_t own = panel % panels_per_matrix * kPanelCols;
    const int64_t col = panel / panels_per_matrix * matrix_rows + own;
    statuses[i] = PackOnePanel(tensor, format, col, std::min(kPanelCols, matrix_rows - own),
                               target.data() + static_cast<uint64_t>(i) * panel_bytes);
  });
  for (const absl::Status& status : statuses) PENSTOCK_RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

absl::Status Packer::Matrix(const TensorInfo* tensor, WeightFormat format) {
  if (tensor == nullptr) return absl::OkStatus();
  PENSTOCK_RETURN_IF_ERROR(output_->Align(kCacheLineBytes));
  stored_.clear();
  if (tensor->places.has_value() && tensor->places->is_transposed && NumMatrices(*tensor) == 1 && !tensor->as_floats) {
    const OpenedFile& file = model_->checkpoint.files()[tensor->file_idx];
    stored_.resize(tensor->extent.size_bytes);
    PENSTOCK_RETURN_IF_ERROR(PreadFully(file.fd.get(), stored_, tensor->extent.offset_bytes, file.path));
  }
  PENSTOCK_ASSIGN_OR_RETURN(scales_, ReadScales::Of(model_->checkpoint.files(), *tensor));
  const uint64_t offset = output_->weights_bytes(), panel_bytes = PanelBytes(format, RowElements(*tensor));
  const uint64_t total_bytes = PackedStoreBytes(*tensor, format);
  const auto num_panels = static_cast<int64_t>(CeilDiv(total_bytes, panel_bytes));
  const auto at_once = std::max<int64_t>(pool_->num_workers(), static_cast<int64_t>(kChunkBytes / panel_bytes));
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> digest(XXH3_createState(), &XXH3_freeState);
  XXH3_64bits_reset(digest.get());
  for (int64_t first = 0; first < num_panels; first += at_once) {
    const int64_t count = std::min(at_once, num_panels - first);
    const uint64_t done = static_cast<uint64_t>(first) * panel_bytes;
    chunk_.resize(std::min(static_cast<uint64_t>(count) * panel_bytes, total_bytes - done));
    PENSTOCK_RETURN_IF_ERROR(PackPanels(*tensor, format, first, chunk_));
    XXH3_64bits_update(digest.get(), chunk_.data(), chunk_.size());
    PENSTOCK_RETURN_IF_ERROR(output_->Append(chunk_));
    // This chunk's share of the tensor's bytes.
    const uint64_t packed_before =
        StoredBytes(*tensor) * static_cast<uint64_t>(first) / static_cast<uint64_t>(num_panels);
    const uint64_t packed =
        StoredBytes(*tensor) * static_cast<uint64_t>(first + count) / static_cast<uint64_t>(num_panels);
    PENSTOCK_RETURN_IF_ERROR(Advance(packed - packed_before));
  }
  Record(*tensor, offset, XXH3_64bits_digest(digest.get()), format);
  return absl::OkStatus();
}

absl::Status Packer::Rows(const TensorInfo* tensor) {
  if (tensor == nullptr) return absl::OkStatus();
  PENSTOCK_RETURN_IF_ERROR(output_->Align(kCacheLineBytes));
  const uint64_t offset = output_->weights_bytes();
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> digest(XXH3_createState(), &XXH3_freeState);
  XXH3_64bits_reset(digest.get());
  const auto rows_at_once = std::max<int64_t>(1, static_cast<int64_t>(kChunkBytes / RowBytes(*tensor)));
  for (int64_t row = 0; row < tensor->shape[0]; row += rows_at_once) {
    const int64_t num_rows = std::min(rows_at_once, tensor->shape[0] - row);
    chunk_.resize(static_cast<uint64_t>(num_rows) * RowBytes(*tensor));
    PENSTOCK_RETURN_IF_ERROR(ReadRows(model_->checkpoint.files(), *tensor, row, num_rows, chunk_));
    XXH3_64bits_update(digest.get(), chunk_.data(), chunk_.size());
    PENSTOCK_RETURN_IF_ERROR(output_->Append(chunk_));
    PENSTOCK_RETURN_IF_ERROR(Advance(chunk_.size()));
  }
  Record(*tensor, offset, XXH3_64bits_digest(digest.get()), std::nullopt);
  return absl::OkStatus();
}

absl::Status Packer::Layer(const LayerTensors& layer) {
  PENSTOCK_RETURN_IF_ERROR(BeginBlob());
  absl::Status status;
  layer.ForEachDense(
      [&](const TensorInfo& tensor) {
        if (status.ok()) status = Rows(&tensor);
      },
      [&](const TensorInfo& tensor, MatrixKind kind) {
        const bool is_router = kind == MatrixKind::kRouter;
        if (!status.ok()) return;
        status = Matrix(&tensor, is_router ? ResidentFormat(tensor, ComputeDtype::kF32) : MatrixFormat(tensor));
      });
  PENSTOCK_RETURN_IF_ERROR(status);
  for (const FfnTensors& expert : layer.experts) {
    PENSTOCK_RETURN_IF_ERROR(BeginBlob());
    expert.ForEach([&](const TensorInfo& tensor) {
      if (status.ok()) status = Matrix(&tensor, MatrixFormat(tensor));
    });
    PENSTOCK_RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

absl::Status Packer::Run() {
  const WeightMap& map = model_->weights;
  const bool is_tied = map.lm_head == map.embedding;
  if (!is_tied && map.embedding->packed.has_value()) {
    PENSTOCK_RETURN_IF_ERROR(Matrix(map.embedding, *map.embedding->packed));
  } else if (!is_tied) {
    PENSTOCK_RETURN_IF_ERROR(Rows(map.embedding));
  }
  const bool is_quantised = formats_.quantised.has_value() && !is_tied;
  PENSTOCK_RETURN_IF_ERROR(
      Matrix(map.lm_head, is_quantised ? WeightFormat::kInt8 : ResidentFormat(*map.lm_head, formats_.dtype)));
  for (const TensorInfo* tensor :
       {map.lm_head_bias, map.final_norm, map.final_norm_bias, map.encoder_norm, map.encoder_bias, map.decoder_bias}) {
    PENSTOCK_RETURN_IF_ERROR(Rows(tensor));
  }
  for (const LayerTensors& layer : map.layers) PENSTOCK_RETURN_IF_ERROR(Layer(layer));
  return absl::OkStatus();
}

// Files on which no answer depends.
constexpr std::string_view kFreeFiles[] = {"LICENSE", "README.md"};

// Writes a file.
using WriteFile = absl::FunctionRef<absl::Status(std::string_view name, const std::string& content)>;

// Copies the files of a model folder besides the weights.
absl::Status CopySideFiles(const ModelFolder& folder, WriteFile write) {
  for (const std::string_view name : kSideFiles) {
    if (!folder.Has(name)) continue;
    PENSTOCK_ASSIGN_OR_RETURN(const std::string content, folder.Read(name, kMaxTokenizerBytes));
    PENSTOCK_RETURN_IF_ERROR(write(name, content));
  }
  // The files of tiktoken's ranks may have other names.
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<std::string> names, Tokenizer::Files(folder));
  for (const std::string& name : names) {
    if (std::find(std::begin(kSideFiles), std::end(kSideFiles), name) != std::end(kSideFiles)) continue;
    PENSTOCK_ASSIGN_OR_RETURN(const std::string content, folder.Read(name, kMaxTokenizerBytes));
    PENSTOCK_RETURN_IF_ERROR(write(name, content));
  }
  // A store has no subfolders, so the templates of a template folder are written to other files. The general one
  // becomes chat_template.jinja, which takes precedence. The one for tools goes into chat_template.json, which can name
  // its templates.
  if (!folder.Has(kTemplateFolder)) return absl::OkStatus();
  const absl::StatusOr<ChatTemplateTexts> texts = FindChatTemplates(folder);
  if (!texts.ok()) return absl::OkStatus();  // there is no template to copy
  if (texts->general) PENSTOCK_RETURN_IF_ERROR(write("chat_template.jinja", *texts->general));
  if (!texts->tool_use) return absl::OkStatus();
  const json::array named = {json::object{{"name", "tool_use"}, {"template", *texts->tool_use}}};
  return write("chat_template.json", json::serialize(json::object{{"chat_template", named}}));
}

// Writes what a GGUF file has besides the weights.
absl::Status WriteGgufMetadata(const Gguf& gguf, WriteFile write) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::string config, GgufConfigJson(gguf));
  PENSTOCK_RETURN_IF_ERROR(write("config.json", config));
  return write(kGgufMetadataFile, SerializeGgufMetadata(gguf.metadata));
}

using Checksums = std::map<std::string, uint64_t>;  // by file name

// Writes all files besides the weights and the index. Returns their checksums.
absl::StatusOr<Checksums> WriteSideFiles(const ModelFolder& folder, const PackOutput& output) {
  Checksums checksums;
  const auto write = [&](std::string_view name, const std::string& content) {
    if (std::ranges::find(kFreeFiles, name) == std::end(kFreeFiles)) {
      checksums[std::string(name)] = XXH3_64bits(content.data(), content.size());
    }
    return output.WriteFile(name, content);
  };
  PENSTOCK_ASSIGN_OR_RETURN(const std::optional<Gguf> gguf, OpenGguf(folder));
  PENSTOCK_RETURN_IF_ERROR(gguf.has_value() ? WriteGgufMetadata(*gguf, write) : CopySideFiles(folder, write));
  return checksums;
}

}  // namespace

absl::Status PackModel(const PackOptions& options, const std::function<void(const PackProgress&)>& on_progress,
                       const std::atomic<bool>& stop) {
  PENSTOCK_ASSIGN_OR_RETURN(const PackFormats formats, ChooseFormats(options));
  PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<LoadedModel> model, LoadModel(options.model_dir));
  if (model->checkpoint.format() == Checkpoint::Format::kPacked) {
    return UsageError("{}: is a packed store already: pack the model that it was made from", options.model_dir);
  }
  PENSTOCK_ASSIGN_OR_RETURN(const ModelFolder folder, ModelFolder::Open(options.model_dir));
  PENSTOCK_ASSIGN_OR_RETURN(PackOutput output, PackOutput::Create(options.output_dir));
  PENSTOCK_ASSIGN_OR_RETURN(Checksums files, WriteSideFiles(folder, output));
  ThreadPool pool(options.threads > 0 ? options.threads : NumUsableCpus());
  Packer packer(*model, formats, output, pool, on_progress, stop);
  PENSTOCK_RETURN_IF_ERROR(packer.Run());
  const PackedIndex index = {.quantize = options.quantize,
                             .source = model->fingerprint,
                             .weights_bytes = output.weights_bytes(),
                             .tensors = std::move(packer.tensors()),
                             .files = std::move(files)};
  PENSTOCK_RETURN_IF_ERROR(output.WriteFile(kPackedIndexFile, SerializePackedIndex(index)));
  return output.Commit();
}

}  // namespace penstock
