// A file of routings: the experts that each row chose, in each layer of each step. It is recorded while a model runs
// and read back in simulations. It also holds each row's largest scores, and the choices that the gates of the next
// layers would have made. Comparisons of predictors and eviction policies need them.
//
//   file    magic, num_layers u32, num_experts u32, num_topk u32, num_ranked u32, num_ahead u32, tokens, model_bytes
//   u32,
//           model, checksum u64, records, end
//   tokens  version 3 only: vocab_size u32, the model's fingerprint [32]
//   record  step_idx u64, layer_idx u32, num_rows u32, checksum u64,
//           sequence_ids u32 [num_rows], positions u32 [num_rows],
//           version 3, in the first record of a step: token_ids u32 [num_rows],
//           topk_idx u16 [num_rows, num_topk],
//           ranked_idx u16 [num_rows, num_ranked], ranked_scores f32 [num_rows, num_ranked],
//           ahead_idx u16 [num_ahead or as many layers as follow, num_rows, num_topk], checksum u64
//   end     num_records u64, 2^32 - 1 u32, 0 u32, checksum u64
//
// All numbers are little-endian. A checksum is XXH3 of the bytes since the checksum before it, which is its seed. So a
// missing, repeated or moved record is found, too. A file without its end was cut short (the process was killed, the
// disk was full); the records before the cut are whole. Only layers with experts are counted. Records are in ascending
// order of (step_idx, layer_idx), at most one each. A schedule that routes a layer in several micro-batches appends
// them as one record.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "penstock/base/file.h"
#include "penstock/routing/routing_source.h"
#include "penstock/token_id.h"

namespace penstock {

class ByteReader;

inline constexpr std::string_view kRoutingTraceMagic = "penstock routing 2\n";
inline constexpr std::string_view kTokenTraceMagic = "penstock routing 3\n";
inline constexpr size_t kTraceFingerprintBytes = 32;
inline constexpr int64_t kMaxTraceRows = 1 << 17;  // rows of a record; a step has at most kMaxBatchSize + 65536
inline constexpr uint64_t kMaxTraceModelBytes = 512;

struct RoutingTraceHeader {
  std::string model;       // name of the model: UTF-8, 1 to kMaxTraceModelBytes bytes
  int64_t num_layers = 0;  // number of layers with experts
  int64_t num_experts = 0;
  int64_t num_topk = 0;
  int64_t num_ranked = 0;        // experts of each row with recorded scores, at most num_experts; 0: not recorded
  int64_t num_ahead = 0;         // later layers whose gates were tried, 0 to kMaxAhead
  int64_t vocab_size = 0;        // token ids are below it; 0: tokens are not recorded
  std::string fingerprint = {};  // of the model, with tokens; otherwise empty

  bool has_tokens() const { return vocab_size > 0; }
  // Returns the number of later layers whose gates were tried on the hidden state of this layer.
  int64_t AheadOf(int64_t layer_idx) const { return std::min(num_ahead, num_layers - 1 - layer_idx); }
};

// The routing of one layer in one step. Valid as long as the memory that it views.
struct RoutingTraceRows {
  int64_t step_idx = 0;
  int64_t layer_idx = 0;
  std::span<const uint32_t> sequence_ids;     // [num_rows], num_rows > 0
  std::span<const uint32_t> positions;        // [num_rows], each below kMaxContext
  std::span<const int32_t> topk_idx;          // [num_rows, num_topk], a row's experts differ
  std::span<const int32_t> ranked_idx = {};   // [num_rows, num_ranked], a row's experts differ
  std::span<const float> ranked_scores = {};  // [num_rows, num_ranked], 0 to 1
  std::span<const int32_t> ahead_idx = {};    // [AheadOf(layer_idx), num_rows, num_topk], a row's experts differ
  std::span<const TokenId> token_ids = {};    // [num_rows] in a step's first record, with tokens
};

struct RoutingTraceRecord {
  int64_t step_idx = 0;
  int64_t layer_idx = 0;
  std::vector<uint32_t> sequence_ids;  // [num_rows]
  std::vector<uint32_t> positions;     // [num_rows]
  std::vector<int32_t> topk_idx;       // [num_rows, num_topk]
  std::vector<int32_t> ranked_idx = {};
  std::vector<float> ranked_scores = {};
  std::vector<int32_t> ahead_idx = {};
  std::vector<TokenId> token_ids = {};

  int64_t num_rows() const { return static_cast<int64_t>(positions.size()); }
  RoutingTraceRows View() const {
    return {step_idx, layer_idx, sequence_ids, positions, topk_idx, ranked_idx, ranked_scores, ahead_idx, token_ids};
  }
};

// Encodes a trace as bytes. Call Header() once, Record() any number of times, End() once.
class RoutingTraceEncoder {
 public:
  // kInput when a field is beyond its limit.
  absl::Status Header(const RoutingTraceHeader& header, std::string& out);
  // REQUIRES: the ranges in RoutingTraceRows, and a (step_idx, layer_idx) above that of the record before.
  void Record(const RoutingTraceRows& rows, std::string& out);
  void End(std::string& out);

