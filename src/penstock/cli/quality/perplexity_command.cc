#include "penstock/cli/commands.h"

#include <cmath>
#include <memory>

#include <unistd.h>

#include "penstock/base/bytes.h"
#include "penstock/base/file.h"
#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "penstock/cli/quality/text_file.h"
#include "penstock/cli/quality/window_progress.h"

namespace penstock::cli {

absl::StatusOr<int> PerplexityCommand(const PerplexityFlags& flags) {
  PENSTOCK_ASSIGN_OR_RETURN(EngineOptions options, ToEngineOptions(flags.model));
  PENSTOCK_ASSIGN_OR_RETURN(const std::string text, ReadTextFlag(flags.text_file, options.memory_bytes));
  if (options.batch_size == 0) options.batch_size = 1;
  options.decodes = false;
  options.caller_memory = [&text](const ModelInfo&) {
    return CallerMemory{.bytes = (1 + kTokenizingBytesPerByte) * text.size()};
  };
  PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, Engine::Open(options));
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<TokenId> ids, engine->Tokenize(text));
  if (ids.size() < 2) return InputError("{}: the text has fewer than two tokens", flags.text_file);
  // Windows follow each other without overlap. The first token of each window is not scored.
  const size_t window = static_cast<size_t>(engine->model().context_length);
  double sum = 0;
  int64_t num_scored = 0;
  {
    WindowProgress progress(flags.quiet, ids.size(), window);
    for (size_t begin = 0; begin + 1 < ids.size(); begin += window) {
      const auto part = std::span(ids).subspan(begin, std::min(window, ids.size() - begin));
      PENSTOCK_ASSIGN_OR_RETURN(const std::vector<double> logprobs, engine->ScoreTokens(part));
      for (const double logprob : logprobs) sum += logprob;
      num_scored += static_cast<int64_t>(logprobs.size());
      progress.Add(part.size(), engine->stats(),
                   fmt::format("perplexity {:.4f}", std::exp(-sum / static_cast<double>(num_scored))));
    }
  }
  const double mean = -sum / static_cast<double>(num_scored);
  const EngineStats& stats = engine->stats();
  const std::string result =
      fmt::format("perplexity {:.4f}\nnats per token {:.6f}\nbits per byte {:.6f}\ntokens scored {}\ntokens/s {:.1f}\n",
                  std::exp(mean), mean, -sum / std::log(2.0) / static_cast<double>(text.size()), num_scored,
                  static_cast<double>(stats.prompt_tokens) / std::max(1e-9, stats.prefill_s));
  PENSTOCK_RETURN_IF_ERROR(WriteFully(STDOUT_FILENO, result, "stdout"));
  PENSTOCK_RETURN_IF_ERROR(engine->CloseTraces());
  return 0;
}

}  // namespace penstock::cli
