// Proves that KV entries in files are found again, that damaged files never are, and that a folder of them stays within
// its budget, also when several stores use it, when processes were killed, and when the disk is full.
#include "penstock/memory/prefixes/prefix_store.h"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <random>
#include <thread>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "penstock/base/bytes.h"
#include "penstock/base/checked.h"
#include "penstock/memory/kv_sequence.h"
#include "tests/effort.h"
#include "tests/temporary_folder.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;
using TokenIds = std::vector<TokenId>;

constexpr uint64_t kBudget = 64 << 20;
constexpr int64_t kPage = KvCache::kPageTokens;

ModelConfig OneLayer() {
  ModelConfig config;
  config.num_layers = 1;
  config.num_kv_heads = 1;
  config.head_dim = 16;
  return config;
}

TokenIds Counting(int64_t count, TokenId first) {
  TokenIds tokens(static_cast<size_t>(count));
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = first + static_cast<TokenId>(i);
  return tokens;
}

std::vector<fs::path> FilesIn(const std::string& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file() && entry.path().filename() != "lock") files.push_back(entry.path());
  }
  std::ranges::sort(files);
  return files;
}

uint64_t BytesIn(const std::string& folder) {
  uint64_t bytes = 0;
  for (const fs::path& file : FilesIn(folder)) bytes += RoundUp(fs::file_size(file), kPageBytes);
  return bytes;
}

// A KV cache and its store. The bytes of a page depend on its tokens and all before them.
class Cache {
 public:
  explicit Cache(const std::string& folder, uint64_t max_bytes = kBudget, const std::string& identity = "model",
                 uint64_t buffer_bytes = 1 << 20)
      : cache_(KvCache::Create(HostMemory(), OneLayer(), KvFormat::kF32, 64).value()),
        store_(PrefixStore::Open({.folder = folder,
                                  .max_bytes = max_bytes,
                                  .identity = identity,
                                  .cache = cache_,
                                  .buffer_bytes = buffer_bytes})
                   .value()) {
    cache_.SetStore(store_.get());
  }

  // Runs a sequence that computes no more than its prompt, and checks what it found. Returns the pages that it found.
  int64_t Run(const TokenIds& prompt) {
    std::optional<KvSequence> kv = KvSequence::Create({.cache = cache_,
                                                       .prompt = prompt,
                                                       .first_needed_row = std::ssize(prompt) - 1,
                                                       .max_positions = std::ssize(prompt)});
    EXPECT_TRUE(kv.has_value());
    int64_t num_found = 0;
    for (int64_t i = 0; (i + 1) * kPage < std::ssize(prompt); ++i) {
      const std::vector<std::byte> right = BytesOf(prompt, i);
      std::byte* const page = kv->pages()[static_cast<size_t>(i)];
      if (kv->has_entries(i * kPage)) {
        EXPECT_EQ(num_found, i) << "a page behind one that is missing";
        EXPECT_TRUE(std::ranges::equal(right, std::span(page, right.size()))) << "page " << i;
        ++num_found;
      }
      std::ranges::copy(right, page);
      kv->SetComputed(prompt, i * kPage, (i + 1) * kPage);
    }
    kv->Save(prompt, std::ssize(prompt) - 1);
    return num_found;
  }

  PrefixStore& store() { return *store_; }
  PrefixDirStats Flushed() {
    store_->Flush();
    return store_->stats();
  }

 private:
  std::vector<std::byte> BytesOf(const TokenIds& prompt, int64_t page_idx) const {
    std::vector<std::byte> bytes(cache_.page_bytes());
    uint32_t digest = 1;
    for (int64_t i = 0; i < (page_idx + 1) * kPage; ++i) digest = digest * 31 + static_cast<uint32_t>(prompt[i]);
    std::mt19937 random(digest);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    return bytes;
  }

  KvCache cache_;
  std::unique_ptr<PrefixStore> store_;
};

class PrefixStoreTest : public testing::Test {
 protected:
  const std::string& dir() const { return folder_.path(); }

