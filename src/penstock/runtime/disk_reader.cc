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

namespace penstock {
namespace {

// Reads are split into parts of this size, so that one expert keeps several requests under way.
constexpr uint64_t kPartBytes = kMiB;
constexpr unsigned kQueueDepth = 64;
constexpr int kNumReadingThreads = 8;
// How often a request is repeated that the kernel refuses for the moment.
constexpr int kMaxRefusals = 100;
constexpr auto kRefusalPause = std::chrono::milliseconds(10);

// Returns whether an operation may succeed when it is repeated: it was interrupted, or the kernel was short of memory.
bool IsTransient(int error) { return error == EINTR || error == EAGAIN || error == EBUSY || error == ENOMEM; }

// The page-aligned part of `extent` that begins at `part_idx * kPartBytes`.
struct Part {
  uint64_t offset;
  uint64_t size;
  std::byte* target;
  uint64_t needed;  // bytes that must arrive; padding after the end of the file does not count
};

std::vector<Part> SplitIntoParts(const DiskRead& read) {
  const uint64_t begin = read.extent.offset_bytes / kPageBytes * kPageBytes;
  const uint64_t wanted_end = read.extent.offset_bytes + read.extent.size_bytes;
  const uint64_t end = RoundUp(wanted_end, kPageBytes);
  std::vector<Part> parts;
  for (uint64_t offset = begin; offset < end; offset += kPartBytes) {
    const uint64_t size = std::min(kPartBytes, end - offset);
    parts.push_back({offset, size, read.target + (offset - begin), std::min(size, wanted_end - offset)});
  }
  return parts;
}

// A file opened for reading: the same inode opened again with O_DIRECT where that works.
struct SourceFile {
  UniqueFd direct_fd;
  int fd = -1;
  std::string path;
};

std::vector<SourceFile> OpenSources(std::span<const OpenedFile> files, bool direct_io, bool& all_direct) {
  std::vector<SourceFile> sources;
  all_direct = direct_io;
  for (const OpenedFile& file : files) {
    SourceFile source{.direct_fd = UniqueFd(), .fd = file.fd.get(), .path = file.path};
    if (direct_io) {
      const std::string alias = fmt::format("/proc/self/fd/{}", file.fd.get());
      UniqueFd fd(::open(alias.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT));
      // Some file systems accept the flag and then refuse the read.
      alignas(kPageBytes) thread_local std::byte probe[kPageBytes];
      if (fd.valid() && PreadUninterrupted(fd.get(), probe, 0) >= 0) {
        source.fd = fd.get();
        source.direct_fd = std::move(fd);
      } else {
        all_direct = false;
      }
    }
    sources.push_back(std::move(source));
  }
  if (direct_io && !all_direct) {
    LogInfo("the file system of {} refuses O_DIRECT: experts are read through the page cache",
            files.empty() ? "the model" : files[0].path);
  }
  return sources;
}

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

// Rounds a short read down to whole pages. Reading continues there, because O_DIRECT needs page-aligned offsets. A read
// of less than a page has reached the end of the file.
uint64_t WholePages(uint64_t bytes) { return bytes / kPageBytes * kPageBytes; }

absl::Status ShortRead(const SourceFile& file, const Part& part, uint64_t done) {
  return IoError("{}: the file ended early: expected {} bytes at offset {}, found {}; was it changed while in use?",
                 file.path, part.needed, part.offset, done);
}

class RingReader : public DiskReader {
 public:
  static std::unique_ptr<RingReader> TryCreate(std::vector<SourceFile>& sources, bool all_direct) {
    auto reader = std::unique_ptr<RingReader>(new RingReader());
    reader->wake_fd_ = UniqueFd(::eventfd(0, EFD_CLOEXEC));
    const int error = reader->wake_fd_.valid() ? ::io_uring_queue_init(kQueueDepth + 1, &reader->ring_, 0) : -errno;
    if (error != 0) {
      LogInfo("io_uring is not available ({}): experts are read by threads", ErrnoText(-error));
      return nullptr;
    }
    reader->ring_ready_ = true;
    reader->sources_ = std::move(sources);
    reader->all_direct_ = all_direct;
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
    const std::vector<Part> parts = SplitIntoParts(read);
    const uint64_t read_id = next_read_id_++;
    outstanding_.Add(read_id, read.tag, parts.size());
    for (const Part& part : parts) queue_.push_back({part, read.file_idx, read_id, 0});
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
      Pending pending = in_ring_[place];
      free_places_.push_back(place);
      const absl::StatusOr<bool> whole = Account(pending, result);
      if (whole.ok() && !*whole) {
        queue_.push_front(pending);
        continue;
      }
      if (auto completion = outstanding_.FinishPart(pending.read_id, whole.status())) return completion;
    }
    return std::nullopt;
  }

  void Wake() override {
    const uint64_t one = 1;
    (void)!::write(wake_fd_.get(), &one, sizeof(one));  // fails only when 2^64 - 2 wake-ups are pending
  }

  std::string Description() const override { return all_direct_ ? "io_uring, O_DIRECT" : "io_uring, page cache"; }

 private:
  struct Pending {
    Part part;
    int file_idx;
    uint64_t read_id;
    uint64_t done;
    int num_errors = 0;
    int num_refusals = 0;
  };
  static constexpr uint64_t kWakePlace = kQueueDepth;

