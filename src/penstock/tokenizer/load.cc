#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "penstock/tokenizer/formats/gguf_tokenizer.h"
#include "penstock/tokenizer/formats/tiktoken.h"
#include "penstock/tokenizer/formats/tokenizer_config.h"
#include "penstock/tokenizer/tokenizer.h"

namespace penstock {
namespace {

// Returns "" if there is none.
absl::StatusOr<std::string> FindTiktokenFile(const ModelFolder& folder) {
  if (folder.Has("tiktoken.model")) return "tiktoken.model";
  std::string found;
  for (const std::string& name : folder.List()) {
    if (!name.ends_with(".tiktoken")) continue;
    if (!found.empty())
      return ModelError("two rank files, {} and {}: cannot tell which one the model uses", found, name);
    found = name;
  }
  return found;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromGguf(const Gguf& gguf) {
  absl::StatusOr<std::optional<GgufVocabulary>> vocabulary = ReadGgufVocabulary(gguf.metadata);
  if (!vocabulary.ok()) return Annotate(vocabulary.status(), gguf.files[0].path);
  if (!vocabulary->has_value()) return nullptr;
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = FromGguf(**vocabulary);
  if (!tokenizer.ok()) return Annotate(tokenizer.status(), gguf.files[0].path);
  return tokenizer;
}

absl::StatusOr<std::vector<std::string>> Tokenizer::Files(const ModelFolder& folder) {
  std::vector<std::string> names;
  for (const std::string_view name : {"tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt"}) {
    if (folder.Has(name)) names.emplace_back(name);
  }
  PENSTOCK_ASSIGN_OR_RETURN(std::string ranks_name, FindTiktokenFile(folder));
  if (!ranks_name.empty()) names.push_back(std::move(ranks_name));
  return names;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(const ModelFolder& folder) {
  PENSTOCK_ASSIGN_OR_RETURN(std::optional<Gguf> gguf, OpenGguf(folder));
  if (!gguf.has_value()) {
    PENSTOCK_ASSIGN_OR_RETURN(gguf, OpenGgufMetadata(folder));
  }
  if (gguf.has_value()) {
    PENSTOCK_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer, FromGguf(*gguf));
    if (tokenizer == nullptr) {
      return ModelError("{}: the file has no tokenizer (tokenizer.ggml.model)", gguf->files[0].path);
    }
    return tokenizer;
  }
  std::string config;
  if (folder.Has("tokenizer_config.json")) {
    PENSTOCK_ASSIGN_OR_RETURN(config, folder.Read("tokenizer_config.json", kMaxConfigBytes));
  }
  if (folder.Has("special_tokens_map.json")) {
    PENSTOCK_ASSIGN_OR_RETURN(const std::string map, folder.Read("special_tokens_map.json", kMaxConfigBytes));
    PENSTOCK_ASSIGN_OR_RETURN(config, WithSpecialTokensMap(config, map));
  }
  const auto load = [&]() -> absl::StatusOr<std::unique_ptr<Tokenizer>> {
    if (folder.Has("tokenizer.json")) {
      PENSTOCK_ASSIGN_OR_RETURN(const std::string text, folder.Read("tokenizer.json", kMaxTokenizerBytes));
      return FromTokenizerJson(text, config);
    }
    if (folder.Has("tokenizer.model")) {
      PENSTOCK_ASSIGN_OR_RETURN(const std::string proto, folder.Read("tokenizer.model", kMaxTokenizerBytes));
      if (LooksLikeTiktoken(proto)) return FromTiktoken(proto, "tokenizer.model", config);
      return FromSentencePiece(proto, config);
    }
    if (folder.Has("vocab.json") && folder.Has("merges.txt")) {
      PENSTOCK_ASSIGN_OR_RETURN(const std::string vocab, folder.Read("vocab.json", kMaxTokenizerBytes));
      PENSTOCK_ASSIGN_OR_RETURN(const std::string merges, folder.Read("merges.txt", kMaxTokenizerBytes));
      return FromVocabAndMerges(vocab, merges, config);
    }
    PENSTOCK_ASSIGN_OR_RETURN(const std::string ranks_name, FindTiktokenFile(folder));
    if (!ranks_name.empty()) {
      PENSTOCK_ASSIGN_OR_RETURN(const std::string ranks, folder.Read(ranks_name, kMaxTokenizerBytes));
      return FromTiktoken(ranks, ranks_name, config);
    }
    return ModelError("no tokenizer: expected {}", Tokenizer::kFileNames);
  };
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = load();
  if (!tokenizer.ok()) return Annotate(tokenizer.status(), folder.path());
  return tokenizer;
}

}  // namespace penstock
