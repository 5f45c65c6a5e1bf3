// Proves that sequences which share pages see, at every position, the entries that belong to their own tokens: for any
// prompts, orders of steps, windows and numbers of pages, and when sequences fail. Entries are digests of all tokens up
// to their position.
#include "penstock/memory/kv_sequence.h"

#include <algorithm>
#include <cstring>
#include <list>
#include <optional>
#include <random>

#include <gmock/gmock.h>

#include "absl/container/flat_hash_set.h"
#include "penstock/memory/prefixes/prefix_store.h"
#include "tests/effort.h"
#include "tests/temporary_folder.h"

namespace penstock {
namespace {

using Tokens = std::vector<TokenId>;

ModelConfig TinyConfig() {
  ModelConfig config;
  config.num_layers = 1;
  config.num_kv_heads = 1;
  config.head_dim = 16;
  return config;
}

// A model whose states take three pages: a page holds one of two matrices, or the inputs of a convolution.
ModelConfig RecurrentConfig() {
  ModelConfig config = TinyConfig();
  config.num_layers = 2;
  config.layer_is_recurrent = {true, false};
  config.recurrent = {.num_key_heads = 1, .num_value_heads = 2, .key_dim = 22, .value_dim = 22, .conv_width = 2};
  return config;
}

uint64_t DigestOf(std::span<const TokenId> tokens) {
  uint64_t digest = 1;
  for (const TokenId token : tokens) digest = (digest + static_cast<uint64_t>(token) + 1) * 0x9E3779B97F4A7C15u;
  return digest;
}

class Model {
 public:
  Model(int64_t num_pages, KvWindow window, bool shares_pages, const ModelConfig& config = TinyConfig())
      : cache_(KvCache::Create(HostMemory(), config, KvFormat::kF32, num_pages).value()),
        window_(window),
        shares_pages_(shares_pages) {}

  // Keeps entries and states in files of this folder, also for other models.
  void KeepIn(const std::string& folder) {
    store_ =
        PrefixStore::Open(
            {.folder = folder, .max_bytes = 64 << 20, .identity = "test", .cache = cache_, .buffer_bytes = 16 << 20})
            .value();
    cache_.SetStore(store_.get());
  }

  // Returns whether there are enough pages. The sequence computes its rows from `first_needed` on; by default only the
  // prompt's last one. An encoder reads the first `num_encoded` tokens.
  bool Admit(Tokens prompt, int64_t num_new, std::optional<int64_t> first_needed = std::nullopt,
             int64_t num_encoded = 0) {
    const int64_t max_positions = std::ssize(prompt) + num_new;
    const int64_t first_needed_row = first_needed.value_or(std::ssize(prompt) - 1);
    std::optional<KvSequence> kv = KvSequence::Create({.cache = cache_,
                                                       .window = window_,
                                                       .prompt = prompt,
                                                       .first_needed_row = first_needed_row,
                                                       .max_positions = max_positions,
                                                       .shares_pages = shares_pages_,
                                                       .num_encoded = num_encoded});
    if (!kv.has_value()) return false;
    EXPECT_TRUE(cache_.Clear(kv->state_pages()).ok());
    const int64_t num_prompt = std::ssize(prompt);
    running_.push_back(
        {std::move(prompt), num_prompt, first_needed_row, max_positions, num_encoded, 0, *std::move(kv)});
    return true;
  }

