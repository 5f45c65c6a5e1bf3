// SentencePiece model files (tokenizer.model), model type BPE.
//
// SentencePiece merges the two neighbours that make the piece with the best score. Here each piece becomes the merges
// of all its halves, ranked by its score, so that the same engine runs both formats. The text between special tokens is
// taken as Hugging Face's Llama tokenizers take it: each stretch gets the dummy prefix (with `legacy: false` only the
// first one).

#include <algorithm>
#include <utility>

#include "penstock/base/limits.h"
#include "penstock/base/text.h"
#include "penstock/tokenizer/bpe_tokenizer.h"
#include "penstock/tokenizer/sentencepiece_proto.h"
#include "penstock/tokenizer/vocabulary_json.h"

namespace penstock {
namespace {

using Type = SentencePieceProto::PieceType;

constexpr char kFile[] = "tokenizer.model";
constexpr char kSpaceMark[] = "\xE2\x96\x81";  // U+2581
constexpr size_t kMaxMergedPieceBytes = 256;   // the work for a piece grows with the square of its length

bool IsText(Type type) { return type == Type::kNormal || type == Type::kUserDefined; }

absl::Status RefuseVariants(const SentencePieceProto& proto) {
  if (proto.model_type != 2) {
    const char* name = proto.model_type == 1 ? "Unigram" : proto.model_type == 3 ? "Word" : "Char";
    return ModelError("{}: model type {} ({}) is not implemented, only BPE is", kFile, name, proto.model_type);
  }
  if (!proto.precompiled_charsmap.empty()) {
    return ModelError("{}: normalizer '{}' (a precompiled map of characters) is not implemented", kFile,
                      proto.normalizer_name);
  }
  if (proto.treat_whitespace_as_suffix) return ModelError("{}: treat_whitespace_as_suffix is not implemented", kFile);
  if (!proto.escape_whitespaces) return ModelError("{}: escape_whitespaces: false is not implemented", kFile);
  return absl::OkStatus();
}

absl::Status AddPieces(const SentencePieceProto& proto, TokenizerParts& parts) {
  size_t num_bytes = 0;
  for (const auto& piece : proto.pieces) num_bytes += piece.text.size();
  parts.vocabulary.Reserve(proto.pieces.size(), num_bytes);
  int num_unknown = 0;
  for (size_t i = 0; i < proto.pieces.size(); ++i) {
    const SentencePieceProto::Piece& piece = proto.pieces[i];
    const auto id = static_cast<TokenId>(i);
    PENSTOCK_RETURN_IF_ERROR(parts.vocabulary.Add(piece.text, id, kFile));
    if (piece.type == Type::kUnused)
      return ModelError("{}: piece {} '{}': type UNUSED is not implemented", kFile, i, piece.text);
    if (piece.type == Type::kUnknown) {
      ++num_unknown;
      parts.bpe.unk_id = id;
    }
    if (piece.type == Type::kUnknown || piece.type == Type::kControl) {
      AddedToken token{.content = std::string(piece.text), .id = id};
      token.normalized = false;
      token.special = true;
      if (piece.text.size() > kMaxAddedTokenBytes) {
        return ModelError("{}: piece {}: a control piece of {} bytes, the limit is {}", kFile, i, piece.text.size(),
                          kMaxAddedTokenBytes);
      }
      parts.added_tokens.push_back(std::move(token));
    }
    if (piece.type == Type::kUserDefined) {
      if (piece.text.size() > kMaxAddedTokenBytes) {
        return ModelError("{}: piece {}: a user-defined piece of {} bytes, the limit is {}", kFile, i,
                          piece.text.size(), kMaxAddedTokenBytes);
      }
      parts.frozen_pieces.Add(piece.text, id);
    }
  }
  if (num_unknown != 1) return ModelError("{}: {} pieces of type UNKNOWN, expected 1", kFile, num_unknown);
  return absl::OkStatus();
}

absl::Status CheckBytePieces(const SentencePieceProto& proto, const TokenizerParts& parts) {
  for (size_t i = 0; i < proto.pieces.size(); ++i) {
    if (proto.pieces[i].type == Type::kByte && proto.pieces[i].text.size() != 6) {
      return ModelError("{}: byte piece {} '{}': expected <0x00> to <0xFF>", kFile, i, proto.pieces[i].text);
    }
  }
  PENSTOCK_RETURN_IF_ERROR(CheckByteTokens(parts.vocabulary, kFile));
  for (int byte = 0; byte < 256 && proto.byte_fallback; ++byte) {
    const std::string name = fmt::format("<0x{:02X}>", byte);
    const TokenId id = parts.vocabulary.Find(name);
    if (id < 0 || proto.pieces[static_cast<size_t>(id)].type != Type::kByte) {
      return ModelError("{}: byte_fallback, but there is no byte piece {}", kFile, name);
    }
  }
  return absl::OkStatus();
}

// Characters inside pieces that are no pieces themselves can still merge into one: they get ids above the vocabulary.
void FindHiddenCharacters(const SentencePieceProto& proto, TokenizerParts& parts) {
  auto next = static_cast<TokenId>(parts.vocabulary.size());
  for (const SentencePieceProto::Piece& piece : proto.pieces) {
    if (!IsText(piece.type)) continue;
    for (size_t pos = 0; pos < piece.text.size();) {
      const DecodedRune rune = DecodeUtf8(piece.text, pos);
      const auto num_bytes = static_cast<size_t>(rune.num_bytes);
      if (num_bytes < piece.text.size() && parts.vocabulary.Find(piece.text.substr(pos, num_bytes)) < 0 &&
          parts.hidden_characters.try_emplace(rune.code_point, next).second) {
        ++next;
      }
      pos += num_bytes;
    }
  }
}

absl::Status AddMerges(const SentencePieceProto& proto, TokenizerParts& parts) {
  std::vector<float> scores;
  for (const auto& piece : proto.pieces) scores.push_back(piece.score);
  std::sort(scores.begin(), scores.end(), std::greater<float>());
  scores.erase(std::unique(scores.begin(), scores.end()), scores.end());
  const auto symbol = [&](std::string_view text) -> TokenId {
    const TokenId id = parts.vocabulary.Find(text);
    if (id >= 0) return IsText(proto.pieces[static_cast<size_t>(id)].type) ? id : -1;
    const DecodedRune rune = DecodeUtf8(text, 0);
    if (static_cast<size_t>(rune.num_bytes) < text.size()) return -1;
    const auto hidden = parts.hidden_characters.find(rune.code_point);
    return hidden == parts.hidden_characters.end() ? -1 : hidden->second;
  };
  for (size_t i = 0; i < proto.pieces.size(); ++i) {
    const SentencePieceProto::Piece& piece = proto.pieces[i];
    if (!IsText(piece.type)) continue;
    if (piece.text.size() > kMaxMergedPieceBytes && piece.type == Type::kNormal) {
      return ModelError("{}: piece {}: {} bytes long, the limit is {}", kFile, i, piece.text.size(),
                        kMaxMergedPieceBytes);
    }
    if (piece.text.size() > kMaxMergedPieceBytes) continue;  // user-defined: found in the text, not merged
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

void AddNormalizer(const SentencePieceProto& proto, bool legacy, TokenizerParts& parts) {
  using Kind = NormalizerStep::Kind;
  if (proto.remove_extra_whitespaces) parts.normalizer.Add({.kind = Kind::kCollapseSpaces});
  parts.normalizer.Add({.kind = Kind::kReplace, .from = " ", .to = kSpaceMark});
  if (proto.add_dummy_prefix) {
    parts.normalizer.Add({.kind = legacy ? Kind::kPrepend : Kind::kPrependFirst, .to = kSpaceMark});
  }
  parts.decoder.Add({.kind = DecoderStep::Kind::kReplace, .from = kSpaceMark, .to = " "});
  parts.decoder.Add({.kind = DecoderStep::Kind::kByteFallback});
  if (proto.add_dummy_prefix) parts.decoder.SetLeadingStrip(" ", 1);
}

absl::Status SetBosAndEos(const SentencePieceProto& proto, const TokenizerConfig& config, TokenizerParts& parts) {
  const auto control = [&](int64_t id) -> TokenId {
    const bool is_control = id >= 0 && id < static_cast<int64_t>(proto.pieces.size()) &&
                            proto.pieces[static_cast<size_t>(id)].type == Type::kControl;
    return is_control ? static_cast<TokenId>(id) : -1;
  };
  parts.bos_id = control(proto.bos_id);
  parts.eos_id = control(proto.eos_id);
  PENSTOCK_RETURN_IF_ERROR(ApplyConfig(config, parts));
  if (config.add_bos_token.value_or(true) && parts.bos_id >= 0) parts.prefix = {parts.bos_id};
  if (config.add_eos_token.value_or(false) && parts.eos_id >= 0) parts.suffix = {parts.eos_id};
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromSentencePiece(std::string_view model_proto,
                                                                        std::string_view tokenizer_config) {
  PENSTOCK_ASSIGN_OR_RETURN(const TokenizerConfig config, TokenizerConfig::Parse(tokenizer_config));
  PENSTOCK_ASSIGN_OR_RETURN(const SentencePieceProto proto, SentencePieceProto::Parse(model_proto));
  PENSTOCK_RETURN_IF_ERROR(RefuseVariants(proto));
  TokenizerParts parts;
  parts.bpe.byte_fallback = proto.byte_fallback;
  parts.bpe.fuse_unk = true;
  PENSTOCK_RETURN_IF_ERROR(AddPieces(proto, parts));
  PENSTOCK_RETURN_IF_ERROR(CheckBytePieces(proto, parts));
  FindHiddenCharacters(proto, parts);
  PENSTOCK_RETURN_IF_ERROR(AddMerges(proto, parts));
  AddNormalizer(proto, config.legacy.value_or(true), parts);
  PENSTOCK_RETURN_IF_ERROR(SetBosAndEos(proto, config, parts));
  return BpeTokenizer::Create(std::move(parts));
}

}  // namespace penstock