  TemporaryFolder folder_;
};

TEST_F(PrefixStoreTest, LaterCachesLoadWhatIsKept) {
  const TokenIds prompt = Counting(70, 0);
  EXPECT_EQ(Cache(dir()).Run(prompt), 0);
  EXPECT_EQ(FilesIn(dir()).size(), 4u);
  Cache again(dir());
  EXPECT_EQ(again.Run(prompt), 4);
  EXPECT_EQ(again.Flushed().loaded_tokens, 64);
  EXPECT_EQ(again.Flushed().written_bytes, 0u);
  // A prompt that parts from it, in the middle of the third page.
  TokenIds other = Counting(40, 0);
  for (int i = 0; i < 30; ++i) other.push_back(500 + i);
  EXPECT_EQ(Cache(dir()).Run(other), 2);
  EXPECT_EQ(Cache(dir()).Run(other), 4);
  // Another model has files of its own.
  EXPECT_EQ(Cache(dir(), kBudget, "another model").Run(prompt), 0);
  EXPECT_EQ(Cache(dir()).Run(prompt), 4);
  EXPECT_EQ(Cache(dir(), kBudget, "another model").Run(prompt), 4);
}

TEST_F(PrefixStoreTest, FilesAreForTheirUserOnly) {
  Cache(dir()).Run(Counting(70, 0));
  for (const fs::path& file : FilesIn(dir())) {
    EXPECT_EQ(fs::status(file).permissions(), fs::perms::owner_read | fs::perms::owner_write) << file;
    EXPECT_EQ(fs::status(file.parent_path()).permissions(), fs::perms::owner_all);
  }
}

// Each file is accepted only as a whole: any flipped bit, wherever it is, makes its tokens be computed.
TEST_F(PrefixStoreTest, EveryFlippedBitIsFound) {
  const TokenIds prompt = Counting(70, 0);
  Cache(dir()).Run(prompt);
  const std::vector<fs::path> files = FilesIn(dir());
  ASSERT_EQ(files.size(), 4u);
  std::mt19937_64 random(1);
  for (int flip = 0; flip < NumTried(1000); ++flip) {
    const fs::path& file = files[random() % files.size()];
    const auto size = static_cast<std::streamoff>(fs::file_size(file));
    // Half of them hit what is before the page.
    const std::streamoff front = size - 2 * 16 * 16 * 4;
    const auto place = static_cast<std::streamoff>(random() % static_cast<uint64_t>(flip % 2 == 0 ? front : size));
    {
      std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
      stream.seekg(place);
      const char byte = static_cast<char>(stream.get() ^ (1 << random() % 8));
      stream.seekp(place);
      stream.put(byte);
    }
    Cache cache(dir());
    EXPECT_LT(cache.Run(prompt), 4) << file << " byte " << place;
    EXPECT_EQ(cache.Flushed().refused_files, 1);
    if (testing::Test::HasFailure()) return;
    ASSERT_EQ(FilesIn(dir()), files) << "the file was not written again";
  }
}

TEST_F(PrefixStoreTest, OtherThingsInPlaceOfAFileAreRefused) {
  const TokenIds prompt = Counting(70, 0);
  Cache(dir()).Run(prompt);
  const std::vector<fs::path> files = FilesIn(dir());
  const fs::path elsewhere = fs::path(dir()) / "elsewhere";
  const std::vector<std::function<void(const fs::path&)>> deeds = {
      [](const fs::path& file) { fs::resize_file(file, fs::file_size(file) - 1); },
      [](const fs::path& file) { fs::resize_file(file, fs::file_size(file) + 1); },
      [](const fs::path& file) { fs::resize_file(file, 0); },
      [&](const fs::path& file) { fs::copy_file(files[0], file, fs::copy_options::overwrite_existing); },
      [&](const fs::path& file) {
        fs::rename(file, elsewhere);
        fs::create_symlink(elsewhere, file);
      },
      [](const fs::path& file) {
        fs::remove(file);
        ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
      },
  };
  for (size_t deed = 0; deed < deeds.size(); ++deed) {
    SCOPED_TRACE(deed);
    deeds[deed](files[1]);
    EXPECT_LT(Cache(dir()).Run(prompt), 4);
    fs::remove(files[1]);
    fs::remove(elsewhere);
    Cache(dir()).Run(prompt);
    EXPECT_EQ(Cache(dir()).Run(prompt), 4);
  }
}

