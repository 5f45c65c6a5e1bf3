#include "penstock/cli/commands.h"

#include <algorithm>
#include <memory>

#include <unistd.h>

#include "penstock/base/clock.h"
#include "penstock/base/file.h"
#include "penstock/base/limits.h"
#include "penstock/base/logging.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"

namespace penstock::cli {
namespace {

absl::StatusOr<std::vector<TokenId>> EncodePrompt(const Engine& engine, const GenerateFlags& flags) {
  std::string prompt = flags.prompt.value_or("");
  if (flags.prompt_file.has_value()) {
    PENSTOCK_ASSIGN_OR_RETURN(prompt, ReadFileOrStdin(*flags.prompt_file, kMaxRequestLineBytes));
  }
  if (!IsUtf8(prompt)) {
    return InputError("the prompt is not UTF-8 (at byte {})", FindInvalidUtf8(prompt));
  }
  const bool has_encoder = engine.model().decoder_start_id.has_value();
  if (has_encoder && !flags.system.empty()) {
    return UsageError("--system: {} models have no chats", engine.model().family);
  }
  if (flags.raw || has_encoder) return engine.Tokenize(prompt);
  std::vector<ChatMessage> messages;
  if (!flags.system.empty()) messages.push_back({"system", flags.system});
  messages.push_back({"user", prompt});
  return engine.TokenizeChat(Chat(messages, flags.date.empty() ? Today() : flags.date));
}

}  // namespace

absl::StatusOr<int> GenerateCommand(const GenerateFlags& flags) {
  if (!flags.prompt && !flags.prompt_file) return UsageError("generate needs --prompt TEXT or --prompt-file FILE");
  PENSTOCK_ASSIGN_OR_RETURN(EngineOptions options, ToEngineOptions(flags.model));
  if (options.batch_size == 0) options.batch_size = 1;
  PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, Engine::Open(options));
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<TokenId> prompt_ids, EncodePrompt(*engine, flags));
  absl::Status written;
  engine->SetPieceSink([&](const AnswerPiece& piece) {
    if (written.ok()) written = WriteFully(STDOUT_FILENO, piece.text, "stdout");
  });
  PENSTOCK_RETURN_IF_ERROR(engine
                               ->Submit({.prompt_ids = std::move(prompt_ids),
                                         .sampling = Overlay(engine->default_sampling(), flags.sampling)})
                               .status());
  while (!engine->idle() && written.ok()) {
    PENSTOCK_ASSIGN_OR_RETURN(const std::vector<Completion> finished, engine->Step());
    for (const Completion& completion : finished) PENSTOCK_RETURN_IF_ERROR(completion.status);
  }
  PENSTOCK_RETURN_IF_ERROR(written);
  PENSTOCK_RETURN_IF_ERROR(WriteFully(STDOUT_FILENO, "\n", "stdout"));
  const EngineStats& stats = engine->stats();
  LogInfo("{} prompt tokens at {:.1f} tokens/s, {} generated at {:.1f} tokens/s", stats.prompt_tokens,
          static_cast<double>(stats.prompt_tokens) / std::max(1e-9, stats.prefill_s), stats.generated_tokens,
          static_cast<double>(stats.generated_tokens) / std::max(1e-9, stats.decode_s));
  PENSTOCK_RETURN_IF_ERROR(engine->CloseTraces());
  return 0;
}

}  // namespace penstock::cli
