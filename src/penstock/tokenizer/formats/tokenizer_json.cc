// Loads tokenizer.json of Hugging Face's tokenizers, model types BPE and Unigram.

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "penstock/base/limits.h"
#include "penstock/base/text.h"
#include "penstock/tokenizer/formats/vocabulary_json.h"
#include "penstock/tokenizer/json_fields.h"
#include "penstock/tokenizer/pipeline_tokenizer.h"

namespace penstock {
namespace {

constexpr char kTokenizerFile[] = "tokenizer.json";

// Refuses options that are not implemented and would change the ids.
absl::Status RefuseModelOptions(const JsonFields& model) {
  for (const std::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (model.Find(key) == nullptr) continue;
    PENSTOCK_ASSIGN_OR_RETURN(const std::string value, model.String(key));
    if (!value.empty()) return ModelError("{}: {} '{}' is not implemented", model.where(), key, value);
  }
  const json::value* dropout = model.Find("dropout");
  if (dropout == nullptr) return absl::OkStatus();
  if (!dropout->is_number() || dropout->to_number<double>() != 0.0) {
    return ModelError("{}: dropout {} is not implemented", model.where(), json::serialize(*dropout));
  }
  return absl::OkStatus();
}

absl::Status ReadMerges(const json::array& merges, TokenizerParts& parts) {
  parts.merges.Reserve(merges.size());
  uint32_t rank = 0;
  for (const json::value& merge : merges) {
    const std::string where = fmt::format("{}: merge {}", kTokenizerFile, rank);
    std::string_view left;
    std::string_view right;
    if (merge.is_string()) {
      const std::string_view pair(merge.get_string().data(), merge.get_string().size());
      const size_t space = pair.find(' ');
      if (space == std::string_view::npos || pair.find(' ', space + 1) != std::string_view::npos) {
        return ModelError("{}: expected two tokens and a space between them, found '{}'", where, pair);
      }
      left = pair.substr(0, space);
      right = pair.substr(space + 1);
    } else if (merge.is_array() && merge.get_array().size() == 2 && merge.get_array()[0].is_string() &&
               merge.get_array()[1].is_string()) {
      const auto text = [&](size_t i) {
        const json::string& part = merge.get_array()[i].get_string();
        return std::string_view(part.data(), part.size());
      };
      left = text(0);
      right = text(1);
    } else {
      return ModelError("{}: expected a string or an array of two strings, found {}", where, JsonTypeName(merge));
    }
    PENSTOCK_RETURN_IF_ERROR(AddMerge(left, right, rank++, where, parts));
  }
  return absl::OkStatus();
}

absl::Status ReadBpe(const JsonFields& model, TokenizerParts& parts) {
  PENSTOCK_RETURN_IF_ERROR(RefuseModelOptions(model));
  PENSTOCK_ASSIGN_OR_RETURN(const json::object* vocab, model.Object("vocab"));
  PENSTOCK_RETURN_IF_ERROR(ReadVocabulary(*vocab, fmt::format("{}: vocab", kTokenizerFile), parts.vocabulary));
  PENSTOCK_ASSIGN_OR_RETURN(const json::array* merges, model.Array("merges"));
  PENSTOCK_RETURN_IF_ERROR(ReadMerges(*merges, parts));
  PENSTOCK_ASSIGN_OR_RETURN(parts.bpe.byte_fallback, model.Bool("byte_fallback", false));
  PENSTOCK_ASSIGN_OR_RETURN(parts.bpe.fuse_unk, model.Bool("fuse_unk", false));
  PENSTOCK_ASSIGN_OR_RETURN(parts.bpe.ignore_merges, model.Bool("ignore_merges", false));
  if (parts.bpe.byte_fallback) PENSTOCK_RETURN_IF_ERROR(CheckByteTokens(parts.vocabulary, kTokenizerFile));
  if (model.Find("unk_token") == nullptr) return absl::OkStatus();
  PENSTOCK_ASSIGN_OR_RETURN(const std::string unk, model.String("unk_token"));
  parts.bpe.unk_id = parts.vocabulary.Find(unk);
  if (parts.bpe.unk_id < 0) return ModelError("{}: unk_token '{}' is not in the vocabulary", model.where(), unk);
  return absl::OkStatus();
}

// Reads a Unigram model: "vocab" is an array of [token, score] by id.
absl::Status ReadUnigram(const JsonFields& model, TokenizerParts& parts) {
  PENSTOCK_ASSIGN_OR_RETURN(const json::array* vocab, model.Array("vocab"));
  if (vocab->empty()) return ModelError("{}: there are no tokens", model.where());
  if (vocab->size() > static_cast<size_t>(kMaxVocabSize)) {
    return ModelError("{}: {} tokens, the limit is {}", model.where(), vocab->size(), kMaxVocabSize);
  }
  double min_score = std::numeric_limits<double>::infinity();
  for (const json::value& entry : *vocab) {
    const size_t id = parts.scores.size();
    const json::array* pair = entry.if_array();
    if (pair == nullptr || pair->size() != 2 || !(*pair)[0].is_string() || !(*pair)[1].is_number()) {
      return ModelError("{}: vocab {}: expected [token, score], found {}", model.where(), id,
                        Excerpt(json::serialize(entry)));
    }
    const json::string& text = (*pair)[0].get_string();
    const auto score = (*pair)[1].to_number<double>();
    if (!std::isfinite(score)) return ModelError("{}: vocab {}: the score is {}", model.where(), id, score);
    const auto where = fmt::format("{}: vocab", model.where());
    PENSTOCK_RETURN_IF_ERROR(
        parts.vocabulary.Add(std::string_view(text.data(), text.size()), static_cast<int64_t>(id), where));
    parts.scores.push_back(score);
    min_score = std::min(min_score, score);
  }
  UnigramOptions options{.unknown_score = min_score - kUnigramUnknownPenalty, .look_up_unknown = true};
  PENSTOCK_ASSIGN_OR_RETURN(options.byte_fallback, model.Bool("byte_fallback", false));
  if (options.byte_fallback) PENSTOCK_RETURN_IF_ERROR(CheckByteTokens(parts.vocabulary, kTokenizerFile));
  if (model.Find("unk_id") != nullptr) {
    PENSTOCK_ASSIGN_OR_RETURN(const int64_t unk_id, model.Integer("unk_id"));
    if (unk_id < 0 || unk_id >= static_cast<int64_t>(vocab->size())) {
      return ModelError("{}: unk_id: expected an id from 0 to {}, found {}", model.where(), vocab->size() - 1, unk_id);
    }
    options.unk_id = static_cast<TokenId>(unk_id);
  }
  parts.unigram = options;
  return absl::OkStatus();
}

absl::Status ReadModel(const JsonFields& file, TokenizerParts& parts) {
  PENSTOCK_ASSIGN_OR_RETURN(const json::object* object, file.Object("model"));
  const JsonFields model(*object, fmt::format("{}: model", kTokenizerFile));
  // Files of old versions omit the type.
  std::string type = model.Find("merges") != nullptr ? "BPE" : "Unigram";
  if (model.Find("type") != nullptr || (model.Find("merges") == nullptr && model.Find("unk_id") == nullptr)) {
    PENSTOCK_ASSIGN_OR_RETURN(type, model.String("type"));
  }
  if (type == "BPE") return ReadBpe(model, parts);
  if (type == "Unigram") return ReadUnigram(model, parts);
  return ModelError("{}: type '{}' is not implemented, only BPE and Unigram are", model.where(), type);
}

absl::Status ReadAddedTokens(const JsonFields& file, std::vector<AddedToken>& tokens) {
  if (file.Find("added_tokens") == nullptr) return absl::OkStatus();
  PENSTOCK_ASSIGN_OR_RETURN(const json::array* array, file.Array("added_tokens"));
  if (array->size() > kMaxAddedTokens) {
    return ModelError("{}: {} added tokens, the limit is {}", kTokenizerFile, array->size(), kMaxAddedTokens);
  }
  for (const json::value& value : *array) {
    const std::string where = fmt::format("{}: added_tokens {}", kTokenizerFile, tokens.size());
    PENSTOCK_ASSIGN_OR_RETURN(AddedToken token, ParseAddedToken(value, where));
    PENSTOCK_ASSIGN_OR_RETURN(const int64_t id, JsonFields(value.get_object(), where).Integer("id"));
    if (id < 0 || id >= kMaxVocabSize) {
      return ModelError("{}: '{}': expected an id from 0 to {}, found {}", where, token.content, kMaxVocabSize - 1, id);
    }
    token.id = static_cast<TokenId>(id);
    tokens.push_back(std::move(token));
  }
  return absl::OkStatus();
}

absl::Status ReadTemplateToken(const JsonFields& piece, const JsonFields& processor, std::vector<TokenId>& ids) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::string name, piece.String("id"));
  PENSTOCK_ASSIGN_OR_RETURN(const json::object* all, processor.Object("special_tokens"));
  PENSTOCK_ASSIGN_OR_RETURN(const json::object* token,
                            JsonFields(*all, processor.where() + ": special_tokens").Object(name));
  PENSTOCK_ASSIGN_OR_RETURN(const json::array* token_ids,
                            JsonFields(*token, processor.where() + ": special_tokens " + name).Array("ids"));
  for (const json::value& id : *token_ids) {
    if (!id.is_int64() || id.get_int64() < 0 || id.get_int64() >= kMaxVocabSize || ids.size() >= 64) {
      return ModelError("{}: special token '{}': expected up to 64 ids from 0 to {}", processor.where(), name,
                        kMaxVocabSize - 1);
    }
    ids.push_back(static_cast<TokenId>(id.get_int64()));
  }
  return absl::OkStatus();
}

