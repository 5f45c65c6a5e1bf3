// Proves that counts, fallbacks and tendencies equal those of a plain model of maps. This holds for every path length,
// and with experts missing from the history. Ties go to the lower index. A full table adds no path and keeps counting.
// A count that would overflow halves its path. A table is read back as it was saved. A file is refused in one line if
// it is cut or flipped at any byte, or belongs to another model or shape. The same holds for a wrong field behind a
// right checksum.
#include "penstock/routing/correlation_table.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <numeric>
#include <random>

#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>
#include <unistd.h>
#include <xxhash.h>

#include "penstock/base/status.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Choices = std::vector<int32_t>;  // [num_rows, num_topk]
// The layer, and one expert of each layer before it, the nearest first.
using Path = std::pair<int64_t, Choices>;
using Counts = std::map<Path, std::vector<double>>;

// The experts that each layer's rows chose in one pass.
struct Pass {
  int64_t num_rows;
  std::vector<Choices> layers;

  // `reach` is the number of layers that the history goes back.
  RoutingHistory HistoryOf(int64_t layer_idx, int64_t reach = kMaxPathLength) const {
    RoutingHistory history{.num_rows = num_rows, .choices = {}};
    for (int64_t d = 0; d < std::min(reach, layer_idx); ++d) {
      history.choices[d] = layers[layer_idx - 1 - d];
    }
    return history;
  }
};

Pass RandomPass(const CorrelationShape& shape, int64_t num_rows, std::mt19937& random) {
  Pass pass{.num_rows = num_rows, .layers = {}};
  Choices experts(static_cast<size_t>(shape.num_experts));
  std::iota(experts.begin(), experts.end(), 0);
  for (int64_t layer_idx = 0; layer_idx < shape.num_layers; ++layer_idx) {
    Choices& layer = pass.layers.emplace_back();
    for (int64_t row_idx = 0; row_idx < num_rows; ++row_idx) {
      std::shuffle(experts.begin(), experts.end(), random);
      layer.insert(layer.end(), experts.begin(), experts.begin() + shape.num_topk);
    }
  }
  return pass;
}

// The shortest correct implementation.
class Model {
 public:
  explicit Model(const CorrelationShape& shape) : shape_(shape) {}

  void Update(int64_t layer_idx, const RoutingHistory& history, const Choices& topk_idx) {
    for (int64_t row_idx = 0; row_idx < history.num_rows; ++row_idx) {
      for (int64_t length = 0; length <= Longest(layer_idx, history); ++length) {
        for (const Choices& path : Paths(history, row_idx, length)) {
          std::vector<double>& counts = counts_[{layer_idx, path}];
          counts.resize(shape_.num_experts);
          for (int64_t rank = 0; rank < shape_.num_topk; ++rank) {
            ++counts[topk_idx[row_idx * shape_.num_topk + rank]];
          }
        }
      }
    }
  }

  std::vector<double> Tendency(int64_t layer_idx, const RoutingHistory& history) const {
    std::vector<double> sums(shape_.num_experts);
    for (int64_t row_idx = 0; row_idx < history.num_rows; ++row_idx) {
      std::vector<std::vector<double>> known;
      for (int64_t length = Longest(layer_idx, history); length >= 0 && known.empty(); --length) {
        for (const Choices& path : Paths(history, row_idx, length)) {
          const auto found = counts_.find({layer_idx, path});
          if (found != counts_.end()) known.push_back(found->second);
        }
      }
      for (const std::vector<double>& counts : known) {
        const double total = std::accumulate(counts.begin(), counts.end(), 0.0);
        for (size_t i = 0; i < sums.size(); ++i) sums[i] += counts[i] / total / static_cast<double>(known.size());
      }
    }
    return sums;
  }

  int64_t NumPaths() const {
    return std::count_if(counts_.begin(), counts_.end(), [](const auto& entry) { return !entry.first.second.empty(); });
  }

