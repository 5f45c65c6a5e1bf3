// Describes how every expert gets from disk into a slot: which bytes are read where, and how they become panels.
//
// Experts of a packed store are ready where they land, once their checksums are verified. Compressed ones are decoded
// in place; experts of a model folder are packed in place. Immutable, so any thread may use it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "penstock/checkpoint/model_folder.h"
#include "penstock/kernels/kernels.h"
#include "penstock/memory/expert_key.h"
#include "penstock/memory/weights.h"
#include "penstock/model/weight_map.h"
#include "penstock/parallel/rank_split.h"
#include "penstock/runtime/disk_reader.h"

namespace penstock {

class ExpertLayouts {
 public:
  // `map` and the `files` of its checkpoint must outlive the layouts. Describes only this rank's experts of each layer,
  // or its parts of them. REQUIRES: CheckCutsExperts(), if ranks cut the experts.
  ExpertLayouts(const WeightMap& map, std::span<const OpenedFile> files, ComputeDtype dtype,
                const RankSplit& ranks = {});

  // For simulations, which only count experts: each layer marked in `layer_has_experts` has `num_experts` experts of
  // `expert_bytes` each, on all ranks together. If they are compressed, `compressed_bytes` are read for each. Without
  // ranks, experts may have different bytes: `bytes_of` each, by key. `packs`: they are made panels after they arrived.
  ExpertLayouts(const std::vector<bool>& layer_has_experts, int64_t num_experts, uint64_t expert_bytes,
                const RankSplit& ranks = {}, std::optional<uint64_t> compressed_bytes = std::nullopt,
                std::span<const uint64_t> bytes_of = {}, bool packs = false);

  // Returns where the experts of all ranks lie; null: all are here, or a part of each.
  const std::shared_ptr<const ExpertPlacement>& placement() const { return placement_; }

  int64_t num_experts() const { return static_cast<int64_t>(experts_.size()); }
  int64_t num_layers() const { return static_cast<int64_t>(first_key_of_layer_.size()) - 1; }
  // Returns the key of a layer's expert. REQUIRES: is_here(layer_idx, expert_idx).
  ExpertKey KeyOf(int64_t layer_idx, int64_t expert_idx) const { return key_of_[layer_idx][expert_idx]; }
  // Returns the key of the first expert of a layer on this rank; the others follow.
  ExpertKey FirstKeyOf(int64_t layer_idx) const { return first_key_of_layer_[layer_idx]; }
  // Returns whether a layer's expert is one of this rank's. REQUIRES: the layer has experts.
  // Identity experts, which follow the others, are nowhere.
  bool is_here(int64_t layer_idx, int64_t expert_idx) const {
    return expert_idx < std::ssize(key_of_[layer_idx]) && KeyOf(layer_idx, expert_idx) != kNoExpert;
  }
  // Returns the values of this rank's experts among those of all experts of a layer.
  template <typename T>
  std::vector<T> ValuesHere(int64_t layer_idx, std::span<const T> values) const {
    std::vector<T> here;
    for (ExpertKey key = FirstKeyOf(layer_idx); key < FirstKeyOf(layer_idx + 1); ++key) {
      here.push_back(values[expert_idx_of(key)]);
    }
    return here;
  }
  // Returns the key after the last expert's.
  ExpertKey end_key() const { return ExpertKey{num_experts()}; }
  int64_t num_experts_of(int64_t layer_idx) const {
    return IndexOf(first_key_of_layer_[layer_idx + 1]) - IndexOf(first_key_of_layer_[layer_idx]);
  }
  int64_t max_experts_of_layer() const;
  int64_t layer_of(ExpertKey key) const { return experts_[key].layer_idx; }
  int64_t expert_idx_of(ExpertKey key) const { return experts_[key].expert_idx; }

  // Returns the bytes of a slot for any expert, a multiple of the page size; 0 without experts.
  uint64_t slot_bytes() const { return slot_bytes_; }
  // Returns the bytes that each worker needs to finish an expert.
  uint64_t scratch_bytes() const { return scratch_bytes_; }
  // Returns the bytes that these tables take.
  uint64_t memory_bytes() const;

  // Returns the bytes that are read for an expert, without padding.
  uint64_t read_bytes(ExpertKey key) const;
  // Returns where an expert lies in the model's files.
  std::vector<std::pair<int, FileExtent>> Extents(ExpertKey key) const;
  // Returns the reads that load an expert into `slot`, which begins at a page and has slot_bytes(). `slot` is nullptr
  // in a simulation, where nothing is read.
  std::vector<DiskRead> Reads(ExpertKey key, std::byte* slot) const;

