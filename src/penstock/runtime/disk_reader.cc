#include "penstock/runtime/disk_reader.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>

#include <fcntl.h>
#include <liburing.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "absl/container/flat_hash_map.h"
#include "penstock/base/bytes.h"
#include "penstock/base/check.h"
#include "penstock/base/checked.h"
#include "penstock/base/file.h"
#include "penstock/base/logging.h"
#include "penstock/base/status.h"
#include "penstock/base/thread.h"
#include "penstock/runtime/read_sources.h"

namespace penstock {
namespace {

constexpr unsigned kQueueDepth = 64;    // for each directory
constexpr int kMaxBusyDirectories = 4;  // more of them share the places of so many
constexpr int kNumReadingThreads = 8;   // for each directory

int NumBusyDirectories(const ReadSources& sources) { return std::min(sources.num_directories(), kMaxBusyDirectories); }

// Keeps the reads under way and the results of their parts.
class Outstanding {
 public:
  void Add(uint64_t read_id, uint64_t tag, size_t num_parts) {
    reads_[read_id] = {.num_parts = num_parts, .completion = {.tag = tag, .status = {}}};
  }
  // Returns the read's completion after its last part. Its status is that of the first part that failed.
  std::optional<DiskCompletion> FinishPart(uint64_t read_id, const absl::Status& status) {
    const auto it = reads_.find(read_id);
    PENSTOCK_CHECK(it != reads_.end());
    it->second.completion.status.Update(status);
    if (--it->second.num_parts > 0) return std::nullopt;
    DiskCompletion completion = std::move(it->second.completion);
    reads_.erase(it);
    return completion;
  }
  bool empty() const { return reads_.empty(); }

 private:
  struct Entry {
    size_t num_parts = 0;
    DiskCompletion completion;
  };
  absl::flat_hash_map<uint64_t, Entry> reads_;
};

class RingReader : public DiskReader {
 public:
  static std::unique_ptr<RingReader> TryCreate(std::unique_ptr<ReadSources>& sources) {
    auto reader = std::unique_ptr<RingReader>(new RingReader(*sources));
    reader->wake_fd_ = UniqueFd(::eventfd(0, EFD_CLOEXEC));
    const int error = reader->wake_fd_.valid()
                          ? ::io_uring_queue_init(static_cast<unsigned>(reader->in_ring_.size()) + 1, &reader->ring_, 0)
                          : -errno;
    if (error != 0) {
      LogInfo("io_uring is not available ({}): experts are read by threads", ErrnoText(-error));
      return nullptr;
    }
    reader->ring_ready_ = true;
    reader->sources_ = std::move(sources);
    return reader;
  }

  ~RingReader() override {
    if (!ring_ready_) return;
    while (num_with_kernel_ > 0) {  // the kernel still writes into the caller's memory
      io_uring_cqe* const cqe = WaitForEntry();
      if (::io_uring_cqe_get_data64(cqe) != kWakePlace) --num_with_kernel_;
      ::io_uring_cqe_seen(&ring_, cqe);
    }
    ::io_uring_queue_exit(&ring_);
  }

  void Submit(const DiskRead& read) override {
    const uint64_t read_id = next_read_id_++;
    const std::vector<PartRead> parts = sources_->Split(read, read_id);
    outstanding_.Add(read_id, read.tag, parts.size());
    queue_.insert(queue_.end(), parts.begin(), parts.end());
    FillRing();
  }

  std::optional<DiskCompletion> NextCompleted() override {
    while (!outstanding_.empty()) {
      FillRing();
      if (num_with_kernel_ == 0) {  // the kernel refuses to read
        PENSTOCK_CHECK(!broken_.ok() && !queue_.empty());
        const uint64_t read_id = queue_.front().read_id;
        queue_.pop_front();
        if (auto completion = outstanding_.FinishPart(read_id, broken_)) return completion;
        continue;
      }
      io_uring_cqe* const cqe = WaitForEntry();
      const uint64_t place = ::io_uring_cqe_get_data64(cqe);
      const int result = cqe->res;
      ::io_uring_cqe_seen(&ring_, cqe);
      if (place == kWakePlace) {
        wake_armed_ = false;
        return std::nullopt;
      }
      --num_with_kernel_;
      num_refusals_ = 0;
      PartRead read = in_ring_[place];
      free_places_.push_back(place);
      const absl::StatusOr<bool> whole = sources_->End(read, result);
      if (whole.ok() && !*whole) {
        queue_.push_front(read);
        continue;
      }
      if (auto completion = outstanding_.FinishPart(read.read_id, whole.status())) return completion;
    }
    return std::nullopt;
  }

