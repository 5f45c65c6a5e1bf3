#include "penstock/memory/disk_reader.h"

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>

#include <fcntl.h>
#include <liburing.h>
#include <unistd.h>

#include "absl/container/flat_hash_map.h"
#include "penstock/base/bytes.h"
#include "penstock/base/check.h"
#include "penstock/base/checked.h"
#include "penstock/base/file.h"
#include "penstock/base/logging.h"
#include "penstock/base/status.h"
#include "penstock/memory/arena.h"

namespace penstock {
namespace {

constexpr uint64_t kPartBytes = kMiB;  // a read is split, so that one expert keeps several requests under way
constexpr unsigned kQueueDepth = 64;
constexpr int kNumReadingThreads = 8;

// The page-aligned range of `extent`, cut at `part_idx * kPartBytes`.
struct Part {
  uint64_t offset;
  uint64_t size;
  std::byte* target;
  uint64_t needed;  // bytes that must arrive; the padding after the end of the file does not
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

// A file as it is read: the same inode opened again with O_DIRECT where that works.
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
      alignas(kPageBytes) static std::byte probe[kPageBytes];
      if (fd.valid() && ::pread(fd.get(), probe, sizeof(probe), 0) >= 0) {
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

// Reads under way, and which of them are whole.
class Outstanding {
 public:
  void Add(uint64_t read_id, uint64_t tag, size_t num_parts) { reads_[read_id] = {tag, num_parts}; }
  // The read's tag when this was its last part and all of them arrived. A read with a failed part ends without a tag.
  enum class Outcome : uint8_t { kArrived, kFailed };
  std::optional<uint64_t> FinishPart(uint64_t read_id, Outcome outcome) {
    const auto it = reads_.find(read_id);
    PENSTOCK_CHECK(it != reads_.end());
    if (outcome == Outcome::kFailed) it->second.failed = true;
    if (--it->second.num_parts > 0) return std::nullopt;
    const Entry entry = it->second;
    reads_.erase(it);
    if (entry.failed) return std::nullopt;
    return entry.tag;
  }
  bool empty() const { return reads_.empty(); }

 private:
  struct Entry {
    uint64_t tag = 0;
    size_t num_parts = 0;
    bool failed = false;
  };
  absl::flat_hash_map<uint64_t, Entry> reads_;
};

// Where to go on after a short read: O_DIRECT wants page-aligned offsets, so a broken page is read again. A read that
// brought less than a page stands at the end of the file.
uint64_t WholePages(uint64_t bytes) { return bytes / kPageBytes * kPageBytes; }

absl::Status ShortRead(const SourceFile& file, const Part& part, uint64_t done) {
  return IoError("{}: the file ended early: expected {} bytes at offset {}, found {}; was it changed while in use?",
                 file.path, part.needed, part.offset, done);
}

class RingReader : public DiskReader {
 public:
  static std::unique_ptr<RingReader> TryCreate(std::vector<SourceFile>& sources, bool all_direct) {
    auto reader = std::unique_ptr<RingReader>(new RingReader());
    const int error = ::io_uring_queue_init(kQueueDepth, &reader->ring_, 0);
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
    while (num_with_kernel() > 0) {  // it still writes into the caller's memory
      io_uring_cqe* cqe = nullptr;
      if (::io_uring_wait_cqe(&ring_, &cqe) != 0) break;
      ::io_uring_cqe_seen(&ring_, cqe);
      --num_in_ring_;
    }
    ::io_uring_queue_exit(&ring_);
  }

  absl::Status Submit(const DiskRead& read) override {
    bytes_read_ += read.extent.size_bytes;
    const std::vector<Part> parts = SplitIntoParts(read);
    const uint64_t read_id = next_read_id_++;
    outstanding_.Add(read_id, read.tag, parts.size());
    for (const Part& part : parts) queue_.push_back({part, read.file_idx, read_id, 0});
    return FillRing();
  }

  absl::StatusOr<std::optional<uint64_t>> NextCompleted(Wait wait) override {
    while (!outstanding_.empty()) {
      PENSTOCK_RETURN_IF_ERROR(FillRing());
      io_uring_cqe* cqe = nullptr;
      const int error = wait == Wait::kYes ? ::io_uring_wait_cqe(&ring_, &cqe) : ::io_uring_peek_cqe(&ring_, &cqe);
      if (error == -EINTR) continue;
      if (error == -EAGAIN && wait == Wait::kNo) return std::nullopt;
      if (error != 0) return IoError("waiting for the disk failed: {}", ErrnoText(-error));
      const size_t place = static_cast<size_t>(::io_uring_cqe_get_data64(cqe));
      const int result = cqe->res;
      ::io_uring_cqe_seen(&ring_, cqe);
      --num_in_ring_;
      Pending pending = in_ring_[place];
      free_places_.push_back(place);
      const absl::StatusOr<bool> whole = Account(pending, result);
      if (!whole.ok()) {
        // No more will come of this part; whoever waits for the rest must not wait for it.
        (void)outstanding_.FinishPart(pending.read_id, Outstanding::Outcome::kFailed);
        return whole.status();
      }
      if (!*whole) {
        queue_.push_front(pending);
        continue;
      }
      const std::optional<uint64_t> tag = outstanding_.FinishPart(pending.read_id, Outstanding::Outcome::kArrived);
      if (tag.has_value()) return tag;
    }
    return std::nullopt;
  }

  std::string Description() const override { return all_direct_ ? "io_uring, O_DIRECT" : "io_uring, page cache"; }

 private:
  struct Pending {
    Part part;
    int file_idx;
    uint64_t read_id;
    uint64_t done;
    int num_errors = 0;
  };

  RingReader() {
    for (size_t place = 0; place < kQueueDepth; ++place) free_places_.push_back(place);
    in_ring_.resize(kQueueDepth);
  }

  int num_with_kernel() const { return num_in_ring_ - static_cast<int>(::io_uring_sq_ready(&ring_)); }

  absl::Status FillRing() {
    while (!queue_.empty() && !free_places_.empty()) {
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
      ++num_in_ring_;
    }
    if (::io_uring_sq_ready(&ring_) == 0) return absl::OkStatus();
    int submitted;
    do {
      submitted = ::io_uring_submit(&ring_);
    } while (submitted == -EINTR);
    // A kernel short of memory takes fewer, or none; the next completion brings us here again.
    if (num_with_kernel() > 0 && (submitted >= 0 || submitted == -EAGAIN || submitted == -EBUSY))
      return absl::OkStatus();
    return IoError("io_uring refused a read: {}", ErrnoText(submitted < 0 ? -submitted : EAGAIN));
  }

  // Takes the result of one ring entry into account; false when the rest of the part must be read again.
  absl::StatusOr<bool> Account(Pending& pending, int result) {
    const SourceFile& file = sources_[pending.file_idx];
    if (result == -EINTR || result == -EAGAIN) return false;
    if (result < 0) {
      // A disk may fail once and then succeed; a second failure at the same place is believed.
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
  std::vector<Pending> in_ring_;  // by place
  std::vector<size_t> free_places_;
  int num_in_ring_ = 0;  // queued there, with the kernel or not yet
  uint64_t next_read_id_ = 0;
  Outstanding outstanding_;
};

class ThreadReader : public DiskReader {
 public:
  ThreadReader(std::vector<SourceFile> sources, bool all_direct)
      : sources_(std::move(sources)), all_direct_(all_direct) {
    for (int i = 0; i < kNumReadingThreads; ++i) threads_.emplace_back([this] { Work(); });
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

  absl::Status Submit(const DiskRead& read) override {
    bytes_read_ += read.extent.size_bytes;
    const std::vector<Part> parts = SplitIntoParts(read);
    const uint64_t read_id = next_read_id_++;
    outstanding_.Add(read_id, read.tag, parts.size());
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      for (const Part& part : parts) queue_.push_back({part, read.file_idx, read_id});
    }
    wake_workers_.notify_all();
    return absl::OkStatus();
  }

  absl::StatusOr<std::optional<uint64_t>> NextCompleted(Wait wait) override {
    while (!outstanding_.empty()) {
      uint64_t read_id = 0;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        if (finished_.empty() && wait == Wait::kNo) return std::nullopt;
        wake_caller_.wait(lock, [this] { return !finished_.empty(); });
        const Finished finished = std::move(finished_.front());
        finished_.pop_front();
        if (!finished.status.ok()) {
          (void)outstanding_.FinishPart(finished.read_id, Outstanding::Outcome::kFailed);
          return finished.status;
        }
        read_id = finished.read_id;
      }
      const std::optional<uint64_t> tag = outstanding_.FinishPart(read_id, Outstanding::Outcome::kArrived);
      if (tag.has_value()) return tag;
    }
    return std::nullopt;
  }

  std::string Description() const override {
    return fmt::format("{} reading threads, {}", kNumReadingThreads, all_direct_ ? "O_DIRECT" : "page cache");
  }

 private:
  struct Queued {
    Part part;
    int file_idx;
    uint64_t read_id;
  };
  struct Finished {
    uint64_t read_id;
    absl::Status status;
  };

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
    int num_errors = 0;
    while (done < part.needed) {
      const ssize_t n = ::pread(file.fd, part.target + done, part.size - done, static_cast<off_t>(part.offset + done));
      if (n >= 0) {
        const uint64_t arrived = done + static_cast<uint64_t>(n);
        if (arrived >= part.needed) break;
        if (WholePages(arrived) == done) return ShortRead(file, part, arrived);
        done = WholePages(arrived);
      } else if (errno != EINTR && errno != EAGAIN && num_errors++ > 0) {
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
  uint64_t next_read_id_ = 0;      // of the caller's thread, like outstanding_
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
  return std::make_unique<ThreadReader>(std::move(sources), all_direct);
}

}  // namespace penstock
