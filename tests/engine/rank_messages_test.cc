// Proves that messages between ranks arrive as they were sent, and that one that is cut off is an error.
#include "penstock/engine/rank_messages.h"

#include <gtest/gtest.h>

#include "penstock/base/status.h"

namespace penstock {
namespace {

RankOrder Order() {
  RankOrder order;
  RankRequest request;
  request.id = 7;
  request.request.prompt_ids = {1, 2, 3};
  request.request.sampling.stop = {"end"};
  request.has_format = true;
  request.format = {.kind = OutputFormat::Kind::kRegex, .text = "a+"};
  order.requests = {request};
  return order;
}

TEST(RankMessages, ArriveAsTheyWereSent) {
  const absl::StatusOr<RankOrder> order = OrderFrom(ToBytes(Order()));
  ASSERT_TRUE(order.ok()) << order.status();
  ASSERT_EQ(order->requests.size(), 1u);
  EXPECT_EQ(order->requests[0].id, 7);
  EXPECT_EQ(order->requests[0].request.prompt_ids, (std::vector<TokenId>{1, 2, 3}));
  EXPECT_EQ(order->requests[0].request.sampling.stop, std::vector<std::string>{"end"});
  EXPECT_EQ(order->requests[0].format.text, "a+");
}

TEST(RankMessages, ThatAreCutOffAreErrors) {
  const std::vector<std::byte> bytes = ToBytes(Order());
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_EQ(FaultOf(OrderFrom(std::span(bytes).first(size)).status()), Fault::kInternal) << size;
  }
}

}  // namespace
}  // namespace penstock
