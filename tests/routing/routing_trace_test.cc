// Proves that a trace is read back as it was written, from memory and from a file larger than the buffers. A file cut
// at any byte gives the whole records before the cut and reports it. A file is refused, after the records before the
// fault, if any bit is flipped, or a record is missing, repeated or moved. The same holds for a field beyond its bounds
// behind right checksums. All this holds for traces with tokens (version 3) and without (version 2). An existing file
// is never overwritten.
#include "penstock/routing/routing_trace.h"

#include <algorithm>
#include <cstring>
#include <filesystem>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>
#include <unistd.h>
#include <xxhash.h>

#include "penstock/base/limits.h"
#include "penstock/base/status.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;

constexpr size_t kHeaderFixed = 43;  // bytes before the model's name
constexpr size_t kHeadBytes = 24;

bool Same(const RoutingTraceRecord& a, const RoutingTraceRecord& b) {
  return a.step_idx == b.step_idx && a.layer_idx == b.layer_idx && a.sequence_ids == b.sequence_ids &&
         a.positions == b.positions && a.topk_idx == b.topk_idx && a.ranked_idx == b.ranked_idx &&
         a.ranked_scores == b.ranked_scores && a.ahead_idx == b.ahead_idx && a.token_ids == b.token_ids;
}

RoutingTraceRecord MakeRecord(const RoutingTraceHeader& header, int64_t step_idx, int64_t layer_idx, int64_t num_rows) {
  RoutingTraceRecord record{
      .step_idx = step_idx, .layer_idx = layer_idx, .sequence_ids = {}, .positions = {}, .topk_idx = {}};
  for (int64_t row_idx = 0; row_idx < num_rows; ++row_idx) {
    record.sequence_ids.push_back(static_cast<uint32_t>(row_idx * 1000003));
    record.positions.push_back(static_cast<uint32_t>((row_idx * 7919 + step_idx) % kMaxContext));
    if (header.has_tokens() && layer_idx == 0) {
      record.token_ids.push_back(static_cast<TokenId>((row_idx * 31 + step_idx) % header.vocab_size));
    }
    for (int64_t rank = 0; rank < header.num_topk; ++rank) {
      record.topk_idx.push_back(static_cast<int32_t>((row_idx * 5 + layer_idx + rank) % header.num_experts));
    }
    for (int64_t rank = 0; rank < header.num_ranked; ++rank) {
      record.ranked_idx.push_back(static_cast<int32_t>((row_idx * 3 + layer_idx + rank) % header.num_experts));
      record.ranked_scores.push_back(1.0f / static_cast<float>(1 + rank + row_idx));
    }
    for (int64_t i = 0; i < header.AheadOf(layer_idx) * header.num_topk; ++i) {
      record.ahead_idx.push_back(static_cast<int32_t>((row_idx * 7 + i) % header.num_experts));
    }
  }
  return record;
}

std::string Encode(const RoutingTraceHeader& header, const std::vector<RoutingTraceRecord>& records) {
  RoutingTraceEncoder encoder;
  std::string bytes;
  EXPECT_TRUE(encoder.Header(header, bytes).ok());
  for (const RoutingTraceRecord& record : records) encoder.Record(record.View(), bytes);
  encoder.End(bytes);
  return bytes;
}

struct Outcome {
  absl::Status status;  // result of opening or of the last record
  RoutingTraceEvent event = RoutingTraceEvent::kRecord;
  std::string cut;
  std::vector<RoutingTraceRecord> records;
};

Outcome ReadAll(absl::StatusOr<std::unique_ptr<RoutingTraceReader>> reader) {
  Outcome outcome;
  outcome.status = reader.status();
  while (outcome.status.ok() && outcome.event == RoutingTraceEvent::kRecord) {
    RoutingTraceRecord record;
    const auto event = (*reader)->Next(record);
    outcome.status = event.status();
    if (!event.ok()) break;
    outcome.event = *event;
    if (*event == RoutingTraceEvent::kRecord) outcome.records.push_back(record);
    if (*event == RoutingTraceEvent::kCut) outcome.cut = (*reader)->cut();
  }
  return outcome;
}

Outcome ReadAll(const std::string& bytes) { return ReadAll(RoutingTraceReader::OfBytes(bytes, "trace")); }