absl::Status ReadTemplate(const Component& processor, TokenizerParts& parts) {
  PENSTOCK_ASSIGN_OR_RETURN(const json::array* pieces, processor.Array("single"));
  bool after_text = false;
  for (const json::value& value : *pieces) {
    if (!value.is_object()) return ModelError("{}: single: expected objects", processor.where());
    const JsonFields piece(value.get_object(), processor.where() + ": single");
    if (piece.Find("SpecialToken") != nullptr) {
      PENSTOCK_ASSIGN_OR_RETURN(const json::object* token, piece.Object("SpecialToken"));
      PENSTOCK_RETURN_IF_ERROR(
          ReadTemplateToken(JsonFields(*token, piece.where()), processor, after_text ? parts.suffix : parts.prefix));
      continue;
    }
    PENSTOCK_ASSIGN_OR_RETURN(const json::object* sequence, piece.Object("Sequence"));
    PENSTOCK_ASSIGN_OR_RETURN(const std::string name, JsonFields(*sequence, piece.where()).String("id"));
    if (name != "A" || after_text) return ModelError("{}: expected one Sequence A", piece.where());
    after_text = true;
  }
  if (!after_text) return ModelError("{}: single has no Sequence", processor.where());
  return absl::OkStatus();
}

// Reads "cls" or "sep" of the older processors: [token, id].
absl::Status ReadProcessorToken(const Component& processor, std::string_view key, std::vector<TokenId>& ids) {
  PENSTOCK_ASSIGN_OR_RETURN(const json::array* pair, processor.Array(key));
  const bool has_id = pair->size() == 2 && (*pair)[1].is_int64();
  const int64_t id = has_id ? (*pair)[1].get_int64() : -1;
  if (id < 0 || id >= kMaxVocabSize) {
    return ModelError("{}: {}: expected [token, id] with an id from 0 to {}", processor.where(), key,
                      kMaxVocabSize - 1);
  }
  ids = {static_cast<TokenId>(id)};
  return absl::OkStatus();
}

