#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "penstock/tokenizer/tokenizer.h"

namespace penstock {

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(const ModelFolder& folder) {
  std::string config;
  if (folder.Has("tokenizer_config.json")) {
    PENSTOCK_ASSIGN_OR_RETURN(config, folder.Read("tokenizer_config.json", kMaxConfigBytes));
  }
  const auto load = [&]() -> absl::StatusOr<std::unique_ptr<Tokenizer>> {
    if (folder.Has("tokenizer.json")) {
      PENSTOCK_ASSIGN_OR_RETURN(const std::string text, folder.Read("tokenizer.json", kMaxTokenizerBytes));
      return FromTokenizerJson(text, config);
    }
    if (folder.Has("tokenizer.model")) {
      PENSTOCK_ASSIGN_OR_RETURN(const std::string proto, folder.Read("tokenizer.model", kMaxTokenizerBytes));
      return FromSentencePiece(proto, config);
    }
    if (folder.Has("vocab.json") && folder.Has("merges.txt")) {
      PENSTOCK_ASSIGN_OR_RETURN(const std::string vocab, folder.Read("vocab.json", kMaxTokenizerBytes));
      PENSTOCK_ASSIGN_OR_RETURN(const std::string merges, folder.Read("merges.txt", kMaxTokenizerBytes));
      return FromVocabAndMerges(vocab, merges, config);
    }
    return ModelError("no tokenizer: expected tokenizer.json, tokenizer.model, or vocab.json with merges.txt");
  };
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = load();
  if (!tokenizer.ok()) return Annotate(tokenizer.status(), folder.path());
  return tokenizer;
}

}  // namespace penstock
