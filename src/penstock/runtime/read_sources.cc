#include "penstock/runtime/read_sources.h"

#include <algorithm>
#include <cerrno>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include "penstock/base/bytes.h"
#include "penstock/base/check.h"
#include "penstock/base/checked.h"
#include "penstock/base/logging.h"
#include "penstock/base/status.h"

namespace penstock {
namespace {

constexpr uint64_t kPartBytes = kMiB;
// Reads from several disks are split into smaller parts, so that a small expert keeps them all busy.
constexpr uint64_t kMinPartBytes = 256 * kKiB;
constexpr uint64_t kPartsPerDirectory = 4;

// Rounds a short read down to whole pages. Reading continues there, because O_DIRECT needs page-aligned offsets. A read
// of less than a page has reached the end of the file.
uint64_t WholePages(uint64_t bytes) { return bytes / kPageBytes * kPageBytes; }

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, std::max<size_t>(slash, 1));
}

}  // namespace

bool IsTransient(int error) { return error == EINTR || error == EAGAIN || error == EBUSY || error == ENOMEM; }

ReadSources::ReadSources(std::span<const OpenedFile> files, bool direct_io) : all_direct_(direct_io) {
  if (!files.empty()) model_path_ = FolderOf(files[0].path);
  const auto directory_of = [&](const std::shared_ptr<Mirror>& mirror) {
    const auto known = std::find(mirrors_.begin(), mirrors_.end(), mirror);
    const size_t directory = static_cast<size_t>(known - mirrors_.begin()) + 1;
    if (known == mirrors_.end()) mirrors_.push_back(mirror);
    return directory;
  };
  for (const OpenedFile& file : files) {
    std::vector<Copy>& copies = copies_.emplace_back();
    copies.push_back(OpenCopy(file.fd.get(), file.path, direct_io));
    for (const FileCopy& copy : file.copies) {
      const size_t directory = directory_of(copy.mirror);
      if (copies.size() <= directory) copies.resize(directory + 1);
      copies[directory] = OpenCopy(copy.fd.get(), copy.path, direct_io);
      copies[directory].of_mirror = &copy;
    }
  }
  PENSTOCK_CHECK(num_directories() <= kMaxDirectories);
  shares_ = std::make_unique<ReadShares>(num_directories());
}

ReadSources::Copy ReadSources::OpenCopy(int fd, const std::string& path, bool direct_io) {
  Copy copy{.direct_fd = UniqueFd(), .fd = fd, .path = path};
  if (!direct_io) return copy;
  const std::string alias = fmt::format("/proc/self/fd/{}", fd);  // the same inode
  UniqueFd direct(::open(alias.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT));
  // Some file systems accept the flag and then refuse the read.
  alignas(kPageBytes) thread_local std::byte probe[kPageBytes];
  if (direct.valid() && PreadUninterrupted(direct.get(), probe, 0) >= 0) {
    copy.fd = direct.get();
    copy.direct_fd = std::move(direct);
    return copy;
  }
  if (all_direct_) LogInfo("the file system of {} refuses O_DIRECT: experts are read through the page cache", path);
  all_direct_ = false;
  return copy;
}

DirectorySet ReadSources::HoldersOf(int file_idx, const FileExtent& extent) const {
  DirectorySet holders = 1;
  const std::vector<Copy>& copies = copies_[static_cast<size_t>(file_idx)];
  for (size_t i = 1; i < copies.size(); ++i) {
    if (copies[i].of_mirror != nullptr && copies[i].of_mirror->Holds(extent)) holders |= DirectorySet{1} << i;
  }
  return holders;
}

DirectorySet ReadSources::Usable(DirectorySet holders) const {
  DirectorySet usable = holders;
  for (size_t i = 0; i < mirrors_.size(); ++i) {
    if (mirrors_[i]->is_left_out()) usable &= ~(DirectorySet{2} << i);
  }
  return usable != 0 ? usable : holders;
}

