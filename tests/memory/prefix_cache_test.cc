// Proves that pages are given out once and come back, that named pages are found by their tokens alone, and that cached
// pages go in the order in which they were released.
#include "penstock/memory/prefix_cache.h"

#include <algorithm>
#include <random>
#include <set>

#include <gmock/gmock.h>

namespace penstock {
namespace {

using Tokens = std::vector<TokenId>;

Tokens PageOf(TokenId first) {
  Tokens tokens(kKvPageTokens, 7);
  tokens[0] = first;
  return tokens;
}

// Takes a page, names it as a shared page and computes it.
KvPageId AddShared(PrefixCache& cache, KvPageId parent, const Tokens& tokens) {
  const KvPageId page = cache.Take();
  cache.Name(page, parent, tokens, true);
  cache.SetComputed(page, kKvPageTokens);
  return page;
}

TEST(PrefixCache, PagesAreHandedOutOnceAndComeBack) {
  PrefixCache cache(3);
  std::set<KvPageId> pages;
  for (int i = 0; i < 3; ++i) pages.insert(cache.Take());
  EXPECT_EQ(pages, (std::set{KvPageId{0}, KvPageId{1}, KvPageId{2}}));
  EXPECT_EQ(cache.num_available(), 0);
  cache.Release(KvPageId{1});
  EXPECT_EQ(cache.num_available(), 1);
  EXPECT_EQ(cache.Take(), KvPageId{1});
}

TEST(PrefixCache, APageIsFoundByItsTokensAndItsParent) {
  PrefixCache cache(4);
  const KvPageId first = AddShared(cache, kNoKvPage, PageOf(1));
  const KvPageId second = AddShared(cache, first, PageOf(2));
  EXPECT_EQ(cache.Find(kNoKvPage, PageOf(1)), first);
  EXPECT_EQ(cache.Find(first, PageOf(2)), second);
  EXPECT_EQ(cache.Find(kNoKvPage, PageOf(2)), kNoKvPage);
  EXPECT_EQ(cache.Find(second, PageOf(2)), kNoKvPage);
  // A second page with the same name gets none.
  const KvPageId twin = AddShared(cache, first, PageOf(2));
  EXPECT_FALSE(cache.is_shared(twin));
  EXPECT_EQ(cache.Find(first, PageOf(2)), second);
  cache.Release(twin);
  EXPECT_EQ(cache.Take(), twin);  // it was free, not cached
}

TEST(PrefixCache, SharedPagesHaveManyHolders) {
  PrefixCache cache(1);
  const KvPageId page = AddShared(cache, kNoKvPage, PageOf(1));
  cache.Hold(page);
  EXPECT_EQ(cache.num_holders(page), 2);
  cache.Release(page);
  EXPECT_EQ(cache.num_available(), 0);
  cache.Release(page);
  EXPECT_EQ(cache.num_available(), 1);
  EXPECT_EQ(cache.Find(kNoKvPage, PageOf(1)), page);  // cached
  cache.Hold(page);
  EXPECT_EQ(cache.num_available(), 0);
}

TEST(PrefixCache, OnlyCompletePagesAreCached) {
  PrefixCache cache(2);
  const KvPageId page = cache.Take();
  cache.Name(page, kNoKvPage, PageOf(1), true);
  cache.SetComputed(page, kKvPageTokens - 1);
  EXPECT_EQ(cache.Find(kNoKvPage, PageOf(1)), page);  // sequences may wait for it
  EXPECT_EQ(cache.FindBeginning(kNoKvPage, PageOf(1)).page, kNoKvPage);
  cache.Release(page);
  EXPECT_EQ(cache.Find(kNoKvPage, PageOf(1)), kNoKvPage);
}

TEST(PrefixCache, TheCachedPageThatWasReleasedFirstGoesFirst) {
  PrefixCache cache(3);
  const KvPageId parent = AddShared(cache, kNoKvPage, PageOf(1));
  const KvPageId child = AddShared(cache, parent, PageOf(2));
  const KvPageId other = AddShared(cache, kNoKvPage, PageOf(3));
  cache.Release(other);
  cache.Release(child);
  cache.Release(parent);
  cache.Hold(other);
  cache.Release(other);  // it was used again, so it goes last
  EXPECT_EQ(cache.Take(), child);
  EXPECT_EQ(cache.Take(), parent);
  EXPECT_EQ(cache.Find(kNoKvPage, PageOf(1)), kNoKvPage);
  EXPECT_EQ(cache.Take(), other);
}

TEST(PrefixCache, WhatLiesBehindAPageThatIsGoneIsNotFound) {
  PrefixCache cache(2);
  const KvPageId parent = AddShared(cache, kNoKvPage, PageOf(1));
  const KvPageId child = AddShared(cache, parent, PageOf(2));
  cache.Release(parent);
  const KvPageId again = AddShared(cache, kNoKvPage, PageOf(5));  // takes the parent's page
  EXPECT_EQ(again, parent);
  EXPECT_EQ(cache.Find(again, PageOf(2)), kNoKvPage);
  EXPECT_EQ(cache.FindBeginning(again, PageOf(2)).num_tokens, 0);
  cache.Release(child);
  EXPECT_EQ(cache.num_available(), 1);
}

TEST(PrefixCache, PagesThatAreNotSharedAreOnlyCopied) {
  PrefixCache cache(3);
  const KvPageId part = cache.Take();
  const Tokens tokens = {1, 2, 3};
  cache.Name(part, kNoKvPage, tokens, false);
  cache.SetComputed(part, 3);
  EXPECT_EQ(cache.FindBeginning(kNoKvPage, Tokens{1, 2, 4}).page, part);
  EXPECT_EQ(cache.FindBeginning(kNoKvPage, Tokens{1, 2, 4}).num_tokens, 2);
  EXPECT_EQ(cache.FindBeginning(kNoKvPage, Tokens{1, 2, 3, 4}).num_tokens, 3);
  // It is no parent, so what follows it has no name.
  const KvPageId behind = cache.Take();
  cache.Name(behind, part, PageOf(9), true);
  EXPECT_FALSE(cache.is_shared(behind));
  // It grows while its sequence generates.
  Tokens longer = PageOf(1);
  cache.Name(part, kNoKvPage, longer, true);
  cache.SetComputed(part, kKvPageTokens);
  EXPECT_EQ(cache.Find(kNoKvPage, longer), part);
  EXPECT_EQ(cache.FindBeginning(kNoKvPage, Tokens{1, 2, 3}).num_tokens, 1);
}

TEST(PrefixCache, FindsTheLongestBeginningOfAllPages) {
  std::mt19937 random(1);
  const auto draw = [&](size_t size) {
    Tokens tokens(size);
    for (TokenId& token : tokens) token = static_cast<TokenId>(random() % 2);
    return tokens;
  };
  PrefixCache cache(200);
  std::vector<Tokens> all;
  const KvPageId parent = AddShared(cache, kNoKvPage, PageOf(1));
  for (int i = 0; i < 190; ++i) {
    const Tokens tokens = draw(1 + random() % kKvPageTokens);
    const KvPageId page = cache.Take();
    cache.Name(page, i % 3 == 0 ? kNoKvPage : parent, tokens, tokens.size() == kKvPageTokens);
    if (i % 5 == 0) continue;  // not computed
    cache.SetComputed(page, std::ssize(tokens));
    if (i % 3 != 0) all.push_back(tokens);
  }
  for (int i = 0; i < 500; ++i) {
    const Tokens wanted = draw(1 + random() % kKvPageTokens);
    int64_t longest = 0;
    for (const Tokens& tokens : all) {
      longest = std::max<int64_t>(longest, std::ranges::mismatch(wanted, tokens).in1 - wanted.begin());
    }
    EXPECT_EQ(cache.FindBeginning(parent, wanted).num_tokens, longest);
  }
}

}  // namespace
}  // namespace penstock