 private:
  int64_t Longest(int64_t layer_idx, const RoutingHistory& history) const {
    int64_t length = 0;
    while (length < std::min(layer_idx, shape_.path_length) && !history.choices[length].empty()) {
      ++length;
    }
    return length;
  }

  std::vector<Choices> Paths(const RoutingHistory& history, int64_t row_idx, int64_t length) const {
    if (length == 0) return {{}};
    std::vector<Choices> paths;
    for (const Choices& shorter : Paths(history, row_idx, length - 1)) {
      for (int64_t rank = 0; rank < shape_.num_topk; ++rank) {
        paths.push_back(shorter);
        paths.back().push_back(history.choices[length - 1][row_idx * shape_.num_topk + rank]);
      }
    }
    return paths;
  }

  CorrelationShape shape_;
  Counts counts_;
};

void ExpectNear(const std::vector<double>& found, const std::vector<double>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-9) << i;
}

CorrelationShape SmallShape(int64_t path_length) {
  return {.num_layers = 5, .num_experts = 6, .num_topk = 2, .path_length = path_length, .model = "tiny"};
}

CorrelationTable Filled(const CorrelationShape& shape, int num_passes, uint32_t seed) {
  CorrelationTable table(shape);
  std::mt19937 random(seed);
  for (int i = 0; i < num_passes; ++i) {
    const Pass pass = RandomPass(shape, 3, random);
    for (int64_t layer_idx = 0; layer_idx < shape.num_layers; ++layer_idx) {
      table.Update(layer_idx, pass.HistoryOf(layer_idx), pass.layers[layer_idx]);
    }
  }
  return table;
}

// Draws from the whole range from the first case on; rc::gen::inRange alone begins near `least`.
int64_t Draw(int64_t min, int64_t max) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange<int64_t>(min, max + 1));
}

RC_GTEST_PROP(CorrelationTable, EqualsTheModelOfMaps, ()) {
  CorrelationShape shape;
  shape.num_layers = Draw(1, 5);
  shape.num_experts = Draw(1, 8);
  shape.num_topk = Draw(1, std::min<int64_t>(3, shape.num_experts));
  shape.path_length = Draw(0, kMaxPathLength);
  shape.model = "m";
  std::mt19937 random(*rc::gen::arbitrary<uint32_t>());
  CorrelationTable table(shape);
  Model model(shape);
  const int64_t num_passes = Draw(0, 3);  // only a few, so that many paths stay unknown
  for (int64_t i = 0; i < num_passes; ++i) {
    const Pass pass = RandomPass(shape, Draw(0, 4), random);
    const int64_t reach = Draw(0, kMaxPathLength);
    for (int64_t layer_idx = 0; layer_idx < shape.num_layers; ++layer_idx) {
      const RoutingHistory history = pass.HistoryOf(layer_idx, reach);
      table.Update(layer_idx, history, pass.layers[layer_idx]);
      model.Update(layer_idx, history, pass.layers[layer_idx]);
    }
  }
  RC_ASSERT(table.num_paths() == model.NumPaths());
  const Pass asked = RandomPass(shape, 4, random);
  for (int64_t layer_idx = 0; layer_idx < shape.num_layers; ++layer_idx) {
    const RoutingHistory history = asked.HistoryOf(layer_idx, Draw(0, kMaxPathLength));
    const std::vector<double> found = table.Tendency(layer_idx, history);
    const std::vector<double> expected = model.Tendency(layer_idx, history);
    for (size_t i = 0; i < expected.size(); ++i) RC_ASSERT(std::abs(found[i] - expected[i]) < 1e-9);
    const int64_t count = Draw(0, shape.num_experts + 1);
    const std::vector<int32_t> hottest = table.Hottest(layer_idx, history, count);
    std::vector<int32_t> sorted(shape.num_experts);
    std::iota(sorted.begin(), sorted.end(), 0);
    std::stable_sort(sorted.begin(), sorted.end(), [&](int32_t a, int32_t b) { return found[a] > found[b]; });
    sorted.resize(std::min(count, shape.num_experts));
    RC_ASSERT(hottest == sorted);
  }
}