void ExpectPrefix(const Outcome& outcome, const std::vector<RoutingTraceRecord>& records) {
  ASSERT_LE(outcome.records.size(), records.size());
  for (size_t i = 0; i < outcome.records.size(); ++i) EXPECT_TRUE(Same(outcome.records[i], records[i])) << i;
}

class RoutingTraceTest : public testing::Test {
 protected:
  RoutingTraceTest() {
    for (int64_t step_idx = 0; step_idx < 2; ++step_idx) {
      for (int64_t layer_idx = 0; layer_idx < header_.num_layers; ++layer_idx) {
        records_.push_back(MakeRecord(header_, step_idx, layer_idx, 1 + step_idx + layer_idx));
      }
    }
    bytes_ = Encode(header_, records_);
    size_t end = kHeaderFixed + header_.model.size() + 8;
    ends_.push_back(end);
    for (const RoutingTraceRecord& record : records_) {
      end += kHeadBytes + static_cast<size_t>(record.num_rows() * RowBytes(record.layer_idx)) + 8;
      ends_.push_back(end);
    }
    path_ = testing::TempDir() + "/penstock-routing-trace-" + std::to_string(::getpid());
    std::filesystem::remove(path_);
  }
  ~RoutingTraceTest() override { std::filesystem::remove(path_); }

  // Returns `bytes` with every checksum corrected, as far as the record heads make sense.
  std::string Sealed(std::string bytes) const {
    uint64_t checksum = 0;
    size_t begin = 0;
    const auto seal = [&](size_t num_bytes) {
      if (begin + num_bytes + 8 > bytes.size()) return false;
      checksum = XXH3_64bits_withSeed(bytes.data() + begin, num_bytes, checksum);
      std::memcpy(bytes.data() + begin + num_bytes, &checksum, 8);
      begin += num_bytes + 8;
      return true;
    };
    uint32_t model_bytes;
    std::memcpy(&model_bytes, bytes.data() + kHeaderFixed - 4, 4);
    if (!seal(kHeaderFixed + model_bytes)) return bytes;
    while (seal(16)) {
      uint32_t layer_idx, num_rows;
      std::memcpy(&layer_idx, bytes.data() + begin - 16, 4);
      std::memcpy(&num_rows, bytes.data() + begin - 12, 4);
      if (num_rows == 0 || layer_idx >= header_.num_layers) break;
      if (!seal(num_rows * static_cast<size_t>(RowBytes(layer_idx)))) break;
    }
    return bytes;
  }

  int64_t RowBytes(int64_t layer_idx) const {
    return 8 + 6 * header_.num_ranked + 2 * header_.num_topk * (1 + header_.AheadOf(layer_idx));
  }

  const RoutingTraceHeader header_{
      .model = "tiny-moe", .num_layers = 3, .num_experts = 6, .num_topk = 2, .num_ranked = 3, .num_ahead = 2};
  std::vector<RoutingTraceRecord> records_;
  std::string bytes_;
  std::vector<size_t> ends_;  // ends of the header and of each record
  std::string path_;
};

TEST_F(RoutingTraceTest, IsReadBack) {
  ASSERT_EQ(bytes_.size(), ends_.back() + kHeadBytes);
  const auto reader = RoutingTraceReader::OfBytes(bytes_, "trace");
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ((*reader)->header().model, header_.model);
  EXPECT_EQ((*reader)->header().num_layers, header_.num_layers);
  EXPECT_EQ((*reader)->header().num_experts, header_.num_experts);
  EXPECT_EQ((*reader)->header().num_topk, header_.num_topk);
  EXPECT_EQ((*reader)->header().num_ranked, header_.num_ranked);
  EXPECT_EQ((*reader)->header().num_ahead, header_.num_ahead);
  const Outcome outcome = ReadAll(bytes_);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_EQ(outcome.event, RoutingTraceEvent::kEnd);
  ASSERT_EQ(outcome.records.size(), records_.size());
  ExpectPrefix(outcome, records_);
}

// Draws from the whole range from the first case on; rc::gen::inRange alone begins near `least`.
int64_t DrawNumber(int64_t min, int64_t max) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange<int64_t>(min, max + 1));
}

