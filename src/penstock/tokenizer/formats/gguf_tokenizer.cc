#include "penstock/tokenizer/formats/gguf_tokenizer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>

#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/tokenizer/formats/piece_merges.h"
#include "penstock/tokenizer/formats/vocabulary_json.h"
#include "penstock/tokenizer/pipeline_tokenizer.h"
#include "penstock/tokenizer/sentencepiece_normalizer.h"

namespace penstock {
namespace {

using Type = SentencePieceProto::PieceType;
using Piece = SentencePieceProto::Piece;

constexpr char kTokens[] = "tokenizer.ggml.tokens";

// These tokens are control tokens whatever their type says, because some converters mark them as ordinary ones.
constexpr auto kControlTexts = std::to_array<std::string_view>({
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|eom_id|>",
    "<end_of_utterance>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "[e~[",
    "<|fim_prefix|>",
    "<fim-prefix>",
    "<fim_prefix>",
    "<PRE>",
    "<|code_prefix|>",
    "<|prefix|>",
    "<|fim_suffix|>",
    "<fim-suffix>",
    "<fim_suffix>",
    "<SUF>",
    "<|code_suffix|>",
    "<|suffix|>",
    "<|fim_middle|>",
    "<fim-middle>",
    "<fim_middle>",
    "<MID>",
    "<|code_middle|>",
    "<|middle|>",
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<PAD>",
    "[PAD]",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
    "<|file_sep|>",
    "</s>",
    "<eos>",
    "\u2581<PRE>",
    "\u2581<SUF>",
    "\u2581<MID>",
    "<\uFF5Cend\u2581of\u2581sentence\uFF5C>",
    "<\uFF5Cfim\u2581begin\uFF5C>",
    "<\uFF5Cfim\u2581hole\uFF5C>",
    "<\uFF5Cfim\u2581end\uFF5C>",
});

bool IsControlText(std::string_view text) {
  return std::find(kControlTexts.begin(), kControlTexts.end(), text) != kControlTexts.end();
}

absl::Status CheckArrays(const GgufVocabulary& file) {
  if (file.tokens.empty()) return ModelError("{}: there are no tokens", kTokens);
  if (file.tokens.size() > static_cast<size_t>(kMaxVocabSize)) {
    return ModelError("{}: {} tokens, the limit is {}", kTokens, file.tokens.size(), kMaxVocabSize);
  }
  const auto check = [&file](std::string_view key, size_t size) -> absl::Status {
    if (size == 0 || size == file.tokens.size()) return absl::OkStatus();
    return ModelError("tokenizer.ggml.{}: {} entries for {} tokens", key, size, file.tokens.size());
  };
  PENSTOCK_RETURN_IF_ERROR(check("scores", file.scores.size()));
  PENSTOCK_RETURN_IF_ERROR(check("token_type", file.token_types.size()));
  for (size_t i = 0; i < file.scores.size(); ++i) {
    if (!std::isfinite(file.scores[i])) return ModelError("tokenizer.ggml.scores: entry {} is {}", i, file.scores[i]);
  }
  for (size_t i = 0; i < file.token_types.size(); ++i) {
    if (file.token_types[i] < 0 || file.token_types[i] > 6) {
      return ModelError("tokenizer.ggml.token_type: entry {}: expected 0 to 6, found {}", i, file.token_types[i]);
    }
  }
  for (const auto& [key, id] : {std::pair("bos", file.bos_id), std::pair("eos", file.eos_id),
                                std::pair("unknown", file.unk_id), std::pair("padding", file.pad_id)}) {
    if (id < -1 || id >= static_cast<int64_t>(file.tokens.size())) {
      return ModelError("tokenizer.ggml.{}_token_id: expected an id from 0 to {}, found {}", key,
                        file.tokens.size() - 1, id);
    }
  }
  return absl::OkStatus();
}

// Returns the tokens as scored pieces; GGUF numbers types as SentencePiece does. Views point into `file` and `names`.
std::vector<Piece> MakePieces(const GgufVocabulary& file, std::vector<std::string>& names) {
  names.reserve(file.tokens.size());
  std::vector<Piece> pieces;
  for (size_t i = 0; i < file.tokens.size(); ++i) {
    Piece piece{.text = file.tokens[i]};
    if (piece.text.empty()) {
      names.push_back(fmt::format("[EMPTY_{}]", i));
      piece.text = names.back();
    }
    if (!file.scores.empty()) piece.score = file.scores[i];
    if (!file.token_types.empty() && file.token_types[i] != 0) piece.type = static_cast<Type>(file.token_types[i]);
    pieces.push_back(piece);
  }
  return pieces;
}

absl::Status AddTokens(const std::vector<Piece>& pieces, TokenizerParts& parts) {
  size_t num_bytes = 0;
  for (const Piece& piece : pieces) num_bytes += piece.text.size();
  parts.vocabulary.Reserve(pieces.size(), num_bytes);
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Piece& piece = pieces[i];
    if (!IsUtf8(piece.text)) return ModelError("{}: entry {} '{}' is not UTF-8", kTokens, i, Excerpt(piece.text, 80));
    PENSTOCK_RETURN_IF_ERROR(parts.vocabulary.Add(piece.text, static_cast<int64_t>(i), kTokens));
    const bool is_special = piece.type == Type::kControl || piece.type == Type::kUnknown || IsControlText(piece.text);
    if (!is_special && piece.type != Type::kUserDefined) continue;
    if (piece.text.size() > kMaxAddedTokenBytes) {
      return ModelError("{}: entry {}: a control or user-defined token of {} bytes, the limit is {}", kTokens, i,
                        piece.text.size(), kMaxAddedTokenBytes);
    }
    AddedToken token{.content = std::string(piece.text), .id = static_cast<TokenId>(i)};
    token.special = is_special;
    token.normalized = false;
    parts.added_tokens.push_back(std::move(token));
  }
  return absl::OkStatus();
}

absl::Status AddBpeMerges(const GgufVocabulary& file, TokenizerParts& parts) {
  if (file.merges.empty()) return ModelError("tokenizer.ggml.merges: there are no merges");
  parts.merges.Reserve(file.merges.size());
  for (size_t rank = 0; rank < file.merges.size(); ++rank) {
    const std::string& merge = file.merges[rank];
    const std::string where = fmt::format("tokenizer.ggml.merges: entry {}", rank);
    const size_t space = merge.find(' ', 1);  // the first token may begin with a space
    if (merge.empty() || space == std::string::npos || space + 1 == merge.size()) {
      return ModelError("{}: expected two tokens and a space between them, found '{}'", where, Excerpt(merge, 80));
    }
    const std::string_view left = std::string_view(merge).substr(0, space);
    const std::string_view right = std::string_view(merge).substr(space + 1);
    // The first of two equal merges counts.
    if (parts.merges.Find(parts.vocabulary.Find(left), parts.vocabulary.Find(right)).exists()) continue;
    PENSTOCK_RETURN_IF_ERROR(AddMerge(left, right, static_cast<uint32_t>(rank), where, parts));
  }
  return absl::OkStatus();
}

// Sets BOS and EOS around a text. The format's default applies if the key is absent.
absl::Status SetEnds(const GgufVocabulary& file, bool add_bos, bool add_eos, TokenizerParts& parts) {
  if (file.add_bos.value_or(add_bos)) {
    if (parts.bos_id < 0) return ModelError("tokenizer.ggml.bos_token_id is missing, but texts begin with this token");
    parts.prefix = {parts.bos_id};
  }
  if (file.add_eos.value_or(add_eos)) {
    if (parts.eos_id < 0) return ModelError("tokenizer.ggml.eos_token_id is missing, but texts end with this token");
    parts.suffix = {parts.eos_id};
  }
  return absl::OkStatus();
}

TokenId IdOr(int64_t id, TokenId if_absent, const GgufVocabulary& file) {
  if (id >= 0) return static_cast<TokenId>(id);
  return if_absent < static_cast<int64_t>(file.tokens.size()) ? if_absent : -1;
}

void AddSpaceMarkDecoder(bool has_prefix, TokenizerParts& parts) {
  parts.decoder.Add({.kind = DecoderStep::Kind::kReplace, .from = kSpaceMark, .to = " "});
  parts.decoder.Add({.kind = DecoderStep::Kind::kByteFallback});
  if (has_prefix) parts.decoder.SetLeadingStrip(" ", 1);
}

absl::Status MakeByteLevel(const GgufVocabulary& file, std::string_view pre_name, TokenizerParts& parts) {
  PENSTOCK_ASSIGN_OR_RETURN(const GgufPreTokenizer* const pre, FindGgufPreTokenizer(pre_name));
  PENSTOCK_RETURN_IF_ERROR(AddBpeMerges(file, parts));
  parts.bpe.ignore_merges = pre->ignore_merges;
  for (const std::string_view pattern : pre->patterns) {
    PreTokenizerStep split{.kind = PreTokenizerStep::Kind::kSplit};
    PENSTOCK_ASSIGN_OR_RETURN(split.pattern, SplitPattern::FromRegex(pattern, "tokenizer.ggml.pre"));
    parts.pretokenizer.Add(std::move(split));
  }
  if (pre->raw) {
    PENSTOCK_RETURN_IF_ERROR(CheckByteTokens(parts.vocabulary, kTokens));
    parts.bpe.byte_fallback = true;
    parts.normalizer.Add({.kind = NormalizerStep::Kind::kReplace, .from = " ", .to = kSpaceMark});
    AddSpaceMarkDecoder(/*has_prefix=*/false, parts);
  } else {
    parts.pretokenizer.AddByteLevel(/*prefix_space=*/false, /*use_regex=*/false);
    parts.decoder.Add({.kind = DecoderStep::Kind::kByteLevel});
  }
  parts.bos_id = IdOr(file.bos_id, -1, file);
  parts.eos_id = IdOr(file.eos_id, -1, file);
  return SetEnds(file, pre->add_bos, /*add_eos=*/false, parts);
}

absl::Status MakeScored(const GgufVocabulary& file, std::vector<Piece> pieces, TokenizerParts& parts) {
  PENSTOCK_RETURN_IF_ERROR(CheckBytePieces(pieces, parts.vocabulary, /*all=*/false, kTokens));
  for (Piece& piece : pieces) {
    if (piece.type == Type::kUnused) piece.type = Type::kNormal;  // merges like any other
  }
  PENSTOCK_RETURN_IF_ERROR(AddPieceMerges(pieces, kTokens, parts));
  parts.bpe.byte_fallback = true;
  parts.bpe.unk_id = IdOr(file.unk_id, 0, file);
  const bool has_prefix = file.add_space_prefix.value_or(true);
  parts.normalizer.Add({.kind = NormalizerStep::Kind::kReplace, .from = " ", .to = kSpaceMark});
  if (has_prefix) parts.normalizer.Add({.kind = NormalizerStep::Kind::kPrepend, .to = kSpaceMark});
  AddSpaceMarkDecoder(has_prefix, parts);
  parts.bos_id = IdOr(file.bos_id, 1, file);
  parts.eos_id = IdOr(file.eos_id, 2, file);
  return SetEnds(file, /*add_bos=*/true, /*add_eos=*/false, parts);
}

absl::Status MakeUnigram(const GgufVocabulary& file, const std::vector<Piece>& pieces, TokenizerParts& parts) {
  using Prefix = SentencePieceNormalizer::Prefix;
  if (file.scores.empty()) return ModelError("tokenizer.ggml.scores is missing, but the model 't5' needs scores");
  float min_score = std::numeric_limits<float>::max();
  for (const Piece& piece : pieces) {
    double score = std::numeric_limits<double>::quiet_NaN();
    if (piece.type == Type::kNormal || piece.type == Type::kUnused) score = piece.score;
    if (piece.type == Type::kUserDefined) score = 0;
    if (piece.type == Type::kNormal) min_score = std::min(min_score, piece.score);
    parts.scores.push_back(score);
  }
  parts.unigram = {.unk_id = IdOr(file.unk_id, 2, file),
                   .unknown_score = min_score - static_cast<float>(kUnigramUnknownPenalty)};
  auto normalizer = std::make_shared<SentencePieceNormalizer>();
  if (!file.precompiled_charsmap.empty()) {
    PENSTOCK_ASSIGN_OR_RETURN(normalizer->charsmap,
                              Charsmap::Parse(file.precompiled_charsmap, "tokenizer.ggml.precompiled_charsmap"));
  }
  normalizer->remove_extra_spaces = file.remove_extra_whitespaces.value_or(false);
  // If the normalizer removes spaces, each word gets one back, including the first.
  const bool has_prefix = file.add_space_prefix.value_or(false) || normalizer->remove_extra_spaces;
  normalizer->prefix = has_prefix ? Prefix::kEachText : Prefix::kNone;
  parts.normalizer.Add({.kind = NormalizerStep::Kind::kSentencePiece, .sentencepiece = std::move(normalizer)});
  AddSpaceMarkDecoder(has_prefix, parts);
  parts.bos_id = IdOr(file.bos_id, -1, file);
  parts.eos_id = IdOr(file.eos_id, 1, file);
  return SetEnds(file, /*add_bos=*/false, /*add_eos=*/true, parts);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromGguf(const GgufVocabulary& file) {
  if (file.model != "gpt2" && file.model != "llama" && file.model != "t5" && file.model != "gemma4") {
    return ModelError("tokenizer.ggml.model: '{}' is not implemented, only gpt2, llama, t5 and gemma4 are", file.model);
  }
  PENSTOCK_RETURN_IF_ERROR(CheckArrays(file));
  std::vector<std::string> names;
  std::vector<Piece> pieces = MakePieces(file, names);
  TokenizerParts parts;
  PENSTOCK_RETURN_IF_ERROR(AddTokens(pieces, parts));
  if (file.model == "gpt2" || file.model == "gemma4") {
    PENSTOCK_RETURN_IF_ERROR(MakeByteLevel(file, file.model == "gpt2" ? file.pre : file.model, parts));
  } else if (file.model == "llama") {
    PENSTOCK_RETURN_IF_ERROR(MakeScored(file, std::move(pieces), parts));
  } else {
    PENSTOCK_RETURN_IF_ERROR(MakeUnigram(file, pieces, parts));
  }
  return PipelineTokenizer::Create(std::move(parts));
}

}  // namespace penstock