TEST_F(PrefixStoreTest, TheFolderStaysWithinItsBudget) {
  std::mt19937 random(1);
  const uint64_t max_bytes = 20 * 2 * kPageBytes;
  for (int round = 0; round < 3; ++round) {
    Cache cache(dir(), max_bytes);
    for (int i = 0; i < 40; ++i) {
      cache.Run(Counting(17 + static_cast<int64_t>(random() % 60), static_cast<TokenId>(random() % 30 * 1000)));
      cache.Flushed();
      EXPECT_LE(BytesIn(dir()), max_bytes);
    }
    EXPECT_GT(BytesIn(dir()), max_bytes / 2);
  }
  // A smaller budget takes effect at once.
  const Cache smaller(dir(), max_bytes / 4);
  EXPECT_LE(BytesIn(dir()), max_bytes / 4);
}

TEST_F(PrefixStoreTest, WhatWasUsedLongestAgoGoesFirst) {
  const TokenIds a = Counting(4 * kPage + 1, 0), b = Counting(4 * kPage + 1, 1000), c = Counting(4 * kPage + 1, 2000);
  const uint64_t file_bytes = [&] {
    Cache(dir()).Run(a);
    return BytesIn(dir()) / 4;
  }();
  const uint64_t max_bytes = 10 * file_bytes;
  Cache(dir(), max_bytes).Run(b);
  {
    Cache cache(dir(), max_bytes);
    EXPECT_EQ(cache.Run(a), 4);  // from files
    EXPECT_EQ(cache.Run(a), 4);  // from memory
  }
  Cache(dir(), max_bytes).Run(c);
  EXPECT_EQ(Cache(dir(), max_bytes).Run(a), 4);
  // The first pages stay longest, because the others need them.
  const int64_t num_left = Cache(dir(), max_bytes).Run(Counting(4 * kPage + 1, 1000));
  EXPECT_GE(num_left, 1);
  EXPECT_LT(num_left, 4);
}

