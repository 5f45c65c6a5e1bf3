// StreamingLLM's window over a sequence's KV cache: every row sees the first tokens (attention sinks) and the last
// ones, in whole pages. The visible tokens depend only on the row's position, so they are the same for every batch and
// chunk.
//
// Positions stay those of the text, unlike in the paper, which applies RoPE again as the window moves. So entries are
// written once. Answers differ from those of full attention once a sequence is longer than sinks and window.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "penstock/memory/kv_cache.h"

namespace penstock {

struct KvWindow {
  int64_t num_tokens = 0;  // minimum number of tokens that a row sees, including itself; 0: all
  int64_t num_sinks = 0;

  // The maximum rows of one sequence in a pass. The sequence's pages hold everything from what its first row sees to
  // what its last row writes.
  static constexpr int64_t kMaxRows = 128;

  bool on() const { return num_tokens > 0; }
  int64_t sink_pages() const { return KvCache::PagesFor(num_sinks); }
  // Returns the number of pages for a sequence of at most `num_positions`.
  int64_t NumPages(int64_t num_positions) const {
    const int64_t all = KvCache::PagesFor(num_positions);
    return on() ? std::min(all, sink_pages() + KvCache::PagesFor(num_tokens + kMaxRows) + 2) : all;
  }
  // Returns the first page behind the sinks that a row at `pos` sees.
  int64_t FirstPage(int64_t pos) const {
    return std::max(sink_pages(), std::max<int64_t>(0, pos - num_tokens + 1) / KvCache::kPageTokens);
  }
  // Returns the place of position `pos` in the pages that its row sees.
  int64_t KvPosition(int64_t pos) const {
    return on() ? pos - (FirstPage(pos) - sink_pages()) * KvCache::kPageTokens : pos;
  }
  // Returns the pages seen by a row whose window begins with `first_page`, and free pages behind them. Behind the
  // sinks, a sequence's pages form a ring.
  std::vector<std::byte*> PagesFrom(std::span<std::byte* const> pages, int64_t first_page) const {
    const size_t num_sink_pages = std::min<int64_t>(sink_pages(), std::ssize(pages));
    std::vector<std::byte*> seen(pages.begin(), pages.begin() + static_cast<int64_t>(num_sink_pages));
    const size_t ring = pages.size() - num_sink_pages;
    for (size_t i = 0; i < ring; ++i) {
      const size_t page = static_cast<size_t>(first_page) - num_sink_pages + i;
      seen.push_back(pages[num_sink_pages + page % ring]);
    }
    return seen;
  }
};

}  // namespace penstock