  void Wake() override {
    const uint64_t one = 1;
    (void)!::write(wake_fd_.get(), &one, sizeof(one));  // fails only when 2^64 - 2 wake-ups are pending
  }

  bool is_direct() const override { return sources_->all_direct(); }
  std::string Description() const override {
    return sources_->all_direct() ? "io_uring, O_DIRECT" : "io_uring, page cache";
  }
  std::vector<DirectoryReads> ReadsByDirectory() const override { return sources_->ReadsByDirectory(); }

 private:
  static constexpr uint64_t kWakePlace = ~uint64_t{0};

  explicit RingReader(const ReadSources& sources)
      : in_ring_(static_cast<size_t>(NumBusyDirectories(sources)) * kQueueDepth) {
    for (size_t place = 0; place < in_ring_.size(); ++place) free_places_.push_back(place);
  }

  // REQUIRES: an entry is with the kernel.
  io_uring_cqe* WaitForEntry() {
    io_uring_cqe* cqe = nullptr;
    for (;;) {
      const int error = ::io_uring_wait_cqe(&ring_, &cqe);
      if (error == 0) return cqe;
      PENSTOCK_CHECK(IsTransient(-error));  // a ring that exists can be waited for
      if (error != -EINTR) std::this_thread::sleep_for(kRefusalPause);
    }
  }

  void FillRing() {
    if (!wake_armed_) {
      if (io_uring_sqe* sqe = ::io_uring_get_sqe(&ring_); sqe != nullptr) {
        ::io_uring_prep_read(sqe, wake_fd_.get(), &wake_count_, sizeof(wake_count_), 0);
        ::io_uring_sqe_set_data64(sqe, kWakePlace);
        prepared_.push_back(kWakePlace);
        wake_armed_ = true;
      }
    }
    while (!queue_.empty() && !free_places_.empty() && broken_.ok()) {
      io_uring_sqe* sqe = ::io_uring_get_sqe(&ring_);
      if (sqe == nullptr) break;
      const size_t place = free_places_.back();
      free_places_.pop_back();
      in_ring_[place] = queue_.front();
      queue_.pop_front();
      PartRead& read = in_ring_[place];
      const int fd = sources_->Begin(read);
      ::io_uring_prep_read(sqe, fd, read.target + read.done, static_cast<unsigned>(read.size - read.done),
                           read.offset + read.done);
      ::io_uring_sqe_set_data64(sqe, place);
      prepared_.push_back(place);
    }
    while (!prepared_.empty() && broken_.ok()) {
      const int submitted = ::io_uring_submit(&ring_);
      if (submitted == -EINTR) continue;
      for (int i = 0; i < submitted; ++i) {
        num_with_kernel_ += prepared_.front() == kWakePlace ? 0 : 1;
        prepared_.pop_front();
      }
      // A kernel short of memory takes fewer entries, or none; the next completion brings us here again. If no
      // completion is due, we ask the kernel again for a second.
      const bool later = submitted >= 0 || IsTransient(-submitted);
      if (later && (num_with_kernel_ > 0 || prepared_.empty())) break;
      if (later && num_refusals_++ < kMaxRefusals) {
        std::this_thread::sleep_for(kRefusalPause);
        continue;
      }
      broken_ = IoError("io_uring refused a read: {}", ErrnoText(submitted < 0 ? -submitted : EAGAIN));
      for (const uint64_t place : prepared_) {
        if (place == kWakePlace) continue;
        sources_->GiveUp(in_ring_[place]);
        queue_.push_front(in_ring_[place]);  // queued to be told of the failure
      }
    }
  }

  io_uring ring_ = {};
  bool ring_ready_ = false;
  std::unique_ptr<ReadSources> sources_;
  std::deque<PartRead> queue_;     // not yet in the ring
  std::vector<PartRead> in_ring_;  // indexed by place
  std::vector<size_t> free_places_;
  std::deque<uint64_t> prepared_;  // places whose entries the kernel has not taken yet, oldest first
  int num_with_kernel_ = 0;        // reads that the kernel has taken
  int num_refusals_ = 0;           // refusals in a row, with nothing under way
  absl::Status broken_;            // the kernel's refusal, after which nothing is submitted
  UniqueFd wake_fd_;               // an eventfd; the ring reads it
  uint64_t wake_count_ = 0;
  bool wake_armed_ = false;
  uint64_t next_read_id_ = 0;
  Outstanding outstanding_;
};

class ThreadReader : public DiskReader {
 public:
  // If the system refuses some of the threads, the others do their work.
  static absl::StatusOr<std::unique_ptr<ThreadReader>> Create(std::unique_ptr<ReadSources> sources) {
    auto reader = std::unique_ptr<ThreadReader>(new ThreadReader(std::move(sources)));
    const int num_threads = kNumReadingThreads * NumBusyDirectories(*reader->sources_);
    while (std::ssize(reader->threads_) < num_threads) {
      absl::StatusOr<std::thread> thread = StartThread([&reader = *reader] { reader.Work(); });
      if (!thread.ok() && !reader->threads_.empty()) break;
      PENSTOCK_RETURN_IF_ERROR(thread.status());
      reader->threads_.push_back(*std::move(thread));
    }
    return reader;
  }

