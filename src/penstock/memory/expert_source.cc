#include "penstock/memory/expert_source.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "penstock/base/bytes.h"
#include "penstock/base/check.h"
#include "penstock/base/checked.h"
#include "penstock/base/status.h"
#include "penstock/memory/expert_store.h"

namespace penstock {
namespace {

// The bounds of a weight page. A page is so small that another transfer waits for it a millisecond or two at most. It
// is so large that the overhead of its tasks is negligible. If a layer has many experts, one page for each expert is
// enough.
constexpr int64_t kMaxPagesPerExpert = 8, kPagesPerLayer = 64;
constexpr uint64_t kMinPageBytes = 4 * kKiB;
constexpr uint64_t kMaxPageBytes = 16 * kMiB;
// Small pages of experts below 16 MiB cross the link in one or two tenths of a millisecond. A layer of hybrid takes
// less than one, and its rows wait behind a page: with 64 experts of 14.8 MB, each in one page, fetching ahead made
// decoding half as slow again. 512 KiB, 1 MiB, and more than 8 pages for each expert were no better.
constexpr uint64_t kSmallPageBytes = 2 * kMiB;

// Pages in page-locked memory: one arrives, one leaves, one waits.
constexpr size_t kNumPinnedPages = 3;

uint64_t WeightPageBytes(const ExpertLayouts& layouts) {
  const int64_t num_pages =
      std::clamp<int64_t>(kPagesPerLayer / std::max<int64_t>(1, layouts.max_experts_of_layer()), 1, kMaxPagesPerExpert);
  const uint64_t part = RoundUp(layouts.slot_bytes() / static_cast<uint64_t>(num_pages), kPageBytes);
  return std::clamp<uint64_t>(part, kMinPageBytes, kMaxPageBytes);
}

uint64_t SmallPageBytes(const ExpertLayouts& layouts) {
  const auto num_pages =
      std::clamp<int64_t>(static_cast<int64_t>(layouts.slot_bytes() / kSmallPageBytes), 1, kMaxPagesPerExpert);
  return std::min(WeightPageBytes(layouts),
                  RoundUp(layouts.slot_bytes() / static_cast<uint64_t>(num_pages), kPageBytes));
}

}  // namespace

Event DiskSource::FetchPage(ExpertKey key, std::byte* slot, const Events& slot_free) {
  return runtime_->Issue({.lane = disk_lane_,
                          .label = {.name = "read expert",
                                    .layer_idx = layouts_->layer_of(key),
                                    .expert_idx = layouts_->expert_idx_of(key)},
                          .cost = {.link_bytes = layouts_->read_bytes(key)},
                          .after_end = slot_free,
                          .reads = layouts_->Reads(key, slot)});
}

uint64_t DramSource::PinnedBytes(const ExpertLayouts& layouts) { return kNumPinnedPages * WeightPageBytes(layouts); }

DramSource::DramSource(const Args& args)
    : args_(args),
      page_bytes_(WeightPageBytes(args.layouts)),
      small_page_bytes_(SmallPageBytes(args.layouts)),
      buffer_free_(kNumPinnedPages),
      finishing_(args.layouts.num_experts()),
      wanted_at_(finishing_.size()),
      held_at_(finishing_.size()),
      next_(finishing_.size()) {
  std::iota(next_.begin(), next_.end(), ExpertKey{1});
}

DramSource::~DramSource() { (void)args_.runtime.WaitAll(buffer_free_); }

absl::StatusOr<std::unique_ptr<DramSource>> DramSource::Create(const Args& args) {
  auto source = std::unique_ptr<DramSource>(new DramSource(args));
  if (args.pinned_memory != nullptr && args.dram_to_pinned_lane.has_value()) {
    PENSTOCK_ASSIGN_OR_RETURN(source->pinned_, args.pinned_memory->Map(PinnedBytes(args.layouts)));
  }
  return source;
}

int64_t DramSource::num_pages(ExpertKey key, PageSize size) const {
  return static_cast<int64_t>(CeilDiv(bytes(key), PageBytes(size)));
}

bool DramSource::Begin(ExpertKey key, PageSize size) {
  // Drops an expert whose read failed, so that it is read again.
  std::erase_if(ahead_, [&](const ExpertLease& ahead) {
    return ahead.key() == key && args_.runtime.Done(ahead.arrived()) && !args_.runtime.Wait(ahead.arrived()).ok();
  });
  std::optional<ExpertLease> lease = args_.dram.Acquire(key, FetchReason::kWanted);
  // Experts wanted now take precedence over experts fetched ahead. The one that will be wanted last gives way first.
  while (!lease.has_value() && !ahead_.empty()) {
    ahead_.pop_back();
    lease = args_.dram.Acquire(key, FetchReason::kWanted);
  }
  if (!lease.has_value()) return false;
  std::erase_if(ahead_, [&](const ExpertLease& ahead) { return ahead.key() == key; });
  Finishing& finishing = finishing_[key];
  if (finishing.load_id != lease->place().load_id) {
    Task finish{.lane = args_.finish_lane,
                .label = {.name = "finish",
                          .layer_idx = args_.layouts.layer_of(key),
                          .expert_idx = args_.layouts.expert_idx_of(key)},
                .after = {lease->arrived()}};
    if (args_.dram.TakeUnfinished(lease->place())) {
      finish.cost.memory_bytes = bytes(key);
      finish.cost.ready_experts = 1;
      finish.cost.packed_bytes = args_.layouts.packs() ? bytes(key) : 0;
      finish.cost.decoded_bytes = args_.layouts.decompresses() ? bytes(key) : 0;
    }
    if (args_.pool != nullptr) {
      finish.body = [this, place = lease->place()] { return args_.dram.Finish({&place, 1}, *args_.pool)[0]; };
    }
    finishing = {lease->place().load_id, args_.runtime.Issue(std::move(finish))};
  }
  transfers_.push_back({.key = key,
                        .page_bytes = PageBytes(size),
                        .lease = std::make_unique<ExpertLease>(std::move(*lease)),
                        .ready = finishing.done,
                        .last_left = {}});
  return true;
}

void DramSource::FetchAhead(std::span<const ExpertKey> keys) {
  ++num_calls_;
  for (const ExpertKey key : keys) wanted_at_[key] = num_calls_;
  std::erase_if(ahead_, [&](const ExpertLease& ahead) { return wanted_at_[ahead.key()] != num_calls_; });
  for (const ExpertLease& ahead : ahead_) held_at_[ahead.key()] = num_calls_;
  const int64_t max = max_ahead();
  for (const ExpertKey key : keys) {
    if (std::ssize(ahead_) >= max) return;
    if (held_at_[key] == num_calls_ || !streams(key)) continue;
    std::optional<ExpertLease> lease = args_.dram.Acquire(key, FetchReason::kPredicted);
    if (!lease.has_value()) return;
    held_at_[key] = num_calls_;
    ahead_.push_back(std::move(*lease));
  }
}

// Keeps one slot free for experts that are wanted without having been announced.
int64_t DramSource::max_ahead() const { return std::max<int64_t>(0, args_.dram.num_streaming_slots() - 1); }

bool DramSource::streams(ExpertKey key) const { return !args_.dram.is_pinned(key) || !args_.dram.IsPresent(key); }

// A pinned expert stays once it has arrived. The search remembers this, so later searches skip it.
ExpertKey DramSource::NextStreaming(ExpertKey key) {
  ExpertKey found = key;
  while (found < args_.layouts.end_key() && !streams(found)) found = next_[found];
  while (key < found) key = std::exchange(next_[key], found);
  return found;
}

Event DramSource::FetchPage(ExpertKey key, std::byte* slot, const Events& slot_free) {
  const auto transfer =
      std::find_if(transfers_.begin(), transfers_.end(), [&](const Transfer& t) { return t.key == key; });
  PENSTOCK_CHECK(transfer != transfers_.end());
  const FileExtent extent = args_.layouts.finished_extent(key);
  const uint64_t begin = static_cast<uint64_t>(transfer->next_page) * transfer->page_bytes;
  const uint64_t size = std::min(transfer->page_bytes, extent.size_bytes - begin);
  const TaskLabel label{
      .name = "weight page", .layer_idx = args_.layouts.layer_of(key), .expert_idx = args_.layouts.expert_idx_of(key)};
  const bool is_real = args_.copier != nullptr;
  const std::byte* from = nullptr;
  if (is_real) from = args_.dram.SlotOf(transfer->lease->place()) + extent.offset_bytes + begin;
  Event readable = transfer->ready;
  if (args_.dram_to_pinned_lane.has_value()) {
    Task hop{.lane = *args_.dram_to_pinned_lane,
             .label = label,
             .cost = {.link_bytes = size},
             .after = {transfer->ready},
             .after_end = {buffer_free_[next_buffer_]}};
    if (is_real) {
      std::byte* const buffer = pinned_.data() + next_buffer_ * page_bytes_;
      hop.body = [=] {
        std::memcpy(buffer, from, size);
        return absl::OkStatus();
      };
      from = buffer;
    }
    readable = args_.runtime.Issue(std::move(hop));
  }
  Task crossing{.lane = args_.dram_to_device_lane,
                .label = label,
                .cost = {.link_bytes = size},
                .after = {readable},
                .after_end = slot_free};
  if (is_real) {
    const ByteCopy copy{slot + extent.offset_bytes + begin, from, size};
    crossing.body = [copy, copier = args_.copier] { return copier->Copy({&copy, 1}); };
  }
  const Event arrived = args_.runtime.Issue(std::move(crossing));
  transfer->last_left = arrived;
  if (args_.dram_to_pinned_lane.has_value()) {
    buffer_free_[next_buffer_] = arrived;
    next_buffer_ = (next_buffer_ + 1) % kNumPinnedPages;
    transfer->last_left = readable;
  }
  ++transfer->next_page;
  if (begin + size == extent.size_bytes) Cancel(key);
  return arrived;
}

void DramSource::Cancel(ExpertKey key) {
  const auto transfer =
      std::find_if(transfers_.begin(), transfers_.end(), [&](const Transfer& t) { return t.key == key; });
  transfer->lease->Release(transfer->last_left);
  transfers_.erase(transfer);
}

}  // namespace penstock
