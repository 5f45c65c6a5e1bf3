// penstock generate: stream one answer to stdout.
#include <algorithm>
#include <memory>

#include <unistd.h>

#include "penstock/base/file.h"
#include "penstock/base/limits.h"
#include "penstock/base/logging.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/cli/command_line.h"

namespace penstock::cli {
namespace {

struct Flags {
  ModelFlags model;
  SamplingOverrides sampling;
  LogFlags log;
  std::string prompt;
  std::string prompt_file;
  std::string system;
  bool raw = false;
};

absl::StatusOr<std::vector<TokenId>> EncodePrompt(const Engine& engine, const Flags& flags) {
  std::string prompt = flags.prompt;
  if (!flags.prompt_file.empty()) {
    PENSTOCK_ASSIGN_OR_RETURN(prompt, ReadFile(flags.prompt_file, kMaxRequestLineBytes));
  }
  if (!IsUtf8(prompt)) {
    return InputError("the prompt is not UTF-8 (at byte {})", FindInvalidUtf8(prompt));
  }
  if (flags.raw) return engine.Tokenize(prompt);
  std::vector<ChatMessage> messages;
  if (!flags.system.empty()) messages.push_back({"system", flags.system});
  messages.push_back({"user", prompt});
  return engine.TokenizeChat(messages);
}

absl::StatusOr<int> Run(const Flags& flags) {
  PENSTOCK_RETURN_IF_ERROR(ApplyLogFlags(flags.log));
  PENSTOCK_ASSIGN_OR_RETURN(EngineOptions options, ToEngineOptions(flags.model));
  if (options.batch_size == 0) options.batch_size = 1;
  PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, Engine::Open(options));
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<TokenId> prompt_ids, EncodePrompt(*engine, flags));
  absl::Status written;
  engine->SetTextSink([&](RequestId, std::string_view text) {
    if (written.ok()) written = WriteFully(STDOUT_FILENO, text, "stdout");
  });
  PENSTOCK_RETURN_IF_ERROR(engine->Submit({.prompt_ids = std::move(prompt_ids),
                                           .sampling = Overlay(engine->default_sampling(), flags.sampling)})
                               .status());
  while (!engine->idle() && written.ok()) PENSTOCK_RETURN_IF_ERROR(engine->Step().status());
  PENSTOCK_RETURN_IF_ERROR(written);
  PENSTOCK_RETURN_IF_ERROR(WriteFully(STDOUT_FILENO, "\n", "stdout"));
  const EngineStats& stats = engine->stats();
  spdlog::info("{} prompt tokens at {:.1f} tokens/s, {} generated at {:.1f} tokens/s", stats.prompt_tokens,
               static_cast<double>(stats.prompt_tokens) / std::max(1e-9, stats.prefill_s), stats.generated_tokens,
               static_cast<double>(stats.generated_tokens) / std::max(1e-9, stats.decode_s));
  return 0;
}

}  // namespace

Command MakeGenerateCommand(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand("generate", "stream one answer to stdout");
  AddModelFlags(*command, flags->model);
  auto* prompt = command->add_option("-p,--prompt", flags->prompt, "the prompt")->type_name("TEXT");
  auto* file = command->add_option("--prompt-file", flags->prompt_file, "file that holds the prompt")->type_name("FILE");
  prompt->excludes(file);
  command->add_option("--system", flags->system, "system message")->type_name("TEXT");
  command->add_flag("--raw", flags->raw, "continue the prompt as plain text, without the model's chat template");
  AddSamplingFlags(*command, flags->sampling);
  AddLogFlags(*command, flags->log);
  return {command, [flags, prompt, file]() -> absl::StatusOr<int> {
            if (prompt->count() + file->count() == 0) return UsageError("generate needs --prompt TEXT or --prompt-file FILE");
            return Run(*flags);
          }};
}

}  // namespace penstock::cli