// Figure 8 of the paper: four experts, top-1, path length 1.
TEST(CorrelationTable, AFrequentPathDoesNotDrownTheOthers) {
  CorrelationTable table({.num_layers = 2, .num_experts = 4, .num_topk = 1, .path_length = 1, .model = "m"});
  const auto update = [&](int32_t before, int32_t chosen, int times) {
    for (int i = 0; i < times; ++i) {
      table.Update(1, {.num_rows = 1, .choices = {{std::span(&before, 1)}}}, std::span(&chosen, 1));
    }
  };
  update(0, 3, 900);
  update(0, 2, 100);
  update(1, 1, 3);
  const Choices before = {0, 1, 1};
  const RoutingHistory history{.num_rows = 3, .choices = {{before}}};
  ExpectNear(table.Tendency(1, history), {0, 2, 0.1, 0.9});
  EXPECT_THAT(table.Hottest(1, history, 2), ElementsAre(1, 3));
  // Expert 2 was never followed, so the layer's popularity decides.
  const Choices unknown = {2};
  ExpectNear(table.Tendency(1, {.num_rows = 1, .choices = {{unknown}}}), {0, 3.0 / 1003, 100.0 / 1003, 900.0 / 1003});
}

TEST(CorrelationTable, TiesGoToTheLowerIndexAndAnEmptyTableTendsToNothing) {
  const CorrelationTable table(SmallShape(1));
  const RoutingHistory history{.num_rows = 3, .choices = {}};
  ExpectNear(table.Tendency(2, history), {0, 0, 0, 0, 0, 0});
  EXPECT_THAT(table.Hottest(2, history, 2), ElementsAre(0, 1));
  EXPECT_THAT(table.Hottest(2, history, 100), ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST(CorrelationTable, AFullTableAddsNoPathAndGoesOnCounting) {
  CorrelationTable table({.num_layers = 2, .num_experts = 3, .num_topk = 1, .path_length = 1, .model = "m"}, 1);
  const Choices first = {0}, second = {1}, chosen = {2};
  table.Update(1, {.num_rows = 1, .choices = {{first}}}, chosen);
  EXPECT_EQ(table.num_paths(), 1);
  EXPECT_TRUE(table.full());
  table.Update(1, {.num_rows = 1, .choices = {{second}}}, first);
  table.Update(1, {.num_rows = 1, .choices = {{first}}}, first);
  EXPECT_EQ(table.num_paths(), 1);
  ExpectNear(table.Tendency(1, {.num_rows = 1, .choices = {{first}}}), {0.5, 0, 0.5});
  ExpectNear(table.Tendency(1, {.num_rows = 1, .choices = {{second}}}), {2.0 / 3, 0, 1.0 / 3});
  const absl::Status status = CorrelationTable::Parse(table.Serialize(), "f", table.shape(), 0).status();
  EXPECT_THAT(Message(status), HasSubstr("f: path 1 of 2: paths of length 1 and more: the limit is 0"));
  EXPECT_TRUE(CorrelationTable::Parse(table.Serialize(), "f", table.shape(), 1).ok());
}

// ---- the file

std::string Sealed(std::string bytes) {
  const uint64_t checksum = XXH3_64bits(bytes.data(), bytes.size() - 8);
  std::memcpy(bytes.data() + bytes.size() - 8, &checksum, 8);
  return bytes;
}

TEST(CorrelationTableFile, IsReadBack) {
  for (int64_t path_length = 0; path_length <= kMaxPathLength; ++path_length) {
    const CorrelationTable table = Filled(SmallShape(path_length), 4, 7);
    const std::string path = testing::TempDir() + "/penstock-correlation-" + std::to_string(::getpid());
    ASSERT_TRUE(table.Save(path).ok());
    ASSERT_TRUE(table.Save(path).ok());  // over the file before
    EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));
    const auto loaded = CorrelationTable::Load(path, table.shape());
    std::filesystem::remove(path);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_EQ(loaded->num_paths(), table.num_paths());
    EXPECT_EQ(loaded->Serialize(), table.Serialize());
    std::mt19937 random(8);
    const Pass pass = RandomPass(table.shape(), 5, random);
    for (int64_t layer_idx = 0; layer_idx < table.shape().num_layers; ++layer_idx) {
      const RoutingHistory history = pass.HistoryOf(layer_idx);
      EXPECT_EQ(loaded->Tendency(layer_idx, history), table.Tendency(layer_idx, history));
    }
  }
  EXPECT_EQ(FaultOf(CorrelationTable::Load("/no/such/file", SmallShape(1)).status()), Fault::kIo);
  EXPECT_EQ(FaultOf(CorrelationTable(SmallShape(1)).Save("/no/such/folder/f")), Fault::kIo);
}