absl::Status ReadPostProcessor(const json::value& value, int depth, TokenizerParts& parts) {
  PENSTOCK_ASSIGN_OR_RETURN(const Component processor, Component::From(value, "post_processor"));
  if (processor.type() == "ByteLevel") return absl::OkStatus();  // changes offsets only
  if (processor.type() == "TemplateProcessing") {
    if (!parts.prefix.empty() || !parts.suffix.empty()) {
      return ModelError("{}: a second template is not implemented", processor.where());
    }
    return ReadTemplate(processor, parts);
  }
  if (processor.type() == "BertProcessing" || processor.type() == "RobertaProcessing") {
    PENSTOCK_RETURN_IF_ERROR(ReadProcessorToken(processor, "cls", parts.prefix));
    return ReadProcessorToken(processor, "sep", parts.suffix);
  }
  if (processor.type() != "Sequence") return processor.NotImplemented();
  if (depth > 8) return ModelError("post_processor: Sequences are nested more than 8 deep");
  PENSTOCK_ASSIGN_OR_RETURN(const json::array* processors, processor.Array("processors"));
  for (const json::value& part : *processors) PENSTOCK_RETURN_IF_ERROR(ReadPostProcessor(part, depth + 1, parts));
  return absl::OkStatus();
}

// Replaces the file's template as Llama's tokenizer classes do when the config has these fields.
absl::Status OverrideTemplate(const TokenizerConfig& config, TokenizerParts& parts) {
  if (!config.tokenizer_class.starts_with("LlamaTokenizer")) return absl::OkStatus();
  if (!config.add_bos_token.has_value() && !config.add_eos_token.has_value()) return absl::OkStatus();
  parts.prefix.clear();
  parts.suffix.clear();
  if (config.add_bos_token.value_or(true)) {
    if (parts.bos_id < 0) return ModelError("tokenizer_config.json: add_bos_token without a bos_token");
    parts.prefix = {parts.bos_id};
  }
  if (config.add_eos_token.value_or(false)) {
    if (parts.eos_id < 0) return ModelError("tokenizer_config.json: add_eos_token without an eos_token");
    parts.suffix = {parts.eos_id};
  }
  return absl::OkStatus();
}

}  // namespace

