// Loads SentencePiece model files (tokenizer.model), model types BPE and Unigram.
//
// Text between special tokens is treated as in Hugging Face's Llama tokenizers: each stretch gets the dummy prefix
// (with `legacy: false` only the first one).

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "penstock/base/limits.h"
#include "penstock/tokenizer/formats/piece_merges.h"
#include "penstock/tokenizer/formats/sentencepiece_proto.h"
#include "penstock/tokenizer/pipeline_tokenizer.h"
#include "penstock/tokenizer/sentencepiece_normalizer.h"

namespace penstock {
namespace {

using Type = SentencePieceProto::PieceType;

constexpr int64_t kUnigram = 1;  // model types
constexpr int64_t kBpe = 2;

absl::Status RefuseVariants(const SentencePieceProto& proto) {
  if (proto.model_type != kUnigram && proto.model_type != kBpe) {
    const char* name = proto.model_type == 3 ? "Word" : "Char";
    return ModelError("{}: model type {} ({}) is not implemented, only Unigram and BPE are", kSentencePieceFile, name,
                      proto.model_type);
  }
  if (proto.treat_whitespace_as_suffix)
    return ModelError("{}: treat_whitespace_as_suffix is not implemented", kSentencePieceFile);
  if (!proto.escape_whitespaces)
    return ModelError("{}: escape_whitespaces: false is not implemented", kSentencePieceFile);
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
    PENSTOCK_RETURN_IF_ERROR(parts.vocabulary.Add(piece.text, id, kSentencePieceFile));
    if (piece.type == Type::kUnused && proto.model_type == kBpe)
      return ModelError("{}: piece {} '{}': type UNUSED is not implemented", kSentencePieceFile, i, piece.text);
    if (piece.type == Type::kUnknown) {
      ++num_unknown;
      parts.bpe.unk_id = id;
    }
    if (piece.type == Type::kUnknown || piece.type == Type::kControl) {
      AddedToken token{.content = std::string(piece.text), .id = id};
      token.normalized = false;
      token.special = true;
      if (piece.text.size() > kMaxAddedTokenBytes) {
        return ModelError("{}: piece {}: a control piece of {} bytes, the limit is {}", kSentencePieceFile, i,
                          piece.text.size(), kMaxAddedTokenBytes);
      }
      parts.added_tokens.push_back(std::move(token));
    }
    if (piece.type == Type::kUserDefined) {
      if (piece.text.size() > kMaxAddedTokenBytes) {
        return ModelError("{}: piece {}: a user-defined piece of {} bytes, the limit is {}", kSentencePieceFile, i,
                          piece.text.size(), kMaxAddedTokenBytes);
      }
      if (proto.model_type == kBpe) parts.frozen_pieces.Add(piece.text, id);
      parts.user_defined.push_back(id);
      if (parts.user_defined.size() > kMaxAddedTokens) {
        return ModelError("{}: more than {} user-defined pieces", kSentencePieceFile, kMaxAddedTokens);
      }
    }
  }
  if (num_unknown != 1) return ModelError("{}: {} pieces of type UNKNOWN, expected 1", kSentencePieceFile, num_unknown);
  return absl::OkStatus();
}

// Takes over Unigram scores as SentencePiece does: a user-defined piece beats anything else that its text could become.
void AddUnigram(const SentencePieceProto& proto, TokenizerParts& parts) {
  float min_score = std::numeric_limits<float>::max();
  float max_score = std::numeric_limits<float>::min();
  for (const SentencePieceProto::Piece& piece : proto.pieces) {
    if (piece.type != Type::kNormal) continue;
    min_score = std::min(min_score, piece.score);
    max_score = std::max(max_score, piece.score);
  }
  for (const SentencePieceProto::Piece& piece : proto.pieces) {
    double score = std::numeric_limits<double>::quiet_NaN();
    if (piece.type == Type::kNormal) score = piece.score;
    if (piece.type == Type::kUserDefined)
      score = static_cast<float>(static_cast<float>(piece.text.size()) * max_score - 0.1);
    parts.scores.push_back(score);
  }
  parts.unigram = {.unk_id = parts.bpe.unk_id,
                   .unknown_score = min_score - static_cast<float>(kUnigramUnknownPenalty),
                   .byte_fallback = proto.byte_fallback,
                   .float_sums = true};
}

absl::Status AddNormalizer(const SentencePieceProto& proto, bool legacy, TokenizerParts& parts) {
  using Prefix = SentencePieceNormalizer::Prefix;
  auto normalizer = std::make_shared<SentencePieceNormalizer>();
  if (!proto.precompiled_charsmap.empty()) {
    PENSTOCK_ASSIGN_OR_RETURN(normalizer->charsmap, Charsmap::Parse(proto.precompiled_charsmap, kSentencePieceFile));
  }
  for (size_t i = 0; i < proto.pieces.size(); ++i) {
    if (proto.pieces[i].type == Type::kUserDefined) normalizer->verbatim.Add(proto.pieces[i].text, static_cast<int>(i));
  }
  normalizer->prefix = !proto.add_dummy_prefix ? Prefix::kNone : legacy ? Prefix::kEachText : Prefix::kFirstText;
  normalizer->remove_extra_spaces = proto.remove_extra_whitespaces;
  parts.normalizer.Add({.kind = NormalizerStep::Kind::kSentencePiece, .sentencepiece = std::move(normalizer)});
  parts.decoder.Add({.kind = DecoderStep::Kind::kReplace, .from = kSpaceMark, .to = " "});
  parts.decoder.Add({.kind = DecoderStep::Kind::kByteFallback});
  if (proto.add_dummy_prefix) parts.decoder.SetLeadingStrip(" ", 1);
  return absl::OkStatus();
}

absl::Status SetBosAndEos(const SentencePieceProto& proto, const TokenizerConfig& config, TokenizerParts& parts) {
  const auto control = [&](int64_t id) -> TokenId {
    const bool is_control =
        id >= 0 && id < static_cast<int64_t>(proto.pieces.size()) && proto.pieces[id].type == Type::kControl;
    return is_control ? static_cast<TokenId>(id) : -1;
  };
  parts.bos_id = control(proto.bos_id);
  parts.eos_id = control(proto.eos_id);
  PENSTOCK_RETURN_IF_ERROR(ApplyConfig(config, parts));
  if (config.add_bos_token.value_or(true) && parts.bos_id >= 0) parts.prefix = {parts.bos_id};
  // T5's tokenizers put EOS behind every text.
  const bool is_t5 = config.tokenizer_class.starts_with("T5Tokenizer");
  if (config.add_eos_token.value_or(is_t5) && parts.eos_id >= 0) parts.suffix = {parts.eos_id};
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
  PENSTOCK_RETURN_IF_ERROR(CheckBytePieces(proto.pieces, parts.vocabulary, proto.byte_fallback, kSentencePieceFile));
  if (proto.model_type == kUnigram) {
    AddUnigram(proto, parts);
  } else {
    PENSTOCK_RETURN_IF_ERROR(AddPieceMerges(proto.pieces, kSentencePieceFile, parts));
  }
  PENSTOCK_RETURN_IF_ERROR(AddNormalizer(proto, config.legacy.value_or(true), parts));
  PENSTOCK_RETURN_IF_ERROR(SetBosAndEos(proto, config, parts));
  return PipelineTokenizer::Create(std::move(parts));
}

}  // namespace penstock