std::vector<PartRead> ReadSources::Split(const DiskRead& read, uint64_t read_id) {
  const uint64_t begin = WholePages(read.extent.offset_bytes);
  const uint64_t wanted_end = read.extent.offset_bytes + read.extent.size_bytes;
  const uint64_t end = RoundUp(wanted_end, kPageBytes);
  const auto num_parts = static_cast<uint64_t>(num_directories()) * kPartsPerDirectory;
  const uint64_t part_bytes =
      mirrors_.empty() ? kPartBytes
                       : std::clamp(RoundUp((end - begin) / num_parts, kPageBytes), kMinPartBytes, kPartBytes);
  std::vector<PartRead> parts;
  for (uint64_t offset = begin; offset < end; offset += part_bytes) {
    const uint64_t size = std::min(part_bytes, end - offset), needed = std::min(size, wanted_end - offset);
    PartRead& part = parts.emplace_back(PartRead{.file_idx = read.file_idx,
                                                 .read_id = read_id,
                                                 .offset = offset,
                                                 .size = size,
                                                 .target = read.target + (offset - begin),
                                                 .needed = needed});
    part.holders = Usable(HoldersOf(read.file_idx, {offset, needed}));
    part.announced = part.holders;
    shares_->Announce(part.announced, needed);
  }
  return parts;
}

int ReadSources::Begin(PartRead& read) {
  read.holders = Usable(read.holders);
  const double now_s = SecondsSince(epoch_);
  const int directory =
      shares_->Begin(read.holders, std::exchange(read.announced, DirectorySet{0}), read.needed, now_s);
  if (directory != std::exchange(read.directory, directory)) read.done = 0;
  return copies_[static_cast<size_t>(read.file_idx)][static_cast<size_t>(directory)].fd;
}

void ReadSources::GiveUp(const PartRead& read) {
  shares_->End(read.directory, read.needed, /*arrived=*/false, SecondsSince(epoch_));
}

absl::StatusOr<bool> ReadSources::End(PartRead& read, int64_t result) {
  const std::string& path = copies_[static_cast<size_t>(read.file_idx)][static_cast<size_t>(read.directory)].path;
  const uint64_t arrived = read.done + (result > 0 ? static_cast<uint64_t>(result) : 0);
  const bool is_whole = result >= 0 && arrived >= read.needed;
  shares_->End(read.directory, read.needed, is_whole, SecondsSince(epoch_));
  if (is_whole) return true;
  if (result < 0) {
    const int error = static_cast<int>(-result);
    if (IsTransient(error) && read.num_refusals++ < kMaxRefusals) {
      if (error != EINTR) std::this_thread::sleep_for(kRefusalPause);
      return false;
    }
    return Retry(read,
                 IoError("{}: cannot read {} bytes at offset {}: {}", path, read.size, read.offset, ErrnoText(error)),
                 /*is_error=*/true);
  }
  if (WholePages(arrived) != read.done) {
    read.done = WholePages(arrived);
    return false;
  }
  return Retry(
      read,
      IoError("{}: the file ended early: expected {} bytes at offset {}, found {}; was it changed while in use?", path,
              read.needed, read.offset, arrived),
      /*is_error=*/false);
}

absl::StatusOr<bool> ReadSources::Retry(PartRead& read, absl::Status failure, bool is_error) {
  if (read.directory > 0) {
    mirrors_[static_cast<size_t>(read.directory) - 1]->CountFault(Message(failure));
  } else if (is_error && read.num_errors++ == 0) {
    return false;  // a disk may fail once and then succeed
  }
  read.holders &= ~(DirectorySet{1} << read.directory);
  read.done = 0;
  if (read.holders == 0) return failure;
  if (read.directory == 0 && !has_warned_.exchange(true)) LogWarning("{}; a mirror is read instead", Message(failure));
  return false;
}

std::vector<DirectoryReads> ReadSources::ReadsByDirectory() const {
  std::vector<DirectoryReads> reads;
  if (mirrors_.empty()) return reads;
  for (int i = 0; i < num_directories(); ++i) {
    const Mirror* mirror = i == 0 ? nullptr : mirrors_[static_cast<size_t>(i) - 1].get();
    reads.push_back({.path = mirror == nullptr ? model_path_ : mirror->path(),
                     .bytes = shares_->bytes(i),
                     .bytes_per_s = shares_->bytes_per_s(i),
                     .is_left_out = mirror != nullptr && mirror->is_left_out()});
  }
  return reads;
}

}  // namespace penstock