TEST_F(PrefixStoreTest, SeveralStoresUseOneFolder) {
  constexpr int kStores = 4;
  const uint64_t max_bytes = 40 * 2 * kPageBytes;
  std::vector<std::thread> threads;
  for (int store = 0; store < kStores; ++store) {
    threads.emplace_back([&, store] {
      std::mt19937 random(static_cast<uint32_t>(store));
      for (int round = 0; round < 6; ++round) {
        Cache cache(dir(), max_bytes);
        for (int i = 0; i < 25; ++i) {
          cache.Run(Counting(17 + static_cast<int64_t>(random() % 60), static_cast<TokenId>(random() % 12 * 1000)));
        }
        EXPECT_EQ(cache.Flushed().refused_files, 0);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  // Each may write a sixteenth of the budget until it counts what the others have written.
  EXPECT_LE(BytesIn(dir()), max_bytes + kStores * (max_bytes / 16 + 2 * kPageBytes));
  const Cache cache(dir(), max_bytes);
  EXPECT_LE(BytesIn(dir()), max_bytes);
  for (const fs::path& file : FilesIn(dir())) EXPECT_NE(file.extension(), ".tmp");
}

TEST_F(PrefixStoreTest, LeftoversOfKilledProcessesGoAndOtherFilesStay) {
  Cache(dir()).Run(Counting(70, 0));
  const fs::path of_model = FilesIn(dir())[0].parent_path();
  const fs::path leftover = of_model / (std::string(32, 'a') + ".kv.tmp"),
                 used = of_model / (std::string(32, 'b') + ".kv.tmp");
  std::vector<fs::path> others = {of_model / "notes.txt", of_model / "aaaa.kv", fs::path(dir()) / "photo.kv",
                                  of_model / (std::string(32, 'z') + ".kv")};
  fs::create_directory(fs::path(dir()) / "other");
  others.push_back(fs::path(dir()) / "other" / (std::string(32, 'a') + ".kv"));
  for (const fs::path& file : others) std::ofstream(file) << std::string(100'000, 'x');
  std::ofstream(leftover) << "x";
  std::ofstream(used) << "x";
  const UniqueFd writer(::open(used.c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(::flock(writer.get(), LOCK_EX), 0);
  const Cache cache(dir(), kPageBytes);  // no room even for one file
  EXPECT_FALSE(fs::exists(leftover));
  for (const fs::path& file : others) EXPECT_TRUE(fs::exists(file)) << file;
}

TEST_F(PrefixStoreTest, NothingWaitsForASlowDisk) {
  const std::string lock_path = dir() + "/lock";
  // A file takes three pages of memory, and each write counts the files first, which needs the lock.
  const uint64_t max_bytes = 8 * kPageBytes;
  Cache cache(dir(), max_bytes, "model", /*buffer_bytes=*/6000);
  const UniqueFd lock(::open(lock_path.c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(lock.valid());
  ASSERT_EQ(::flock(lock.get(), LOCK_EX), 0);
  for (TokenId first = 0; first < 20; ++first) cache.Run(Counting(50, 1000 * first));
  ASSERT_EQ(::flock(lock.get(), LOCK_UN), 0);
  const uint64_t written_bytes = cache.Flushed().written_bytes;
  EXPECT_GT(written_bytes, 0u);
  EXPECT_LT(written_bytes, 20 * 3 * 2048u);
}

TEST_F(PrefixStoreTest, AFullDiskEndsTheWritingButNotTheRun) {
  const TokenIds kept = Counting(33, 0), other = Counting(70, 1000);
  Cache(dir()).Run(kept);
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{.rlim_cur = 1000, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  testing::internal::CaptureStdout();  // where logs go in tests
  {
    Cache cache(dir());
    EXPECT_EQ(cache.Run(other), 0);
    EXPECT_EQ(cache.Flushed().written_bytes, 0u);
    EXPECT_EQ(cache.Run(Counting(70, 2000)), 0);
    EXPECT_EQ(cache.Run(other), 4);  // from memory
    EXPECT_EQ(cache.Run(kept), 2);   // from files
    EXPECT_EQ(cache.Flushed().written_bytes, 0u);
  }
  const std::string said = testing::internal::GetCapturedStdout();
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(FilesIn(dir()).size(), 2u);
  EXPECT_EQ(std::ranges::count(said, '\n'), 1) << said;
}

TEST_F(PrefixStoreTest, AFolderThatVanishesEndsTheWritingButNotTheRun) {
  Cache cache(dir());
  fs::remove_all(dir());
  EXPECT_EQ(cache.Run(Counting(70, 0)), 0);
  EXPECT_EQ(cache.Flushed().written_bytes, 0u);
  EXPECT_EQ(cache.Run(Counting(70, 0)), 4);
}

TEST_F(PrefixStoreTest, FoldersThatCannotBeUsedAreRefused) {
  KvCache cache = KvCache::Create(HostMemory(), OneLayer(), KvFormat::kF32, 4).value();
  const auto open = [&](const std::string& folder) {
    return PrefixStore::Open({.folder = folder, .max_bytes = kBudget, .identity = "x", .cache = cache}).status();
  };
  std::ofstream(dir() + "/file") << "x";
  EXPECT_THAT(std::string(open(dir() + "/file").message()), testing::HasSubstr("cannot create the folder"));
  EXPECT_THAT(std::string(open(dir() + "/absent/folder").message()), testing::HasSubstr("cannot create the folder"));
  EXPECT_TRUE(open(dir() + "/new").ok());
  EXPECT_TRUE(fs::is_directory(dir() + "/new"));
}

}  // namespace
}  // namespace penstock
