// Proves that messages between ranks keep their order and bytes on each stream, and that one rank's failure ends the
// waiting of all others.
#include "penstock/parallel/communicator.h"

#include <string>
#include <thread>

#include <gmock/gmock.h>

#include "penstock/base/status.h"

namespace penstock {
namespace {

std::vector<std::byte> BytesOf(const std::string& text) {
  const auto* const data = reinterpret_cast<const std::byte*>(text.data());
  return {data, data + text.size()};
}

std::string TextOf(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string Next(Communicator& communicator, int from, MessageStream stream) {
  std::vector<std::byte> room(100);
  const size_t size = communicator.Receive(from, stream, room).value();
  return TextOf(std::span(room).first(size));
}

TEST(LocalCommunicator, StreamsKeepTheOrderOfTheirMessages) {
  const auto ranks = MakeLocalCommunicators(2);
  ASSERT_TRUE(ranks[0]->Send(1, MessageStream::kSteps, BytesOf("a")).ok());
  ASSERT_TRUE(ranks[0]->Send(1, MessageStream::kPass, BytesOf("x")).ok());
  ASSERT_TRUE(ranks[0]->Send(1, MessageStream::kSteps, BytesOf("")).ok());
  EXPECT_EQ(Next(*ranks[1], 0, MessageStream::kPass), "x");
  EXPECT_EQ(Next(*ranks[1], 0, MessageStream::kSteps), "a");
  EXPECT_EQ(Next(*ranks[1], 0, MessageStream::kSteps), "");
}

TEST(LocalCommunicator, AMessageThatIsTooLongIsRefused) {
  const auto ranks = MakeLocalCommunicators(2);
  ASSERT_TRUE(ranks[0]->Send(1, MessageStream::kSteps, BytesOf("four")).ok());
  std::vector<std::byte> room(3);
  EXPECT_EQ(FaultOf(ranks[1]->Receive(0, MessageStream::kSteps, room).status()), Fault::kInternal);
}

TEST(LocalCommunicator, AllRanksGatherTheMessagesOfAll) {
  constexpr int kRanks = 4;
  const auto ranks = MakeLocalCommunicators(kRanks);
  std::vector<std::thread> threads;
  std::vector<std::vector<std::string>> texts(kRanks);
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      for (int round = 0; round < 50; ++round) {
        const std::string own(static_cast<size_t>(rank), static_cast<char>('a' + round % 26));
        const auto messages = AllGather(*ranks[rank], MessageStream::kSteps, BytesOf(own), 8).value();
        for (const auto& message : messages) texts[rank].push_back(TextOf(message));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int rank = 1; rank < kRanks; ++rank) EXPECT_EQ(texts[rank], texts[0]);
  EXPECT_EQ(texts[0][3], "aaa");
  EXPECT_EQ(texts[0][7], "bbb");
}

TEST(LocalCommunicator, AnAbortEndsTheWaitingOfAllRanks) {
  const auto ranks = MakeLocalCommunicators(3);
  absl::Status waited;
  std::thread waits([&] {
    std::vector<std::byte> room(1);
    waited = ranks[0]->Receive(1, MessageStream::kPass, room).status();
  });
  ranks[2]->Abort(IoError("the disk is gone"));
  waits.join();
  EXPECT_EQ(FaultOf(waited), Fault::kIo);
  EXPECT_THAT(Message(waited), testing::AllOf(testing::HasSubstr("rank 2"), testing::HasSubstr("the disk is gone")));
  EXPECT_EQ(ranks[1]->Send(0, MessageStream::kSteps, {}), waited);
}

// Messages that wait for their receivers, of different sizes: no two ranks wait for each other.
TEST(LocalCommunicator, LargeMessagesAreGatheredToo) {
  for (const int num_ranks : {2, 3, 5}) {
    for (const size_t size : {size_t{10}, kEagerBytes, size_t{100'000}}) {
      const auto ranks = MakeLocalCommunicators(num_ranks, kEagerBytes);
      std::vector<std::thread> threads;
      for (int rank = 0; rank < num_ranks; ++rank) {
        threads.emplace_back([&, rank] {
          const std::vector<std::byte> own(size + static_cast<size_t>(rank), static_cast<std::byte>(rank));
          const auto messages = AllGatherSized(*ranks[rank], MessageStream::kSteps, own).value();
          for (int other = 0; other < num_ranks; ++other) {
            EXPECT_EQ(messages[other].size(), size + static_cast<size_t>(other));
            EXPECT_EQ(messages[other].back(), static_cast<std::byte>(other));
          }
        });
      }
      for (std::thread& thread : threads) thread.join();
    }
  }
}

}  // namespace
}  // namespace penstock