  // Runs a step: every sequence that decodes takes one row, prompts take up to `max_rows` each. With `fails`, the first
  // sequence fails in the middle of its rows.
  void Step(int64_t max_rows, std::mt19937& random, bool fails) {
    absl::flat_hash_set<KvPageId> pages;
    std::vector<std::pair<Running*, int64_t>> parts;
    for (Running& sequence : running_) {
      if (sequence.computed < sequence.num_prompt) {
        const int64_t pos = sequence.kv.SkipComputed(sequence.tokens, sequence.computed).value();
        EXPECT_LE(pos, std::max(sequence.computed, sequence.first_needed_row));
        num_skipped_ += pos - sequence.computed;
        CheckState(sequence, pos);
        sequence.computed = pos;
        sequence.kv.Open(sequence.tokens, pos + 1);
        if (!pages.insert(sequence.kv.NextToCompute(pos)).second) continue;
      }
      const bool encodes = sequence.computed < sequence.num_encoded;
      EXPECT_TRUE(!encodes || sequence.computed == 0);
      parts.emplace_back(&sequence, encodes ? sequence.num_encoded
                                            : std::min(max_rows, std::ssize(sequence.tokens) - sequence.computed));
      // Layers of an encoder use the same places for entries of their own.
      for (int64_t pos = 0; encodes && pos < sequence.num_encoded; ++pos) {
        sequence.kv.Open(sequence.tokens, pos + 1);
        std::memset(EntryOf(sequence, pos, pos), 0xDD, 8);
      }
    }
    // Rows of decoders see entries of other sequences' encoders at this moment.
    std::stable_partition(parts.begin(), parts.end(),
                          [](const auto& part) { return part.first->computed >= part.first->num_encoded; });
    for (const auto& [sequence, num_rows] : parts) {
      const int64_t first = sequence->computed, end = first + num_rows;
      sequence->kv.Open(sequence->tokens, end);
      for (int64_t pos = first; pos < end; ++pos) {
        std::byte* const entry = EntryOf(*sequence, pos, pos);
        const uint64_t digest = DigestAt(*sequence, pos);
        if (!sequence->kv.has_entries(pos)) std::memcpy(entry, &digest, sizeof(digest));
        ++num_computed_;
        CheckState(*sequence, pos);
        Advance(*sequence, pos);
        Check(*sequence, pos);
      }
    }
    for (const auto& [sequence, num_rows] : parts) {
      const int64_t first = sequence->computed;
      if (fails && sequence == &running_.front()) {
        sequence->failed = true;
        const int64_t num_good = first < sequence->num_encoded ? 0 : num_rows / 2;
        if (num_good > 0) sequence->kv.SetComputed(sequence->tokens, first, first + num_good);
        for (int64_t pos = first + num_good; pos < first + num_rows; ++pos) {
          if (!sequence->kv.has_entries(pos)) std::memset(EntryOf(*sequence, pos, pos), 0xEE, 8);
        }
        continue;
      }
      sequence->kv.SetComputed(sequence->tokens, first, first + num_rows);
      sequence->computed += num_rows;
      sequence->kv.Save(sequence->tokens, sequence->computed);
      if (sequence->computed == std::ssize(sequence->tokens)) {
        sequence->tokens.push_back(static_cast<TokenId>(random() % 2));
      }
    }
    std::erase_if(running_, [](Running& sequence) {
      if (sequence.failed) return true;
      if (sequence.computed < sequence.max_positions) return false;
      sequence.kv.Finish(sequence.tokens, sequence.computed);
      return true;
    });
  }

  bool idle() const { return running_.empty(); }
  size_t num_running() const { return running_.size(); }
  int64_t num_computed() const { return num_computed_; }
  int64_t num_skipped() const { return num_skipped_; }
  int64_t num_loaded() const { return store_->stats().loaded_tokens; }
  PrefixCache& prefixes() { return cache_.prefixes(); }

 private:
  struct Running {
    Tokens tokens;
    int64_t num_prompt;
    int64_t first_needed_row;
    int64_t max_positions;
    int64_t num_encoded;
    int64_t computed;
    KvSequence kv;
    bool failed = false;
  };

  // Returns the entry of `pos` as the row at `row_pos` sees it.
  std::byte* EntryOf(const Running& sequence, int64_t row_pos, int64_t pos) const {
    if (!window_.on()) return sequence.kv.pages()[pos / 16] + pos % 16 * 8;
    const int64_t first_page = window_.FirstPage(row_pos), page = pos / 16;
    const std::vector<std::byte*> pages = window_.PagesFrom(sequence.kv.pages(), first_page);
    const int64_t place = page < window_.sink_pages() ? page : page - first_page + window_.sink_pages();
    return pages[place] + pos % 16 * 8;
  }