RC_GTEST_PROP(RoutingTrace, AnyTraceIsReadBack, ()) {
  RoutingTraceHeader header;
  header.num_layers = DrawNumber(1, kMaxLayers);
  header.num_experts = DrawNumber(1, kMaxExperts);
  header.num_topk = DrawNumber(1, std::min(kMaxTopk, header.num_experts));
  header.num_ranked = DrawNumber(0, std::min<int64_t>(100, header.num_experts));
  header.num_ahead = DrawNumber(0, kMaxAhead);
  header.model = std::string(DrawNumber(1, kMaxTraceModelBytes), 'm');
  if (DrawNumber(0, 1) == 1) {
    header.vocab_size = DrawNumber(1, kMaxVocabSize);
    header.fingerprint = std::string(kTraceFingerprintBytes, 'f');
  }
  std::vector<RoutingTraceRecord> records;
  int64_t step_idx = 0;
  const int64_t num_records = DrawNumber(0, 4);
  for (int64_t i = 0; i < num_records; ++i) {
    step_idx += DrawNumber(1, int64_t{1} << 60);
    records.push_back(MakeRecord(header, step_idx, DrawNumber(0, header.num_layers - 1), DrawNumber(1, 40)));
  }
  const Outcome outcome = ReadAll(Encode(header, records));
  RC_ASSERT(outcome.status.ok() && outcome.event == RoutingTraceEvent::kEnd);
  RC_ASSERT(outcome.records.size() == records.size());
  for (size_t i = 0; i < records.size(); ++i) RC_ASSERT(Same(outcome.records[i], records[i]));
}

TEST_F(RoutingTraceTest, ACutIsToldAndWhatIsBeforeItIsWhole) {
  for (size_t size = 0; size < bytes_.size(); ++size) {
    const Outcome outcome = ReadAll(bytes_.substr(0, size));
    if (size < ends_[0]) {
      EXPECT_FALSE(outcome.status.ok()) << size;
      EXPECT_EQ(FaultOf(outcome.status), Fault::kInput);
      continue;
    }
    ASSERT_TRUE(outcome.status.ok()) << size << ": " << outcome.status;
    EXPECT_EQ(outcome.event, RoutingTraceEvent::kCut) << size;
    const auto whole = std::upper_bound(ends_.begin(), ends_.end(), size) - ends_.begin() - 1;
    ASSERT_EQ(outcome.records.size(), static_cast<size_t>(whole)) << size;
    ExpectPrefix(outcome, records_);
    EXPECT_THAT(outcome.cut, HasSubstr(fmt::format("at byte {} after {} whole records", size, whole)));
  }
}

TEST_F(RoutingTraceTest, AFlippedBitIsFound) {
  for (size_t pos = 0; pos < bytes_.size(); ++pos) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = bytes_;
      flipped[pos] = static_cast<char>(flipped[pos] ^ (1 << bit));
      const Outcome outcome = ReadAll(flipped);
      ASSERT_FALSE(outcome.status.ok()) << pos << " " << bit;
      EXPECT_EQ(FaultOf(outcome.status), Fault::kInput);
      const auto whole = std::upper_bound(ends_.begin(), ends_.end(), pos) - ends_.begin();
      EXPECT_EQ(outcome.records.size(), static_cast<size_t>(std::max<int64_t>(0, whole - 1))) << pos;
      ExpectPrefix(outcome, records_);
    }
  }
}

TEST_F(RoutingTraceTest, ARecordMissingRepeatedOrMovedIsFound) {
  const auto piece = [&](size_t i) { return bytes_.substr(ends_[i], ends_[i + 1] - ends_[i]); };
  std::string missing = bytes_, repeated = bytes_, moved = bytes_;
  missing.erase(ends_[1], ends_[2] - ends_[1]);
  repeated.insert(ends_[2], piece(1));
  moved.replace(ends_[1], ends_[3] - ends_[1], piece(2) + piece(1));
  for (const std::string& bytes : {missing, repeated, moved, bytes_ + "x"}) {
    const Outcome outcome = ReadAll(bytes);
    EXPECT_FALSE(outcome.status.ok());
    ExpectPrefix(outcome, records_);
  }
}

