#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <map>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include <sys/stat.h>
#include <unistd.h>

#include "penstock/base/bytes.h"
#include "penstock/base/checked.h"
#include "penstock/base/file.h"
#include "penstock/base/logging.h"
#include "penstock/base/status.h"
#include "penstock/checkpoint/mirror.h"
#include "penstock/checkpoint/packed_index.h"
#include "penstock/measure/learned_routing.h"
#include "penstock/memory/expert_layouts.h"
#include "penstock/pack.h"
#include "penstock/pack/pack_output.h"
#include "penstock/plan/loaded_model.h"

namespace penstock {
namespace {

constexpr uint64_t kCopyBytes = 4 * kMiB;

uint64_t EndOf(const FileExtent& extent) { return extent.offset_bytes + extent.size_bytes; }

// Whole pages of a file, sorted; extents that touch or overlap become one.
class PageSet {
 public:
  // Returns the bytes of the extent's pages that are not in the set yet.
  uint64_t Missing(const FileExtent& extent, uint64_t file_bytes) const {
    uint64_t missing = Pages(extent, file_bytes).size_bytes;
    const FileExtent pages = Pages(extent, file_bytes);
    for (const FileExtent& held : extents_) {
      const uint64_t begin = std::max(held.offset_bytes, pages.offset_bytes), end = std::min(EndOf(held), EndOf(pages));
      if (begin < end) missing -= end - begin;
    }
    return missing;
  }
  void Add(const FileExtent& extent, uint64_t file_bytes) {
    FileExtent joined = Pages(extent, file_bytes);
    std::erase_if(extents_, [&](const FileExtent& held) {
      if (held.offset_bytes > EndOf(joined) || EndOf(held) < joined.offset_bytes) return false;
      const uint64_t end = std::max(EndOf(held), EndOf(joined));
      joined.offset_bytes = std::min(held.offset_bytes, joined.offset_bytes);
      joined.size_bytes = end - joined.offset_bytes;
      return true;
    });
    const auto place = std::find_if(extents_.begin(), extents_.end(),
                                    [&](const FileExtent& held) { return held.offset_bytes > joined.offset_bytes; });
    extents_.insert(place, joined);
  }
  const std::vector<FileExtent>& extents() const { return extents_; }

 private:
  static FileExtent Pages(const FileExtent& extent, uint64_t file_bytes) {
    const uint64_t begin = extent.offset_bytes / kPageBytes * kPageBytes;
    return {begin, std::min(RoundUp(EndOf(extent), kPageBytes), file_bytes) - begin};
  }

  std::vector<FileExtent> extents_;
};

// Returns the experts, those first that earlier runs wanted most; without earlier runs, layers take turns.
std::vector<ExpertKey> KeysByDemand(const LoadedModel& model, const ExpertLayouts& layouts) {
  std::vector<ExpertKey> keys(static_cast<size_t>(layouts.num_experts()));
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = ExpertKey{static_cast<int64_t>(i)};
  const std::optional<RoutingCounts> counts = LearnedRouting(model.fingerprint, model.config);
  if (!counts.has_value()) {
    LogInfo("no earlier run with --policy auto says which experts are wanted: the mirror gets as many of each layer");
  }
  std::vector<int64_t> moe_layer_of(static_cast<size_t>(layouts.num_layers()));
  int64_t num_moe_layers = 0;
  for (int64_t layer = 0; layer < layouts.num_layers(); ++layer) {
    moe_layer_of[layer] = num_moe_layers;
    if (layouts.num_experts_of(layer) > 0) ++num_moe_layers;
  }
  const auto chosen = [&](ExpertKey key) {
    return counts.has_value() ? counts->chosen[moe_layer_of[layouts.layer_of(key)]][layouts.expert_idx_of(key)] : 0;
  };
  std::sort(keys.begin(), keys.end(), [&](ExpertKey a, ExpertKey b) {
    const int64_t of_a = chosen(a), of_b = chosen(b);
    if (of_a != of_b) return of_a > of_b;
    return std::pair(layouts.expert_idx_of(a), layouts.layer_of(a)) <
           std::pair(layouts.expert_idx_of(b), layouts.layer_of(b));
  });
  return keys;
}

class MirrorWriter {
 public:
  MirrorWriter(const LoadedModel& model, const PackOutput& output,
               const std::function<void(const PackProgress&)>& on_progress, const std::atomic<bool>& stop)
      : files_(model.checkpoint.files()),
        pages_(files_.size()),
        output_(output),
        on_progress_(on_progress),
        stop_(stop) {}

  // Takes headers, and then the experts in this order until the next one does not fit.
  void Choose(const LoadedModel& model, const ExpertLayouts& layouts, uint64_t size_bytes) {
    const std::vector<uint64_t> headers = HeaderBytes(model.checkpoint.tensors(), files_.size());
    for (size_t i = 0; i < files_.size(); ++i) {
      if (headers[i] > 0) Take(static_cast<int>(i), {0, headers[i]});
    }
    for (const ExpertKey key : KeysByDemand(model, layouts)) {
      uint64_t missing = 0;
      const auto extents = layouts.Extents(key);
      for (const auto& [file_idx, extent] : extents) {
        missing += pages_[file_idx].Missing(extent, files_[file_idx].size_bytes);
      }
      if (progress_.total_bytes + missing > size_bytes) break;
      for (const auto& [file_idx, extent] : extents) Take(file_idx, extent);
      ++num_experts_;
    }
  }
  int64_t num_experts() const { return num_experts_; }

