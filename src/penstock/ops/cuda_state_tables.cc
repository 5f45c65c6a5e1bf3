#include "penstock/ops/cuda_state_tables.h"

#include <vector>

#include "penstock/base/check.h"
#include "penstock/ops/cuda_table.h"
#include "penstock/ops/cuda_workspace.h"
#include "penstock/ops/recurrent_layers.h"

namespace penstock {
namespace {

// Rows of one sequence, and the copies of its state that are due after the last of them.
struct StateSegment {
  RowRange rows;
  std::span<const StateCopy> copies;
  bool goes_on = false;  // with the sequence of the segment before
};

std::vector<StateSegment> SegmentsOf(const RowBatch& batch, RowRange rows) {
  std::vector<StateSegment> segments;
  const std::span<const StateCopy> all(batch.state_copies);
  size_t next = 0;
  for (const RowRange& run : SequenceRuns(batch, rows)) {
    for (int64_t begin = run.begin; begin < run.end;) {
      while (next < all.size() && all[next].row < begin) ++next;
      const bool has_copy = next < all.size() && all[next].row < run.end;
      const int64_t end = has_copy ? all[next].row + 1 : run.end;
      size_t end_copy = next;
      while (end_copy < all.size() && all[end_copy].row < end) ++end_copy;
      segments.push_back(
          {.rows = {begin, end}, .copies = all.subspan(next, end_copy - next), .goes_on = begin > run.begin});
      next = end_copy;
      begin = end;
    }
  }
  return segments;
}

// The tables of cuda::StateRuns, as far as they fit into one upload.
class StateTable {
 public:
  StateTable(int64_t num_parts, size_t other_bytes, size_t max_bytes)
      : num_parts_(num_parts), other_bytes_(other_bytes), max_bytes_(max_bytes) {}

  bool is_empty() const { return begins_.empty(); }
  bool HasRoomFor(const StateSegment& segment) const {
    const size_t num_copies = segment.copies.size() + copy_rows_.size();
    const size_t num_runs = begins_.size() + (segment.goes_on ? 0 : 1);
    return StateTableBytes(num_parts_, num_runs, num_copies) + other_bytes_ <= max_bytes_;
  }
  // `part_of` gives a part of the state that lies in pages.
  void Add(const StateSegment& segment, std::span<std::byte* const> pages,
           absl::FunctionRef<float*(std::span<std::byte* const>, int64_t)> part_of) {
    if (is_empty() || !segment.goes_on) {
      begins_.push_back(segment.rows.begin);
      for (int64_t i = 0; i < num_parts_; ++i) parts_.push_back(part_of(pages, i));
    }
    end_ = segment.rows.end;
    for (const StateCopy& copy : segment.copies) {
      copy_rows_.push_back(copy.row);
      for (int64_t i = 0; i < num_parts_; ++i) copy_parts_.push_back(part_of(copy.pages, i));
    }
  }
  // Uploads the tables and `others`, which visit() gets, too, and starts anew.
  void Visit(DeviceTables& tables, std::span<const float> others,
             absl::FunctionRef<void(const cuda::StateRuns&, const float*)> visit) {
    if (is_empty()) return;
    const auto num_runs = std::ssize(begins_);
    begins_.push_back(end_);
    CudaTable table;
    const size_t begins_at = table.Add(std::span<const int64_t>(begins_));
    const size_t parts_at = table.Add(std::span<float* const>(parts_));
    const size_t copy_rows_at = table.Add(std::span<const int64_t>(copy_rows_));
    const size_t copy_parts_at = table.Add(std::span<float* const>(copy_parts_));
    const size_t others_at = table.Add(others);
    const std::byte* const on_device = tables.Upload(table.bytes());
    visit({.num_runs = num_runs,
           .num_parts = num_parts_,
           .begins = reinterpret_cast<const int64_t*>(on_device + begins_at),
           .parts = reinterpret_cast<float* const*>(on_device + parts_at),
           .num_copies = std::ssize(copy_rows_),
           .copy_rows = reinterpret_cast<const int64_t*>(on_device + copy_rows_at),
           .copy_parts = reinterpret_cast<float* const*>(on_device + copy_parts_at)},
          reinterpret_cast<const float*>(on_device + others_at));
    begins_.clear();
    parts_.clear();
    copy_rows_.clear();
    copy_parts_.clear();
  }

 private:
  int64_t num_parts_;
  size_t other_bytes_, max_bytes_;
  int64_t end_ = 0;
  std::vector<int64_t> begins_, copy_rows_;
  std::vector<float*> parts_, copy_parts_;
};

}  // namespace

void ForEachStateTable(const RowBatch& batch, RowRange rows, const StateParts& parts, DeviceTables& tables,
                       absl::FunctionRef<void(const cuda::StateRuns&, const float*)> visit) {
  StateTable table(parts.num_parts, parts.others.size_bytes(), tables.max_bytes());
  for (const StateSegment& segment : SegmentsOf(batch, rows)) {
    if (!table.is_empty() && !table.HasRoomFor(segment)) table.Visit(tables, parts.others, visit);
    PENSTOCK_CHECK(!table.is_empty() || table.HasRoomFor({.rows = segment.rows, .copies = segment.copies}));
    table.Add(segment, batch.state_pages[segment.rows.begin], parts.part_of);
  }
  table.Visit(tables, parts.others, visit);
}

}  // namespace penstock
