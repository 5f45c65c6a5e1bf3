// Text to token ids and back: BPE and Unigram as Hugging Face's tokenizer.json describes them, SentencePiece models,
// tiktoken's rank files, vocab.json with merges.txt, and the vocabularies of GGUF files.
//
// Origin marking: text carries who wrote it. Only template text (ours, or the model folder's chat template) can become
// a special token, or another token that the chat template writes; the same letters in a message stay ordinary text.
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

// A run of text of one origin.
struct TextSegment {
  std::string text;
  Origin origin = Origin::kMessage;
};

enum class AddSpecial : uint8_t { kNo, kYes };  // BOS / EOS as the tokenizer's post-processor asks
enum class SkipSpecial : uint8_t { kNo, kYes };

// Where a text that is decoded token by token stands.
struct DecodeState {
  int64_t num_tokens = 0;     // decoded so far, skipped ones not counted
  int64_t num_stripped = 0;   // characters taken from the beginning so far
  bool past_leading = false;  // nothing more will be taken from the beginning
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Reads the folder's tokenizer.json, or tokenizer.model, or vocab.json + merges.txt, or tiktoken.model, or the only
  // *.tiktoken file (first that is present), together with tokenizer_config.json and special_tokens_map.json. kModel
  // when a file is invalid or uses a part that is not implemented (named).
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const ModelFolder& folder);
  // Those of these files that the folder has; none in a GGUF file's.
  static absl::StatusOr<std::vector<std::string>> Files(const ModelFolder& folder);

  // The same from bytes; `tokenizer_config` may be empty.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromTokenizerJson(std::string_view tokenizer_json,
                                                                      std::string_view tokenizer_config);
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromSentencePiece(std::string_view model_proto,
                                                                      std::string_view tokenizer_config);
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromVocabAndMerges(std::string_view vocab_json,
                                                                       std::string_view merges_txt,
                                                                       std::string_view tokenizer_config);
  // `file_name` helps to tell the pattern (tiktoken.h says how).
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromTiktoken(std::string_view ranks, std::string_view file_name,
                                                                 std::string_view tokenizer_config);
  // The same ids as llama.cpp gives (gguf_tokenizer.h).
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromGguf(const GgufVocabulary& vocabulary);
  // nullptr when the file has none.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromGguf(const Gguf& gguf);

  // What a chat template writes itself (ChatTemplate::Literals) controls the model, whatever the model's files call
  // special: from now on messages cannot have the added tokens that occur in `literals`, or that stand for a role as
  // "<|user|>" does. White space stays free. To be called before anything is encoded.
  virtual void GuardTemplate(std::string_view literals) = 0;

  // Ids of the segments taken as one text (a word may cross a border of segments unless a special token stands there).
  // Bytes that are not UTF-8 are encoded as U+FFFD, as Hugging Face does for text that it is given.
  virtual std::vector<TokenId> Encode(std::span<const TextSegment> segments, AddSpecial add_special) const = 0;
  std::vector<TokenId> Encode(std::string_view text, Origin origin, AddSpecial add_special) const;

  // The text of `ids`; ids outside the vocabulary are skipped. Bytes as the tokens have them: the text of ids that a
  // model chose may be invalid UTF-8 (see ReplaceInvalidUtf8), or end inside a sequence (see StreamDecoder).
  std::string Decode(std::span<const TokenId> ids, SkipSpecial skip_special) const;
  // Appends the bytes of the next id of a text. Decode does this for each id, beginning with DecodeState(), and cleans
  // the whole.
  virtual void DecodeNext(TokenId id, SkipSpecial skip_special, DecodeState& state, std::string& out) const = 0;

  // Decoded texts go through a SpaceCleaner (clean_up_tokenization_spaces; transformers heeds it in all but BPE).
  virtual bool cleans_spaces() const { return false; }

  // The token as the vocabulary file spells it ("" when there is none).
  virtual std::string_view TokenText(TokenId id) const = 0;
  virtual bool IsSpecial(TokenId id) const = 0;
  // -1 when the vocabulary has no such token.
  virtual TokenId FindToken(std::string_view token) const = 0;

  // One more than the largest id.
  virtual int64_t vocab_size() const = 0;
  virtual TokenId bos_id() const = 0;  // -1 when there is none
  virtual TokenId eos_id() const = 0;  // -1 when there is none
  // What chat templates know special tokens by ("bos_token", "eos_token", "pad_token" ...), each with its text.
  virtual std::vector<std::pair<std::string, std::string>> NamedTokens() const = 0;
  // Bytes that this tokenizer holds, for the memory budget.
  virtual uint64_t memory_bytes() const = 0;
};

// Decodes a growing sequence of ids and gives out text only at UTF-8 borders, so that what was given out never changes.
// All that it gives out, together, is ReplaceInvalidUtf8(tokenizer.Decode(ids)). Keeps at most the bytes of an open
// sequence, and of tokenizers that clean spaces what may be one to take away.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, SkipSpecial skip_special = SkipSpecial::kYes)
      : tokenizer_(&tokenizer), skip_special_(skip_special) {}

  // The text that `id` completes ("" while a UTF-8 sequence is open).
  std::string Push(TokenId id);
  // What is still held back, with the open sequence replaced by U+FFFD. Begins a new text.
  std::string Finish();

 private:
  const Tokenizer* tokenizer_;
  SkipSpecial skip_special_;
  DecodeState state_;
  std::string open_;  // bytes of an open UTF-8 sequence
  SpaceCleaner cleaner_;
};

}  // namespace penstock