 private:
  void Seal(std::string& out, size_t begin);

  RoutingTraceHeader header_;
  uint64_t checksum_ = 0;  // the last one
  uint64_t num_records_ = 0;
  int64_t last_step_idx_ = -1;
  int64_t last_layer_idx_ = -1;
};

// Writes a trace. Holds at most kBufferBytes and one record in memory. One thread at a time.
class RoutingTraceWriter {
 public:
  static constexpr size_t kBufferBytes = 1 << 20;

  // kIo when the file already exists or cannot be created; kInput when the header is beyond the limits.
  static absl::StatusOr<std::unique_ptr<RoutingTraceWriter>> Create(const std::string& path,
                                                                    const RoutingTraceHeader& header);
  // Without Close(), writes the appended records as far as possible and leaves the file without its end.
  ~RoutingTraceWriter();
  RoutingTraceWriter(const RoutingTraceWriter&) = delete;
  RoutingTraceWriter& operator=(const RoutingTraceWriter&) = delete;

  // REQUIRES: as RoutingTraceEncoder::Record(); Close() has not been called. After a failure every further call fails.
  absl::Status Append(const RoutingTraceRows& rows);
  // Writes the end and syncs the file. REQUIRES: called once.
  absl::Status Close();

 private:
  RoutingTraceWriter(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}
  absl::Status Flush();

  UniqueFd fd_;
  std::string path_;
  RoutingTraceEncoder encoder_;
  std::string buffer_;
  absl::Status status_;
  bool closed_ = false;
};

enum class RoutingTraceEvent {
  kRecord,
  kEnd,  // the whole file was read
  kCut,  // the file ends before its end; cut() says where
};

// Reads a trace record by record, holding one record in memory. The bytes are not trusted. One thread at a time.
class RoutingTraceReader {
 public:
  // kIo when the file cannot be read, kInput when it does not begin with the header of a trace.
  static absl::StatusOr<std::unique_ptr<RoutingTraceReader>> Open(const std::string& path);
  // Reads a trace from bytes, which must outlive the reader; `name` is the file's name in messages.
  static absl::StatusOr<std::unique_ptr<RoutingTraceReader>> OfBytes(std::string_view bytes, std::string name);

  const RoutingTraceHeader& header() const { return header_; }

  // Reads the next record. kInput when the file is damaged; the message gives file, record and field. The records
  // before it are whole. REQUIRES: every earlier call returned kRecord.
  absl::StatusOr<RoutingTraceEvent> Next(RoutingTraceRecord& record);

  // Returns one line that describes the cut. REQUIRES: Next() returned kCut.
  const std::string& cut() const { return cut_; }

 private:
  struct RecordHead {
    uint64_t step_idx;
    uint32_t layer_idx;
    uint32_t num_rows;
  };

  RoutingTraceReader(UniqueFd fd, std::string_view bytes, std::string name)
      : fd_(std::move(fd)), bytes_(bytes), name_(std::move(name)) {}
  // Returns the next `num_bytes`, or as many as are left. Valid until the next call.
  absl::StatusOr<std::string_view> Read(size_t num_bytes);
  absl::Status ReadHeader();
  absl::Status CheckHead(const RecordHead& head) const;
  absl::Status CheckEnd(const RecordHead& head);
  absl::Status ParseRows(std::string_view bytes, RoutingTraceRecord& record);
  // Parses rows of `width` experts each; the experts of a row must differ.
  absl::Status ParseExperts(ByteReader& fields, std::string_view field, size_t width, std::vector<int32_t>& experts);
  absl::Status Unseal(std::string_view sealed, std::string_view field);
  RoutingTraceEvent Cut();
  template <typename Value, typename Found>
  absl::Status Wrong(std::string_view field, const Value& expected, const Found& found) const;

  UniqueFd fd_;             // if not valid, bytes_ are read
  std::string_view bytes_;  // not yet read
  std::string name_;
  std::string buffer_;  // bytes [start_, buffer_.size()) are not yet read
  size_t start_ = 0;
  uint64_t num_read_ = 0;    // bytes returned by Read()
  uint64_t file_bytes_ = 0;  // size of the file
  RoutingTraceHeader header_;
  uint64_t checksum_ = 0;  // the last checksum
  uint64_t num_records_ = 0;
  int64_t last_step_idx_ = -1;
  int64_t last_layer_idx_ = -1;
  bool done_ = false;
  std::vector<uint64_t> last_row_;  // [num_experts]: 1 + the row of this record that chose the expert last; 0: none
  std::string cut_;
};

}  // namespace penstock