TEST_F(RoutingTraceTest, FieldsBeyondTheirBoundsAreNamedThoughChecksumsAreRight) {
  ASSERT_EQ(Sealed(bytes_), bytes_);
  const size_t head = ends_[1];  // start of record 1, which has 2 rows
  const size_t rows =
      head + kHeadBytes;  // sequence ids, positions, topk_idx (16), ranked_idx (24), _scores (36), ahead (60)
  const size_t end = ends_.back();
  const struct {
    size_t pos;
    std::string field;
    const char* message;
  } cases[] = {
      {19, std::string(4, '\0'), "num_layers: expected 1 to 1024, found 0"},
      {19, "\xFF\xFF\xFF\xFF", "num_layers: expected 1 to 1024, found 4294967295"},
      {23, {"\x01\x10\0\0", 4}, "num_experts: expected 1 to 4096, found 4097"},
      {27, {"\x07\0\0\0", 4}, "num_topk: expected 1 to 6, found 7"},
      {31, {"\x07\0\0\0", 4}, "num_ranked: expected 0 to 6, found 7"},
      {35, {"\x04\0\0\0", 4}, "num_ahead: expected 0 to 3, found 4"},
      {39, std::string(4, '\0'), "bytes of the model's name: expected 1 to 512, found 0"},
      {39, "\xFF\xFF\xFF\xFF", "bytes of the model's name: expected 1 to 512, found 4294967295"},
      {kHeaderFixed, "\xFF", "expected UTF-8"},
      {head, std::string(8, '\xFF'), "trace: record 1: step_idx: expected less than 2^63, found 18446744073709551615"},
      {head + 8, {"\x03\0\0\0", 4}, "record 1: layer_idx: expected 0 to 2, found 3"},
      {head + 8, std::string(4, '\0'), "record 1: step_idx and layer_idx: expected more than 0 and 0, found 0 and 0"},
      {head + 12, std::string(4, '\0'), "record 1: num_rows: expected 1 to 131072, found 0"},
      {head + 12, {"\x01\x00\x02\x00", 4}, "record 1: num_rows: expected 1 to 131072, found 131073"},
      {rows + 12, {"\0\0\0\x01", 4}, "record 1: position: expected 0 to 16777215, found 16777216"},
      {rows + 18, {"\x06\0", 2}, "record 1: topk_idx: expected 0 to 5, found 6"},
      {rows + 18, bytes_.substr(rows + 16, 2), "topk_idx: expected different experts in a row"},
      {rows + 28, bytes_.substr(rows + 24, 2), "ranked_idx: expected different experts in a row"},
      {rows + 36, {"\0\0\0\x40", 4}, "ranked_scores: expected 0 to 1, found 2"},
      {rows + 40, {"\0\0\xC0\x7F", 4}, "ranked_scores: expected 0 to 1, found nan"},
      {rows + 60, {"\x06\0", 2}, "ahead_idx: expected 0 to 5, found 6"},
      {end, {"\x05\0\0\0\0\0\0\0", 8}, "record 6: number of records in the end: expected 6, found 5"},
      {end + 12, {"\x01\0\0\0", 4}, "record 6: num_rows of the end: expected 0, found 1"},
  };
  for (const auto& row : cases) {
    std::string bytes = bytes_;
    bytes.replace(row.pos, row.field.size(), row.field);
    const Outcome outcome = ReadAll(Sealed(bytes));
    ASSERT_FALSE(outcome.status.ok()) << row.message;
    EXPECT_EQ(FaultOf(outcome.status), Fault::kInput);
    EXPECT_THAT(Message(outcome.status), HasSubstr(row.message));
    EXPECT_THAT(Message(outcome.status), HasSubstr("trace: "));
  }
  EXPECT_THAT(Message(ReadAll("not a trace").status), HasSubstr("trace: not a routing trace of this version"));
}

// A trace with tokens: its header is 36 bytes longer, and records of layer 0 have 4 bytes more for each row.
class TokenTraceTest : public testing::Test {
 protected:
  TokenTraceTest() {
    for (int64_t step_idx = 0; step_idx < 2; ++step_idx) {
      for (int64_t layer_idx = 0; layer_idx < 2; ++layer_idx) {
        records_.push_back(MakeRecord(header_, step_idx, layer_idx, 2));
      }
    }
    bytes_ = Encode(header_, records_);
  }

