#include "penstock/plan/loaded_model.h"

#include <algorithm>

#include <malloc.h>
#include <xxhash.h>

#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "penstock/chat/answer/answer_stream.h"
#include "penstock/chat/answer/whole_answer.h"
#include "penstock/chat/chat_parts.h"
#include "penstock/checkpoint/packed_index.h"
#include "penstock/grammar/constraint.h"
#include "penstock/memory/weights.h"
#include "penstock/model/family.h"
#include "penstock/model/gguf_model.h"

namespace penstock {
namespace {

constexpr std::string_view kOtherFiles[] = {"tokenizer_config.json",  "special_tokens_map.json",
                                            "generation_config.json", "chat_template.jinja",
                                            "chat_template.json",     kModeloptFile};

std::string LastPathPart(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  const size_t slash = path.find_last_of('/');
  return slash == std::string::npos || path == "/" ? path : path.substr(slash + 1);
}

// `metadata` is the digest of a GGUF file's metadata. It stands for the tokenizer and template files that other folders
// have, and for the config unless there is a config.json. Empty for other folders.
absl::StatusOr<std::string> Fingerprint(const ModelFolder& folder, const Checkpoint& checkpoint,
                                        const std::string& metadata) {
  PENSTOCK_ASSIGN_OR_RETURN(std::string digest_input, checkpoint.Fingerprint());
  digest_input += metadata;
  const auto add = [&](const ModelFolder& from, std::string_view name) -> absl::Status {
    if (!from.Has(name)) return absl::OkStatus();
    PENSTOCK_ASSIGN_OR_RETURN(const std::string content, from.Read(name, kMaxTokenizerBytes));
    digest_input += fmt::format(" {}:{:016x}", name, XXH3_64bits(content.data(), content.size()));
    return absl::OkStatus();
  };
  if (checkpoint.format() != Checkpoint::Format::kGguf) PENSTOCK_RETURN_IF_ERROR(add(folder, "config.json"));
  if (metadata.empty()) {
    PENSTOCK_ASSIGN_OR_RETURN(const std::vector<std::string> tokenizer_files, Tokenizer::Files(folder));
    for (const std::string& name : tokenizer_files) PENSTOCK_RETURN_IF_ERROR(add(folder, name));
    for (const std::string_view name : kOtherFiles) PENSTOCK_RETURN_IF_ERROR(add(folder, name));
    PENSTOCK_ASSIGN_OR_RETURN(const std::vector<std::string> names, TemplateFolderFiles(folder));
    for (const std::string& name : names) {
      PENSTOCK_ASSIGN_OR_RETURN(const ModelFolder templates, folder.OpenFolder(kTemplateFolder));
      PENSTOCK_RETURN_IF_ERROR(add(templates, name));
    }
  }
  const XXH128_hash_t digest = XXH3_128bits(digest_input.data(), digest_input.size());
  return fmt::format("{:016x}{:016x}", digest.high64, digest.low64);
}

absl::Status LoadTokenizer(const ModelFolder& folder, const std::optional<Gguf>& gguf, LoadedModel& model) {
  if (gguf.has_value()) {
    PENSTOCK_ASSIGN_OR_RETURN(model.tokenizer, Tokenizer::FromGguf(*gguf));
  } else {
    PENSTOCK_ASSIGN_OR_RETURN(const std::vector<std::string> files, Tokenizer::Files(folder));
    if (!files.empty()) {
      PENSTOCK_ASSIGN_OR_RETURN(model.tokenizer, Tokenizer::Load(folder));
    }
  }
  if (model.tokenizer == nullptr) {
    model.tokenizer_status =
        InputError("the model has no tokenizer ({}): give prompts as token ids", Tokenizer::kFileNames);
    model.chat_template_status = model.tokenizer_status;
    return absl::OkStatus();
  }
  model.answer_format = FindAnswerFormat("", *model.tokenizer);
  if (model.tokenizer->vocab_size() > model.config.vocab_size) {
    return ModelError("the tokenizer has {} tokens, but config.json says vocab_size {}: they are of different models",
                      model.tokenizer->vocab_size(), model.config.vocab_size);
  }
  auto texts = gguf.has_value() ? FindChatTemplates(*gguf) : FindChatTemplates(folder);
  if (!texts.ok()) {
    if (FaultOf(texts.status()) == Fault::kModel) return texts.status();
    model.chat_template_status = texts.status();
    return absl::OkStatus();
  }
  json::object special_tokens;
  for (const auto& [name, text] : model.tokenizer->NamedTokens()) special_tokens[name] = text;
  auto prompts = ChatPrompts::Create(*texts, std::move(special_tokens));
  // A model whose template cannot be parsed still serves prompts without chat.
  if (prompts.ok()) {
    model.chat_prompts = *std::move(prompts);
    const std::string literals = model.chat_prompts->Literals();
    model.tokenizer->GuardTemplate(literals);
    model.answer_format = FindAnswerFormat(literals, *model.tokenizer);
  } else {
    model.chat_template_status = prompts.status();
  }
  return absl::OkStatus();
}

}  // namespace

uint64_t LoadedModel::memory_bytes() const {
  // Bytes of a catalogue entry (with its name, shape and hash-map node) and of its share of the weight map.
  constexpr uint64_t kBytesPerTensor = 440;
  uint64_t of_mirrors = 0;
  for (const OpenedFile& file : checkpoint.files()) {
    for (const FileCopy& copy : file.copies) of_mirrors += sizeof(copy) + copy.held.capacity() * sizeof(FileExtent);
  }
  return checkpoint.tensors().size() * kBytesPerTensor + of_mirrors + (tokenizer ? tokenizer->memory_bytes() : 0);
}

uint64_t LoadedModel::longest_token_bytes() const {
  if (tokenizer == nullptr) return 0;
  uint64_t longest = 0;
  for (TokenId id = 0; id < tokenizer->vocab_size(); ++id) {
    longest = std::max<uint64_t>(longest, tokenizer->TokenText(id).size());
  }
  return longest * 4;  // normalisers may shorten a text before it becomes tokens: NFC to a third
}

absl::StatusOr<std::vector<TokenId>> LoadedModel::Tokenize(std::string_view text) const {
  PENSTOCK_RETURN_IF_ERROR(tokenizer_status);
  return tokenizer->Encode(text, Origin::kMessage, AddSpecial::kYes);
}

absl::StatusOr<std::vector<TokenId>> LoadedModel::TokenizePiece(std::string_view text) const {
  PENSTOCK_RETURN_IF_ERROR(tokenizer_status);
  return tokenizer->Encode(text, Origin::kMessage, AddSpecial::kNo);
}

absl::StatusOr<std::vector<TokenId>> LoadedModel::TokenizeChat(const Chat& chat) const {
  PENSTOCK_RETURN_IF_ERROR(chat_template_status);
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<TextSegment> segments, chat_prompts->Render(chat.parts()));
  return tokenizer->Encode(segments, AddSpecial::kNo);  // the template writes the BOS itself
}