  // A sequence's state is the digest of the tokens before `pos`, in each of its pages.
  static void CheckState(const Running& sequence, int64_t pos) {
    for (const std::byte* page : sequence.kv.state_pages()) {
      uint64_t digest = 0;
      std::memcpy(&digest, page, sizeof(digest));
      ASSERT_EQ(digest, pos == 0 ? 0 : DigestOf(std::span(sequence.tokens).first(pos))) << "state before " << pos;
    }
  }

  // Takes the state through the row at `pos`, and copies it where the sequence says.
  static void Advance(Running& sequence, int64_t pos) {
    const uint64_t digest = DigestOf(std::span(sequence.tokens).first(pos + 1));
    for (std::byte* page : sequence.kv.state_pages()) std::memcpy(page, &digest, sizeof(digest));
    for (std::byte* page : sequence.kv.KeepState(pos)) std::memcpy(page, &digest, sizeof(digest));
  }

  // Entries behind an encoder depend on all tokens that it reads.
  static uint64_t DigestAt(const Running& sequence, int64_t pos) {
    const uint64_t of_tokens = DigestOf(std::span(sequence.tokens).first(std::max(sequence.num_encoded, pos + 1)));
    return of_tokens + static_cast<uint64_t>(pos);
  }

  // Checks all entries that the row at `pos` sees.
  void Check(const Running& sequence, int64_t pos) const {
    const int64_t first = window_.on() ? window_.FirstPage(pos) * 16 : 0;
    for (int64_t seen = 0; seen <= pos; ++seen) {
      if (window_.on() && seen / 16 >= window_.sink_pages() && seen < first) continue;
      uint64_t digest = 0;
      std::memcpy(&digest, EntryOf(sequence, pos, seen), sizeof(digest));
      ASSERT_EQ(digest, DigestAt(sequence, seen)) << "row " << pos << " sees " << seen;
    }
  }

