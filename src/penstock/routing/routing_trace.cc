#include "penstock/routing/routing_trace.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <limits>
#include <tuple>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "penstock/base/check.h"
#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/routing/byte_fields.h"

namespace penstock {
namespace {

constexpr uint32_t kEndLayer = std::numeric_limits<uint32_t>::max();
constexpr size_t kNumbersBytes = kRoutingTraceMagic.size() + 5 * sizeof(uint32_t);  // the beginning of every header
constexpr size_t kTokenFieldsBytes = sizeof(uint32_t) + kTraceFingerprintBytes;     // what version 3 adds
static_assert(kRoutingTraceMagic.size() == kTokenTraceMagic.size());
constexpr size_t kHeadBytes = 16;
constexpr size_t kReadBytes = 1 << 16;
static_assert(kMaxExperts - 1 <= std::numeric_limits<uint16_t>::max());
static_assert(kMaxLayers < kEndLayer && kMaxContext <= int64_t{1} << 32);

size_t RowsBytes(const RoutingTraceHeader& header, int64_t layer_idx, size_t num_rows, bool has_tokens) {
  const size_t num_experts = header.num_topk * (1 + header.AheadOf(layer_idx)) + header.num_ranked;
  const size_t num_numbers = has_tokens ? 3 : 2;
  return num_rows * (num_numbers * sizeof(uint32_t) + num_experts * sizeof(uint16_t) +
                     static_cast<size_t>(header.num_ranked) * sizeof(float));
}

absl::Status CheckHeader(const RoutingTraceHeader& header) {
  PENSTOCK_RETURN_IF_ERROR(CheckField("num_layers", header.num_layers, 1, kMaxLayers));
  PENSTOCK_RETURN_IF_ERROR(CheckField("num_experts", header.num_experts, 1, kMaxExperts));
  PENSTOCK_RETURN_IF_ERROR(CheckField("num_topk", header.num_topk, 1, std::min<int64_t>(kMaxTopk, header.num_experts)));
  PENSTOCK_RETURN_IF_ERROR(CheckField("num_ranked", header.num_ranked, 0, header.num_experts));
  PENSTOCK_RETURN_IF_ERROR(CheckField("num_ahead", header.num_ahead, 0, kMaxAhead));
  PENSTOCK_RETURN_IF_ERROR(CheckField("bytes of the model's name", static_cast<int64_t>(header.model.size()), 1,
                                      static_cast<int64_t>(kMaxTraceModelBytes)));
  if (!IsUtf8(header.model)) return InputError("the model's name: expected UTF-8, found '{}'", Excerpt(header.model));
  PENSTOCK_RETURN_IF_ERROR(CheckField("vocab_size", header.vocab_size, 0, kMaxVocabSize));
  const std::string& digits = header.fingerprint;
  if (digits.size() != (header.has_tokens() ? kTraceFingerprintBytes : 0) ||
      digits.find_first_not_of("0123456789abcdef") != std::string::npos) {
    return InputError("fingerprint: expected {} hexadecimal digits, found '{}'", kTraceFingerprintBytes,
                      Excerpt(digits));
  }
  return absl::OkStatus();
}

}  // namespace

// ---- writing

void RoutingTraceEncoder::Seal(std::string& out, size_t begin) {
  checksum_ = XXH3_64bits_withSeed(out.data() + begin, out.size() - begin, checksum_);
  AppendField(out, checksum_);
}

absl::Status RoutingTraceEncoder::Header(const RoutingTraceHeader& header, std::string& out) {
  PENSTOCK_RETURN_IF_ERROR(CheckHeader(header));
  header_ = header;
  const size_t begin = out.size();
  out.append(header.has_tokens() ? kTokenTraceMagic : kRoutingTraceMagic);
  AppendField(out, static_cast<uint32_t>(header.num_layers));
  AppendField(out, static_cast<uint32_t>(header.num_experts));
  AppendField(out, static_cast<uint32_t>(header.num_topk));
  AppendField(out, static_cast<uint32_t>(header.num_ranked));
  AppendField(out, static_cast<uint32_t>(header.num_ahead));
  if (header.has_tokens()) {
    AppendField(out, static_cast<uint32_t>(header.vocab_size));
    out.append(header.fingerprint);
  }
  AppendField(out, static_cast<uint32_t>(header.model.size()));
  out.append(header.model);
  Seal(out, begin);
  return absl::OkStatus();
}

void RoutingTraceEncoder::Record(const RoutingTraceRows& rows, std::string& out) {
  const size_t num_rows = rows.positions.size();
  PENSTOCK_CHECK(num_rows > 0 && num_rows <= static_cast<size_t>(kMaxTraceRows));
  PENSTOCK_CHECK(rows.sequence_ids.size() == num_rows);
  PENSTOCK_CHECK(rows.topk_idx.size() == num_rows * static_cast<size_t>(header_.num_topk));
  PENSTOCK_CHECK(rows.ranked_idx.size() == num_rows * static_cast<size_t>(header_.num_ranked));
  PENSTOCK_CHECK(rows.ranked_scores.size() == rows.ranked_idx.size());
  PENSTOCK_CHECK(rows.ahead_idx.size() ==
                 num_rows * static_cast<size_t>(header_.num_topk * header_.AheadOf(rows.layer_idx)));
  const bool has_tokens = header_.has_tokens() && rows.step_idx != last_step_idx_;
  PENSTOCK_CHECK(rows.token_ids.size() == (has_tokens ? num_rows : 0));
  PENSTOCK_CHECK(rows.step_idx >= 0 && rows.layer_idx >= 0 && rows.layer_idx < header_.num_layers);
  PENSTOCK_CHECK(std::tie(rows.step_idx, rows.layer_idx) > std::tie(last_step_idx_, last_layer_idx_));
  last_step_idx_ = rows.step_idx;
  last_layer_idx_ = rows.layer_idx;
  ++num_records_;

  const size_t head_begin = out.size();
  AppendField(out, static_cast<uint64_t>(rows.step_idx));
  AppendField(out, static_cast<uint32_t>(rows.layer_idx));
  AppendField(out, static_cast<uint32_t>(num_rows));
  Seal(out, head_begin);
  const size_t rows_begin = out.size();
  for (const uint32_t sequence_id : rows.sequence_ids) AppendField(out, sequence_id);
  for (const uint32_t pos : rows.positions) {
    PENSTOCK_CHECK(pos < kMaxContext);
    AppendField(out, pos);
  }
  for (const TokenId token_id : rows.token_ids) {
    PENSTOCK_CHECK(token_id >= 0 && token_id < header_.vocab_size);
    AppendField(out, static_cast<uint32_t>(token_id));
  }
  const auto append_experts = [&](std::span<const int32_t> experts) {
    for (const int32_t expert_idx : experts) {
      PENSTOCK_CHECK(expert_idx >= 0 && expert_idx < header_.num_experts);
      AppendField(out, static_cast<uint16_t>(expert_idx));
    }
  };
  append_experts(rows.topk_idx);
  append_experts(rows.ranked_idx);
  for (const float score : rows.ranked_scores) {
    PENSTOCK_CHECK(score >= 0 && score <= 1);
    AppendField(out, std::bit_cast<uint32_t>(score));
  }
  append_experts(rows.ahead_idx);
  Seal(out, rows_begin);
}

void RoutingTraceEncoder::End(std::string& out) {
  const size_t begin = out.size();
  AppendField(out, num_records_);
  AppendField(out, kEndLayer);
  AppendField(out, uint32_t{0});
  Seal(out, begin);
}

absl::StatusOr<std::unique_ptr<RoutingTraceWriter>> RoutingTraceWriter::Create(const std::string& path,
                                                                               const RoutingTraceHeader& header) {
  PENSTOCK_RETURN_IF_ERROR(Annotate(CheckHeader(header), path));  // before the file is created
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!fd.valid() && errno == EEXIST) {
    return IoError("{}: the file exists already: remove it, or record into another", path);
  }
  if (!fd.valid()) return IoError("{}: cannot create: {}", path, ErrnoText(errno));
  auto writer = std::unique_ptr<RoutingTraceWriter>(new RoutingTraceWriter(std::move(fd), path));
  PENSTOCK_RETURN_IF_ERROR(writer->encoder_.Header(header, writer->buffer_));
  PENSTOCK_RETURN_IF_ERROR(writer->Flush());
  return writer;
}