AnswerStart LoadedModel::StartOf(const Chat& chat, std::span<const TokenId> prompt_ids) const {
  return chat.parts().continues_last ? AnswerStart::kInContent : StartBehind(answer_format, prompt_ids, *tokenizer);
}

std::unique_ptr<AnswerStream> LoadedModel::NewAnswerStream(std::span<const TokenId> prompt_ids, const Chat& chat,
                                                           const AnswerRule& rule) const {
  if (tokenizer == nullptr) return NewPlainAnswerStream();
  return penstock::NewAnswerStream(answer_format, StartOf(chat, prompt_ids), chat, rule, *tokenizer);
}

absl::StatusOr<std::optional<OutputFormat>> LoadedModel::FormatOfAnswer(std::span<const TokenId> prompt_ids,
                                                                        const Chat& chat,
                                                                        const AnswerRule& rule) const {
  PENSTOCK_RETURN_IF_ERROR(chat_template_status);
  return penstock::FormatOfAnswer(answer_format, StartOf(chat, prompt_ids), chat.parts().tools, rule);
}

std::string LoadedModel::TokenBytes(TokenId id, bool begins_text) const {
  std::string bytes;
  DecodeState state;
  if (!begins_text) state = {.num_tokens = 1, .past_leading = true};
  if (tokenizer != nullptr) tokenizer->DecodeNext(id, SkipSpecial::kYes, state, bytes);
  return bytes;
}

absl::StatusOr<std::shared_ptr<const Constraint>> LoadedModel::CompileFormat(const OutputFormat& format) const {
  PENSTOCK_RETURN_IF_ERROR(tokenizer_status);
  std::shared_ptr<const grammar::FormatVocabulary> vocabulary;
  {
    const std::scoped_lock lock(format_mutex);
    if (format_vocabulary == nullptr) {
      PENSTOCK_ASSIGN_OR_RETURN(format_vocabulary, grammar::FormatVocabulary::Create(*tokenizer, config.vocab_size));
    }
    vocabulary = format_vocabulary;
  }
  const std::scoped_lock lock(compile_mutex);
  return Constraint::Compile(format, std::move(vocabulary));
}

