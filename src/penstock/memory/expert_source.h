// Where the experts of a store come from: the disk, or the store of the tier below.
//
// An expert moves in pages (weight pages), issued one after the other, so that other transfers can go between them.
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

class ExpertSource {
 public:
  virtual ~ExpertSource() = default;

  // Bytes that cross the link for an expert.
  virtual uint64_t bytes(int64_t key) const = 0;
  virtual int64_t num_pages(int64_t key) const = 0;
  // Whether what arrives must be checked and packed before it is used.
  virtual bool needs_finish() const = 0;

  // Makes an expert ready to be fetched. False when the tier below has no room for it now.
  virtual bool Begin(int64_t key) = 0;
  // Issues the next page of an expert that was begun, into `slot` (nullptr in a simulation), which may be written when
  // `slot_free` have ended. The event of the last page is the expert's arrival.
  virtual Event FetchPage(int64_t key, std::byte* slot, const Events& slot_free) = 0;
  // When it is known whether an expert that was begun arrives, if not sooner than it does: the tier below has it, and
  // what is left is a copy.
  virtual Event KnownAt(int64_t, const Event& arrived) const { return arrived; }
  // The next pages of an expert that was begun will not be asked for.
  virtual void Cancel(int64_t) {}
  // Experts that will be begun soon, in this order: they come into the tier below as far as there is room. What was
  // named before and is no longer may leave. Nothing where there is no such tier.
  virtual void FetchAhead(std::span<const int64_t>) {}
  // How many FetchAhead has room for, whether an expert ever needs it, and the first from `key` on that does (the
  // number of experts where there is none).
  virtual int64_t most_ahead() const { return 0; }
  virtual bool streams(int64_t) const { return false; }
  virtual int64_t NextStreaming(int64_t key) { return key; }
};

// Experts on disk; each is one page.
class DiskSource : public ExpertSource {
 public:
  DiskSource(const ExpertLayouts& layouts, Runtime& runtime, LaneIdx disk_lane)
      : layouts_(&layouts), runtime_(&runtime), disk_lane_(disk_lane) {}

  uint64_t bytes(int64_t key) const override { return layouts_->read_bytes(key); }
  int64_t num_pages(int64_t) const override { return 1; }
  bool needs_finish() const override { return true; }
  bool Begin(int64_t) override { return true; }
  Event FetchPage(int64_t key, std::byte* slot, const Events& slot_free) override;

 private:
  const ExpertLayouts* layouts_;
  Runtime* runtime_;
  LaneIdx disk_lane_;
};

// Experts in DRAM, finished there and copied to a device: at once where its copy engine can read DRAM's slots, else in
// two hops, into page-locked buffers and from them into the slot. The hops of neighbouring pages overlap.
class DramSource : public ExpertSource {
 public:
  struct Args {
    const ExpertLayouts& layouts;  // outlives the source, like all references
    Runtime& runtime;
    ExpertStore& dram;
    // Finishes. Not the lane of the host's other work: what waits for the disk would keep that waiting.
    LaneIdx finish_lane = 0;
    std::optional<LaneIdx> dram_to_pinned_lane = std::nullopt;  // of the first of two hops
    LaneIdx dram_to_device_lane = 0;
    // Nothing in a simulation:
    ThreadPool* pool = nullptr;       // of the lane that finishes
    Memory* pinned_memory = nullptr;  // page-locked
    Copier* copier = nullptr;         // to the device
  };
  // Bytes of the page-locked buffers.
  static uint64_t PinnedBytes(const ExpertLayouts& layouts);
  static absl::StatusOr<std::unique_ptr<DramSource>> Create(const Args& args);
  ~DramSource() override;

  uint64_t bytes(int64_t key) const override { return args_.layouts.finished_extent(key).size_bytes; }
  int64_t num_pages(int64_t key) const override;
  bool needs_finish() const override { return false; }
  bool Begin(int64_t key) override;
  Event FetchPage(int64_t key, std::byte* slot, const Events& slot_free) override;
  Event KnownAt(int64_t key, const Event&) const override { return finishing_[static_cast<size_t>(key)].done; }
  void Cancel(int64_t key) override;
  void FetchAhead(std::span<const int64_t> keys) override;
  int64_t most_ahead() const override;
  bool streams(int64_t key) const override;
  int64_t NextStreaming(int64_t key) override;

 private:
  // An expert that was begun; its lease holds it in DRAM until the last page has left.
  struct Transfer {
    int64_t key = 0;
    int64_t next_page = 0;
    std::unique_ptr<ExpertLease> lease;
    Event ready;      // finished
    Event last_left;  // the page issued last has been read
  };
  struct Finishing {
    int64_t load_id = -1;
    Event done;
  };

  explicit DramSource(const Args& args);

  Args args_;
  uint64_t page_bytes_;
  Arena pinned_;
  std::vector<Event> buffer_free_;
  size_t next_buffer_ = 0;
  std::vector<Transfer> transfers_;   // few
  std::vector<ExpertLease> ahead_;    // fetched ahead, in the order in which they will be wanted
  std::vector<Finishing> finishing_;  // by key
  // By key: the last call of FetchAhead() that wanted it, and the last that found it held already.
  std::vector<uint64_t> wanted_at_, held_at_;
  uint64_t num_calls_ = 0;
  std::vector<int64_t> next_;  // by key: one up to which no expert streams
};

}  // namespace penstock
