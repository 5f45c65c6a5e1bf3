// Turns vocabularies of scored pieces (SentencePiece's, also in GGUF files) into the merges that BpeModel runs.
//
// SentencePiece's BPE merges the two neighbours that make the piece with the best score. Here each piece becomes one
// merge for each way to cut it into two pieces, ranked by its score.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "penstock/tokenizer/formats/sentencepiece_proto.h"
#include "penstock/tokenizer/pipeline_tokenizer.h"

namespace penstock {

// Adds the merges and the hidden characters (BpeModel::SetHiddenCharacters). A piece's index is its id in
// parts.vocabulary. Returns kModel, naming `where`, if a piece is too long.
absl::Status AddPieceMerges(std::span<const SentencePieceProto::Piece> pieces, std::string_view where,
                            TokenizerParts& parts);

// Returns kModel, naming `where`, if a byte piece is not named <0x00> to <0xFF>, or if `all` is set and one is missing.
absl::Status CheckBytePieces(std::span<const SentencePieceProto::Piece> pieces, const Vocabulary& vocabulary, bool all,
                             std::string_view where);

}  // namespace penstock
