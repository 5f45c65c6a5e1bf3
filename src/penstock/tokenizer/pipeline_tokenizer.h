// The one tokenizer behind all formats: added tokens, normalizer, pre-tokenizer, byte-pair encoding or Unigram, BOS and
// EOS, decoder. The loaders build it; then it is immutable and safe to share between threads.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "penstock/tokenizer/added_tokens.h"
#include "penstock/tokenizer/bpe.h"
#include "penstock/tokenizer/decoder.h"
#include "penstock/tokenizer/formats/tokenizer_config.h"
#include "penstock/tokenizer/normalizer.h"
#include "penstock/tokenizer/split/pretokenizer.h"
#include "penstock/tokenizer/tokenizer.h"
#include "penstock/tokenizer/unigram.h"

namespace penstock {

struct TokenizerParts {
  Vocabulary vocabulary;
  MergeTable merges;
  BpeOptions bpe;
  std::optional<UnigramOptions> unigram;                     // used instead of merges
  std::vector<double> scores;                                // for Unigram, by id: see UnigramModel
  PatternMatcher frozen_pieces;                              // see BpeModel::SetFrozenPieces
  absl::flat_hash_map<char32_t, TokenId> hidden_characters;  // see BpeModel::SetHiddenCharacters
  Normalizer normalizer;
  PreTokenizer pretokenizer;
  Decoder decoder;
  std::vector<AddedToken> added_tokens;
  std::vector<TokenId> user_defined;  // SentencePiece's user-defined pieces
  std::vector<TokenId> prefix;        // ids added before and after a text when special tokens are requested
  std::vector<TokenId> suffix;
  bool cleans_spaces = false;  // for Unigram only: see Tokenizer::cleans_spaces
  TokenId bos_id = -1;
  TokenId eos_id = -1;
  std::vector<std::pair<std::string, std::string>> named_tokens;  // see Tokenizer::NamedTokens
};

class PipelineTokenizer final : public Tokenizer {
 public:
  // Returns kModel if added tokens contradict each other or the vocabulary.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Create(TokenizerParts parts);

  void GuardTemplate(std::string_view literals) override;
  using Tokenizer::Encode;
  std::vector<TokenId> Encode(std::span<const TextSegment> segments, AddSpecial add_special) const override;
  void DecodeNext(TokenId id, SkipSpecial skip_special, DecodeState& state, std::string& out) const override;
  bool cleans_spaces() const override { return cleans_spaces_; }
  std::string_view TokenText(TokenId id) const override;
  bool IsSpecial(TokenId id) const override;
  bool IsMark(TokenId id) const override { return marks_.contains(id); }
  TokenId FindToken(std::string_view token) const override;
  int64_t vocab_size() const override { return vocab_size_; }
  TokenId bos_id() const override { return bos_id_; }
  TokenId eos_id() const override { return eos_id_; }
  std::vector<std::pair<std::string, std::string>> NamedTokens() const override;
  uint64_t memory_bytes() const override;

 private:
  using Model = std::variant<BpeModel, UnigramModel>;
  struct Scratch {
    BpeModel::Scratch bpe;
    UnigramModel::Scratch unigram;
  };

  explicit PipelineTokenizer(TokenizerParts parts);
  static Model MakeModel(TokenizerParts& parts);
  const Vocabulary& vocabulary() const;
  // Finds the marks, and keeps text of messages from becoming them by merging.
  void ForbidMarks();
  void EncodePart(TrackedText text, bool at_start, Scratch& scratch, std::vector<TokenId>& out) const;
  void EncodeWord(std::string_view word, Scratch& scratch, std::vector<TokenId>& out) const;

  Normalizer normalizer_;
  PreTokenizer pretokenizer_;
  Model model_;
  Decoder decoder_;
  AddedTokens added_;
  absl::flat_hash_set<TokenId> marks_;
  std::vector<TokenId> user_defined_;
  std::vector<TokenId> prefix_;
  std::vector<TokenId> suffix_;
  bool cleans_spaces_;
  TokenId bos_id_;
  TokenId eos_id_;
  std::vector<std::pair<std::string, std::string>> named_tokens_;
  int64_t vocab_size_ = 0;
};

// Returns the id of the added token or vocabulary token with this text, or -1 if there is none.
TokenId FindTokenIn(const TokenizerParts& parts, std::string_view text);

// Adds the config's added tokens whose ids are still free, and takes over its named tokens.
absl::Status ApplyConfig(const TokenizerConfig& config, TokenizerParts& parts);

}  // namespace penstock
