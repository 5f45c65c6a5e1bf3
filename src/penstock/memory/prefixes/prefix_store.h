// Keeps the KV entries of prompts in files, so that later sequences and later runs load them
// (EngineOptions::prefix_dir).
//
// A thread writes the files from copies of pages. If it is behind, pages are not kept: nothing waits for it. A write
// that fails ends the writing, with a warning. A damaged file is removed, and its tokens are computed.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "penstock/engine.h"
#include "penstock/memory/kv_cache.h"
#include "penstock/memory/prefixes/prefix_file.h"
#include "penstock/memory/prefixes/prefix_folder.h"

namespace penstock {

class PrefixStore {
 public:
  struct Args {
    std::string folder;
    uint64_t max_bytes = 0;
    std::string identity;  // of the model and all that changes the bits of its entries
    KvCache& cache;        // outlives the store
    uint64_t buffer_bytes = 0;
  };
  static absl::StatusOr<std::unique_ptr<PrefixStore>> Open(const Args& args);
  // Waits until all is written.
  ~PrefixStore();

  // Returns the bytes of copies that wait to be written, and all bytes that a store takes.
  static uint64_t BufferBytes(const ModelConfig& config, KvFormat format, int64_t context_length);
  static uint64_t MemoryBytes(const ModelConfig& config, KvFormat format, int64_t context_length);

  // A page of a sequence.
  struct Place {
    PrefixName name;
    std::span<const TokenId> tokens;  // all of the sequence up to the page's end
    uint64_t used_ns = 0;             // when the sequence began (PrefixFolder::Now)
  };
  // Whether there is a file of this name; it may be damaged.
  bool Has(const PrefixName& name, PrefixPart part) const { return folder_.Has(folder_.PathOf(name, part)); }
  // Loads what is kept of a page into the cache's `pages`. If that fails, they are zeros.
  bool Load(const Place& place, PrefixPart part, std::span<const KvPageId> pages);
  // Copies pages to be written, unless they are in a file. Returns false when there is no room for them.
  bool Save(const Place& place, PrefixPart part, std::span<const KvPageId> pages);
  // Waits until all copies are written.
  void Flush();

  PrefixDirStats stats() const;

 private:
  struct Copied {
    std::string path;
    std::vector<std::byte> file;
    int64_t num_pages = 0;
    uint64_t used_ns = 0;
  };

  PrefixStore(const Args& args, PrefixFolder folder)
      : identity_(args.identity), cache_(&args.cache), buffer_bytes_(args.buffer_bytes), folder_(std::move(folder)) {}

  PrefixFileSpec SpecOf(const Place& place, PrefixPart part, int64_t num_pages) const {
    return {.identity = identity_,
            .tokens = place.tokens,
            .part = part,
            .page_bytes = cache_->page_bytes(),
            .num_pages = num_pages};
  }
  // Orders pages that are used together: those that others build on are used last, so they stay longest.
  static uint64_t TimeOf(const Place& place) { return place.used_ns - place.tokens.size(); }
  absl::Status ReadPages(const std::string& path, const PrefixFileSpec& spec, int fd, std::span<const KvPageId> pages);
  void WriteCopies();

  std::string identity_;
  KvCache* cache_;
  uint64_t buffer_bytes_;
  PrefixFolder folder_;  // Write() is called by `writer_` only
  std::vector<std::byte> staging_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Copied> copies_;
  absl::flat_hash_set<std::string> copied_paths_;
  uint64_t copied_bytes_ = 0;
  PrefixDirStats stats_;
  bool ends_ = false;
  bool has_failed_ = false;
  std::thread writer_;
};

}  // namespace penstock