  RingReader() {
    for (size_t place = 0; place < kQueueDepth; ++place) free_places_.push_back(place);
    in_ring_.resize(kQueueDepth);
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
      const Pending& pending = in_ring_[place];
      ::io_uring_prep_read(sqe, sources_[pending.file_idx].fd, pending.part.target + pending.done,
                           static_cast<unsigned>(pending.part.size - pending.done), pending.part.offset + pending.done);
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
        if (place != kWakePlace) queue_.push_front(in_ring_[place]);  // queued to be told of the failure
      }
    }
  }

  // Counts the result of one ring entry. Returns false when the rest of the part must be read again.
  absl::StatusOr<bool> Account(Pending& pending, int result) {
    const SourceFile& file = sources_[pending.file_idx];
    if (IsTransient(-result) && pending.num_refusals++ < kMaxRefusals) {
      if (result != -EINTR) std::this_thread::sleep_for(kRefusalPause);
      return false;
    }
    if (result < 0) {
      // A disk may fail once and then succeed. A second failure at the same place counts as an error.
      if (pending.num_errors++ == 0) return false;
      return IoError("{}: cannot read {} bytes at offset {}: {}", file.path, pending.part.size, pending.part.offset,
                     ErrnoText(-result));
    }
    const uint64_t arrived = pending.done + static_cast<uint64_t>(result);
    if (arrived >= pending.part.needed) return true;
    const uint64_t resume_at = WholePages(arrived);
    if (resume_at == pending.done) return ShortRead(file, pending.part, arrived);
    pending.done = resume_at;
    return false;
  }

  io_uring ring_ = {};
  bool ring_ready_ = false;
  bool all_direct_ = false;
  std::vector<SourceFile> sources_;
  std::deque<Pending> queue_;     // not yet in the ring
  std::vector<Pending> in_ring_;  // indexed by place
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
  static absl::StatusOr<std::unique_ptr<ThreadReader>> Create(std::vector<SourceFile> sources, bool all_direct) {
    auto reader = std::unique_ptr<ThreadReader>(new ThreadReader(std::move(sources), all_direct));
    while (std::ssize(reader->threads_) < kNumReadingThreads) {
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
    const std::vector<Part> parts = SplitIntoParts(read);
    const uint64_t read_id = next_read_id_++;
    outstanding_.Add(read_id, read.tag, parts.size());
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      for (const Part& part : parts) queue_.push_back({part, read.file_idx, read_id});
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

  std::string Description() const override {
    return fmt::format("{} reading threads, {}", threads_.size(), all_direct_ ? "O_DIRECT" : "page cache");
  }

 private:
  struct Queued {
    Part part;
    int file_idx;
    uint64_t read_id;
  };
  struct Finished {
    uint64_t read_id = 0;
    absl::Status status;
  };

  ThreadReader(std::vector<SourceFile> sources, bool all_direct)
      : sources_(std::move(sources)), all_direct_(all_direct) {}

  void Work() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      wake_workers_.wait(lock, [this] { return stop_ || !queue_.empty(); });
      if (stop_) return;
      const Queued queued = queue_.front();
      queue_.pop_front();
      lock.unlock();
      absl::Status status = ReadPart(queued);
      lock.lock();
      finished_.push_back({queued.read_id, std::move(status)});
      wake_caller_.notify_one();
    }
  }

  absl::Status ReadPart(const Queued& queued) const {
    const SourceFile& file = sources_[queued.file_idx];
    const Part& part = queued.part;
    uint64_t done = 0;
    int num_errors = 0, num_refusals = 0;
    while (done < part.needed) {
      const ssize_t n = ::pread(file.fd, part.target + done, part.size - done, static_cast<off_t>(part.offset + done));
      if (n >= 0) {
        const uint64_t arrived = done + static_cast<uint64_t>(n);
        if (arrived >= part.needed) break;
        if (WholePages(arrived) == done) return ShortRead(file, part, arrived);
        done = WholePages(arrived);
      } else if (IsTransient(errno) && num_refusals++ < kMaxRefusals) {
        if (errno != EINTR) std::this_thread::sleep_for(kRefusalPause);
      } else if (num_errors++ > 0) {
        return IoError("{}: cannot read {} bytes at offset {}: {}", file.path, part.size, part.offset,
                       ErrnoText(errno));
      }
    }
    return absl::OkStatus();
  }

  std::vector<SourceFile> sources_;
  bool all_direct_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable wake_workers_;
  std::condition_variable wake_caller_;
  std::deque<Queued> queue_;       // guarded by mutex_
  std::deque<Finished> finished_;  // guarded by mutex_
  bool stop_ = false;              // guarded by mutex_
  bool woken_ = false;             // guarded by mutex_
  uint64_t next_read_id_ = 0;      // used by the caller's thread only, like outstanding_
  Outstanding outstanding_;
};

}  // namespace

uint64_t DiskReader::PaddedBytes(uint64_t size_bytes) { return RoundUp(size_bytes, kPageBytes) + kPageBytes; }

std::byte* DiskReader::Landing(const DiskRead& read) { return read.target + read.extent.offset_bytes % kPageBytes; }

absl::StatusOr<std::unique_ptr<DiskReader>> DiskReader::Create(std::span<const OpenedFile> files,
                                                               const DiskReaderOptions& options) {
  bool all_direct = false;
  std::vector<SourceFile> sources = OpenSources(files, options.direct_io, all_direct);
  if (options.io_uring) {
    if (std::unique_ptr<RingReader> reader = RingReader::TryCreate(sources, all_direct)) return reader;
  }
  return ThreadReader::Create(std::move(sources), all_direct);
}

}  // namespace penstock
