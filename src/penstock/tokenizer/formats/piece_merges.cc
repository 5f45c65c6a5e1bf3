#include "penstock/tokenizer/formats/piece_merges.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/tokenizer/formats/vocabulary_json.h"

namespace penstock {
namespace {

using Pieces = std::span<const SentencePieceProto::Piece>;
using Type = SentencePieceProto::PieceType;

constexpr size_t kMaxMergedPieceBytes = 256;  // the work for a piece grows with the square of its length

bool IsText(Type type) { return type == Type::kNormal || type == Type::kUserDefined; }

// Finds the characters inside pieces that are not pieces themselves. They can still merge, so they get ids above the
// vocabulary.
void FindHiddenCharacters(Pieces pieces, TokenizerParts& parts) {
  auto next = static_cast<TokenId>(parts.vocabulary.size());
  for (const SentencePieceProto::Piece& piece : pieces) {
    if (!IsText(piece.type)) continue;
    for (size_t pos = 0; pos < piece.text.size();) {
      const DecodedRune rune = DecodeUtf8(piece.text, pos);
      const size_t num_bytes = rune.num_bytes;
      if (num_bytes < piece.text.size() && parts.vocabulary.Find(piece.text.substr(pos, num_bytes)) < 0 &&
          parts.hidden_characters.try_emplace(rune.code_point, next).second) {
        ++next;
      }
      pos += num_bytes;
    }
  }
}

}  // namespace

absl::Status AddPieceMerges(Pieces pieces, std::string_view where, TokenizerParts& parts) {
  FindHiddenCharacters(pieces, parts);
  std::vector<float> scores;
  for (const auto& piece : pieces) scores.push_back(piece.score);
  std::sort(scores.begin(), scores.end(), std::greater<float>());
  scores.erase(std::unique(scores.begin(), scores.end()), scores.end());
  const auto symbol = [&](std::string_view text) -> TokenId {
    const TokenId id = parts.vocabulary.Find(text);
    if (id >= 0) return IsText(pieces[id].type) ? id : -1;
    const DecodedRune rune = DecodeUtf8(text, 0);
    if (static_cast<size_t>(rune.num_bytes) < text.size()) return -1;
    const auto hidden = parts.hidden_characters.find(rune.code_point);
    return hidden == parts.hidden_characters.end() ? -1 : hidden->second;
  };
  for (size_t i = 0; i < pieces.size(); ++i) {
    const SentencePieceProto::Piece& piece = pieces[i];
    if (!IsText(piece.type)) continue;
    if (piece.text.size() > kMaxMergedPieceBytes && piece.type == Type::kNormal) {
      return ModelError("{}: piece {}: {} bytes long, the limit is {}", where, i, piece.text.size(),
                        kMaxMergedPieceBytes);
    }
    if (piece.text.size() > kMaxMergedPieceBytes) continue;  // a user-defined piece is found in the text, not merged
    const auto rank = static_cast<uint32_t>(
        std::lower_bound(scores.begin(), scores.end(), piece.score, std::greater<float>()) - scores.begin());
    for (size_t pos = static_cast<size_t>(DecodeUtf8(piece.text, 0).num_bytes); pos < piece.text.size();
         pos += static_cast<size_t>(DecodeUtf8(piece.text, pos).num_bytes)) {
      const TokenId left = symbol(piece.text.substr(0, pos));
      if (left < 0) continue;
      const TokenId right = symbol(piece.text.substr(pos));
      if (right >= 0) parts.merges.Add(left, right, rank, static_cast<TokenId>(i));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckBytePieces(Pieces pieces, const Vocabulary& vocabulary, bool all, std::string_view where) {
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].type == Type::kByte && pieces[i].text.size() != 6) {
      return ModelError("{}: byte piece {} '{}': expected <0x00> to <0xFF>", where, i, pieces[i].text);
    }
  }
  PENSTOCK_RETURN_IF_ERROR(CheckByteTokens(vocabulary, where));
  for (int byte = 0; byte < 256 && all; ++byte) {
    const std::string name = fmt::format("<0x{:02X}>", byte);
    const TokenId id = vocabulary.Find(name);
    if (id < 0 || pieces[id].type != Type::kByte) {
      return ModelError("{}: byte_fallback, but there is no byte piece {}", where, name);
    }
  }
  return absl::OkStatus();
}

}  // namespace penstock
