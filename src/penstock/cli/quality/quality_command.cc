#include "penstock/cli/commands.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <span>
#include <vector>

#include <unistd.h>

#include "penstock/base/bytes.h"
#include "penstock/base/file.h"
#include "penstock/base/json.h"
#include "penstock/base/limits.h"
#include "penstock/base/logging.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/cli/quality/text_file.h"
#include "penstock/plan/engine_plan.h"

namespace penstock::cli {
namespace {

namespace json = boost::json;

// How two models predict the same tokens.
struct Comparison {
  std::vector<double> divergences;  // of each token, in nats
  int64_t num_same_best = 0;
  double reference_logprob = 0, logprob = 0;  // sums, of the text's own tokens
  double shift = 0;                           // sum of the differences of their probabilities, without sign
};

double LogSumExp(std::span<const float> logits) {
  const double max = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - max);
  return max + std::log(sum);
}

// Adds how both models predict the token that follows.
void AddToken(std::span<const float> reference, std::span<const float> logits, TokenId next, Comparison& comparison) {
  const double reference_sum = LogSumExp(reference), sum = LogSumExp(logits);
  double divergence = 0;
  for (size_t id = 0; id < logits.size(); ++id) {
    const double expected = reference[id] - reference_sum;
    divergence += std::exp(expected) * (expected - (logits[id] - sum));
  }
  comparison.divergences.push_back(std::max(0.0, divergence));
  const auto best = [](std::span<const float> of) { return std::ranges::max_element(of) - of.begin(); };
  comparison.num_same_best += best(reference) == best(logits) ? 1 : 0;
  const double expected = reference[next] - reference_sum, found = logits[next] - sum;
  comparison.reference_logprob += expected;
  comparison.logprob += found;
  comparison.shift += std::abs(std::exp(expected) - std::exp(found));
}

// Opens a model with half of the memory and a context of `window` tokens.
absl::StatusOr<std::unique_ptr<Engine>> OpenHalf(EngineOptions options, const std::string& model_dir, int64_t window,
                                                 uint64_t text_bytes) {
  if (model_dir != options.model_dir) options.model_mirrors.clear();
  options.model_dir = model_dir;
  options.batch_size = 1;
  options.context_length = window;
  options.decodes = false;
  options.memory_bytes /= 2;
  options.device_memory_bytes /= 2;
  options.memory_share = (options.memory_share > 0 ? options.memory_share : kDefaultMemoryShare) / 2;
  options.caller_memory = [=](const ModelInfo& info) {
    return CallerMemory{.bytes = static_cast<uint64_t>(window * info.vocab_size) * sizeof(float) +
                                 (1 + kTokenizingBytesPerByte) * text_bytes};
  };
  absl::StatusOr<std::unique_ptr<Engine>> engine = Engine::Open(options);
  if (!engine.ok()) return Annotate(engine.status(), Printable(model_dir));
  return engine;
}

absl::Status Compare(Engine& reference, Engine& model, std::span<const TokenId> ids, int64_t window,
                     Comparison& comparison) {
  const auto vocab_size = static_cast<size_t>(model.model().vocab_size);
  for (size_t begin = 0; begin + 1 < ids.size(); begin += static_cast<size_t>(window)) {
    const auto part = ids.subspan(begin, std::min(static_cast<size_t>(window), ids.size() - begin));
    PENSTOCK_ASSIGN_OR_RETURN(const std::vector<float> expected, reference.Logits(part, 0));
    PENSTOCK_ASSIGN_OR_RETURN(const std::vector<float> found, model.Logits(part, 0));
    if (!std::ranges::all_of(expected, [](float logit) { return std::isfinite(logit); }) ||
        !std::ranges::all_of(found, [](float logit) { return std::isfinite(logit); })) {
      return ModelError("a model gave logits that are no numbers: its weights hold NaN or infinity");
    }
    for (size_t i = 0; i + 1 < part.size(); ++i) {
      AddToken(std::span(expected).subspan(i * vocab_size, vocab_size),
               std::span(found).subspan(i * vocab_size, vocab_size), part[i + 1], comparison);
    }
    const auto& all = comparison.divergences;
    LogInfo("{} of {} tokens: KL divergence {:.5f}", begin + part.size(), ids.size(),
            std::accumulate(all.begin(), all.end(), 0.0) / static_cast<double>(all.size()));
  }
  return absl::OkStatus();
}

std::string Report(Comparison comparison, bool as_json) {
  std::vector<double>& all = comparison.divergences;
  std::ranges::sort(all);
  const auto count = static_cast<double>(all.size());
  const auto quantile = [&](double share) { return all[static_cast<size_t>(share * (count - 1))]; };
  const double mean = std::accumulate(all.begin(), all.end(), 0.0) / count;
  const double same = static_cast<double>(comparison.num_same_best) / count, shift = comparison.shift / count;
  const double reference = std::exp(-comparison.reference_logprob / count), own = std::exp(-comparison.logprob / count);
  if (as_json) {
    return json::serialize(
               json::object{{"tokens", all.size()},
                            {"kl_divergence",
                             {{"mean", mean}, {"median", quantile(0.5)}, {"p99", quantile(0.99)}, {"max", all.back()}}},
                            {"same_best_token", same},
                            {"mean_probability_shift", shift},
                            {"perplexity", own},
                            {"reference_perplexity", reference}}) +
           "\n";
  }
  return fmt::format(
      "tokens            {}\n"
      "KL divergence     {:.6f} mean, {:.6f} median, {:.5f} for 99% at most, {:.4f} largest (nats)\n"
      "same best token   {:.2f}%\n"
      "probability       of the text's tokens shifted by {:.3f}% on average\n"
      "perplexity        {:.4f}, of the reference {:.4f}\n",
      all.size(), mean, quantile(0.5), quantile(0.99), all.back(), 100 * same, 100 * shift, own, reference);
}

}  // namespace

absl::StatusOr<int> QualityCommand(const QualityFlags& flags) {
  PENSTOCK_ASSIGN_OR_RETURN(const EngineOptions options, ToEngineOptions(flags.model));
  PENSTOCK_ASSIGN_OR_RETURN(const std::string text, ReadTextFlag(flags.text_file));
  const int64_t window = options.context_length > 0 ? options.context_length : kQualityWindow;
  PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> reference,
                            OpenHalf(options, flags.reference_dir, window, text.size()));
  PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> model,
                            OpenHalf(options, options.model_dir, window, text.size()));
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<TokenId> ids, model->Tokenize(text));
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<TokenId> reference_ids, reference->Tokenize(text));
  if (ids != reference_ids || model->model().vocab_size != reference->model().vocab_size) {
    return InputError("the models have different tokenizers: only models with the same tokens can be compared");
  }
  if (ids.size() < 2) return InputError("{}: the text has fewer than two tokens", flags.text_file);
  Comparison comparison;
  PENSTOCK_RETURN_IF_ERROR(Compare(*reference, *model, ids, window, comparison));
  PENSTOCK_RETURN_IF_ERROR(WriteFully(STDOUT_FILENO, Report(std::move(comparison), flags.as_json), "stdout"));
  return 0;
}

}  // namespace penstock::cli