RoutingTraceWriter::~RoutingTraceWriter() {
  if (!closed_) (void)Flush();
}

absl::Status RoutingTraceWriter::Flush() {
  if (!status_.ok()) return status_;
  status_ = WriteFully(fd_.get(), buffer_, path_);
  buffer_.clear();
  return status_;
}

absl::Status RoutingTraceWriter::Append(const RoutingTraceRows& rows) {
  PENSTOCK_CHECK(!closed_);
  PENSTOCK_RETURN_IF_ERROR(status_);
  encoder_.Record(rows, buffer_);
  return buffer_.size() < kBufferBytes ? absl::OkStatus() : Flush();
}

absl::Status RoutingTraceWriter::Close() {
  PENSTOCK_CHECK(!closed_);
  closed_ = true;
  PENSTOCK_RETURN_IF_ERROR(status_);
  encoder_.End(buffer_);
  PENSTOCK_RETURN_IF_ERROR(Flush());
  if (::fsync(fd_.get()) != 0) return IoError("{}: cannot sync: {}", path_, ErrnoText(errno));
  return absl::OkStatus();
}

// ---- reading

absl::StatusOr<std::unique_ptr<RoutingTraceReader>> RoutingTraceReader::Open(const std::string& path) {
  // O_NONBLOCK: opening a FIFO must not hang.
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return IoError("{}: cannot open: {}", path, ErrnoText(errno));
  struct stat info = {};
  if (::fstat(fd.get(), &info) != 0) return IoError("{}: cannot stat: {}", path, ErrnoText(errno));
  if (!S_ISREG(info.st_mode)) return IoError("{}: expected a regular file", path);
  auto reader = std::unique_ptr<RoutingTraceReader>(new RoutingTraceReader(std::move(fd), {}, path));
  reader->file_bytes_ = static_cast<uint64_t>(info.st_size);
  PENSTOCK_RETURN_IF_ERROR(reader->ReadHeader());
  return reader;
}