  ~ThreadReader() override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
      queue_.clear();
    }
    wake_workers_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void Submit(const DiskRead& read) override {
    const uint64_t read_id = next_read_id_++;
    const std::vector<PartRead> parts = sources_->Split(read, read_id);
    outstanding_.Add(read_id, read.tag, parts.size());
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      queue_.insert(queue_.end(), parts.begin(), parts.end());
    }
    wake_workers_.notify_all();
  }

  std::optional<DiskCompletion> NextCompleted() override {
    while (!outstanding_.empty()) {
      Finished finished;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        wake_caller_.wait(lock, [this] { return !finished_.empty() || woken_; });
        if (finished_.empty()) {
          woken_ = false;
          return std::nullopt;
        }
        finished = std::move(finished_.front());
        finished_.pop_front();
      }
      if (auto completion = outstanding_.FinishPart(finished.read_id, finished.status)) return completion;
    }
    return std::nullopt;
  }

  void Wake() override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      woken_ = true;
    }
    wake_caller_.notify_one();
  }

  bool is_direct() const override { return sources_->all_direct(); }
  std::string Description() const override {
    return fmt::format("{} reading threads, {}", threads_.size(), sources_->all_direct() ? "O_DIRECT" : "page cache");
  }
  std::vector<DirectoryReads> ReadsByDirectory() const override { return sources_->ReadsByDirectory(); }

 private:
  struct Finished {
    uint64_t read_id = 0;
    absl::Status status;
  };

  explicit ThreadReader(std::unique_ptr<ReadSources> sources) : sources_(std::move(sources)) {}

  void Work() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      wake_workers_.wait(lock, [this] { return stop_ || !queue_.empty(); });
      if (stop_) return;
      PartRead read = queue_.front();
      queue_.pop_front();
      lock.unlock();
      absl::Status status = Read(read);
      lock.lock();
      finished_.push_back({read.read_id, std::move(status)});
      wake_caller_.notify_one();
    }
  }

  absl::Status Read(PartRead& read) {
    for (;;) {
      const int fd = sources_->Begin(read);
      const ssize_t n =
          ::pread(fd, read.target + read.done, read.size - read.done, static_cast<off_t>(read.offset + read.done));
      PENSTOCK_ASSIGN_OR_RETURN(const bool is_whole, sources_->End(read, n < 0 ? -errno : n));
      if (is_whole) return absl::OkStatus();
    }
  }

  std::unique_ptr<ReadSources> sources_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable wake_workers_;
  std::condition_variable wake_caller_;
  std::deque<PartRead> queue_;     // guarded by mutex_
  std::deque<Finished> finished_;  // guarded by mutex_
  bool stop_ = false;              // guarded by mutex_
  bool woken_ = false;             // guarded by mutex_
  uint64_t next_read_id_ = 0;      // used by the caller's thread only, like outstanding_
  Outstanding outstanding_;
};

}  // namespace

uint64_t DiskReader::PaddedBytes(uint64_t size_bytes) { return RoundUp(size_bytes, kPageBytes) + kPageBytes; }

uint64_t DiskReader::WrittenBytes(const DiskRead& read) {
  return RoundUp(read.extent.offset_bytes % kPageBytes + read.extent.size_bytes, kPageBytes);
}

std::byte* DiskReader::Landing(const DiskRead& read) { return read.target + read.extent.offset_bytes % kPageBytes; }

absl::StatusOr<std::unique_ptr<DiskReader>> DiskReader::Create(std::span<const OpenedFile> files,
                                                               const DiskReaderOptions& options) {
  auto sources = std::make_unique<ReadSources>(files, options.direct_io);
  if (options.io_uring) {
    if (std::unique_ptr<RingReader> reader = RingReader::TryCreate(sources)) return reader;
  }
  return ThreadReader::Create(std::move(sources));
}

}  // namespace penstock
