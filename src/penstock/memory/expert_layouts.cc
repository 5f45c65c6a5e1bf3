#include "penstock/memory/expert_layouts.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "penstock/base/bytes.h"
#include "penstock/base/checked.h"
#include "penstock/base/file.h"
#include "penstock/base/logging.h"
#include "penstock/base/status.h"
#include "penstock/checkpoint/mirror.h"
#include "penstock/checkpoint/packed_index.h"
#include "penstock/checkpoint/tensor_rows.h"
#include "penstock/kernels/checksum.h"
#include "penstock/kernels/decompress.h"
#include "penstock/tensor/exponent_code.h"

namespace penstock {

void ExpertLayouts::AddMatrices(const FfnTensors& tensors, ExpertLayout& layout) {
  const auto add = [&](const TensorInfo* tensor, WeightView FfnWeights::*view) {
    if (tensor != nullptr) layout.matrices.push_back({.tensor = tensor, .view = view});
  };
  add(tensors.gate_proj, &FfnWeights::gate_proj);
  add(tensors.up_proj, &FfnWeights::up_proj);
  add(tensors.down_proj, &FfnWeights::down_proj);
}

// Plans the packing in place, panel by panel in stored order: each panel is copied aside and written behind the panels
// before it. Written bytes must never reach bytes that are still to be read. Panels may be larger than the stored rows,
// because the last panel is not full or the number of inputs is odd. So reads begin later in the slot, by the
// difference. If rows do not follow each other (RowPlaces), reads lie behind all panels. Separate scales come last.
ExpertLayouts::ExpertLayout ExpertLayouts::LayOut(const FfnTensors& tensors, ComputeDtype dtype) {
  ExpertLayout layout;
  AddMatrices(tensors, layout);
  std::stable_sort(layout.matrices.begin(), layout.matrices.end(), [](const MatrixLayout& a, const MatrixLayout& b) {
    return std::pair(a.tensor->file_idx, a.tensor->extent.offset_bytes) <
           std::pair(b.tensor->file_idx, b.tensor->extent.offset_bytes);
  });
  uint64_t raw_end = 0, packed_end = 0, outgrowth = 0;
  bool has_places = false;
  for (MatrixLayout& matrix : layout.matrices) {
    const TensorInfo& tensor = *matrix.tensor;
    ReadLayout* last = layout.reads.empty() ? nullptr : &layout.reads.back();
    const uint64_t end = tensor.extent.offset_bytes + tensor.extent.size_bytes;
    if (last != nullptr && last->file_idx == tensor.file_idx &&
        last->extent.offset_bytes + last->extent.size_bytes >= tensor.extent.offset_bytes) {
      last->extent.size_bytes = std::max(last->extent.size_bytes, end - last->extent.offset_bytes);
    } else {
      layout.reads.push_back({tensor.file_idx, tensor.extent, RoundUp(raw_end, kPageBytes)});
      last = &layout.reads.back();
    }
    matrix.format = ResidentFormat(tensor, dtype);
    matrix.raw_offset = last->slot_offset + last->extent.offset_bytes % kPageBytes +
                        (tensor.extent.offset_bytes - last->extent.offset_bytes);
    raw_end = std::max(raw_end, matrix.raw_offset + tensor.extent.size_bytes);
    has_places = has_places || tensor.places.has_value();
    matrix.packed_offset = IsReady(tensor) ? matrix.raw_offset : RoundUp(packed_end, kCacheLineBytes);
    packed_end = matrix.packed_offset + PackedBytes(matrix.format, tensor.shape[0], tensor.shape[1]);
    if (IsReady(tensor)) continue;
    const auto behind = [&](uint64_t packed, uint64_t raw) { return packed > raw ? packed - raw : 0; };
    outgrowth = std::max({outgrowth, behind(matrix.packed_offset, matrix.raw_offset), behind(packed_end, raw_end)});
  }
  const auto num_matrix_reads = std::ssize(layout.reads);
  // Adds a read of scales, unless another matrix has the same. Returns where they arrive.
  const auto read_scales = [&](int file_idx, const FileExtent& extent) {
    const auto same = [&](const ReadLayout& other) {
      return other.file_idx == file_idx && other.extent.offset_bytes == extent.offset_bytes;
    };
    auto read = std::find_if(layout.reads.begin() + num_matrix_reads, layout.reads.end(), same);
    if (read == layout.reads.end()) {
      read = layout.reads.insert(read, {file_idx, extent, RoundUp(raw_end, kPageBytes)});
      raw_end = read->slot_offset + extent.offset_bytes % kPageBytes + extent.size_bytes;
    }
    return read->slot_offset + extent.offset_bytes % kPageBytes;
  };
  for (MatrixLayout& matrix : layout.matrices) {
    if (!matrix.tensor->scales.has_value()) continue;
    const Scales& scales = *matrix.tensor->scales;
    matrix.scales_offset = read_scales(scales.file_idx, scales.extent);
    if (scales.extra != nullptr) matrix.extra_offset = read_scales(scales.extra->file_idx, scales.extra->extent);
    if (scales.groups != nullptr) matrix.groups_offset = read_scales(scales.groups->file_idx, scales.groups->extent);
  }
  outgrowth = RoundUp(has_places ? packed_end : outgrowth, kPageBytes);
  for (ReadLayout& read : layout.reads) read.slot_offset += outgrowth;
  for (MatrixLayout& matrix : layout.matrices) {
    matrix.raw_offset += outgrowth;
    matrix.scales_offset += outgrowth;
    matrix.extra_offset += outgrowth;
    matrix.groups_offset += outgrowth;
    if (IsReady(*matrix.tensor)) matrix.packed_offset = matrix.raw_offset;
  }
  layout.finished.offset_bytes = layout.matrices[0].packed_offset;
  for (const MatrixLayout& matrix : layout.matrices) {
    const uint64_t end = matrix.packed_offset + PanelsBytes(*matrix.tensor, matrix.format);
    layout.finished.size_bytes = std::max(layout.finished.size_bytes, end - layout.finished.offset_bytes);
  }
  const ReadLayout& last = layout.reads.back();
  layout.slot_bytes =
      RoundUp(std::max(last.slot_offset + DiskReader::PaddedBytes(last.extent.size_bytes), packed_end), kPageBytes);
  return layout;
}

// Compressed matrices arrive so far behind the place of their values that they can be decoded in place. Each matrix has
// room of its own, so workers can decode them side by side.
ExpertLayouts::ExpertLayout ExpertLayouts::LayOutApart(const FfnTensors& tensors) {
  ExpertLayout layout;
  AddMatrices(tensors, layout);
  uint64_t end = 0;
  for (MatrixLayout& matrix : layout.matrices) {
    const TensorInfo& tensor = *matrix.tensor;
    matrix.format = *tensor.packed;
    const uint64_t packed_bytes = PackedBytes(matrix.format, tensor.shape[0], tensor.shape[1]);
    const uint64_t distance = tensor.is_compressed ? InPlaceDistance(packed_bytes, tensor.extent.size_bytes) : 0;
    const ReadLayout& read =
        layout.reads.emplace_back(ReadLayout{tensor.file_idx, tensor.extent, RoundUp(end + distance, kPageBytes)});
    matrix.raw_offset = read.slot_offset + tensor.extent.offset_bytes % kPageBytes;
    matrix.packed_offset = tensor.is_compressed ? end : matrix.raw_offset;
    layout.finished.size_bytes = matrix.packed_offset + packed_bytes;
    end = RoundUp(matrix.raw_offset + tensor.extent.size_bytes, kPageBytes);
  }
  layout.slot_bytes = end;
  return layout;
}

ExpertLayouts::ExpertLayout ExpertLayouts::LayOutColumns(const FfnTensors& tensors, const ColumnRange& columns) {
  // Parts of panels that are smaller are read with what lies between them.
  constexpr uint64_t kMinPieceBytes = 32 * kKiB;
  ExpertLayout layout;
  layout.is_cut = true;
  AddMatrices(tensors, layout);
  uint64_t slot_end = 0;
  // Adds a read of the bytes from `offset` of a tensor on, and returns where they land.
  const auto read = [&](const TensorInfo& tensor, uint64_t offset, uint64_t size_bytes) {
    const FileExtent extent = {tensor.extent.offset_bytes + offset, size_bytes};
    layout.reads.push_back({tensor.file_idx, extent, slot_end});
    slot_end = RoundUp(slot_end + DiskReader::PaddedBytes(size_bytes), kPageBytes);
    return layout.reads.back().slot_offset + extent.offset_bytes % kPageBytes;
  };
  layout.finished.offset_bytes = UINT64_MAX;
  uint64_t finished_end = 0;
  for (MatrixLayout& matrix : layout.matrices) {
    const TensorInfo& tensor = *matrix.tensor;
    matrix.format = *tensor.packed;
    const int64_t num_cols = tensor.shape[0], inner_dim = tensor.shape[1];
    uint64_t packed_bytes = 0;
    if (matrix.view != &FfnWeights::down_proj) {
      packed_bytes = PackedBytes(matrix.format, columns.size(), inner_dim);
      matrix.packed_offset = read(tensor, PackedBytes(matrix.format, columns.first, inner_dim), packed_bytes);
    } else {
      packed_bytes = PackedBytes(matrix.format, num_cols, columns.size());
      const uint64_t panel_bytes = PanelBytes(matrix.format, inner_dim);
      const uint64_t piece_bytes = PanelBytes(matrix.format, columns.size());
      const uint64_t first = columns.first == 0 ? 0 : PanelBytes(matrix.format, columns.first);
      const int64_t num_panels = NumPanels(num_cols);
      // The pieces move to the first page of what was read. None moves onto one that has not moved.
      matrix.packed_offset = slot_end;
      const bool at_once = piece_bytes < kMinPieceBytes;
      const auto last = static_cast<uint64_t>(num_panels - 1) * panel_bytes;
      const uint64_t all = at_once ? read(tensor, first, last + piece_bytes) : 0;
      for (int64_t panel = 0; panel < num_panels; ++panel) {
        const uint64_t offset = static_cast<uint64_t>(panel) * panel_bytes;
        matrix.pieces.push_back({at_once ? all + offset : read(tensor, first + offset, piece_bytes), piece_bytes});
      }
    }
    layout.finished.offset_bytes = std::min(layout.finished.offset_bytes, matrix.packed_offset);
    finished_end = std::max(finished_end, matrix.packed_offset + packed_bytes);
  }
  layout.finished.size_bytes = finished_end - layout.finished.offset_bytes;
  layout.slot_bytes = RoundUp(slot_end, kPageBytes);
  return layout;
}

absl::Status CheckCutsExperts(const WeightMap& map, int num_ranks) {
  const auto has_experts = [](const LayerTensors& layer) { return !layer.experts.empty(); };
  if (std::ranges::none_of(map.layers, has_experts))
    return UsageError("--parallel experts=tp: the model has no experts");
  const int64_t unit = ExpertCutUnit(map);
  for (const LayerTensors& layer : map.layers) {
    for (const FfnTensors& expert : layer.experts) {
      const TensorInfo* uncut = nullptr;
      expert.ForEach([&](const TensorInfo& tensor) {
        if (!IsReady(tensor)) uncut = &tensor;
      });
      if (uncut != nullptr && uncut->is_compressed) {
        return UsageError(
            "--parallel experts=tp: {}: compressed experts cannot be cut; pack the model with --compress none, or use "
            "experts=ep",
            uncut->name);
      }
      if (uncut != nullptr) {
        return UsageError(
            "--parallel experts=tp: {}: only experts of a packed store in f32, bf16, int8 or hqq can be cut (penstock "
            "pack); use experts=ep",
            uncut->name);
      }
      const int64_t expert_dim = expert.down_proj->shape[1];
      if (expert_dim > unit * (num_ranks - 1)) continue;
      return UsageError("--parallel experts=tp: {} columns cannot be cut for {} ranks in groups of {}; use experts=ep",
                        expert_dim, num_ranks, unit);
    }
  }
  return absl::OkStatus();
}

int64_t ExpertCutUnit(const WeightMap& map) {
  int64_t unit = kPanelCols;  // units are multiples of each other, so the largest serves all
  for (const LayerTensors& layer : map.layers) {
    for (const FfnTensors& expert : layer.experts) {
      if (IsReady(*expert.down_proj)) unit = std::max(unit, PanelCutUnit(*expert.down_proj->packed));
    }
  }
  return unit;
}

void ExpertLayouts::AddLayer(int64_t num_experts, const RankSplit& ranks,
                             absl::FunctionRef<ExpertLayout(int64_t)> lay_out) {
  const auto layer_idx = std::ssize(key_of_);
  std::vector<ExpertKey>& keys = key_of_.emplace_back(num_experts, kNoExpert);
  const auto add = [&](int64_t expert_idx) {
    keys[expert_idx] = end_key();
    ExpertLayout& layout = experts_.emplace_back(lay_out(expert_idx));
    layout.layer_idx = layer_idx;
    layout.expert_idx = expert_idx;
  };
  if (ranks.placement == nullptr) {
    for (int64_t expert_idx = 0; expert_idx < num_experts; ++expert_idx) add(expert_idx);
  } else {
    for (const int32_t expert_idx : ranks.placement->ExpertsOf(layer_idx, ranks.rank)) add(expert_idx);
  }
  first_key_of_layer_.push_back(end_key());
}

ExpertLayouts::ExpertLayouts(const WeightMap& map, std::span<const OpenedFile> files, ComputeDtype dtype,
                             const RankSplit& ranks)
    : files_(files), placement_(ranks.placement), first_key_of_layer_({ExpertKey{0}}) {
  const int64_t cut_unit = ranks.cuts_experts ? ExpertCutUnit(map) : kPanelCols;
  for (const LayerTensors& layer : map.layers) {
    AddLayer(std::ssize(layer.experts), ranks, [&](int64_t expert_idx) {
      const FfnTensors& tensors = layer.experts[expert_idx];
      bool is_compressed = false;
      tensors.ForEach([&](const TensorInfo& tensor) { is_compressed = is_compressed || tensor.is_compressed; });
      if (is_compressed) return LayOutApart(tensors);
      if (!ranks.cuts_experts) return LayOut(tensors, dtype);
      return LayOutColumns(tensors, ranks.ColumnsOf(tensors.down_proj->shape[1], cut_unit));
    });
  }
  for (const ExpertLayout& layout : experts_) {
    slot_bytes_ = std::max(slot_bytes_, layout.slot_bytes);
    for (const MatrixLayout& matrix : layout.matrices) {
      if (matrix.tensor->is_compressed) {
        decompresses_ = true;
        scratch_bytes_ = std::max(scratch_bytes_, kExponentScratchBytes);
        continue;
      }
      scratch_bytes_ = std::max(scratch_bytes_, StoredPanelBytes(*matrix.tensor));
      packs_ = packs_ || !IsReady(*matrix.tensor) || ranks.cuts_experts;
    }
  }
  scratch_bytes_ = RoundUp(scratch_bytes_, kPageBytes);
}

ExpertLayouts::ExpertLayouts(const std::vector<bool>& layer_has_experts, int64_t num_experts_of_layer,
                             uint64_t expert_bytes, const RankSplit& ranks, std::optional<uint64_t> compressed_bytes,
                             std::span<const uint64_t> bytes_of, bool packs)
    : placement_(ranks.placement),
      first_key_of_layer_({ExpertKey{0}}),
      slot_bytes_(RoundUp(expert_bytes, kPageBytes)),
      packs_(packs),
      decompresses_(compressed_bytes.has_value()) {
  for (const bool has_experts : layer_has_experts) {
    AddLayer(has_experts ? num_experts_of_layer : 0, ranks, [&](int64_t) {
      ExpertLayout layout;
      const uint64_t bytes = bytes_of.empty() ? expert_bytes : bytes_of[experts_.size()];
      layout.reads.push_back({.file_idx = 0, .extent = {0, compressed_bytes.value_or(bytes)}, .slot_offset = 0});
      layout.finished = {0, bytes};
      return layout;
    });
  }
}

int64_t ExpertLayouts::max_experts_of_layer() const {
  int64_t max = 0;
  for (int64_t layer_idx = 0; layer_idx < num_layers(); ++layer_idx) max = std::max(max, num_experts_of(layer_idx));
  return max;
}

uint64_t ExpertLayouts::memory_bytes() const {
  // At worst three reads of matrices, nine of scales and what else codes need, and unused vector capacity.
  uint64_t of_pieces = 0;
  for (const ExpertLayout& layout : experts_) {
    if (!layout.is_cut) continue;
    of_pieces += 2 * layout.reads.size() * sizeof(ReadLayout);
    for (const MatrixLayout& matrix : layout.matrices) of_pieces += 2 * matrix.pieces.size() * sizeof(FileExtent);
  }
  uint64_t of_keys = placement_ == nullptr ? 0 : placement_->memory_bytes();
  for (const std::vector<ExpertKey>& keys : key_of_) of_keys += keys.size() * sizeof(ExpertKey);
  return of_pieces + of_keys + experts_.size() * (2 * sizeof(ExpertLayout) + 16 * sizeof(ReadLayout));
}

uint64_t ExpertLayouts::read_bytes(ExpertKey key) const {
  uint64_t bytes = 0;
  for (const ReadLayout& read : experts_[key].reads) bytes += read.extent.size_bytes;
  return bytes;
}

std::vector<DiskRead> ExpertLayouts::Reads(ExpertKey key, std::byte* slot) const {
  std::vector<DiskRead> reads;
  if (slot == nullptr) return reads;
  reads.reserve(experts_[key].reads.size());
  for (const ReadLayout& read : experts_[key].reads) {
    reads.push_back({.file_idx = read.file_idx, .extent = read.extent, .target = slot + read.slot_offset, .tag = 0});
  }
  return reads;
}

std::vector<std::pair<int, FileExtent>> ExpertLayouts::Extents(ExpertKey key) const {
  std::vector<std::pair<int, FileExtent>> extents;
  for (const ReadLayout& read : experts_[key].reads) extents.emplace_back(read.file_idx, read.extent);
  return extents;
}

absl::Status ExpertLayouts::ReadAgain(const TensorInfo& tensor, std::byte* raw) const {
  const std::span<std::byte> bytes(raw, tensor.extent.size_bytes);
  const OpenedFile& file = files_[tensor.file_idx];
  const auto read = [&](const UniqueFd& fd, const std::string& path) -> absl::Status {
    PENSTOCK_RETURN_IF_ERROR(PreadFully(fd.get(), bytes, tensor.extent.offset_bytes, path));
    return CheckSum(tensor, kernels::Checksum(bytes));
  };
  absl::Status first = read(file.fd, file.path);
  for (const FileCopy& copy : file.copies) {
    if (first.ok() || !copy.Holds(tensor.extent) || !read(copy.fd, copy.path).ok()) continue;
    LogWarning("{}; {} has the right bytes", Message(first), copy.path);
    first = absl::OkStatus();
  }
  if (first.ok()) CountWrongCopies(file, tensor.extent, bytes);
  return first;
}

absl::Status ExpertLayouts::Verify(const TensorInfo& tensor, std::byte* raw) const {
  if (!tensor.xxh3.has_value()) return absl::OkStatus();
  const absl::Status first = CheckSum(tensor, kernels::Checksum({raw, static_cast<size_t>(tensor.extent.size_bytes)}));
  if (first.ok()) return first;
  LogInfo("{}; reading it again", Message(first));
  return ReadAgain(tensor, raw);
}

absl::Status ExpertLayouts::DecompressInPlace(const MatrixLayout& matrix, std::byte* slot,
                                              std::span<std::byte> scratch) const {
  const TensorInfo& tensor = *matrix.tensor;
  std::byte* const raw = slot + matrix.raw_offset;
  const auto decompress = [&] {
    return kernels::Decompress(
        *kernels_, {raw, tensor.extent.size_bytes}, scratch,
        {slot + matrix.packed_offset, PackedBytes(matrix.format, tensor.shape[0], tensor.shape[1])});
  };
  const std::optional<uint64_t> xxh3 = decompress();
  if (xxh3.has_value() && CheckSum(tensor, *xxh3).ok()) return absl::OkStatus();
  LogInfo("tensor '{}' arrived damaged; reading it again", tensor.name);
  PENSTOCK_RETURN_IF_ERROR(ReadAgain(tensor, raw));
  return decompress().has_value() ? absl::OkStatus() : CannotDecompress(tensor);
}

void ExpertLayouts::Pack(const MatrixLayout& matrix, std::byte* slot, std::span<std::byte> scratch) {
  const TensorInfo& tensor = *matrix.tensor;
  const std::byte* raw = slot + matrix.raw_offset;
  std::byte* packed = slot + matrix.packed_offset;
  const int64_t num_cols = tensor.shape[0], inner_dim = tensor.shape[1];
  for (int64_t col = 0; col < num_cols; col += kPanelCols) {
    const int64_t count = std::min(kPanelCols, num_cols - col);
    GatherRows(tensor, raw, col, count, scratch.data());
    PackRows(tensor, scratch.data(),
             {slot + matrix.scales_offset, slot + matrix.extra_offset, slot + matrix.groups_offset}, col, count,
             matrix.format, scratch.data() + kPanelCols * RowBytes(tensor), packed);
    packed += PanelBytes(matrix.format, inner_dim);
  }
}

absl::Status ExpertLayouts::FinishPart(ExpertKey key, int part_idx, std::byte* slot,
                                       std::span<std::byte> scratch) const {
  const ExpertLayout& layout = experts_[key];
  if (part_idx >= std::ssize(layout.matrices)) return absl::OkStatus();
  if (layout.is_cut) {
    const MatrixLayout& matrix = layout.matrices[static_cast<size_t>(part_idx)];
    std::byte* target = slot + matrix.packed_offset;
    for (const FileExtent& piece : matrix.pieces) {
      std::memmove(target, slot + piece.offset_bytes, piece.size_bytes);
      target += piece.size_bytes;
    }
    return absl::OkStatus();
  }
  // Packing in place goes through the matrices in order, so one part does everything.
  const bool apart = std::all_of(layout.matrices.begin(), layout.matrices.end(), [](const MatrixLayout& matrix) {
    return IsReady(*matrix.tensor) || matrix.tensor->is_compressed;
  });
  if (!apart && part_idx > 0) return absl::OkStatus();
  for (size_t i = 0; i < layout.matrices.size(); ++i) {
    if (apart && static_cast<int>(i) != part_idx) continue;
    const MatrixLayout& matrix = layout.matrices[i];
    if (matrix.tensor->is_compressed) {
      PENSTOCK_RETURN_IF_ERROR(DecompressInPlace(matrix, slot, scratch));
      continue;
    }
    PENSTOCK_RETURN_IF_ERROR(Verify(*matrix.tensor, slot + matrix.raw_offset));
    const std::optional<Scales>& scales = matrix.tensor->scales;
    if (scales.has_value() && scales->groups != nullptr) {
      PENSTOCK_RETURN_IF_ERROR(CheckGroups(*matrix.tensor, slot + matrix.groups_offset));
    }
    if (!IsReady(*matrix.tensor)) Pack(matrix, slot, scratch);
  }
  return absl::OkStatus();
}

FfnWeights ExpertLayouts::Views(ExpertKey key, const std::byte* slot) const {
  FfnWeights weights;
  for (const MatrixLayout& matrix : experts_[key].matrices) {
    weights.*matrix.view = {slot + matrix.packed_offset, matrix.format};
  }
  return weights;
}

}  // namespace penstock
