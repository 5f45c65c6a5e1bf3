// The parts of a SentencePiece model file that tokenizing needs, read from its protobuf by hand.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace penstock {

struct SentencePieceProto {
  enum class PieceType : uint8_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };
  struct Piece {
    std::string_view text;  // in the file's bytes
    float score = 0;
    PieceType type = PieceType::kNormal;
  };
  // Absent fields have these values (sentencepiece_model.proto says so).
  std::vector<Piece> pieces;
  int64_t model_type = 1;  // 1: Unigram, 2: BPE, 3: Word, 4: Char
  bool byte_fallback = false;
  bool treat_whitespace_as_suffix = false;
  int64_t unk_id = 0;
  int64_t bos_id = 1;
  int64_t eos_id = 2;
  std::string_view normalizer_name;
  std::string_view precompiled_charsmap;
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;

  // Views point into `bytes`. kModel naming the byte offset or the piece.
  static absl::StatusOr<SentencePieceProto> Parse(std::string_view bytes);
};

}  // namespace penstock
