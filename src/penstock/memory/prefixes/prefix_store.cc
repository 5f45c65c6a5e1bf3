#include "penstock/memory/prefixes/prefix_store.h"

#include <algorithm>

#include "penstock/base/bytes.h"
#include "penstock/base/logging.h"
#include "penstock/base/status.h"
#include "penstock/base/thread.h"
#include "penstock/model/recurrent_state.h"

namespace penstock {
namespace {

constexpr uint64_t kMaxIdentityBytes = 512;

// Returns the bytes of the largest file.
uint64_t LargestFileBytes(const ModelConfig& config, KvFormat format, int64_t context_length) {
  const uint64_t page_bytes = KvCache::PageBytes(config, format);
  const uint64_t num_pages = std::max<int64_t>(1, RecurrentState::NumPages(config, page_bytes));
  const uint64_t token_bytes = static_cast<uint64_t>(context_length) * sizeof(TokenId);
  return kMaxIdentityBytes + token_bytes + num_pages * (page_bytes + sizeof(uint64_t));
}

}  // namespace

uint64_t PrefixStore::BufferBytes(const ModelConfig& config, KvFormat format, int64_t context_length) {
  constexpr uint64_t kMostBytes = 32 * kMiB, kMostPages = 64;
  return std::max(LargestFileBytes(config, format, context_length),
                  std::min(kMostBytes, kMostPages * KvCache::PageBytes(config, format)));
}

uint64_t PrefixStore::MemoryBytes(const ModelConfig& config, KvFormat format, int64_t context_length) {
  // A page that is read, and two headers.
  return BufferBytes(config, format, context_length) + KvCache::PageBytes(config, format) +
         2 * (kMaxIdentityBytes + static_cast<uint64_t>(context_length) * sizeof(TokenId));
}

absl::StatusOr<std::unique_ptr<PrefixStore>> PrefixStore::Open(const Args& args) {
  PENSTOCK_ASSIGN_OR_RETURN(PrefixFolder folder, PrefixFolder::Open(args.folder, args.identity, args.max_bytes));
  auto store = std::unique_ptr<PrefixStore>(new PrefixStore(args, std::move(folder)));
  PENSTOCK_ASSIGN_OR_RETURN(store->writer_, StartThread([store = store.get()] { store->WriteCopies(); }));
  return store;
}

PrefixStore::~PrefixStore() {
  if (!writer_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  writer_.join();
}

bool PrefixStore::Load(const Place& place, PrefixPart part, std::span<const KvPageId> pages) {
  const std::string path = folder_.PathOf(place.name, part);
  const UniqueFd fd = folder_.OpenFile(path);
  if (!fd.valid()) return false;
  const absl::Status status = ReadPages(path, SpecOf(place, part, std::ssize(pages)), fd.get(), pages);
  if (!status.ok()) {
    LogDebug("prefix file refused: {}", Message(status));
    folder_.Remove(path);
    for (const KvPageId page : pages) {
      std::byte* const address = cache_->address(page);
      cache_->Clear({&address, 1}).IgnoreError();  // a device that fails here also fails in the next pass
    }
  } else {
    folder_.MarkUsed(path, TimeOf(place));
  }
  const std::lock_guard lock(mutex_);
  if (!status.ok()) {
    ++stats_.refused_files;
    return false;
  }
  if (part == PrefixPart::kEntries) stats_.loaded_tokens += KvCache::kPageTokens;
  stats_.read_bytes += static_cast<uint64_t>(pages.size()) * cache_->page_bytes();
  return true;
}

absl::Status PrefixStore::ReadPages(const std::string& path, const PrefixFileSpec& spec, int fd,
                                    std::span<const KvPageId> pages) {
  PrefixFileReader reader(fd, path, spec);
  PENSTOCK_RETURN_IF_ERROR(reader.ReadFront());
  for (int64_t i = 0; i < std::ssize(pages); ++i) {
    Memory& memory = cache_->memory();
    std::byte* const address = cache_->address(pages[static_cast<size_t>(i)]);
    if (memory.is_host()) {
      PENSTOCK_RETURN_IF_ERROR(reader.ReadPage(i, {address, spec.page_bytes}));
    } else {
      staging_.resize(spec.page_bytes);
      PENSTOCK_RETURN_IF_ERROR(reader.ReadPage(i, staging_));
      PENSTOCK_RETURN_IF_ERROR(memory.Write(address, staging_));
    }
  }
  return absl::OkStatus();
}

bool PrefixStore::Save(const Place& place, PrefixPart part, std::span<const KvPageId> pages) {
  std::string path = folder_.PathOf(place.name, part);
  const PrefixFileSpec spec = SpecOf(place, part, std::ssize(pages));
  {
    const std::lock_guard lock(mutex_);
    if (has_failed_) return false;
    if (copied_paths_.contains(path)) return true;
    if (!copies_.empty() && copied_bytes_ + spec.FileBytes() > buffer_bytes_) return false;
  }
  if (folder_.MarkUsed(path, TimeOf(place))) return true;
  Copied copy{
      .path = std::move(path), .file = NewPrefixFile(spec), .num_pages = std::ssize(pages), .used_ns = TimeOf(place)};
  std::span<std::byte> rest = std::span(copy.file).subspan(spec.FrontBytes());
  for (const KvPageId page : pages) {
    if (!cache_->memory().Read(rest.first(spec.page_bytes), cache_->address(page)).ok()) return false;
    rest = rest.subspan(spec.page_bytes);
  }
  {
    const std::lock_guard lock(mutex_);
    copied_bytes_ += copy.file.size();
    copied_paths_.insert(copy.path);
    copies_.push_back(std::move(copy));
  }
  changed_.notify_all();
  return true;
}

void PrefixStore::Flush() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return copies_.empty(); });
}

PrefixDirStats PrefixStore::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void PrefixStore::WriteCopies() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ends_ || !copies_.empty(); });
    if (copies_.empty()) return;
    Copied& copy = copies_.front();  // stays where it is while others are added
    const bool writes = !has_failed_;
    lock.unlock();
    absl::Status status;
    if (writes) {
      SealPrefixFile(copy.file, cache_->page_bytes(), copy.num_pages);
      status = folder_.Write(copy.path, copy.file, copy.used_ns);
    }
    if (!status.ok()) LogWarning("{}; no more KV entries are written to --prefix-dir", Message(status));
    lock.lock();
    if (writes && status.ok()) stats_.written_bytes += copy.file.size();
    if (!status.ok()) has_failed_ = true;
    copied_bytes_ -= copy.file.size();
    copied_paths_.erase(copy.path);
    copies_.pop_front();
    changed_.notify_all();
  }
}

}  // namespace penstock