TEST(CorrelationTableFile, CutOrFlippedAnywhereIsRefused) {
  const CorrelationTable table = Filled(SmallShape(2), 1, 3);
  const std::string bytes = table.Serialize();
  for (size_t pos = 0; pos < bytes.size(); ++pos) {
    const auto cut = CorrelationTable::Parse(bytes.substr(0, pos), "f", table.shape());
    ASSERT_FALSE(cut.ok()) << pos;
    EXPECT_EQ(FaultOf(cut.status()), Fault::kInput);
    const auto resealed = CorrelationTable::Parse(Sealed(bytes.substr(0, pos + 1) + "checksum"), "f", table.shape());
    EXPECT_EQ(resealed.ok(), pos + 1 == bytes.size() - 8) << pos;
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = bytes;
      flipped[pos] = static_cast<char>(flipped[pos] ^ (1 << bit));
      ASSERT_FALSE(CorrelationTable::Parse(flipped, "f", table.shape()).ok()) << pos;
    }
  }
}

TEST(CorrelationTableFile, AnotherModelOrShapeIsRefusedInALineThatNamesBoth) {
  const CorrelationTable table = Filled(SmallShape(1), 1, 3);
  const auto refuse = [&](auto change) {
    CorrelationShape other = table.shape();
    change(other);
    const absl::Status status = CorrelationTable::Parse(table.Serialize(), "f.table", other).status();
    EXPECT_EQ(FaultOf(status), Fault::kInput);
    EXPECT_THAT(Message(status),
                HasSubstr("f.table: a correlation table of 'tiny' (5 layers of 6 experts, top-2, path length 1)"));
    EXPECT_THAT(Message(status), HasSubstr(fmt::format("expected one of '{}' ({} layers of {} experts, top-{}, path "
                                                       "length {})",
                                                       other.model, other.num_layers, other.num_experts, other.num_topk,
                                                       other.path_length)));
  };
  refuse([](CorrelationShape& shape) { shape.model = "other"; });
  refuse([](CorrelationShape& shape) { shape.num_layers = 6; });
  refuse([](CorrelationShape& shape) { shape.num_experts = 7; });
  refuse([](CorrelationShape& shape) { shape.num_topk = 1; });
  refuse([](CorrelationShape& shape) { shape.path_length = 2; });
}

