// Text to token ids and back: BPE and Unigram as Hugging Face's tokenizer.json describes them, SentencePiece models,
// tiktoken's rank files, vocab.json with merges.txt, and the vocabularies of GGUF files.
//
// Text carries its origin, which says who wrote it. Only template text (ours, or the model folder's chat template) can
// become a special token or another token that the chat template writes. The same letters in a message stay ordinary
// text.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/checkpoint/gguf.h"
#include "penstock/checkpoint/model_folder.h"
#include "penstock/token_id.h"
#include "penstock/tokenizer/space_cleaner.h"

namespace penstock {

struct GgufVocabulary;

enum class Origin : uint8_t {
  kTemplate,  // may contain special tokens
  kMessage,   // never becomes a special token
};

// A run of text with one origin.
struct TextSegment {
  std::string text;
  Origin origin = Origin::kMessage;
};

enum class AddSpecial : uint8_t { kNo, kYes };  // BOS / EOS as the tokenizer's post-processor says
enum class SkipSpecial : uint8_t { kNo, kYes };

// The state of a text that is decoded token by token.
struct DecodeState {
  int64_t num_tokens = 0;     // decoded so far, without skipped tokens
  int64_t num_stripped = 0;   // characters removed from the beginning so far
  bool past_leading = false;  // nothing more is removed from the beginning
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Reads the first of these that the folder has: tokenizer.json; tokenizer.model; vocab.json with merges.txt;
  // tiktoken.model; its only *.tiktoken file. Reads tokenizer_config.json and special_tokens_map.json, too. Returns
  // kModel if a file is invalid, or if it uses a part that is not implemented, which the message names.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const ModelFolder& folder);
  static constexpr std::string_view kFileNames =
      "tokenizer.json, tokenizer.model, vocab.json with merges.txt, tiktoken.model or a *.tiktoken file";
  // Returns the names of these files that the folder has, or none for a GGUF file.
  static absl::StatusOr<std::vector<std::string>> Files(const ModelFolder& folder);

  // Loads a tokenizer from the contents of its files; `tokenizer_config` may be empty.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromTokenizerJson(std::string_view tokenizer_json,
                                                                      std::string_view tokenizer_config);
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromSentencePiece(std::string_view model_proto,
                                                                      std::string_view tokenizer_config);
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromVocabAndMerges(std::string_view vocab_json,
                                                                       std::string_view merges_txt,
                                                                       std::string_view tokenizer_config);
  // `file_name` helps to recognise the split pattern (see tiktoken.h).
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromTiktoken(std::string_view ranks, std::string_view file_name,
                                                                 std::string_view tokenizer_config);
  // Builds a tokenizer that gives the same ids as llama.cpp (see gguf_tokenizer.h).
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromGguf(const GgufVocabulary& vocabulary);
  // Returns nullptr if the file has no tokenizer.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromGguf(const Gguf& gguf);

  // Protects the tokens that the chat template writes (ChatTemplate::Literals), even where the model's files do not
  // call them special. From now on, messages cannot produce an added token that occurs in `literals` or that marks a
  // role, as "<|user|>" does. White space stays allowed. Call it before the first Encode.
  virtual void GuardTemplate(std::string_view literals) = 0;

  // Returns the ids of the segments read as one text. A word may cross a border between segments unless a special token
  // stands there. Bytes that are not UTF-8 are encoded as U+FFFD, as Hugging Face's tokenizers do.
  virtual std::vector<TokenId> Encode(std::span<const TextSegment> segments, AddSpecial add_special) const = 0;
  std::vector<TokenId> Encode(std::string_view text, Origin origin, AddSpecial add_special) const;

  // Returns the text of `ids`; ids outside the vocabulary are skipped. The bytes are those of the tokens: if a model
  // chose the ids, they may be invalid UTF-8 (see ReplaceInvalidUtf8) or end inside a sequence (see StreamDecoder).
  std::string Decode(std::span<const TokenId> ids, SkipSpecial skip_special) const;
  // Appends the bytes of the text's next id. Decode calls this for each id, starting from DecodeState(), and then
  // cleans the whole text.
  virtual void DecodeNext(TokenId id, SkipSpecial skip_special, DecodeState& state, std::string& out) const = 0;

  // Returns whether decoded texts go through a SpaceCleaner (clean_up_tokenization_spaces, which transformers ignores
  // for BPE).
  virtual bool cleans_spaces() const { return false; }

  // Returns the token as the vocabulary file spells it, or "" if there is none.
  virtual std::string_view TokenText(TokenId id) const = 0;
  virtual bool IsSpecial(TokenId id) const = 0;
  // Whether messages cannot produce the token: it is special, or GuardTemplate() protects it.
  virtual bool IsMark(TokenId id) const { return IsSpecial(id); }
  // Returns -1 if the vocabulary has no such token.
  virtual TokenId FindToken(std::string_view token) const = 0;

  // One more than the largest id.
  virtual int64_t vocab_size() const = 0;
  virtual TokenId bos_id() const = 0;  // -1 when there is none
  virtual TokenId eos_id() const = 0;  // -1 when there is none
  // Returns the special tokens that chat templates know by name ("bos_token", "eos_token", "pad_token" ...): name and
  // text.
  virtual std::vector<std::pair<std::string, std::string>> NamedTokens() const = 0;
  // Returns how many bytes this tokenizer holds, for the memory budget.
  virtual uint64_t memory_bytes() const = 0;
};

// Decodes a growing sequence of ids. It hands out text only at UTF-8 borders, so text that was handed out never
// changes. All its output together equals ReplaceInvalidUtf8(tokenizer.Decode(ids)). It keeps only the bytes of an open
// sequence and, for tokenizers that clean spaces, text that may still be removed.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, SkipSpecial skip_special = SkipSpecial::kYes)
      : tokenizer_(&tokenizer), skip_special_(skip_special) {}

  // The next tokens continue a text, so they keep a leading space.
  void ContinueText() { state_ = {.num_tokens = 1, .past_leading = true}; }

  // Returns the text that `id` completes ("" while a UTF-8 sequence is open).
  std::string Push(TokenId id);
  // Returns the text still held back, with an open sequence replaced by U+FFFD, and begins a new text.
  std::string Finish();

 private:
  const Tokenizer* tokenizer_;
  SkipSpecial skip_special_;
  DecodeState state_;
  std::string open_;  // bytes of an open UTF-8 sequence
  SpaceCleaner cleaner_;
};

}  // namespace penstock