absl::StatusOr<std::unique_ptr<RoutingTraceReader>> RoutingTraceReader::OfBytes(std::string_view bytes,
                                                                                std::string name) {
  auto reader = std::unique_ptr<RoutingTraceReader>(new RoutingTraceReader(UniqueFd(), bytes, std::move(name)));
  PENSTOCK_RETURN_IF_ERROR(reader->ReadHeader());
  return reader;
}

absl::StatusOr<std::string_view> RoutingTraceReader::Read(size_t num_bytes) {
  std::string_view piece;
  if (!fd_.valid()) {
    piece = bytes_.substr(0, num_bytes);
    bytes_.remove_prefix(piece.size());
  } else {
    if (buffer_.size() - start_ < num_bytes) {
      buffer_.erase(0, start_);
      start_ = 0;
      size_t filled = buffer_.size();
      buffer_.resize(std::max(num_bytes, kReadBytes));
      while (filled < num_bytes) {
        const ssize_t n = ::read(fd_.get(), buffer_.data() + filled, buffer_.size() - filled);
        if (n == 0) break;
        if (n > 0) filled += n;
        if (n < 0 && errno != EINTR) return IoError("{}: cannot read: {}", name_, ErrnoText(errno));
      }
      buffer_.resize(filled);
    }
    piece = std::string_view(buffer_).substr(start_, num_bytes);
    start_ += piece.size();
  }
  num_read_ += piece.size();
  return piece;
}

template <typename Value, typename Found>
absl::Status RoutingTraceReader::Wrong(std::string_view field, const Value& expected, const Found& found) const {
  return InputError("{}: record {}: {}: expected {}, found {}", name_, num_records_, field, expected, found);
}

// `sealed` ends with its checksum.
absl::Status RoutingTraceReader::Unseal(std::string_view sealed, std::string_view field) {
  const std::string_view content = sealed.substr(0, sealed.size() - kChecksumBytes);
  const uint64_t stored = ByteReader(sealed.substr(content.size())).Take<uint64_t>();
  const uint64_t computed = XXH3_64bits_withSeed(content.data(), content.size(), checksum_);
  if (stored != computed) {
    return Wrong(field, fmt::format("{:016x}", stored),
                 fmt::format("{:016x}: the file is damaged, the records before are whole", computed));
  }
  checksum_ = stored;
  return absl::OkStatus();
}