  const RoutingTraceHeader header_{.model = "m",
                                   .num_layers = 2,
                                   .num_experts = 6,
                                   .num_topk = 2,
                                   .num_ranked = 3,
                                   .num_ahead = 1,
                                   .vocab_size = 50,
                                   .fingerprint = "0123456789abcdef0123456789abcdef"};
  static constexpr size_t kFirst = kHeaderFixed + 36 + 1 + 8;  // where the first record begins
  std::vector<RoutingTraceRecord> records_;
  std::string bytes_;
};

TEST_F(TokenTraceTest, IsReadBack) {
  EXPECT_TRUE(bytes_.starts_with(kTokenTraceMagic));
  RoutingTraceHeader without = header_;
  without.vocab_size = 0;
  without.fingerprint.clear();
  std::vector<RoutingTraceRecord> plain = records_;
  for (RoutingTraceRecord& record : plain) record.token_ids.clear();
  const std::string version2 = Encode(without, plain);
  EXPECT_TRUE(version2.starts_with(kRoutingTraceMagic));
  EXPECT_EQ(bytes_.size(), version2.size() + 36 + 4 * 4);
  ASSERT_EQ(ReadAll(version2).records.size(), records_.size());
  const auto reader = RoutingTraceReader::OfBytes(bytes_, "trace").value();
  EXPECT_EQ(reader->header().vocab_size, 50);
  EXPECT_EQ(reader->header().fingerprint, header_.fingerprint);
  const Outcome outcome = ReadAll(bytes_);
  EXPECT_EQ(outcome.event, RoutingTraceEvent::kEnd);
  ASSERT_EQ(outcome.records.size(), records_.size());
  ExpectPrefix(outcome, records_);
  EXPECT_EQ(outcome.records[0].token_ids.size(), 2u);
  EXPECT_TRUE(outcome.records[1].token_ids.empty());
}

TEST_F(TokenTraceTest, CutsAndFlippedBitsAreFound) {
  for (size_t size = 0; size < bytes_.size(); ++size) {
    const Outcome outcome = ReadAll(bytes_.substr(0, size));
    EXPECT_EQ(outcome.status.ok(), size >= kFirst) << size;
    ExpectPrefix(outcome, records_);
    std::string flipped = bytes_;
    flipped[size] = static_cast<char>(flipped[size] ^ (1 << size % 8));
    const Outcome of_flipped = ReadAll(flipped);
    ASSERT_FALSE(of_flipped.status.ok()) << size;
    EXPECT_EQ(FaultOf(of_flipped.status), Fault::kInput);
    ExpectPrefix(of_flipped, records_);
  }
}

TEST_F(TokenTraceTest, FieldsBeyondTheirBoundsAreNamed) {
  const struct {
    size_t pos;
    std::string field;
    const char* message;
  } cases[] = {
      {39, std::string(4, '\0'), "vocab_size: expected 1 or more, found 0"},
      {39, "\xFF\xFF\xFF\xFF", "vocab_size: expected 0 to 2097152, found 4294967295"},
      {43, "X", "fingerprint: expected 32 hexadecimal digits, found 'X123"},
      {75, "\xFF\xFF\xFF\xFF", "bytes of the model's name: expected 1 to 512, found 4294967295"},
      {kFirst + kHeadBytes + 16, {"\x32\0\0\0", 4}, "record 0: token_ids: expected 0 to 49, found 50"},
  };
  for (const auto& row : cases) {
    std::string bytes = bytes_;
    bytes.replace(row.pos, row.field.size(), row.field);
    // Corrects the checksums of the header and of the first record.
    uint64_t checksum = 0;
    size_t begin = 0;
    for (const size_t size : {kFirst - 8, size_t{16}, size_t{2 * (12 + 2 * 2 * 2 + 6 * 3)}}) {
      checksum = XXH3_64bits_withSeed(bytes.data() + begin, size, checksum);
      std::memcpy(bytes.data() + begin + size, &checksum, 8);
      begin += size + 8;
    }
    const Outcome outcome = ReadAll(bytes);
    ASSERT_FALSE(outcome.status.ok()) << row.message;
    EXPECT_THAT(Message(outcome.status), HasSubstr(row.message));
  }
  RoutingTraceHeader wrong = header_;
  wrong.fingerprint.clear();
  std::string bytes;
  EXPECT_EQ(FaultOf(RoutingTraceEncoder().Header(wrong, bytes)), Fault::kInput);
}

