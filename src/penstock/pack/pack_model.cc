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
#include "penstock/pack/mixed_formats.h"
#include "penstock/pack/pack_output.h"
#include "penstock/plan/loaded_model.h"
#include "penstock/tensor/block_formats.h"
#include "penstock/tensor/exponent_code.h"
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

// With Compression::kAuto, a matrix is compressed if it becomes smaller by this factor at least and has so many bytes.
// A compressed expert takes three reads instead of one, and small reads are slow.
constexpr double kMinCompression = 1.15;
constexpr uint64_t kMinCompressedMatrixBytes = 64 * kKiB;
// The factor is estimated from so many blocks of the matrix.
constexpr uint64_t kSampledBlocks = 16;

enum class Compression : uint8_t { kNone, kAuto, kBf16 };

struct PackFormats {
  std::optional<WeightFormat> quantised;  // format of experts, dense FFNs and attention; empty: not quantised
  ComputeDtype dtype = ComputeDtype::kF32;
  Compression compression = Compression::kNone;  // of experts in bf16
  bool is_mixed = false;                         // each matrix has its own format, in place of `quantised`

  bool is_quantised() const { return is_mixed || quantised.has_value(); }
};

absl::StatusOr<PackFormats> ChooseFormats(const PackOptions& options) {
  PackFormats formats;
  if (options.quantize != "none") {
    formats.quantised = WeightFormatOf(options.quantize);
    if (!formats.quantised.has_value() || !IsCodes(*formats.quantised)) {
      return UsageError("--quantize '{}' is unknown: expected none, int8, hqq4, hqq3, hqq2 or ternary",
                        options.quantize);
    }
  }
  if (options.bits.has_value() && options.quantize != "none") return UsageError("--bits goes without --quantize");
  formats.is_mixed = options.bits.has_value();
  if (!options.importance_path.empty() && !formats.is_mixed &&
      !(formats.quantised.has_value() && IsHqq(*formats.quantised))) {
    return UsageError("--importance goes with --bits, or with --quantize hqq4, hqq3, hqq2 or ternary");
  }
  if (options.dtype == "bf16") {
    formats.dtype = ComputeDtype::kBF16;
  } else if (options.dtype != "auto") {
    return UsageError("--dtype '{}' is unknown: expected auto or bf16", options.dtype);
  }
  if (formats.is_quantised() && formats.dtype == ComputeDtype::kBF16) {
    return UsageError("--dtype bf16 goes with --quantize none only: what is not quantised keeps its dtype");
  }
  if (options.compress == "auto") {
    formats.compression = Compression::kAuto;
  } else if (options.compress == "bf16") {
    formats.compression = Compression::kBf16;
  } else if (options.compress != "none") {
    return UsageError("--compress '{}' is unknown: expected none, auto or bf16", options.compress);
  }
  if (formats.is_quantised() && formats.compression == Compression::kBf16) {
    return UsageError("--compress bf16 goes with --quantize none only: quantised experts are not compressed");
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

  // Weighs errors by the importances, if they are not null, and chooses formats of so many bits, if there are any.
  absl::Status ChooseFormats(const Importance* importance, const std::optional<double>& bits);
  absl::Status Run();
  std::vector<TensorInfo>& tensors() { return tensors_; }

 private:
  absl::Status Matrix(const TensorInfo* tensor, WeightFormat format, Compression compression = Compression::kNone);
  absl::Status Rows(const TensorInfo* tensor);
  absl::Status Layer(const LayerTensors& layer);
  absl::Status PackPanels(const TensorInfo& tensor, WeightFormat format, int64_t first, std::span<std::byte> target);
  absl::Status PackOnePanel(const TensorInfo& tensor, WeightFormat format, int64_t col, int64_t count,
                            std::byte* target) const;
  // Reads what all panels of a matrix need.
  absl::Status BeginMatrix(const TensorInfo& tensor);
  absl::Status ReadStored(const TensorInfo& tensor, int64_t first, int64_t count, std::span<std::byte> rows) const;
  // Returns rows of the matrix that was begun. kModel when one of them holds NaN or infinity.
  absl::StatusOr<std::vector<float>> FloatRows(const TensorInfo& tensor, int64_t first, int64_t count) const;
  // Compresses whole blocks of `values` and of those that an earlier call left, and at the end of a matrix the rest.
  std::vector<std::byte> Compress(std::span<const std::byte> values, bool is_last);
  absl::Status BeginBlob() { return output_->Align(kPageBytes); }
  absl::Status Advance(uint64_t bytes);
  // Returns the entry of the index, which it adds.
  TensorInfo& Record(const TensorInfo& tensor, uint64_t offset, uint64_t xxh3, std::optional<WeightFormat> packed);
  WeightFormat MatrixFormat(const TensorInfo& tensor) const {
    if (const auto mixed = mixed_.find(&tensor); mixed != mixed_.end()) return mixed->second;
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
  MatrixFormats mixed_;
  const Importance* importance_ = nullptr;
  InputPlaces places_;
  std::optional<MatrixErrors> errors_;  // of the matrix being packed
  std::vector<std::byte> rest_;         // values that wait for a whole block
};

absl::Status Packer::Advance(uint64_t bytes) {
  progress_.done_bytes += bytes;
  if (*on_progress_) (*on_progress_)(progress_);
  if (stop_->load()) return MakeError(Fault::kStopped, "packing was stopped; nothing is left of it");
  return absl::OkStatus();
}

TensorInfo& Packer::Record(const TensorInfo& tensor, uint64_t offset, uint64_t xxh3,
                           std::optional<WeightFormat> packed) {
  TensorInfo& written = tensors_.emplace_back(tensor);
  if (tensor.as_floats) written.dtype = Dtype::kF32;
  written.places.reset();
  written.scales.reset();
  written.as_floats = false;
  written.packed = packed;
  written.file_idx = 0;
  written.extent = {offset, output_->weights_bytes() - offset};
  written.xxh3 = xxh3;
  return written;
}

absl::Status Packer::BeginMatrix(const TensorInfo& tensor) {
  stored_.clear();
  if (tensor.places.has_value() && tensor.places->is_transposed && NumMatrices(tensor) == 1 && !tensor.as_floats) {
    const OpenedFile& file = model_->checkpoint.files()[tensor.file_idx];
    stored_.resize(tensor.extent.size_bytes);
    PENSTOCK_RETURN_IF_ERROR(PreadFully(file.fd.get(), stored_, tensor.extent.offset_bytes, file.path));
  }
  PENSTOCK_ASSIGN_OR_RETURN(scales_, ReadScales::Of(model_->checkpoint.files(), tensor));
  return absl::OkStatus();
}

absl::Status Packer::ReadStored(const TensorInfo& tensor, int64_t first, int64_t count,
                                std::span<std::byte> rows) const {
  if (stored_.empty()) return ReadRows(model_->checkpoint.files(), tensor, first, count, rows);
  GatherRows(tensor, stored_.data(), first, count, rows.data());
  return absl::OkStatus();
}

absl::StatusOr<std::vector<float>> Packer::FloatRows(const TensorInfo& tensor, int64_t first, int64_t count) const {
  std::vector<std::byte> raw(static_cast<uint64_t>(count) * RowBytes(tensor));
  PENSTOCK_RETURN_IF_ERROR(ReadStored(tensor, first, count, raw));
  std::vector<float> values(count * RowElements(tensor));
  RowsToFloats(tensor, raw.data(), scales_.bytes(), first, count, values.data());
  for (const float value : values) {
    if (!std::isfinite(value)) {
      return ModelError(
          "{}: tensor '{}' has a value that is NaN or infinite and cannot be quantised: find them with "
          "`penstock inspect --verify`",
          model_->checkpoint.files()[tensor.file_idx].path, tensor.name);
    }
  }
  return values;
}

absl::Status Packer::ChooseFormats(const Importance* importance, const std::optional<double>& bits) {
  importance_ = importance;
  places_ = PlacesOfInputs(model_->config, model_->weights);
  if (!bits.has_value()) return absl::OkStatus();
  PENSTOCK_ASSIGN_OR_RETURN(
      mixed_, ChooseMixedFormats({.config = model_->config,
                                  .map = model_->weights,
                                  .places = places_,
                                  .importance = importance,
                                  .bits = *bits,
                                  .pool = *pool_,
                                  .begin = [&](const TensorInfo& tensor) -> absl::Status {
                                    PENSTOCK_RETURN_IF_ERROR(Advance(0));
                                    return BeginMatrix(tensor);
                                  },
                                  .rows = [&](const TensorInfo& tensor, int64_t first,
                                              int64_t count) { return FloatRows(tensor, first, count); }}));
  return absl::OkStatus();
}

absl::Status Packer::PackOnePanel(const TensorInfo& tensor, WeightFormat format, int64_t col, int64_t count,
                                  std::byte* target) const {
  const int64_t inner_dim = RowElements(tensor);
  if (IsCodes(format)) {
    PENSTOCK_ASSIGN_OR_RETURN(const std::vector<float> values, FloatRows(tensor, col, count));
    QuantisePanel(format, values, count, inner_dim, target, errors_.has_value() ? &*errors_->weights : nullptr);
    return absl::OkStatus();
  }
  std::vector<std::byte> raw(static_cast<uint64_t>(count) * RowBytes(tensor));
  if (IsBlocks(format)) {  // stored as rows, without padding; rows of several matrices, each with its own place
    for (int64_t row = col; row < col + count;) {
      const int64_t num_rows = std::min(col + count - row, MatrixRows(tensor) - row % MatrixRows(tensor));
      PENSTOCK_RETURN_IF_ERROR(
          ReadStored(tensor, row, num_rows, std::span(raw).first(static_cast<uint64_t>(num_rows) * RowBytes(tensor))));
      MakeBlockRows(tensor, raw.data(), scales_.bytes(), row, num_rows, target);
      target += static_cast<uint64_t>(num_rows) * BlockRowBytes(format, inner_dim);
      row += num_rows;
    }
    return absl::OkStatus();
  }
  PENSTOCK_RETURN_IF_ERROR(ReadStored(tensor, col, count, raw));
  std::vector<float> floats(tensor.scales.has_value() ? count * inner_dim : 0);  // of codes in groups
  PackRows(tensor, raw.data(), scales_.bytes(), col, count, format, reinterpret_cast<std::byte*>(floats.data()),
           target);
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

std::vector<std::byte> Packer::Compress(std::span<const std::byte> values, bool is_last) {
  rest_.insert(rest_.end(), values.begin(), values.end());
  const uint64_t num_blocks = is_last ? CeilDiv(rest_.size(), kExponentBlockBytes) : rest_.size() / kExponentBlockBytes;
  std::vector<std::vector<std::byte>> blocks(num_blocks);
  const std::span<const std::byte> all(rest_);
  pool_->ParallelFor(static_cast<int64_t>(num_blocks), [&](int64_t i, int) {
    const uint64_t begin = static_cast<uint64_t>(i) * kExponentBlockBytes;
    AppendExponentBlock(all.subspan(begin, std::min(kExponentBlockBytes, all.size() - begin)), blocks[i]);
  });
  std::vector<std::byte> compressed;
  for (const std::vector<std::byte>& block : blocks) compressed.insert(compressed.end(), block.begin(), block.end());
  rest_.erase(rest_.begin(),
              rest_.begin() + static_cast<int64_t>(std::min<uint64_t>(rest_.size(), num_blocks * kExponentBlockBytes)));
  return compressed;
}

// Estimates from some blocks whether values become smaller by the factor at least.
bool Pays(std::span<const std::byte> values) {
  const uint64_t num_blocks = CeilDiv(values.size(), kExponentBlockBytes);
  const uint64_t step = std::max<uint64_t>(1, num_blocks / kSampledBlocks) * kExponentBlockBytes;
  std::vector<std::byte> compressed;
  uint64_t sampled = 0;
  for (uint64_t begin = 0; begin < values.size(); begin += step) {
    const auto block = values.subspan(begin, std::min(kExponentBlockBytes, values.size() - begin));
    AppendExponentBlock(block, compressed);
    sampled += block.size();
  }
  return static_cast<double>(sampled) >= kMinCompression * static_cast<double>(compressed.size());
}

absl::Status Packer::Matrix(const TensorInfo* tensor, WeightFormat format, Compression compression) {
  if (tensor == nullptr) return absl::OkStatus();
  if (format != WeightFormat::kBF16) compression = Compression::kNone;
  PENSTOCK_RETURN_IF_ERROR(BeginMatrix(*tensor));
  errors_.reset();
  if (const auto place = places_.find(tensor); importance_ != nullptr && place != places_.end() && IsHqq(format)) {
    PENSTOCK_ASSIGN_OR_RETURN(errors_, ReadMatrixErrors(*importance_, place->second, model_->config, *tensor));
  }
  const uint64_t panel_bytes = PanelBytes(format, RowElements(*tensor));
  const uint64_t total_bytes = PackedStoreBytes(*tensor, format);
  bool is_compressed = compression == Compression::kBf16;
  uint64_t offset = 0;
  rest_.clear();
  const auto num_panels = static_cast<int64_t>(CeilDiv(total_bytes, panel_bytes));
  const auto at_once = std::max<int64_t>(pool_->num_workers(), static_cast<int64_t>(kChunkBytes / panel_bytes));
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> digest(XXH3_createState(), &XXH3_freeState);
  XXH3_64bits_reset(digest.get());
  for (int64_t first = 0; first < num_panels; first += at_once) {
    const int64_t count = std::min(at_once, num_panels - first);
    const uint64_t done = static_cast<uint64_t>(first) * panel_bytes;
    chunk_.resize(std::min(static_cast<uint64_t>(count) * panel_bytes, total_bytes - done));
    PENSTOCK_RETURN_IF_ERROR(PackPanels(*tensor, format, first, chunk_));
    if (first == 0) {
      if (compression == Compression::kAuto && total_bytes >= kMinCompressedMatrixBytes) {
        // The same panels, whatever the number of threads.
        const uint64_t sampled_bytes = std::max<uint64_t>(1, kChunkBytes / panel_bytes) * panel_bytes;
        is_compressed = Pays(std::span(chunk_).first(std::min<size_t>(chunk_.size(), sampled_bytes)));
      }
      PENSTOCK_RETURN_IF_ERROR(output_->Align(is_compressed ? kPageBytes : kCacheLineBytes));
      offset = output_->weights_bytes();
    }
    if (is_compressed) chunk_ = Compress(chunk_, first + count == num_panels);
    XXH3_64bits_update(digest.get(), chunk_.data(), chunk_.size());
    PENSTOCK_RETURN_IF_ERROR(output_->Append(chunk_));
    // This chunk's share of the tensor's bytes.
    const uint64_t packed_before =
        StoredBytes(*tensor) * static_cast<uint64_t>(first) / static_cast<uint64_t>(num_panels);
    const uint64_t packed =
        StoredBytes(*tensor) * static_cast<uint64_t>(first + count) / static_cast<uint64_t>(num_panels);
    PENSTOCK_RETURN_IF_ERROR(Advance(packed - packed_before));
  }
  Record(*tensor, offset, XXH3_64bits_digest(digest.get()), format).is_compressed = is_compressed;
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
      if (status.ok()) status = Matrix(&tensor, MatrixFormat(tensor), formats_.compression);
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
  const bool is_quantised = formats_.is_quantised() && !is_tied;
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
  std::optional<Importance> importance;
  if (!options.importance_path.empty()) {
    PENSTOCK_ASSIGN_OR_RETURN(importance, Importance::Open(options.importance_path));
  }
  PENSTOCK_ASSIGN_OR_RETURN(const ModelFolder folder, ModelFolder::Open(options.model_dir));
  PENSTOCK_ASSIGN_OR_RETURN(PackOutput output, PackOutput::Create(options.output_dir));
  PENSTOCK_ASSIGN_OR_RETURN(Checksums files, WriteSideFiles(folder, output));
  ThreadPool pool(options.threads > 0 ? options.threads : NumUsableCpus());
  Packer packer(*model, formats, output, pool, on_progress, stop);
  if (formats.is_quantised()) {
    PENSTOCK_RETURN_IF_ERROR(packer.ChooseFormats(importance.has_value() ? &*importance : nullptr, options.bits));
  }
  PENSTOCK_RETURN_IF_ERROR(packer.Run());
  const PackedIndex index = {.quantize = formats.is_mixed ? "mixed" : options.quantize,
                             .source = model->fingerprint,
                             .weights_bytes = output.weights_bytes(),
                             .tensors = std::move(packer.tensors()),
                             .files = std::move(files)};
  PENSTOCK_RETURN_IF_ERROR(output.WriteFile(kPackedIndexFile, SerializePackedIndex(index)));
  return output.Commit();
}

}  // namespace penstock
