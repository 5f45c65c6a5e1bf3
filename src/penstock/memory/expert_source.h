// The source of a store's experts: the disk, or the store of the tier below.
//
// An expert moves in weight pages, which are issued one after the other, so that other transfers can go between them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/base/thread_pool.h"
#include "penstock/memory/arena.h"
#include "penstock/memory/copier.h"
#include "penstock/memory/expert_layouts.h"
#include "penstock/runtime/runtime.h"

namespace penstock {

class ExpertLease;
class ExpertStore;

// The size of an expert's pages. Rows of a layer wait less behind a small page that crosses the link. Pages of the
// usual size take fewer tasks.
enum class PageSize : uint8_t { kUsual, kSmall };

class ExpertSource {
 public:
  virtual ~ExpertSource() = default;

  // Returns the bytes that cross the link for an expert.
  virtual uint64_t bytes(ExpertKey key) const = 0;
  virtual int64_t num_pages(ExpertKey key, PageSize size) const = 0;
  // Returns whether arrived experts must be verified and packed before use.
  virtual bool needs_finish() const = 0;

  // Prepares the transfer of an expert in pages of this size. Returns false when the tier below has no room for the
  // expert now.
  virtual bool Begin(ExpertKey key, PageSize size) = 0;
  // Issues the next page of an expert for which Begin() was called. The page is written to `slot` (nullptr in a
  // simulation) after the events of `slot_free`. The event of the last page is the arrival of the expert.
  virtual Event FetchPage(ExpertKey key, std::byte* slot, const Events& slot_free) = 0;
  // Returns the event after which it is certain whether an expert arrives. Normally this is its arrival. It is earlier
  // if the tier below already has the expert, so that only a copy remains.
  virtual Event KnownAt(ExpertKey, const Event& arrived) const { return arrived; }
  // Says that the remaining pages of an expert for which Begin() was called will not be fetched.
  virtual void Cancel(ExpertKey) {}
  // Announces experts that will be needed soon, in this order. They are fetched into the tier below as far as there is
  // room. Experts of an earlier call that are missing from this call may leave. Does nothing without a tier below.
  virtual void FetchAhead(std::span<const ExpertKey>) {}
  // max_ahead() is the number of experts for which FetchAhead() has room. streams() returns whether an expert still
  // has to be fetched, now or later. NextStreaming() returns the first such expert from `key` on, or
  // the key after the last expert's when there is none.
  virtual int64_t max_ahead() const { return 0; }
  virtual bool streams(ExpertKey) const { return false; }
  virtual ExpertKey NextStreaming(ExpertKey key) { return key; }
};

// Experts on disk; each is one page.
class DiskSource : public ExpertSource {
 public:
  DiskSource(const ExpertLayouts& layouts, Runtime& runtime, LaneIdx disk_lane)
      : layouts_(&layouts), runtime_(&runtime), disk_lane_(disk_lane) {}

  uint64_t bytes(ExpertKey key) const override { return layouts_->read_bytes(key); }
  int64_t num_pages(ExpertKey, PageSize) const override { return 1; }
  bool needs_finish() const override { return true; }
  bool Begin(ExpertKey, PageSize) override { return true; }
  Event FetchPage(ExpertKey key, std::byte* slot, const Events& slot_free) override;

 private:
  const ExpertLayouts* layouts_;
  Runtime* runtime_;
  LaneIdx disk_lane_;
};

// Experts in DRAM, which are finished there and copied to a device. If the device's copy engine can read DRAM's slots,
// one copy is enough. Otherwise there are two hops: into page-locked buffers, and from them into the slot. The hops of
// neighbouring pages overlap.
class DramSource : public ExpertSource {
 public:
  struct Args {
    const ExpertLayouts& layouts;  // must outlive the source, like all references here
    Runtime& runtime;
    ExpertStore& dram;
    // The lane that finishes experts. It is not the lane of the host's other work, which would have to wait for the
    // disk.
    LaneIdx finish_lane = 0;
    std::optional<LaneIdx> dram_to_pinned_lane = std::nullopt;  // lane of the first of two hops
    LaneIdx dram_to_device_lane = 0;
    // Null in a simulation:
    ThreadPool* pool = nullptr;       // pool of the finishing lane
    Memory* pinned_memory = nullptr;  // page-locked memory
    Copier* copier = nullptr;         // copies to the device
  };
  // Returns the bytes of the page-locked buffers.
  static uint64_t PinnedBytes(const ExpertLayouts& layouts);
  static absl::StatusOr<std::unique_ptr<DramSource>> Create(const Args& args);
  ~DramSource() override;

  uint64_t bytes(ExpertKey key) const override { return args_.layouts.finished_extent(key).size_bytes; }
  int64_t num_pages(ExpertKey key, PageSize size) const override;
  bool needs_finish() const override { return false; }
  bool Begin(ExpertKey key, PageSize size) override;
  Event FetchPage(ExpertKey key, std::byte* slot, const Events& slot_free) override;
  Event KnownAt(ExpertKey key, const Event&) const override { return finishing_[key].done; }
  void Cancel(ExpertKey key) override;
  void FetchAhead(std::span<const ExpertKey> keys) override;
  int64_t max_ahead() const override;
  bool streams(ExpertKey key) const override;
  ExpertKey NextStreaming(ExpertKey key) override;

 private:
  // An expert under way. Its lease holds it in DRAM until its last page has been copied.
  struct Transfer {
    ExpertKey key = kNoExpert;
    uint64_t page_bytes = 0;
    int64_t next_page = 0;
    std::unique_ptr<ExpertLease> lease;
    Event ready;      // the expert is finished
    Event last_left;  // the page issued last has been read
  };
  struct Finishing {
    int64_t load_id = -1;
    Event done;
  };

  explicit DramSource(const Args& args);
  uint64_t PageBytes(PageSize size) const { return size == PageSize::kSmall ? small_page_bytes_ : page_bytes_; }

  Args args_;
  uint64_t page_bytes_, small_page_bytes_;
  Arena pinned_;
  std::vector<Event> buffer_free_;
  size_t next_buffer_ = 0;
  std::vector<Transfer> transfers_;  // only a few
  std::vector<ExpertLease> ahead_;   // experts fetched ahead, in the order in which they will be wanted
  IdVector<ExpertKey, Finishing> finishing_;
  // The last call of FetchAhead() that wanted the expert, and the last call that found it already held.
  IdVector<ExpertKey, uint64_t> wanted_at_, held_at_;
  uint64_t num_calls_ = 0;
  IdVector<ExpertKey, ExpertKey> next_;  // a later key; no expert between these two keys streams
};

}  // namespace penstock
