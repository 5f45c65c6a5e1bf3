// Parses the parts of a SentencePiece model file (a protobuf) that tokenizing needs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace penstock {

inline constexpr char kSentencePieceFile[] = "tokenizer.model";  // for messages

struct SentencePieceProto {
  enum class PieceType : uint8_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };
  struct Piece {
    std::string_view text;  // points into the file's bytes
    float score = 0;
    PieceType type = PieceType::kNormal;
  };
  // The defaults of absent fields are those of sentencepiece_model.proto.
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

  // Parses a file; views point into `bytes`. Returns kModel, naming the byte offset or the piece.
  static absl::StatusOr<SentencePieceProto> Parse(std::string_view bytes);
};

}  // namespace penstock