absl::Status RoutingTraceReader::ReadHeader() {
  const auto cut = [&] { return InputError("{}: the header is cut short", name_); };
  PENSTOCK_ASSIGN_OR_RETURN(const std::string_view numbers, Read(kNumbersBytes));
  const std::string_view magic = numbers.substr(0, kRoutingTraceMagic.size());
  const bool has_tokens = magic == kTokenTraceMagic;
  if (magic != kRoutingTraceMagic && !has_tokens) {
    return InputError(
        "{}: not a routing trace of this version: expected it to begin with 'penstock routing 2' or 'penstock routing "
        "3'",
        name_);
  }
  if (numbers.size() < kNumbersBytes) return cut();
  std::string bytes(numbers);  // the next Read may move the buffer
  const size_t more_bytes = (has_tokens ? kTokenFieldsBytes : 0) + sizeof(uint32_t);
  PENSTOCK_ASSIGN_OR_RETURN(const std::string_view more, Read(more_bytes));
  if (more.size() < more_bytes) return cut();
  bytes.append(more);
  ByteReader fields(std::string_view(bytes).substr(kRoutingTraceMagic.size()));
  header_.num_layers = fields.Take<uint32_t>();
  header_.num_experts = fields.Take<uint32_t>();
  header_.num_topk = fields.Take<uint32_t>();
  header_.num_ranked = fields.Take<uint32_t>();
  header_.num_ahead = fields.Take<uint32_t>();
  if (has_tokens) {
    header_.vocab_size = fields.Take<uint32_t>();
    header_.fingerprint = fields.TakeBytes(kTraceFingerprintBytes);
    if (header_.vocab_size == 0) return InputError("{}: vocab_size: expected 1 or more, found 0", name_);
  }
  const uint32_t model_bytes = fields.Take<uint32_t>();
  PENSTOCK_RETURN_IF_ERROR(Annotate(CheckField("bytes of the model's name", model_bytes, 1, kMaxTraceModelBytes),
                                    name_));  // before this many bytes are read
  PENSTOCK_ASSIGN_OR_RETURN(const std::string_view rest, Read(model_bytes + kChecksumBytes));
  if (rest.size() < model_bytes + kChecksumBytes) return cut();
  header_.model = rest.substr(0, model_bytes);
  bytes.append(rest);
  if (!Unseal(bytes, "").ok()) return InputError("{}: the header is damaged: its checksum differs", name_);
  PENSTOCK_RETURN_IF_ERROR(Annotate(CheckHeader(header_), name_));
  last_row_.resize(header_.num_experts);
  return absl::OkStatus();
}

RoutingTraceEvent RoutingTraceReader::Cut() {
  done_ = true;
  cut_ = fmt::format("{}: the file is cut short: it ends at byte {} after {} whole records; these can be used", name_,
                     fd_.valid() ? file_bytes_ : num_read_, num_records_);
  return RoutingTraceEvent::kCut;
}

absl::Status RoutingTraceReader::CheckEnd(const RecordHead& head) {
  if (head.step_idx != num_records_) return Wrong("number of records in the end", num_records_, head.step_idx);
  if (head.num_rows != 0) return Wrong("num_rows of the end", 0, head.num_rows);
  PENSTOCK_ASSIGN_OR_RETURN(const std::string_view more, Read(1));
  if (!more.empty()) return Wrong("after the end", "nothing", "more bytes");
  return absl::OkStatus();
}

absl::Status RoutingTraceReader::CheckHead(const RecordHead& head) const {
  if (head.step_idx > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return Wrong("step_idx", "less than 2^63", head.step_idx);
  }
  const int64_t step_idx = static_cast<int64_t>(head.step_idx);
  const int64_t layer_idx = head.layer_idx;
  if (layer_idx >= header_.num_layers) {
    return Wrong("layer_idx", fmt::format("0 to {}", header_.num_layers - 1), layer_idx);
  }
  if (std::tie(step_idx, layer_idx) <= std::tie(last_step_idx_, last_layer_idx_)) {
    return Wrong("step_idx and layer_idx", fmt::format("more than {} and {}", last_step_idx_, last_layer_idx_),
                 fmt::format("{} and {}", step_idx, layer_idx));
  }
  if (head.num_rows < 1 || head.num_rows > kMaxTraceRows) {
    return Wrong("num_rows", fmt::format("1 to {}", kMaxTraceRows), head.num_rows);
  }
  return absl::OkStatus();
}

