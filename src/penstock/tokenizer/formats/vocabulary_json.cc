// Also loads vocab.json with merges.txt, the layout of GPT-2 and Qwen2.
#include "penstock/tokenizer/formats/vocabulary_json.h"

#include <utility>

#include "penstock/base/limits.h"
#include "penstock/base/text.h"
#include "penstock/tokenizer/json_fields.h"

namespace penstock {
namespace {

constexpr size_t kMaxByteTokenBytes = 8;

std::string_view View(json::string_view text) { return {text.data(), text.size()}; }

absl::Status ReadMergesText(std::string_view text, TokenizerParts& parts) {
  if (!IsUtf8(text)) return ModelError("merges.txt: not UTF-8 at byte {}", FindInvalidUtf8(text));
  uint32_t rank = 0;
  size_t line_number = 0;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    ++line_number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || (line_number == 1 && line.starts_with("#version"))) continue;
    const std::string where = fmt::format("merges.txt: line {}", line_number);
    const size_t space = line.find(' ');
    if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
      return ModelError("{}: expected two tokens and a space between them, found '{}'", where, line);
    }
    PENSTOCK_RETURN_IF_ERROR(AddMerge(line.substr(0, space), line.substr(space + 1), rank++, where, parts));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadVocabulary(const json::object& tokens, const std::string& where, Vocabulary& vocabulary) {
  if (tokens.empty()) return ModelError("{}: there are no tokens", where);
  if (tokens.size() > static_cast<size_t>(kMaxVocabSize)) {
    return ModelError("{}: {} tokens, the limit is {}", where, tokens.size(), kMaxVocabSize);
  }
  size_t num_bytes = 0;
  for (const auto& [token, id] : tokens) num_bytes += token.size();
  vocabulary.Reserve(tokens.size(), num_bytes);
  for (const auto& [token, id] : tokens) {
    if (!id.is_int64()) {
      return ModelError("{}: token '{}': expected an integer id, found {}", where, View(token), json::serialize(id));
    }
    PENSTOCK_RETURN_IF_ERROR(vocabulary.Add(View(token), id.get_int64(), where));
  }
  return absl::OkStatus();
}

absl::Status AddMerge(std::string_view left, std::string_view right, uint32_t rank, const std::string& where,
                      TokenizerParts& parts) {
  const TokenId left_id = parts.vocabulary.Find(left);
  const TokenId right_id = parts.vocabulary.Find(right);
  if (left_id < 0) return ModelError("{}: '{}' is not in the vocabulary", where, left);
  if (right_id < 0) return ModelError("{}: '{}' is not in the vocabulary", where, right);
  std::string merged(left);
  merged += right;
  const TokenId merged_id = parts.vocabulary.Find(merged);
  if (merged_id < 0) return ModelError("{}: '{}' is not in the vocabulary", where, merged);
  parts.merges.Add(left_id, right_id, rank, merged_id);
  return absl::OkStatus();
}

absl::Status CheckByteTokens(const Vocabulary& vocabulary, std::string_view where) {
  const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'F'); };
  for (TokenId id = 0; id < vocabulary.size(); ++id) {
    const std::string_view token = vocabulary.Text(id);
    if (token.size() > kMaxByteTokenBytes || !token.starts_with("<0x") || !token.ends_with('>')) continue;
    if (token.size() != 6 || !is_digit(token[3]) || !is_digit(token[4])) {
      return ModelError("{}: byte token '{}' (id {}): expected <0x00> to <0xFF>", where, token, id);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromVocabAndMerges(std::string_view vocab_json,
                                                                         std::string_view merges_txt,
                                                                         std::string_view tokenizer_config) {
  PENSTOCK_ASSIGN_OR_RETURN(const TokenizerConfig config, TokenizerConfig::Parse(tokenizer_config));
  TokenizerParts parts;
  const std::string_view name = config.tokenizer_class;
  PreTokenizerStep split{.kind = PreTokenizerStep::Kind::kSplit};
  if (name == "Qwen2Tokenizer" || name == "Qwen2TokenizerFast") {
    PENSTOCK_ASSIGN_OR_RETURN(
        split.pattern, SplitPattern::FromRegex(
                           R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
                           R"(\s*[\r\n]+|\s+(?!\S)|\s+)",
                           "Qwen2Tokenizer"));
    parts.normalizer.Add({.kind = NormalizerStep::Kind::kUnicode});
    parts.pretokenizer.Add(std::move(split));
    parts.pretokenizer.AddByteLevel(/*prefix_space=*/false, /*use_regex=*/false);
  } else if (name == "GPT2Tokenizer" || name == "GPT2TokenizerFast") {
    parts.pretokenizer.AddByteLevel(config.add_prefix_space.value_or(false), /*use_regex=*/true);
  } else {
    return ModelError(
        "tokenizer_config.json: tokenizer_class '{}': with vocab.json and merges.txt, only GPT2Tokenizer and "
        "Qwen2Tokenizer are implemented; save the model with a tokenizer.json",
        name);
  }
  parts.decoder.Add({.kind = DecoderStep::Kind::kByteLevel});
  {
    absl::StatusOr<json::value> document = ParseJson(vocab_json, Fault::kModel);
    if (!document.ok()) return Annotate(document.status(), "vocab.json");
    if (!document->is_object()) return ModelError("vocab.json: expected object, found {}", JsonTypeName(*document));
    PENSTOCK_RETURN_IF_ERROR(ReadVocabulary(document->get_object(), "vocab.json", parts.vocabulary));
  }
  PENSTOCK_RETURN_IF_ERROR(ReadMergesText(merges_txt, parts));
  PENSTOCK_RETURN_IF_ERROR(ApplyConfig(config, parts));
  if (config.add_bos_token.value_or(false) && parts.bos_id >= 0) parts.prefix = {parts.bos_id};
  if (config.add_eos_token.value_or(false) && parts.eos_id >= 0) parts.suffix = {parts.eos_id};
  return PipelineTokenizer::Create(std::move(parts));
}

}  // namespace penstock
