// Proves that requests on several ranks go where their work ends soonest, and where their beginnings are computed.
#include "penstock/engine/request_dealer.h"

#include <numeric>
#include <random>

#include <gtest/gtest.h>

#include "penstock/memory/prefix_cache.h"

namespace penstock {
namespace {

Request PromptOfLength(int64_t num_tokens, TokenId first, int64_t max_tokens = 8) {
  Request request{.sampling = {.max_tokens = max_tokens}};
  request.prompt_ids.resize(static_cast<size_t>(num_tokens));
  std::iota(request.prompt_ids.begin(), request.prompt_ids.end(), first);
  return request;
}

std::optional<int> Deal(RequestDealer& dealer, RequestId id, const Request& request) {
  return dealer.Deal(id, request, PageHashes(request.prompt_ids));
}

TEST(RequestDealer, EqualWorkIsDividedEvenly) {
  RequestDealer dealer(3, 2);
  std::vector<int> num_of(3);
  for (RequestId id = 1; id <= 6; ++id) {
    ++num_of[Deal(dealer, id, PromptOfLength(10, static_cast<TokenId>(1000 * id))).value()];
  }
  EXPECT_EQ(num_of, std::vector<int>({2, 2, 2}));
  EXPECT_FALSE(Deal(dealer, 7, PromptOfLength(10, 0)).has_value());
  dealer.Finish(4);
  EXPECT_EQ(dealer.num_active(), 5);
  EXPECT_TRUE(Deal(dealer, 7, PromptOfLength(10, 0)).has_value());
}

TEST(RequestDealer, LongRequestsCountForMore) {
  RequestDealer dealer(2, 10);
  const int rank = Deal(dealer, 1, PromptOfLength(10, 0, 1000)).value();
  for (RequestId id = 2; id <= 6; ++id) {
    EXPECT_EQ(Deal(dealer, id, PromptOfLength(10, static_cast<TokenId>(1000 * id), 100)), 1 - rank);
  }
}

TEST(RequestDealer, ARequestFollowsItsBeginning) {
  RequestDealer dealer(2, 100);
  const auto with_end = [](int64_t num_common, TokenId first, TokenId last) {
    Request request = PromptOfLength(num_common, first, 0);
    request.prompt_ids.push_back(last);
    return request;
  };
  const int rank = Deal(dealer, 1, with_end(100, 0, 1)).value(),
            other = Deal(dealer, 2, with_end(100, 5000, 1)).value();
  EXPECT_NE(rank, other);
  RequestId id = 3;
  for (TokenId last = 2; last < 6; ++last) {
    EXPECT_EQ(Deal(dealer, id++, with_end(100, 5000, last)), other);
    EXPECT_EQ(Deal(dealer, id++, with_end(100, 0, last)), rank);
  }
  // Less than a page in common is worth nothing.
  dealer.Finish(1);
  EXPECT_EQ(Deal(dealer, id++, with_end(15, 5000, 9)), rank);
  // A rank with too much work gives one away. From then on both have the beginning, and share the rest.
  int num_of_other = 0;
  for (TokenId last = 10; last < 40; ++last) num_of_other += Deal(dealer, id++, with_end(100, 5000, last)) == other;
  EXPECT_GT(num_of_other, 10);
  EXPECT_LT(num_of_other, 20);
}

TEST(RequestDealer, ARequestWaitsForItsRank) {
  RequestDealer dealer(2, 1);
  const int rank = Deal(dealer, 1, PromptOfLength(200, 0, 0)).value();
  dealer.Finish(1);
  EXPECT_EQ(Deal(dealer, 2, PromptOfLength(201, 0, 0)), rank);
  EXPECT_FALSE(Deal(dealer, 3, PromptOfLength(202, 0, 0)).has_value());
  EXPECT_FALSE(dealer.is_full());
  EXPECT_EQ(Deal(dealer, 4, PromptOfLength(20, 9000, 0)), 1 - rank);
  EXPECT_TRUE(dealer.is_full());
  dealer.Finish(2);
  EXPECT_EQ(Deal(dealer, 3, PromptOfLength(202, 0, 0)), rank);
}

TEST(RequestDealer, WithoutSharingOnlyTheWorkCounts) {
  RequestDealer dealer(2, 100);
  const int rank = dealer.Deal(1, PromptOfLength(100, 0), {}).value();
  EXPECT_EQ(dealer.Deal(2, PromptOfLength(100, 0), {}), 1 - rank);
}

TEST(RequestDealer, NoPlaceIsIdleBesideALongRequest) {
  RequestDealer dealer(2, 2);
  const int rank = Deal(dealer, 1, PromptOfLength(10, 0, 5000)).value();
  for (RequestId id = 2; id <= 3; ++id) {
    EXPECT_EQ(Deal(dealer, id, PromptOfLength(10, static_cast<TokenId>(1000 * id), 5)), 1 - rank);
  }
  EXPECT_EQ(Deal(dealer, 4, PromptOfLength(10, 9000, 5)), rank);
}

TEST(RequestDealer, LoadsReturnToNothing) {
  std::mt19937 random(1);
  RequestDealer dealer(3, 4);
  std::vector<RequestId> active;
  for (RequestId id = 1; id <= 5000; ++id) {
    // Many different prompts, so that the tables of beginnings are renewed.
    const auto request = PromptOfLength(1 + random() % 400, static_cast<TokenId>(random() % 100 * 50));
    if (Deal(dealer, id, request).has_value()) active.push_back(id);
    EXPECT_LE(dealer.num_active(), 12);
    if (active.size() == 12 || random() % 3 == 0) {
      const size_t which = random() % active.size();
      dealer.Finish(active[which]);
      active.erase(active.begin() + static_cast<int64_t>(which));
    }
  }
  for (const RequestId id : active) dealer.Finish(id);
  EXPECT_EQ(dealer.num_active(), 0);
  // Nothing is left on any rank: four long requests have places on each of the three.
  for (RequestId id = 6000; id < 6012; ++id) {
    EXPECT_TRUE(Deal(dealer, id, PromptOfLength(500, static_cast<TokenId>(1000 * id))).has_value());
  }
  EXPECT_TRUE(dealer.is_full());
}

}  // namespace
}  // namespace penstock
