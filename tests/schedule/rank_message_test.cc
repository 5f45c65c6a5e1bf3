// Proves that the trailer of a message between ranks is read as it was written, whatever comes before it.
#include "penstock/schedule/ranks/rank_message.h"

#include <gtest/gtest.h>

#include "penstock/base/status.h"
#include "penstock/ops/activations.h"

namespace penstock {
namespace {

TEST(RankMessage, TrailersAreReadAsTheyWereWritten) {
  ModelConfig config;
  config.num_experts = 9;
  for (const size_t outputs_bytes : {0, 4, 1000}) {
    for (const std::vector<int32_t>& failed : {std::vector<int32_t>(), {3}, {0, 8}}) {
      for (const std::string& why : {std::string("a disk is gone"), std::string(5000, 'x')}) {
        std::vector<std::byte> buffer(outputs_bytes + static_cast<size_t>(RankTrailerBytes(config)));
        MessageWriter writer(buffer);
        writer.Take(outputs_bytes);
        AddTrailer({.experts = {0, 3, 8}, .failed = failed, .why = MakeError(Fault::kIo, why)}, writer);
        const OutputsMessage read = ReadTrailer(writer.message(), config.num_experts);
        EXPECT_EQ(read.outputs_bytes, outputs_bytes);
        EXPECT_EQ(read.trailer.experts, std::vector<int32_t>({0, 3, 8}));
        EXPECT_EQ(read.trailer.failed, failed);
        if (failed.empty()) continue;
        EXPECT_EQ(FaultOf(read.trailer.why), Fault::kIo);
        EXPECT_EQ(Message(read.trailer.why).substr(0, 14), why.substr(0, 14));
      }
    }
  }
}

}  // namespace
}  // namespace penstock
