// Proves that the network of SiDA computes what PyTorch computes with the same file, also when old tokens have left the
// window, with the same bits in pieces of any size and on any processor, that SparseMax finds the nearest point of the
// simplex, and that a file that is not such a network is refused in one line.
#include "penstock/routing/sida_network.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <string_view>

#include <gmock/gmock.h>

#include "penstock/base/file.h"
#include "penstock/base/json.h"
#include "penstock/base/status.h"
#include "penstock/kernels/kernels.h"
#include "tests/sida_file.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;

const std::string kSidaFolder = std::string(PENSTOCK_SOURCE_DIR) + "/tests/routing/sida/";
const std::string kSidaPath = kSidaFolder + "network.safetensors";

std::string SidaBytes() { return ReadFile(kSidaPath, 1 << 20).value(); }

// The point of the simplex nearest to `scores`, found among the projections on all of its faces.
std::vector<double> NearestOfAllFaces(const std::vector<float>& scores) {
  std::vector<double> nearest;
  double least = std::numeric_limits<double>::infinity();
  for (uint32_t face = 1; face < 1u << scores.size(); ++face) {
    double sum = 0;
    for (size_t i = 0; i < scores.size(); ++i) sum += (face >> i & 1) != 0 ? scores[i] : 0.0;
    const double shift = (sum - 1) / std::popcount(face);
    std::vector<double> point(scores.size());
    double distance = 0;
    bool is_inside = true;
    for (size_t i = 0; i < scores.size(); ++i) {
      if ((face >> i & 1) != 0) point[i] = scores[i] - shift;
      is_inside &= point[i] >= 0;
      distance += (point[i] - scores[i]) * (point[i] - scores[i]);
    }
    if (!is_inside || distance >= least) continue;
    least = distance;
    nearest = point;
  }
  return nearest;
}

TEST(SidaNetworkTest, SparseMaxIsTheNearestPointOfTheSimplex) {
  std::mt19937 random(5);
  for (int round = 0; round < 500; ++round) {
    std::vector<float> scores(1 + random() % 9);
    const float scale = std::exp2(static_cast<float>(random() % 8) - 3);
    std::normal_distribution<float> draw(0, scale);
    for (float& score : scores) score = round % 5 == 0 ? std::round(draw(random)) : draw(random);  // also equal ones
    std::vector<float> scratch(scores.size()), weights(scores.size());
    SparseMax(scores, scratch, weights);
    const std::vector<double> nearest = NearestOfAllFaces(scores);
    for (size_t i = 0; i < scores.size(); ++i) EXPECT_NEAR(weights[i], nearest[i], 1e-6 * (1 + scale)) << round;
  }
}

// Logits by the index of their token.
using LogitsOfTokens = std::map<size_t, std::vector<float>>;

// Runs the network over the tokens in pieces of these sizes.
LogitsOfTokens SidaLogits(const SidaNetwork& network, std::span<const int32_t> tokens,
                          const std::vector<size_t>& pieces, size_t stride, kernels::Isa isa) {
  SidaNetwork::State state = network.NewState();
  SidaNetwork::Scratch scratch = network.NewScratch(kernels::KernelsFor(isa));
  LogitsOfTokens all;
  size_t begin = 0;
  for (const size_t size : pieces) {
    network.Run(tokens.subspan(begin, size), stride, state, scratch,
                [&](size_t i, std::span<const float> logits) { all[begin + i].assign(logits.begin(), logits.end()); });
    begin += size;
  }
  return all;
}

TEST(SidaNetworkTest, ComputesWhatPyTorchComputes) {
  const auto network = SidaNetwork::Load(kSidaPath).value();
  EXPECT_EQ(network->shape().dim, 10);
  const json::value expected = ParseJson(ReadFile(kSidaFolder + "logits.json", 1 << 20).value(), Fault::kInput).value();
  ASSERT_GT(std::ssize(expected.as_array()), 2 * network->shape().window);
  std::vector<int32_t> tokens;
  for (const json::value& line : expected.as_array()) tokens.push_back(static_cast<int32_t>(line.at(0).as_int64()));
  const LogitsOfTokens all = SidaLogits(*network, tokens, {tokens.size()}, 1, kernels::Isa::kScalar);
  ASSERT_EQ(all.size(), tokens.size());
  for (const auto& [step, logits] : all) {
    for (size_t i = 0; i < logits.size(); ++i) {
      EXPECT_NEAR(logits[i], expected.at(step).at(1).at(i).as_double(), 1e-5) << step;
    }
  }
}