absl::Status CheckTokenIds(std::span<const TokenId> ids, int64_t vocab_size, std::string_view field) {
  for (const TokenId id : ids) {
    if (id < 0 || id >= vocab_size) {
      return InputError("{}{}token id {} is outside the vocabulary of {} tokens", field, field.empty() ? "" : ": ", id,
                        vocab_size);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckPrompt(std::span<const TokenId> ids, int64_t vocab_size, int64_t context_length, int64_t num_behind) {
  PENSTOCK_RETURN_IF_ERROR(CheckTokenIds(ids, vocab_size));
  if (ids.empty()) return InputError("the prompt has no tokens");
  if (std::ssize(ids) + num_behind <= context_length) return absl::OkStatus();
  if (num_behind <= 0) {
    return InputError(
        "the text has {} tokens, and all but its last one must fit the context length of {} "
        "(--context-length)",
        std::ssize(ids) + num_behind + 1, context_length);
  }
  if (num_behind > 1) {
    return InputError(
        "the prompt has {} tokens, and with {} of the decoder it must fit the context length of {} "
        "(--context-length)",
        ids.size(), num_behind, context_length);
  }
  return InputError(
      "the prompt has {} tokens, and with an answer it must fit the context length of {} (--context-length)",
      ids.size(), context_length);
}

absl::Status NoPromptLogprobs() {
  return InputError(
      "an encoder reads the prompt, so its tokens have no log-probabilities; score choices, or ask for those of the "
      "answer");
}

ModelInfo InfoOf(const LoadedModel& model, const Formats& formats, int64_t context_length) {
  return {
      .name = model.name,
      .family = std::string(model.config.family->name),
      .fingerprint = model.fingerprint,
      .dtype = std::string(ComputationName(formats, model.weights)),
      .vocab_size = model.config.vocab_size,
      .context_length = context_length,
      .decoder_start_id = model.config.encoder.is_on() ? std::optional(model.config.encoder.start_id) : std::nullopt,
      .max_prompt_bytes = static_cast<uint64_t>(context_length) * model.longest_token_bytes(),
      .format_bytes = model.tokenizer == nullptr
                          ? 0
                          : grammar::FormatVocabulary::MaxBytes(*model.tokenizer, model.config.vocab_size)};
}

absl::StatusOr<std::unique_ptr<LoadedModel>> LoadModel(const std::string& model_dir,
                                                       std::span<const std::string> mirrors) {
  PENSTOCK_ASSIGN_OR_RETURN(const ModelFolder folder, ModelFolder::Open(model_dir));
  auto model = std::make_unique<LoadedModel>();
  model->name = LastPathPart(model_dir);
  PENSTOCK_ASSIGN_OR_RETURN(std::optional<Gguf> gguf, OpenGguf(folder));
  const bool is_gguf = gguf.has_value(), is_packed = !is_gguf && folder.Has(kPackedIndexFile);
  if (is_packed) {
    // It has checksums of the files that are read next. A store that was made from a GGUF file has that file's
    // tokenizer, templates and sampling, but a config.json of its own.
    PENSTOCK_ASSIGN_OR_RETURN(model->checkpoint, Checkpoint::Open(folder));
    PENSTOCK_ASSIGN_OR_RETURN(gguf, OpenGgufMetadata(folder));
  }
  if (is_gguf) {
    PENSTOCK_ASSIGN_OR_RETURN(model->config, ReadGgufConfig(*gguf));
  } else {
    PENSTOCK_ASSIGN_OR_RETURN(model->config, LoadModelConfig(folder));
  }
  if (gguf.has_value()) {
    PENSTOCK_ASSIGN_OR_RETURN(model->generation, ReadGgufGenerationConfig(gguf->metadata));
  } else {
    PENSTOCK_ASSIGN_OR_RETURN(model->generation, LoadGenerationConfig(folder, model->config.vocab_size));
  }
  PENSTOCK_RETURN_IF_ERROR(LoadTokenizer(folder, gguf, *model));
  const std::string metadata = gguf.has_value() ? gguf->fingerprint : "";
  if (is_gguf) {
    PENSTOCK_ASSIGN_OR_RETURN(model->checkpoint, Checkpoint::FromGguf(*std::move(gguf)));
  } else if (!is_packed) {
    PENSTOCK_ASSIGN_OR_RETURN(model->checkpoint, Checkpoint::Open(folder));
  }
  if (mirrors.size() > kMaxMirrors) return UsageError("--model-mirror: at most {} mirrors", kMaxMirrors);
  for (const std::string& mirror : mirrors) {
    PENSTOCK_RETURN_IF_ERROR(model->checkpoint.AddMirror(mirror, folder));
  }
  PENSTOCK_ASSIGN_OR_RETURN(model->weights, MapWeights(model->config, model->checkpoint));
  PENSTOCK_ASSIGN_OR_RETURN(model->fingerprint, Fingerprint(folder, model->checkpoint, metadata));
  if (model->config.eos_ids.empty() && model->tokenizer && model->tokenizer->eos_id() >= 0) {
    model->config.eos_ids = {model->tokenizer->eos_id()};
  }
  // Parsing the tokenizer takes several times the memory that it keeps. The rest is returned to the system before
  // weights are allocated.
  ::malloc_trim(0);
  return model;
}

}  // namespace penstock
