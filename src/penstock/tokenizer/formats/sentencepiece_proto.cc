#include "penstock/tokenizer/formats/sentencepiece_proto.h"

#include <bit>
#include <cmath>

#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"

namespace penstock {
namespace {

struct Field {
  uint32_t number = 0;
  uint32_t wire_type = 0;
  uint64_t value = 0;      // for varints and fixed-size fields
  std::string_view bytes;  // for length-delimited fields
};

// Reads the fields of one message, which begins at `offset` in the file.
class FieldReader {
 public:
  FieldReader(std::string_view message, size_t offset) : rest_(message), end_(offset + message.size()) {}

  bool done() const { return rest_.empty(); }
  size_t offset() const { return end_ - rest_.size(); }

  absl::StatusOr<Field> Next() {
    const size_t start = offset();
    PENSTOCK_ASSIGN_OR_RETURN(const uint64_t key, Varint());
    Field field{.number = static_cast<uint32_t>(key >> 3), .wire_type = static_cast<uint32_t>(key & 7), .bytes = {}};
    if (key >> 3 == 0 || key >> 3 > (1 << 29) - 1)
      return ModelError("{}: byte {}: bad field number", kSentencePieceFile, start);
    switch (field.wire_type) {
      case 0: {
        PENSTOCK_ASSIGN_OR_RETURN(field.value, Varint());
        return field;
      }
      case 1: {
        PENSTOCK_ASSIGN_OR_RETURN(field.value, Fixed(8));
        return field;
      }
      case 5: {
        PENSTOCK_ASSIGN_OR_RETURN(field.value, Fixed(4));
        return field;
      }
      case 2: {
        PENSTOCK_ASSIGN_OR_RETURN(const uint64_t size, Varint());
        if (size > rest_.size()) {
          return ModelError(
              "{}: byte {}: a field of {} bytes, but {} are left; the file is truncated or no SentencePiece "
              "model",
              kSentencePieceFile, start, size, rest_.size());
        }
        field.bytes = rest_.substr(0, size);
        rest_.remove_prefix(size);
        return field;
      }
      default: return ModelError("{}: byte {}: unknown wire type {}", kSentencePieceFile, start, field.wire_type);
    }
  }

 private:
  absl::StatusOr<uint64_t> Varint() {
    const size_t start = offset();
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (rest_.empty()) return ModelError("{}: byte {}: the file ends inside a number", kSentencePieceFile, start);
      const auto byte = static_cast<uint8_t>(rest_[0]);
      rest_.remove_prefix(1);
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    return ModelError("{}: byte {}: a number longer than 10 bytes", kSentencePieceFile, start);
  }

  absl::StatusOr<uint64_t> Fixed(size_t num_bytes) {
    if (rest_.size() < num_bytes)
      return ModelError("{}: byte {}: the file ends inside a number", kSentencePieceFile, offset());
    uint64_t value = 0;
    for (size_t i = 0; i < num_bytes; ++i) value |= static_cast<uint64_t>(static_cast<uint8_t>(rest_[i])) << (8 * i);
    rest_.remove_prefix(num_bytes);
    return value;
  }