TEST_F(RoutingTraceTest, AFileLargerThanTheBuffersIsReadBack) {
  const RoutingTraceHeader header{.model = "m", .num_layers = 2, .num_experts = 4096, .num_topk = 64};
  std::vector<RoutingTraceRecord> records;
  for (const int64_t num_rows : {1, 300, 9000, 2, 4000, 1}) {
    records.push_back(MakeRecord(header, static_cast<int64_t>(records.size()), 1, num_rows));
  }
  {
    auto writer = RoutingTraceWriter::Create(path_, header).value();
    for (const RoutingTraceRecord& record : records) ASSERT_TRUE(writer->Append(record.View()).ok());
    ASSERT_TRUE(writer->Close().ok());
  }
  const Outcome outcome = ReadAll(RoutingTraceReader::Open(path_));
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_EQ(outcome.event, RoutingTraceEvent::kEnd);
  EXPECT_EQ(outcome.records.size(), records.size());
  ExpectPrefix(outcome, records);
  EXPECT_EQ(std::filesystem::file_size(path_), Encode(header, records).size());
}

TEST_F(RoutingTraceTest, AWriterThatIsNotClosedLeavesACutFile) {
  {
    auto writer = RoutingTraceWriter::Create(path_, header_).value();
    for (const RoutingTraceRecord& record : records_) ASSERT_TRUE(writer->Append(record.View()).ok());
  }
  const Outcome outcome = ReadAll(RoutingTraceReader::Open(path_));
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_EQ(outcome.event, RoutingTraceEvent::kCut);
  EXPECT_EQ(outcome.records.size(), records_.size());
  EXPECT_THAT(outcome.cut, HasSubstr(path_));
}

TEST_F(RoutingTraceTest, WhatCannotBeMadeOrOpenedIsRefused) {
  RoutingTraceHeader wrong = header_;
  wrong.num_topk = 7;
  EXPECT_EQ(FaultOf(RoutingTraceWriter::Create(path_, wrong).status()), Fault::kInput);
  EXPECT_FALSE(std::filesystem::exists(path_));
  ASSERT_TRUE(RoutingTraceWriter::Create(path_, header_).ok());
  const absl::Status again = RoutingTraceWriter::Create(path_, header_).status();
  EXPECT_EQ(FaultOf(again), Fault::kIo);
  EXPECT_THAT(Message(again), HasSubstr("exists already"));
  EXPECT_EQ(FaultOf(RoutingTraceWriter::Create("/no/such/folder/x", header_).status()), Fault::kIo);
  EXPECT_EQ(FaultOf(RoutingTraceReader::Open("/no/such/file").status()), Fault::kIo);
  EXPECT_EQ(FaultOf(RoutingTraceReader::Open(testing::TempDir()).status()), Fault::kIo);
}

TEST_F(RoutingTraceTest, AFullDiskIsTold) {
  // The writer's descriptor is replaced by one of /dev/full, which takes no byte.
  if (::access("/proc/self/fd", R_OK) != 0) GTEST_SKIP() << "needs /proc";
  auto writer = RoutingTraceWriter::Create(path_, header_).value();
  for (int fd = 3; fd < 256; ++fd) {
    std::error_code error;
    if (std::filesystem::read_symlink(fmt::format("/proc/self/fd/{}", fd), error) !=
        std::filesystem::canonical(path_)) {
      continue;
    }
    const int full = ::open("/dev/full", O_WRONLY | O_CLOEXEC);
    ASSERT_GE(full, 0);
    ASSERT_EQ(::dup2(full, fd), fd);
    ::close(full);
  }
  ASSERT_TRUE(writer->Append(records_[0].View()).ok());  // stays in the buffer
  const absl::Status status = writer->Close();
  EXPECT_EQ(FaultOf(status), Fault::kIo);
  EXPECT_THAT(Message(status), HasSubstr(path_));
}

}  // namespace
}  // namespace penstock