  absl::Status Run() {
    MirrorExtents index;
    for (size_t i = 0; i < files_.size(); ++i) {
      if (pages_[i].extents().empty()) continue;
      PENSTOCK_RETURN_IF_ERROR(CopyFile(files_[i], pages_[i].extents()));
      index[FileNameOf(files_[i])] = pages_[i].extents();
    }
    return output_.WriteFile(kMirrorIndexFile, SerializeMirrorIndex(index));
  }

 private:
  void Take(int file_idx, const FileExtent& extent) {
    progress_.total_bytes += pages_[file_idx].Missing(extent, files_[file_idx].size_bytes);
    pages_[file_idx].Add(extent, files_[file_idx].size_bytes);
  }

  absl::Status CopyFile(const OpenedFile& file, const std::vector<FileExtent>& extents) {
    const std::string name = FileNameOf(file);
    PENSTOCK_ASSIGN_OR_RETURN(const UniqueFd fd, output_.NewFile(name));
    const auto refusal = [&] { return IoError("{}: the copy cannot be written: {}", name, ErrnoText(errno)); };
    if (::ftruncate(fd.get(), static_cast<off_t>(file.size_bytes)) != 0) return refusal();
    std::vector<std::byte> buffer(kCopyBytes);
    for (const FileExtent& extent : extents) {
      for (uint64_t done = 0; done < extent.size_bytes; done += kCopyBytes) {
        if (stop_.load()) return MakeError(Fault::kStopped, "stopped; nothing of the mirror is left");
        const std::span<std::byte> part(buffer.data(), std::min(kCopyBytes, extent.size_bytes - done));
        PENSTOCK_RETURN_IF_ERROR(PreadFully(file.fd.get(), part, extent.offset_bytes + done, file.path));
        if (::lseek(fd.get(), static_cast<off_t>(extent.offset_bytes + done), SEEK_SET) < 0) return refusal();
        PENSTOCK_RETURN_IF_ERROR(WriteFully(fd.get(), {reinterpret_cast<const char*>(part.data()), part.size()}, name));
        progress_.done_bytes += part.size();
        if (on_progress_) on_progress_(progress_);
      }
    }
    return ::fsync(fd.get()) == 0 ? absl::OkStatus() : refusal();
  }

  const std::vector<OpenedFile>& files_;
  std::vector<PageSet> pages_;  // of each file
  const PackOutput& output_;
  const std::function<void(const PackProgress&)>& on_progress_;
  const std::atomic<bool>& stop_;
  PackProgress progress_;
  int64_t num_experts_ = 0;
};

void WarnOfSameDisk(const OpenedFile& file, const std::string& output_dir) {
  struct stat own = {}, other = {};
  if (::fstat(file.fd.get(), &own) == 0 && ::stat(output_dir.c_str(), &other) == 0 && own.st_dev == other.st_dev) {
    LogWarning("{} lies on the model's own disk: reading from both is no faster", output_dir);
  }
}

}  // namespace

absl::Status MirrorModel(const MirrorOptions& options, const std::function<void(const PackProgress&)>& on_progress,
                         const std::atomic<bool>& stop) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<LoadedModel> model, LoadModel(options.model_dir));
  if (model->config.num_moe_layers() == 0) return UsageError("{}: the model has no experts", options.model_dir);
  PENSTOCK_ASSIGN_OR_RETURN(const ModelFolder folder, ModelFolder::Open(options.model_dir));
  const ExpertLayouts layouts(model->weights, model->checkpoint.files(), ComputeDtype::kF32);
  PENSTOCK_ASSIGN_OR_RETURN(PackOutput output, PackOutput::Create(options.output_dir));
  MirrorWriter writer(*model, output, on_progress, stop);
  writer.Choose(*model, layouts, options.size_bytes == 0 ? ~uint64_t{0} : options.size_bytes);
  if (writer.num_experts() == 0) {
    return UsageError("--size {}: not one expert of {} fits", FormatBytes(options.size_bytes),
                      FormatBytes(layouts.read_bytes(ExpertKey{0})));
  }
  PENSTOCK_RETURN_IF_ERROR(writer.Run());
  if (model->checkpoint.format() == Checkpoint::Format::kPacked) {
    PENSTOCK_ASSIGN_OR_RETURN(const std::string index, folder.Read(kPackedIndexFile, kMaxIndexBytes));
    PENSTOCK_RETURN_IF_ERROR(output.WriteFile(kPackedIndexFile, index));
  }
  PENSTOCK_RETURN_IF_ERROR(output.Commit());
  LogInfo("the mirror holds {} of {} experts", writer.num_experts(), layouts.num_experts());
  WarnOfSameDisk(model->checkpoint.files()[0], options.output_dir);
  return absl::OkStatus();
}

}  // namespace penstock