  std::string_view rest_;
  size_t end_;
};

// Calls on_field(field) for each field of a message.
template <typename Fn>
absl::Status ForEachField(std::string_view message, size_t offset, Fn on_field) {
  FieldReader reader(message, offset);
  while (!reader.done()) {
    PENSTOCK_ASSIGN_OR_RETURN(const Field field, reader.Next());
    PENSTOCK_RETURN_IF_ERROR(on_field(field));
  }
  return absl::OkStatus();
}

absl::Status ExpectWireType(const Field& field, uint32_t wire_type, std::string_view name) {
  if (field.wire_type == wire_type) return absl::OkStatus();
  return ModelError("{}: {}: wire type {}, expected {}", kSentencePieceFile, name, field.wire_type, wire_type);
}

absl::Status ReadPiece(std::string_view message, size_t offset, size_t index, SentencePieceProto::Piece& piece) {
  const auto read_field = [&](const Field& field) -> absl::Status {
    if (field.number == 1) {
      piece.text = field.bytes;
      return ExpectWireType(field, 2, "piece");
    }
    if (field.number == 2) {
      piece.score = std::bit_cast<float>(static_cast<uint32_t>(field.value));
      return ExpectWireType(field, 5, "score");
    }
    if (field.number != 3) return absl::OkStatus();
    if (field.value < 1 || field.value > 6)
      return ModelError("{}: piece {}: unknown type {}", kSentencePieceFile, index, field.value);
    piece.type = static_cast<SentencePieceProto::PieceType>(field.value);
    return ExpectWireType(field, 0, "type");
  };
  PENSTOCK_RETURN_IF_ERROR(ForEachField(message, offset, read_field));
  if (!std::isfinite(piece.score))
    return ModelError("{}: piece {} '{}': the score is {}", kSentencePieceFile, index, piece.text, piece.score);
  if (!IsUtf8(piece.text)) return ModelError("{}: piece {} '{}' is not UTF-8", kSentencePieceFile, index, piece.text);
  return absl::OkStatus();
}

absl::Status ReadTrainerSpec(const Field& field, SentencePieceProto& proto) {
  const auto number = [&](int64_t& value) {
    value = static_cast<int32_t>(field.value);
    return ExpectWireType(field, 0, "trainer_spec");
  };
  const auto flag = [&](bool& value) {
    value = field.value != 0;
    return ExpectWireType(field, 0, "trainer_spec");
  };
  switch (field.number) {
    case 3: return number(proto.model_type);
    case 24: return flag(proto.treat_whitespace_as_suffix);
    case 35: return flag(proto.byte_fallback);
    case 40: return number(proto.unk_id);
    case 41: return number(proto.bos_id);
    case 42: return number(proto.eos_id);
    default: return absl::OkStatus();
  }
}

absl::Status ReadNormalizerSpec(const Field& field, SentencePieceProto& proto) {
  const auto flag = [&](bool& value) {
    value = field.value != 0;
    return ExpectWireType(field, 0, "normalizer_spec");
  };
  const auto bytes = [&](std::string_view& value) {
    value = field.bytes;
    return ExpectWireType(field, 2, "normalizer_spec");
  };
  switch (field.number) {
    case 1: return bytes(proto.normalizer_name);
    case 2: return bytes(proto.precompiled_charsmap);
    case 3: return flag(proto.add_dummy_prefix);
    case 4: return flag(proto.remove_extra_whitespaces);
    case 5: return flag(proto.escape_whitespaces);
    default: return absl::OkStatus();
  }
}

}  // namespace

absl::StatusOr<SentencePieceProto> SentencePieceProto::Parse(std::string_view bytes) {
  SentencePieceProto proto;
  const auto offset_of = [&](std::string_view part) { return static_cast<size_t>(part.data() - bytes.data()); };
  const auto read_field = [&](const Field& field) -> absl::Status {
    if (field.number < 1 || field.number > 3) return absl::OkStatus();
    if (field.wire_type != 2) return ExpectWireType(field, 2, "model");
    if (field.number == 1) {
      if (proto.pieces.size() >= static_cast<size_t>(kMaxVocabSize)) {
        return ModelError("{}: more than {} pieces", kSentencePieceFile, kMaxVocabSize);
      }
      const size_t index = proto.pieces.size();
      return ReadPiece(field.bytes, offset_of(field.bytes), index, proto.pieces.emplace_back());
    }
    return ForEachField(field.bytes, offset_of(field.bytes), [&](const Field& inner) {
      return field.number == 2 ? ReadTrainerSpec(inner, proto) : ReadNormalizerSpec(inner, proto);
    });
  };
  PENSTOCK_RETURN_IF_ERROR(ForEachField(bytes, 0, read_field));
  if (proto.pieces.empty()) return ModelError("{}: there are no pieces", kSentencePieceFile);
  return proto;
}

}  // namespace penstock