absl::Status RoutingTraceReader::ParseRows(std::string_view bytes, RoutingTraceRecord& record) {
  ByteReader fields(bytes);
  for (uint32_t& sequence_id : record.sequence_ids) sequence_id = fields.Take<uint32_t>();
  for (uint32_t& pos : record.positions) {
    pos = fields.Take<uint32_t>();
    if (pos >= kMaxContext) return Wrong("position", fmt::format("0 to {}", kMaxContext - 1), pos);
  }
  for (TokenId& token_id : record.token_ids) {
    const uint32_t id = fields.Take<uint32_t>();
    if (id >= header_.vocab_size) return Wrong("token_ids", fmt::format("0 to {}", header_.vocab_size - 1), id);
    token_id = static_cast<TokenId>(id);
  }
  const size_t num_topk = header_.num_topk;
  PENSTOCK_RETURN_IF_ERROR(ParseExperts(fields, "topk_idx", num_topk, record.topk_idx));
  PENSTOCK_RETURN_IF_ERROR(
      ParseExperts(fields, "ranked_idx", static_cast<size_t>(header_.num_ranked), record.ranked_idx));
  for (float& score : record.ranked_scores) {
    score = std::bit_cast<float>(fields.Take<uint32_t>());
    if (!(score >= 0 && score <= 1)) return Wrong("ranked_scores", "0 to 1", score);
  }
  PENSTOCK_RETURN_IF_ERROR(ParseExperts(fields, "ahead_idx", num_topk, record.ahead_idx));
  PENSTOCK_CHECK(fields.ok() && fields.num_left() == 0);
  return absl::OkStatus();
}

absl::Status RoutingTraceReader::ParseExperts(ByteReader& fields, std::string_view field, size_t width,
                                              std::vector<int32_t>& experts) {
  std::fill(last_row_.begin(), last_row_.end(), 0);
  for (size_t i = 0; i < experts.size(); ++i) {
    const uint16_t expert_idx = fields.Take<uint16_t>();
    if (expert_idx >= header_.num_experts) {
      return Wrong(field, fmt::format("0 to {}", header_.num_experts - 1), expert_idx);
    }
    const uint64_t row = 1 + i / width;
    if (last_row_[expert_idx] == row) {
      return Wrong(field, "different experts in a row", fmt::format("expert {} twice", expert_idx));
    }
    last_row_[expert_idx] = row;
    experts[i] = expert_idx;
  }
  return absl::OkStatus();
}

absl::StatusOr<RoutingTraceEvent> RoutingTraceReader::Next(RoutingTraceRecord& record) {
  PENSTOCK_CHECK(!done_);
  done_ = true;  // reset at the end if all goes well
  PENSTOCK_ASSIGN_OR_RETURN(const std::string_view head_bytes, Read(kHeadBytes + kChecksumBytes));
  if (head_bytes.size() < kHeadBytes + kChecksumBytes) return Cut();
  PENSTOCK_RETURN_IF_ERROR(Unseal(head_bytes, "checksum of its head"));
  ByteReader fields(head_bytes);
  RecordHead head;
  head.step_idx = fields.Take<uint64_t>();
  head.layer_idx = fields.Take<uint32_t>();
  head.num_rows = fields.Take<uint32_t>();
  if (head.layer_idx == kEndLayer) {
    PENSTOCK_RETURN_IF_ERROR(CheckEnd(head));
    return RoutingTraceEvent::kEnd;
  }
  PENSTOCK_RETURN_IF_ERROR(CheckHead(head));

  const size_t num_rows = head.num_rows;
  const bool has_tokens = header_.has_tokens() && static_cast<int64_t>(head.step_idx) != last_step_idx_;
  const size_t rows_bytes = RowsBytes(header_, head.layer_idx, num_rows, has_tokens);
  // Checks the size before allocating memory for it.
  if (fd_.valid() && num_read_ + rows_bytes + kChecksumBytes > file_bytes_) return Cut();
  PENSTOCK_ASSIGN_OR_RETURN(const std::string_view rows, Read(rows_bytes + kChecksumBytes));
  if (rows.size() < rows_bytes + kChecksumBytes) return Cut();
  PENSTOCK_RETURN_IF_ERROR(Unseal(rows, "checksum of its rows"));
  record.step_idx = last_step_idx_ = static_cast<int64_t>(head.step_idx);
  record.layer_idx = last_layer_idx_ = head.layer_idx;
  record.sequence_ids.resize(num_rows);
  record.positions.resize(num_rows);
  record.token_ids.resize(has_tokens ? num_rows : 0);
  record.topk_idx.resize(num_rows * static_cast<size_t>(header_.num_topk));
  record.ranked_idx.resize(num_rows * static_cast<size_t>(header_.num_ranked));
  record.ranked_scores.resize(record.ranked_idx.size());
  record.ahead_idx.resize(num_rows * static_cast<size_t>(header_.num_topk * header_.AheadOf(head.layer_idx)));
  PENSTOCK_RETURN_IF_ERROR(ParseRows(rows.substr(0, rows_bytes), record));
  ++num_records_;
  done_ = false;
  return RoutingTraceEvent::kRecord;
}

}  // namespace penstock