  // Verifies one part of an expert, and packs or decompresses it, after its arrival and before its use. Workers may do
  // the parts side by side. A part with a wrong checksum is read again, from the model and from each mirror, until its
  // checksum is right; kModel when it is wrong everywhere. `scratch` has scratch_bytes().
  static constexpr int kFinishParts = 3;
  absl::Status FinishPart(ExpertKey key, int part_idx, std::byte* slot, std::span<std::byte> scratch) const;
  // Returns whether some experts are not ready where they land, because they are packed or decompressed there.
  bool packs() const { return packs_; }
  bool decompresses() const { return decompresses_; }
  // Returns where the panels of a finished expert lie in its slot.
  FileExtent finished_extent(ExpertKey key) const { return experts_[key].finished; }
  // Returns the weights of a finished expert.
  FfnWeights Views(ExpertKey key, const std::byte* slot) const;

 private:
  struct ReadLayout {
    int file_idx = 0;
    FileExtent extent;
    uint64_t slot_offset = 0;
  };
  // Where a matrix arrives in its slot and where its panels lie; the same place when it is already packed.
  struct MatrixLayout {
    const TensorInfo* tensor = nullptr;
    WeightView FfnWeights::*view = nullptr;
    WeightFormat format = WeightFormat::kF32;
    uint64_t raw_offset = 0;
    uint64_t scales_offset = 0;
    uint64_t extra_offset = 0;
    uint64_t groups_offset = 0;
    uint64_t packed_offset = 0;
    // If ranks cut the experts: parts of panels, which move together after their arrival. Empty: there is nothing to
    // move.
    std::vector<FileExtent> pieces = {};  // offsets from the start of the slot
  };
  // Neighbouring or overlapping tensors share one read.
  struct ExpertLayout {
    int64_t layer_idx = 0;
    int64_t expert_idx = 0;
    std::vector<ReadLayout> reads;
    absl::InlinedVector<MatrixLayout, 3> matrices;  // in the order of their arrival
    FileExtent finished;                            // from the start of the slot
    uint64_t slot_bytes = 0;
    bool is_cut = false;
  };
  // Calls lay_out(expert_idx) for each expert of the next layer that lies on this rank, and adds what it returns.
  void AddLayer(int64_t num_experts, const RankSplit& ranks, absl::FunctionRef<ExpertLayout(int64_t)> lay_out);
  static void AddMatrices(const FfnTensors& tensors, ExpertLayout& layout);
  static ExpertLayout LayOut(const FfnTensors& tensors, ComputeDtype dtype);
  // Lays out an expert with compressed matrices.
  static ExpertLayout LayOutApart(const FfnTensors& tensors);
  // Lays out some columns of an expert. Its checksums are not compared, because they are of whole matrices.
  static ExpertLayout LayOutColumns(const FfnTensors& tensors, const ColumnRange& columns);
  absl::Status Verify(const TensorInfo& tensor, std::byte* raw) const;
  // Verifies, too.
  absl::Status DecompressInPlace(const MatrixLayout& matrix, std::byte* slot, std::span<std::byte> scratch) const;
  absl::Status ReadAgain(const TensorInfo& tensor, std::byte* raw) const;
  static void Pack(const MatrixLayout& matrix, std::byte* slot, std::span<std::byte> scratch);

  std::span<const OpenedFile> files_;
  std::shared_ptr<const ExpertPlacement> placement_;
  std::vector<std::vector<ExpertKey>> key_of_;  // [num_layers][experts of the layer]; kNoExpert: on other ranks
  std::vector<ExpertKey> first_key_of_layer_;   // [num_layers + 1]
  IdVector<ExpertKey, ExpertLayout> experts_;
  uint64_t slot_bytes_ = 0;
  uint64_t scratch_bytes_ = 0;
  bool packs_ = false;
  bool decompresses_ = false;
  const kernels::KernelTable* kernels_ = &kernels::KernelsFor(kernels::BestIsa());  // they decompress
};

// kUsage when experts cannot be cut for so many ranks: they must be packed, and large enough.
absl::Status CheckCutsExperts(const WeightMap& map, int num_ranks);

// Returns the columns between which this model's experts can be cut. REQUIRES: CheckCutsExperts().
int64_t ExpertCutUnit(const WeightMap& map);

}  // namespace penstock
