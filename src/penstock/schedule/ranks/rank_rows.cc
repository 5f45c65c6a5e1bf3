#include "penstock/schedule/ranks/rank_rows.h"

#include <cstring>

#include "absl/container/flat_hash_map.h"
#include "penstock/base/status.h"

namespace penstock {
namespace {

using Words = std::vector<int32_t>;

// Writes copies of pages, lists of pages, and the rows of each micro-batch with the numbers of their lists.
Words Describe(const RowBatch& batch, std::span<const RowRange> micro_batches, KvCache* cache) {
  Words words;
  const auto add = [&](int64_t value) { words.push_back(static_cast<int32_t>(value)); };
  const auto add_page = [&](KvPageId page) { add(IndexOf(page)); };
  const std::vector<KvCache::PageCopy> copies =
      cache == nullptr ? std::vector<KvCache::PageCopy>() : cache->TakeCopies();
  add(std::ssize(copies));
  for (const KvCache::PageCopy& copy : copies) {
    add_page(copy.from);
    add_page(copy.to);
  }
  std::vector<std::span<std::byte* const>> lists;
  std::vector<int64_t> list_of_row(static_cast<size_t>(batch.num_rows()));
  absl::flat_hash_map<std::byte* const*, int64_t> idx_of_list;
  for (int64_t row = 0; cache != nullptr && row < batch.num_rows(); ++row) {
    const std::span<std::byte* const> pages = batch.kv_pages[row];
    const auto [found, is_new] = idx_of_list.try_emplace(pages.data(), std::ssize(lists));
    if (is_new) lists.push_back(pages.first(0));
    // The first pages, as far as one of the rows sees.
    std::span<std::byte* const>& list = lists[found->second];
    list = pages.first(std::max(list.size(), static_cast<size_t>(KvCache::PagesFor(batch.kv_positions[row] + 1))));
    list_of_row[row] = found->second;
  }
  add(std::ssize(lists));
  for (const auto& pages : lists) {
    add(std::ssize(pages));
    for (const std::byte* page : pages) add_page(cache->PageAt(page));
  }
  for (const RowRange& rows : micro_batches) {
    add(rows.size());
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      add(batch.positions[row]);
      add(batch.kv_positions[row]);
      add(batch.sequence_lengths[row]);
      add(batch.sequence_ids[row]);
      add(list_of_row[row]);
    }
  }
  return words;
}

// Reads what Describe() of a rank wrote.
class Reader {
 public:
  Reader(int rank, std::span<const std::byte> message) : rank_(rank), words_(message.size() / sizeof(int32_t)) {
    if (!words_.empty()) std::memcpy(words_.data(), message.data(), words_.size() * sizeof(int32_t));
  }

  int rank() const { return rank_; }
  // Returns the next number, from 0 to `end` - 1; 0 after a failure.
  int32_t Next(int64_t end = INT32_MAX) {
    const int32_t value = next_ < words_.size() ? words_[next_++] : -1;
    if (value >= 0 && value < end) return value;
    is_broken_ = true;
    return 0;
  }
  uint32_t NextId() { return next_ < words_.size() ? static_cast<uint32_t>(words_[next_++]) : 0; }
  // Returns how many things of `num_words` each follow.
  int64_t NextCount(int64_t num_words) {
    return Next((std::ssize(words_) - static_cast<int64_t>(next_)) / num_words + 1);
  }
  bool is_broken() const { return is_broken_; }
  bool is_done() const { return next_ == words_.size() && !is_broken_; }

 private:
  int rank_;
  Words words_;
  size_t next_ = 0;
  bool is_broken_ = false;
};

absl::Status ReadCopies(Reader& reader, bool is_own, KvCache* cache) {
  const int64_t num_pages = cache == nullptr ? 0 : cache->num_pages();
  for (int64_t left = reader.NextCount(2); left > 0; --left) {
    const KvPageId from{reader.Next(num_pages)}, to{reader.Next(num_pages)};
    if (!is_own && cache != nullptr && !reader.is_broken())
      PENSTOCK_RETURN_IF_ERROR(cache->RepeatCopy(reader.rank(), {from, to}));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RankRows> GatherRankRows(Communicator& communicator, const RowBatch& batch,
                                        std::span<const RowRange> micro_batches, KvCache* cache) {
  const Words own = Describe(batch, micro_batches, cache);
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<std::vector<std::byte>> messages,
                            AllGatherSized(communicator, MessageStream::kSteps, std::as_bytes(std::span(own))));
  std::vector<Reader> readers;
  RankRows rows;
  std::vector<std::vector<std::span<std::byte* const>>> lists(communicator.num_ranks());
  for (int rank = 0; rank < communicator.num_ranks(); ++rank) {
    Reader& reader = readers.emplace_back(rank, messages[rank]);
    PENSTOCK_RETURN_IF_ERROR(ReadCopies(reader, rank == communicator.rank(), cache));
    for (int64_t left = reader.NextCount(1); left > 0; --left) {
      std::vector<std::byte*>& pages = rows.pages.emplace_back();
      for (int64_t num_pages = reader.NextCount(1); num_pages > 0 && cache != nullptr; --num_pages) {
        pages.push_back(cache->AddressOf(rank, KvPageId{reader.Next(cache->num_pages())}));
      }
      lists[rank].emplace_back(pages);
    }
  }
  for (size_t i = 0; i < micro_batches.size(); ++i) {
    RankRows::MicroBatch& micro_batch = rows.micro_batches.emplace_back();
    micro_batch.all.begin = rows.batch.num_rows();
    for (Reader& reader : readers) {
      const int64_t begin = rows.batch.num_rows();
      const auto& of_rank = lists[reader.rank()];
      for (int64_t left = reader.NextCount(5); left > 0; --left) {
        rows.batch.token_ids.push_back(0);
        rows.batch.positions.push_back(reader.Next());
        rows.batch.kv_positions.push_back(reader.Next());
        rows.batch.sequence_lengths.push_back(reader.Next());
        rows.batch.has_kv.push_back(0);
        // Neighbouring rows of two ranks are of different sequences.
        rows.batch.sequence_ids.push_back(reader.NextId() * static_cast<uint32_t>(readers.size()) +
                                          static_cast<uint32_t>(reader.rank()));
        const int64_t list = reader.Next(std::max<int64_t>(1, std::ssize(of_rank)));
        rows.batch.kv_pages.push_back(of_rank.empty() ? std::span<std::byte* const>() : of_rank[list]);
      }
      micro_batch.of_rank.push_back({begin, rows.batch.num_rows()});
    }
    micro_batch.all.end = rows.batch.num_rows();
  }
  for (const Reader& reader : readers) {
    if (reader.is_done()) continue;
    return MakeError(Fault::kInternal, fmt::format("rank {} described rows that cannot be", reader.rank()));
  }
  return rows;
}

}  // namespace penstock