// Ignores "truncation" and "padding": they say how a training script batched, and transformers replaces both at each
// call.
absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromTokenizerJson(std::string_view tokenizer_json,
                                                                        std::string_view tokenizer_config) {
  PENSTOCK_ASSIGN_OR_RETURN(const TokenizerConfig config, TokenizerConfig::Parse(tokenizer_config));
  TokenizerParts parts;
  {
    absl::StatusOr<json::value> document = ParseJson(tokenizer_json, Fault::kModel);
    if (!document.ok()) return Annotate(document.status(), kTokenizerFile);
    if (!document->is_object())
      return ModelError("{}: expected object, found {}", kTokenizerFile, JsonTypeName(*document));
    const JsonFields file(document->get_object(), kTokenizerFile);
    PENSTOCK_RETURN_IF_ERROR(ReadModel(file, parts));
    PENSTOCK_RETURN_IF_ERROR(ReadAddedTokens(file, parts.added_tokens));
    const json::value null;
    const auto part = [&](std::string_view key) -> const json::value& {
      const json::value* value = file.Find(key);
      return value == nullptr ? null : *value;
    };
    PENSTOCK_ASSIGN_OR_RETURN(parts.normalizer, Normalizer::FromJson(part("normalizer")));
    PENSTOCK_ASSIGN_OR_RETURN(parts.pretokenizer, PreTokenizer::FromJson(part("pre_tokenizer")));
    PENSTOCK_ASSIGN_OR_RETURN(parts.decoder, Decoder::FromJson(part("decoder")));
    if (!part("post_processor").is_null()) {
      PENSTOCK_RETURN_IF_ERROR(ReadPostProcessor(part("post_processor"), 0, parts));
    }
  }
  PENSTOCK_RETURN_IF_ERROR(ApplyConfig(config, parts));
  PENSTOCK_RETURN_IF_ERROR(OverrideTemplate(config, parts));
  return PipelineTokenizer::Create(std::move(parts));
}

}  // namespace penstock