TEST(CorrelationTableFile, FieldsBeyondTheirBoundsAreNamedThoughTheChecksumIsRight) {
  // 2 layers, 3 experts, top-1: layer 0 chose 0, then layer 1 after 0 chose 1 and, in another row, 2.
  const CorrelationShape shape{.num_layers = 2, .num_experts = 3, .num_topk = 1, .path_length = 1, .model = "m"};
  CorrelationTable table(shape);
  const Choices before = {0, 0}, after = {1, 2};
  table.Update(0, {.num_rows = 2, .choices = {}}, before);
  table.Update(1, {.num_rows = 2, .choices = {{before}}}, after);
  const std::string good = table.Serialize();
  const size_t paths = 23 + 5 * 4 + 1 + 8;  // path 0: layer 0; path 1: layer 1; path 2: layer 1 after expert 0
  const size_t path1 = paths + 6 + 6, path2 = path1 + 6 + 12;
  ASSERT_EQ(good.size(), path2 + 8 + 12 + 8);
  const struct {
    size_t pos;
    std::string field;
    const char* message;
  } cases[] = {
      {23, {"\x01\x04\0\0", 4}, "f: num_layers: expected 1 to 1024, found 1025"},
      {27, std::string(4, '\0'), "f: num_experts: expected 1 to 4096, found 0"},
      {31, {"\x04\0\0\0", 4}, "f: num_topk: expected 1 to 3, found 4"},
      {35, {"\x04\0\0\0", 4}, "f: path_length: expected 0 to 3, found 4"},
      {39, "\xFF\xFF\xFF\xFF", "f: the header is cut short"},
      {43, "\xFF", "expected UTF-8"},
      {44, std::string(8, '\xFF'), "f: path 3 of 18446744073709551615: the bytes end in its middle"},
      {44, {"\x02\0\0\0\0\0\0\0", 8}, "f: after the last of 2 paths: expected nothing, found 20 bytes"},
      {path2, {"\x02\0", 2}, "f: path 2 of 3: layer_idx: expected 0 to 1, found 2"},
      {path2 + 2, {"\x02\0", 2}, "f: path 2 of 3: length: expected 0 to 1, found 2"},
      {paths + 2, {"\x01\0", 2}, "f: path 0 of 3: length: expected 0 to 0, found 1"},
      {path2 + 4, {"\x03\0", 2}, "f: path 2 of 3: expert of the path: expected 0 to 2, found 3"},
      {path1, {"\0\0", 2}, "f: path 1 of 3: expected ascending paths"},
      {path2 + 6, {"\0\0", 2}, "f: path 2 of 3: num_counts: expected 1 to 3, found 0"},
      {path2 + 6, {"\x04\0", 2}, "f: path 2 of 3: num_counts: expected 1 to 3, found 4"},
      {path2 + 6, {"\x03\0", 2}, "f: path 2 of 3: the bytes end in its middle"},
      {path2 + 8, {"\x03\0", 2}, "f: path 2 of 3: expert: expected 0 to 2, found 3"},
      {path2 + 14, {"\x01\0", 2}, "f: path 2 of 3: expert: expected 2 to 2, found 1"},
      {path2 + 10, std::string(4, '\0'), "f: path 2 of 3: count: expected 1 to 4294967295, found 0"},
  };
  for (const auto& row : cases) {
    std::string bytes = good;
    bytes.replace(row.pos, row.field.size(), row.field);
    const absl::Status status = CorrelationTable::Parse(Sealed(bytes), "f", shape).status();
    ASSERT_FALSE(status.ok()) << row.message;
    EXPECT_EQ(FaultOf(status), Fault::kInput);
    EXPECT_THAT(Message(status), HasSubstr(row.message));
  }
  EXPECT_THAT(Message(CorrelationTable::Parse("hello", "f", shape).status()), HasSubstr("f: not a correlation table"));

  // A count at its limit halves its path when it is counted again: 2^32 - 1 and 1 become 2^31 and 0.
  std::string bytes = good;
  bytes.replace(path2 + 10, 4, std::string(4, '\xFF'));
  auto huge = CorrelationTable::Parse(Sealed(bytes), "f", shape).value();
  const Choices one_before = {0}, one_after = {1};
  huge.Update(1, {.num_rows = 1, .choices = {{one_before}}}, one_after);
  ExpectNear(huge.Tendency(1, {.num_rows = 1, .choices = {{one_before}}}), {0, 1, 0});
  std::string expected = good;
  expected.replace(44, 8, {"\x03\0\0\0\0\0\0\0", 8});
  expected.replace(path1 + 8, 4, {"\x02\0\0\0", 4});                                        // layer 1 chose 1 once more
  expected.replace(path2 + 6, expected.size() - path2 - 6, {"\x01\0\x01\0\0\0\0\x80", 8});  // one count: 2^31
  EXPECT_EQ(huge.Serialize(), Sealed(expected + "checksum"));
}

}  // namespace
}  // namespace penstock