  KvCache cache_;
  std::unique_ptr<PrefixStore> store_;
  KvWindow window_;
  bool shares_pages_;
  std::list<Running> running_;
  int64_t num_computed_ = 0;
  int64_t num_skipped_ = 0;
};

Tokens Numbers(int64_t count, TokenId first) {
  Tokens tokens(count);
  for (int64_t i = 0; i < count; ++i) tokens[i] = first + static_cast<TokenId>(i);
  return tokens;
}

Tokens operator+(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST(KvSequence, ACommonBeginningIsComputedOnce) {
  std::mt19937 random(1);
  Model model(200, {}, true);
  constexpr int kSequences = 8;
  for (int i = 0; i < kSequences; ++i) {
    ASSERT_TRUE(model.Admit(Numbers(100, 0) + Numbers(10, 1000 * (i + 1)), 5));
  }
  while (!model.idle()) model.Step(64, random, false);
  // 96 tokens are six full pages. While the first sequence computes them, the others wait. Then they copy four tokens.
  EXPECT_EQ(model.num_computed(), 100 + kSequences * (10 + 5));
  EXPECT_EQ(model.num_skipped(), (kSequences - 1) * 100);
  EXPECT_EQ(model.prefixes().num_available(), 200);
}

TEST(KvSequence, EqualPromptsComputeTheirLastTokenEach) {
  for (const int64_t num_prompt : {1, 15, 16, 17, 32, 33}) {
    std::mt19937 random(1);
    Model model(50, {}, true);
    for (int i = 0; i < 2; ++i) {
      ASSERT_TRUE(model.Admit(Numbers(num_prompt, 0), 1));
      while (!model.idle()) model.Step(64, random, false);
    }
    EXPECT_EQ(model.num_skipped(), num_prompt - 1);
  }
}

TEST(KvSequence, NeededRowsAreComputedEvenIfOthersHaveThem) {
  for (const int64_t first_needed : {0, 1, 15, 16, 17, 39}) {
    std::mt19937 random(1);
    Model model(50, {}, true);
    for (int i = 0; i < 2; ++i) {
      ASSERT_TRUE(model.Admit(Numbers(40, 0), 1, first_needed));
      while (!model.idle()) model.Step(64, random, false);
    }
    EXPECT_EQ(model.num_skipped(), first_needed);
    // Their pages help a prompt that needs no row but its last.
    ASSERT_TRUE(model.Admit(Numbers(40, 0), 1));
    while (!model.idle()) model.Step(64, random, false);
    EXPECT_EQ(model.num_skipped(), first_needed + 39);
  }
}

// The decoder begins with token 7.
TEST(KvSequence, EntriesOfAnEncoderAreTakenOverTogether) {
  for (const int64_t num_encoded : {1, 15, 16, 17, 40}) {
    SCOPED_TRACE(num_encoded);
    std::mt19937 random(1);
    Model model(50, {}, true);
    const Tokens prompt = Numbers(num_encoded, 0) + Tokens{7};
    ASSERT_TRUE(model.Admit(prompt, 3, num_encoded, num_encoded));
    while (!model.idle()) model.Step(64, random, false);
    // A choice takes over what the encoder read, and the row of the decoder's first token.
    for (int i = 0; i < 2; ++i) {
      ASSERT_TRUE(model.Admit(prompt + Numbers(5, 10 * i), 1, num_encoded + 1, num_encoded));
    }
    while (!model.idle()) model.Step(64, random, false);
    EXPECT_EQ(model.num_skipped(), 2 * (num_encoded + 1));
    // A longer prompt that begins alike has other entries.
    ASSERT_TRUE(model.Admit(Numbers(num_encoded + 1, 0) + Tokens{7}, 1, num_encoded + 1, num_encoded + 1));
    while (!model.idle()) model.Step(64, random, false);
    EXPECT_EQ(model.num_skipped(), 2 * (num_encoded + 1));
    EXPECT_EQ(model.prefixes().num_available(), 50);
  }
}

TEST(KvSequence, EverySequenceBehindAnEncoderSeesItsOwnEntries) {
  int64_t num_skipped = 0;
  for (uint32_t seed = 0; seed < NumTried(120); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const int64_t num_pages = 8 + static_cast<int64_t>(random() % 40);
    Model model(num_pages, {}, seed % 10 != 9);
    const Tokens prompts[] = {Numbers(3, 0), Numbers(16, 0), Numbers(40, 0), Numbers(47, 0), Numbers(40, 500)};
    int num_left = 25;
    while (num_left > 0 || !model.idle()) {
      while (num_left > 0 && model.num_running() < 6) {
        Tokens prompt = prompts[random() % 5];
        const int64_t num_encoded = std::ssize(prompt);
        prompt.push_back(7);
        for (auto i = static_cast<int64_t>(random() % 20); i > 0; --i) {
          prompt.push_back(static_cast<TokenId>(random() % 2));
        }
        const auto num_behind = std::ssize(prompt) - num_encoded;
        const int64_t first_needed = num_encoded + static_cast<int64_t>(random()) % num_behind;
        if (!model.Admit(prompt, static_cast<int64_t>(1 + random() % 40), first_needed, num_encoded)) break;
        --num_left;
      }
      ASSERT_FALSE(model.idle());
      model.Step(1 + static_cast<int64_t>(random() % 60), random, random() % 16 == 0);
      if (testing::Test::HasFatalFailure()) return;
    }
    EXPECT_EQ(model.prefixes().num_available(), num_pages);
    num_skipped += model.num_skipped();
  }
  EXPECT_GT(num_skipped, 0);
}

TEST(KvSequence, AnAnswerIsFoundByTheNextTurn) {
  std::mt19937 random(1);
  Model model(100, {}, true);
  ASSERT_TRUE(model.Admit(Numbers(20, 0), 30));
  while (!model.idle()) model.Step(64, random, false);
  // The same draws as in the model.
  std::mt19937 same(1);
  Tokens turn = Numbers(20, 0);
  for (int i = 0; i < 30; ++i) turn.push_back(static_cast<TokenId>(same() % 2));
  ASSERT_TRUE(model.Admit(turn + Numbers(5, 500), 1));
  model.Step(64, random, false);
  EXPECT_EQ(model.num_skipped(), 50);
}

TEST(KvSequence, SharedPagesLeaveRoomForMoreSequences) {
  // A prompt of 160 tokens and a page for the rest: 11 pages, and one more for each further sequence.
  Model model(20, {}, true), alone(20, {}, false);
  int num_shared = 0, num_alone = 0;
  while (model.Admit(Numbers(160, 0) + Numbers(1, 1000 + num_shared), 8)) ++num_shared;
  while (alone.Admit(Numbers(160, 0) + Numbers(1, 1000 + num_alone), 8)) ++num_alone;
  EXPECT_EQ(num_alone, 1);
  EXPECT_EQ(num_shared, 10);
}

TEST(KvSequence, WhenThePagesAreNeededTheOldestBeginningsGo) {
  std::mt19937 random(1);
  Model model(10, {}, true);
  for (const TokenId first : {0, 1000, 2000, 0, 2000}) {
    ASSERT_TRUE(model.Admit(Numbers(65, first), 1));
    while (!model.idle()) model.Step(64, random, false);
  }
  // Five pages each: the first prompt's pages are gone when it comes again, the third's are not.
  EXPECT_EQ(model.num_skipped(), 64);
}

TEST(KvSequence, StatesAreKeptWherePromptsPart) {
  std::mt19937 random(1);
  Model model(200, {}, true, RecurrentConfig());
  constexpr int kSequences = 8;
  for (int i = 0; i < kSequences; ++i) {
    ASSERT_TRUE(model.Admit(Numbers(100, 0) + Numbers(10, 1000 * (i + 1)), 5));
  }
  while (!model.idle()) model.Step(64, random, false);
  // The others wait until the first sequence has computed the six pages that they share, and begin with its state.
  EXPECT_EQ(model.num_skipped(), (kSequences - 1) * 96);
  EXPECT_EQ(model.num_computed(), 110 + (kSequences - 1) * 14 + kSequences * 5);
  // A prompt that parts elsewhere is computed again, and the next such prompt finds a state.
  for (const int64_t skipped : {0, 48}) {
    const int64_t before = model.num_skipped();
    ASSERT_TRUE(model.Admit(Numbers(50, 0) + Numbers(40, 500 + skipped), 1));
    while (!model.idle()) model.Step(64, random, false);
    EXPECT_EQ(model.num_skipped() - before, skipped);
  }
  EXPECT_EQ(model.prefixes().num_available(), 200);
}

// A model finds what earlier ones have kept in files.
TEST(KvSequence, FilesOutliveTheirCache) {
  for (const ModelConfig& config : {TinyConfig(), RecurrentConfig()}) {
    SCOPED_TRACE(config.num_layers);
    const TemporaryFolder folder;
    const bool is_recurrent = config.num_layers == 2;
    for (int run = 0; run < 3; ++run) {
      std::mt19937 random(1);
      Model model(100, {}, true, config);
      model.KeepIn(folder.path());
      ASSERT_TRUE(model.Admit(Numbers(100, 0) + Numbers(20, 1000 * (run + 1)), 20));
      while (!model.idle()) model.Step(64, random, false);
      // Six pages are common. The first run keeps a state behind its seventh one, the second run also behind the sixth.
      EXPECT_EQ(model.num_loaded(), run == 0 || (is_recurrent && run == 1) ? 0 : 96) << run;
      EXPECT_EQ(model.num_skipped(), model.num_loaded());
    }
  }
}

// Random sequences, in several models after another that use the same files.
TEST(KvSequence, EverySequenceSeesItsOwnEntriesFromFiles) {
  int64_t num_loaded = 0;
  for (uint32_t seed = 0; seed < NumTried(24); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const TemporaryFolder folder;
    const bool is_recurrent = seed % 2 == 1;
    for (int run = 0; run < 3; ++run) {
      const int64_t num_pages = 30 + static_cast<int64_t>(random() % 60);
      Model model(num_pages, {}, true, is_recurrent ? RecurrentConfig() : TinyConfig());
      model.KeepIn(folder.path());
      const Tokens texts[] = {Numbers(40, 0), Numbers(40, 0) + Numbers(100, 40), Numbers(33, 500), {}};
      int num_left = 12;
      while (num_left > 0 || !model.idle()) {
        while (num_left > 0 && model.num_running() < 6) {
          Tokens prompt = texts[random() % 4];
          for (auto i = static_cast<int64_t>(1 + random() % 40); i > 0; --i) {
            prompt.push_back(static_cast<TokenId>(random() % 2));
          }
          const auto last = std::ssize(prompt) - 1;
          const int64_t first_needed = random() % 4 == 0 ? static_cast<int64_t>(random()) % (last + 1) : last;
          if (!model.Admit(prompt, static_cast<int64_t>(1 + random() % 90), first_needed)) break;
          --num_left;
        }
        ASSERT_FALSE(model.idle());
        model.Step(1 + static_cast<int64_t>(random() % 60), random, random() % 16 == 0);
        if (testing::Test::HasFatalFailure()) return;
      }
      EXPECT_EQ(model.prefixes().num_available(), num_pages);
      num_loaded += model.num_loaded();
    }
  }
  EXPECT_GT(num_loaded, 0);
}

TEST(KvSequence, EverySequenceHasItsOwnState) {
  int64_t num_skipped = 0;
  for (uint32_t seed = 0; seed < NumTried(40); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const int64_t num_pages = 18 + static_cast<int64_t>(random() % 60);
    Model model(num_pages, {}, seed % 10 != 9, RecurrentConfig());
    const Tokens texts[] = {Numbers(3, 0), Numbers(16, 0), Numbers(40, 0), Numbers(90, 0), Numbers(48, 500)};
    int num_left = 25;
    while (num_left > 0 || !model.idle()) {
      while (num_left > 0 && model.num_running() < 6) {
        Tokens prompt = texts[random() % 5];
        for (auto i = static_cast<int64_t>(1 + random() % 40); i > 0; --i) {
          prompt.push_back(static_cast<TokenId>(random() % 2));
        }
        const int64_t first_needed =
            random() % 4 == 0 ? static_cast<int64_t>(random()) % std::ssize(prompt) : std::ssize(prompt) - 1;
        if (!model.Admit(prompt, static_cast<int64_t>(1 + random() % 40), first_needed)) break;
        --num_left;
      }
      ASSERT_FALSE(model.idle());
      model.Step(1 + static_cast<int64_t>(random() % 60), random, random() % 16 == 0);
      if (testing::Test::HasFatalFailure()) return;
    }
    EXPECT_EQ(model.prefixes().num_available(), num_pages);
    num_skipped += model.num_skipped();
  }
  EXPECT_GT(num_skipped, 0);
}

TEST(KvSequence, EverySequenceSeesItsOwnEntries) {
  for (uint32_t seed = 0; seed < NumTried(120); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const KvWindow window = seed % 3 == 0   ? KvWindow{}
                            : seed % 3 == 1 ? KvWindow{.num_tokens = 20, .num_sinks = 4}
                                            : KvWindow{.num_tokens = 1 + static_cast<int64_t>(random() % 70)};
    constexpr int64_t kMaxPositions = 420;
    const int64_t num_pages = window.NumPages(kMaxPositions) + static_cast<int64_t>(random() % 40);
    Model model(num_pages, window, seed % 10 != 9);
    // Prompts begin with common texts, and end alike or differently.
    const Tokens beginnings[] = {Numbers(40, 0), Numbers(40, 0) + Numbers(200, 40), Numbers(33, 500), {}};
    int num_left = 25;
    while (num_left > 0 || !model.idle()) {
      while (num_left > 0 && model.num_running() < 6) {
        Tokens prompt = beginnings[random() % 4];
        for (auto i = static_cast<int64_t>(1 + random() % 40); i > 0; --i) {
          prompt.push_back(static_cast<TokenId>(random() % 2));
        }
        const auto num_new = static_cast<int64_t>(1 + random() % 120);
        const auto last = std::ssize(prompt) - 1;
        const int64_t first_needed = random() % 4 == 0 ? static_cast<int64_t>(random()) % (last + 1) : last;
        if (!model.Admit(prompt, num_new, first_needed)) break;
        --num_left;
      }
      ASSERT_FALSE(model.idle());
      model.Step(1 + static_cast<int64_t>(random() % 60), random, random() % 16 == 0);
      if (testing::Test::HasFatalFailure()) return;
    }
    EXPECT_EQ(model.prefixes().num_available(), num_pages);
    EXPECT_EQ(model.prefixes().num_reserved(), 0);
    EXPECT_TRUE(seed % 10 == 9 || model.num_skipped() > 0);
  }
}

}  // namespace
}  // namespace penstock
