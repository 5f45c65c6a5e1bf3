// Vocabularies of scored pieces (SentencePiece, and the same in GGUF files) for the engines that run all formats.
//
// SentencePiece's BPE merges the two neighbours that make the piece with the best score. Here each piece becomes the
// merges of all its halves, ranked by its score.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "penstock/tokenizer/formats/sentencepiece_proto.h"
#include "penstock/tokenizer/pipeline_tokenizer.h"

namespace penstock {

// Adds the merges and the hidden characters (BpeModel::SetHiddenCharacters) of pieces whose index is their id in
// parts.vocabulary. kModel naming `where` for a piece that is too long.
absl::Status AddPieceMerges(std::span<const SentencePieceProto::Piece> pieces, std::string_view where,
                            TokenizerParts& parts);

// kModel naming `where` when a byte piece is not named <0x00> to <0xFF>, or one is missing that `all` asks for.
absl::Status CheckBytePieces(std::span<const SentencePieceProto::Piece> pieces, const Vocabulary& vocabulary, bool all,
                             std::string_view where);

}  // namespace penstock