// The bits are the same in whatever pieces tokens come, whether logits of other tokens are asked for, and on any
// processor.
TEST(SidaNetworkTest, HasTheSameBitsInPieces) {
  std::mt19937 random(7);
  const SidaShape shape = {.vocab_size = 50,
                           .dim = 37,
                           .window = 20,
                           .num_layers = 3,
                           .num_experts = 11,
                           .fingerprint = std::string(32, 'a')};
  const auto network = SidaNetwork::OfBytes(RandomSidaFile(shape, 3), "test").value();
  std::vector<int32_t> tokens(101);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 50);
  const LogitsOfTokens whole = SidaLogits(*network, tokens, {tokens.size()}, 1, kernels::Isa::kScalar);
  for (const kernels::Isa isa : kernels::SupportedIsas()) {
    for (int round = 0; round < 10; ++round) {
      std::vector<size_t> pieces;
      for (size_t left = tokens.size(); left > 0; left -= pieces.back()) pieces.push_back(1 + random() % left);
      const size_t stride = random() % 4;
      const LogitsOfTokens some = SidaLogits(*network, tokens, pieces, stride, isa);
      EXPECT_EQ(some.empty(), stride == 0);
      for (const auto& [token, logits] : some) EXPECT_EQ(logits, whole.at(token)) << kernels::IsaName(isa);
    }
  }
}

TEST(SidaNetworkTest, TellsWhichModelItIsFor) {
  const SidaShape shape = SidaNetwork::ReadShape(kSidaPath).value();
  EXPECT_EQ(shape.vocab_size, 32);
  EXPECT_EQ(shape.window, 7);
  const std::string fingerprint = "0123456789abcdef0123456789abcdef";
  EXPECT_TRUE(CheckSidaShape(shape, 32, 3, 5, fingerprint).ok());
  EXPECT_TRUE(CheckSidaShape(shape, 32, 3, 5, "").ok());
  for (const absl::Status& status :
       {CheckSidaShape(shape, 33, 3, 5, fingerprint), CheckSidaShape(shape, 32, 4, 5, fingerprint),
        CheckSidaShape(shape, 32, 3, 6, fingerprint), CheckSidaShape(shape, 32, 3, 5, std::string(32, '0'))}) {
    EXPECT_EQ(FaultOf(status), Fault::kModel);
  }
}

// Returns the message with which the bytes are refused.
std::string SidaRefusal(const std::string& bytes) {
  const auto network = SidaNetwork::OfBytes(bytes, "file");
  if (network.ok()) return "accepted";
  EXPECT_EQ(FaultOf(network.status()), Fault::kModel);
  return Message(network.status());
}

// Replaces a text of the header by one of the same length.
std::string WithSidaText(std::string bytes, std::string_view from, std::string_view to) {
  const size_t at = bytes.find(from);
  EXPECT_TRUE(at != std::string::npos && from.size() == to.size()) << from;
  return bytes.replace(at, from.size(), to);
}

TEST(SidaNetworkTest, RefusesWhatIsNoNetwork) {
  const std::string bytes = SidaBytes();
  EXPECT_EQ(SidaRefusal(bytes), "accepted");
  EXPECT_THAT(SidaRefusal(""), HasSubstr("too few"));
  EXPECT_THAT(SidaRefusal("words, words"), HasSubstr("file: the header would have"));
  EXPECT_THAT(SidaRefusal(bytes.substr(0, bytes.size() - 1)), HasSubstr("1 bytes short"));
  EXPECT_THAT(SidaRefusal(bytes + "x"), HasSubstr("1 bytes at the end"));
  EXPECT_THAT(SidaRefusal(WithSidaText(bytes, "penstock sida 1", "penstock sida 2")), HasSubstr("format: expected"));
  EXPECT_THAT(SidaRefusal(WithSidaText(bytes, "\"format\"", "\"Format\"")), HasSubstr("has no 'format'"));
  for (const std::string_view window : {"0", "x", "-"}) {
    EXPECT_THAT(SidaRefusal(WithSidaText(bytes, "\"window\":\"7\"", "\"window\":\"" + std::string(window) + "\"")),
                HasSubstr("window"));
  }
  EXPECT_THAT(SidaRefusal(WithSidaText(bytes, "0123456789abcdef", "0123456789ABCDEF")), HasSubstr("hexadecimal"));
  EXPECT_THAT(SidaRefusal(WithSidaText(bytes, "\"table\"", "\"Table\"")), HasSubstr("'table' is missing"));
  EXPECT_THAT(SidaRefusal(WithSidaText(bytes, "[32,10]", "[320,1]")),
              HasSubstr("'lstm.0.input': expected shape [4, 1]"));
  EXPECT_THAT(SidaRefusal(WithSidaText(bytes, "[3,5,10]", "[5,3,10]")), HasSubstr("'output.bias': expected shape"));
}

TEST(SidaNetworkTest, RefusesWeightsThatAreNoNumbersOrHuge) {
  const float bad[] = {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity(), 2e6f};
  for (const float value : bad) {
    std::string bytes = SidaBytes();
    std::memcpy(bytes.data() + bytes.size() - sizeof(value), &value, sizeof(value));
    EXPECT_THAT(SidaRefusal(bytes), HasSubstr("expected values within"));
  }
}

TEST(SidaNetworkTest, FilesThatCannotBeReadAreNamed) {
  const absl::Status missing = SidaNetwork::Load("/nowhere/network").status();
  EXPECT_EQ(FaultOf(missing), Fault::kIo);
  EXPECT_THAT(Message(missing), HasSubstr("/nowhere/network"));
  EXPECT_EQ(FaultOf(SidaNetwork::ReadShape("/").status()), Fault::kIo);
}

}  // namespace
}  // namespace penstock
