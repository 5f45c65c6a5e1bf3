#include "penstock/cli/commands.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

#include <unistd.h>

#include "penstock/base/bytes.h"
#include "penstock/base/file.h"
#include "penstock/base/json.h"
#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/cli/quality/checked_requests.h"
#include "penstock/cli/quality/text_file.h"
#include "penstock/cli/quality/window_progress.h"
#include "penstock/engine/instrumented_engine.h"
#include "penstock/plan/budget.h"
#include "penstock/plan/engine_plan.h"
#include "penstock/plan/loaded_model.h"

namespace penstock::cli {
namespace {

namespace json = boost::json;

// The residual behind each layer, of the rows since the last Clear(), until Stop().
class LayerRecorder : public PassObserver {
 public:
  void OnInputs(const Inputs&, ThreadPool&) override {}
  void OnLayer(int64_t layer_idx, std::span<const float> residual) override {
    if (is_stopped_) return;
    if (std::ssize(layers_) <= layer_idx) layers_.resize(static_cast<size_t>(layer_idx) + 1);
    std::vector<float>& layer = layers_[static_cast<size_t>(layer_idx)];
    layer.insert(layer.end(), residual.begin(), residual.end());
  }

  const std::vector<std::vector<float>>& layers() const { return layers_; }
  void Clear() {
    for (std::vector<float>& layer : layers_) layer.clear();
  }
  void Stop() { is_stopped_ = true; }

 private:
  std::vector<std::vector<float>> layers_;
  bool is_stopped_ = false;
};

// An engine, and what it computes behind its layers.
struct ObservedEngine {
  std::unique_ptr<LayerRecorder> layers;
  std::unique_ptr<InstrumentedEngine> engine;
};

// Squares of a layer's residual in the reference, and of the other model's distance from it.
struct LayerError {
  double squares = 0;
  double errors = 0;
};

// How two models predict the same tokens.
struct Comparison {
  std::vector<double> divergences;  // of each token, in nats
  int64_t num_same_best = 0;
  double reference_logprob = 0, logprob = 0;  // sums, of the text's own tokens
  double shift = 0;                           // sum of the differences of their probabilities, without sign
  std::vector<LayerError> layers;             // empty: the models have other layers, or GPUs compute them
  // Empty without requests.
  std::optional<ValidAnswers> reference_answers = {}, answers = {};
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

// Opens a model with half of the memory and a context of `window` tokens. `requests`: null if it answers none.
absl::StatusOr<ObservedEngine> OpenHalf(EngineOptions options, const std::string& model_dir, int64_t window,
                                        uint64_t text_bytes, const InputReport* requests) {
  uint64_t layer_bytes = 0;
  {
    const absl::StatusOr<std::unique_ptr<LoadedModel>> model = LoadModel(model_dir);
    if (!model.ok()) return Annotate(model.status(), Printable(model_dir));
    const ModelConfig& config = (*model)->config;
    // A vector that grows has twice the room that it needs.
    layer_bytes = 2 * static_cast<uint64_t>(config.num_layers * window * config.model_dim) * sizeof(float);
  }
  if (model_dir != options.model_dir) options.model_mirrors.clear();
  options.model_dir = model_dir;
  options.batch_size = 1;
  options.context_length = window;
  options.decodes = requests != nullptr;
  options.memory_bytes /= 2;
  options.device_memory_bytes /= 2;
  options.memory_share = (options.memory_share > 0 ? options.memory_share : kDefaultMemoryShare) / 2;
  options.caller_memory = [=](const ModelInfo& info) {
    CallerMemory memory = requests == nullptr ? CallerMemory() : JobMemory(*requests, info);
    memory.bytes += layer_bytes + static_cast<uint64_t>(window * info.vocab_size) * sizeof(float) +
                    (1 + kTokenizingBytesPerByte) * text_bytes;
    return memory;
  };
  ObservedEngine observed{.layers = std::make_unique<LayerRecorder>(), .engine = nullptr};
  EngineHooks hooks;
  hooks.observer = observed.layers.get();
  absl::StatusOr<std::unique_ptr<InstrumentedEngine>> engine = OpenInstrumentedEngine(options, hooks);
  if (!engine.ok()) return Annotate(TooSmallForParts(engine.status(), 2), Printable(model_dir));
  observed.engine = *std::move(engine);
  return observed;
}

// Adds the rows that both engines computed since the last call.
void AddLayers(LayerRecorder& reference, LayerRecorder& model, std::vector<LayerError>& sums) {
  const size_t num_layers = std::min(reference.layers().size(), model.layers().size());
  if (sums.size() < num_layers) sums.resize(num_layers);
  for (size_t layer_idx = 0; layer_idx < num_layers; ++layer_idx) {
    const std::vector<float>& expected = reference.layers()[layer_idx];
    const std::vector<float>& found = model.layers()[layer_idx];
    if (expected.size() != found.size()) continue;
    for (size_t i = 0; i < expected.size(); ++i) {
      const double error = double{found[i]} - expected[i];
      sums[layer_idx].squares += double{expected[i]} * expected[i];
      sums[layer_idx].errors += error * error;
    }
  }
  reference.Clear();
  model.Clear();
}

absl::Status Compare(ObservedEngine& reference, ObservedEngine& model, std::span<const TokenId> ids, int64_t window,
                     bool quiet, Comparison& comparison) {
  WindowProgress progress(quiet, ids.size(), static_cast<size_t>(window));
  const auto vocab_size = static_cast<size_t>(model.engine->model().vocab_size);
  for (size_t begin = 0; begin + 1 < ids.size(); begin += static_cast<size_t>(window)) {
    const auto part = ids.subspan(begin, std::min(static_cast<size_t>(window), ids.size() - begin));
    PENSTOCK_ASSIGN_OR_RETURN(const std::vector<float> expected, reference.engine->Logits(part, 0));
    PENSTOCK_ASSIGN_OR_RETURN(const std::vector<float> found, model.engine->Logits(part, 0));
    AddLayers(*reference.layers, *model.layers, comparison.layers);
    if (!std::ranges::all_of(expected, [](float logit) { return std::isfinite(logit); }) ||
        !std::ranges::all_of(found, [](float logit) { return std::isfinite(logit); })) {
      return ModelError("a model gave logits that are no numbers: its weights hold NaN or infinity");
    }
    for (size_t i = 0; i + 1 < part.size(); ++i) {
      AddToken(std::span(expected).subspan(i * vocab_size, vocab_size),
               std::span(found).subspan(i * vocab_size, vocab_size), part[i + 1], comparison);
    }
    const auto& all = comparison.divergences;
    progress.Add(part.size(), model.engine->stats(),
                 fmt::format("KL divergence {:.5f}",
                             std::accumulate(all.begin(), all.end(), 0.0) / static_cast<double>(all.size())));
  }
  return absl::OkStatus();
}

// Returns how far the hidden states are from the reference's behind each layer, relative to them.
std::vector<double> RelativeErrors(const std::vector<LayerError>& layers) {
  std::vector<double> errors;
  for (const LayerError& layer : layers) {
    errors.push_back(layer.squares > 0 ? std::sqrt(layer.errors / layer.squares) : 0);
  }
  return errors;
}

std::string LayersText(const std::vector<double>& errors) {
  if (errors.empty()) return "";
  const auto worst = std::ranges::max_element(errors);
  return fmt::format("hidden states     off by {:.2f}% behind the last layer, at most {:.2f}% (layer {})\n",
                     100 * errors.back(), 100 * *worst, worst - errors.begin());
}

json::object AnswersJson(int64_t num_requests, int64_t num_valid, int64_t num_valid_of_reference) {
  return {{"requests", num_requests}, {"valid", num_valid}, {"valid_of_reference", num_valid_of_reference}};
}

// Adds how many answers have their form.
void AddAnswers(const Comparison& comparison, json::object& report) {
  if (!comparison.answers.has_value()) return;
  const ValidAnswers &own = *comparison.answers, &reference = *comparison.reference_answers;
  report["formatted_answers"] = AnswersJson(own.num_formats, own.num_valid_formats, reference.num_valid_formats);
  report["tool_calls"] = AnswersJson(own.num_calls, own.num_valid_calls, reference.num_valid_calls);
}

std::string AnswersText(const Comparison& comparison) {
  if (!comparison.answers.has_value()) return "";
  const ValidAnswers &own = *comparison.answers, &reference = *comparison.reference_answers;
  return fmt::format(
      "valid answers     {} of {} with a format, of the reference {}\n"
      "valid tool calls  {} of {}, of the reference {}\n",
      own.num_valid_formats, own.num_formats, reference.num_valid_formats, own.num_valid_calls, own.num_calls,
      reference.num_valid_calls);
}

std::string Report(Comparison comparison, bool as_json) {
  std::vector<double>& all = comparison.divergences;
  std::ranges::sort(all);
  const auto count = static_cast<double>(all.size());
  const auto quantile = [&](double share) { return all[static_cast<size_t>(share * (count - 1))]; };
  const double mean = std::accumulate(all.begin(), all.end(), 0.0) / count;
  const double same = static_cast<double>(comparison.num_same_best) / count, shift = comparison.shift / count;
  const double reference = std::exp(-comparison.reference_logprob / count), own = std::exp(-comparison.logprob / count);
  const std::vector<double> layers = RelativeErrors(comparison.layers);
  if (as_json) {
    json::object report{
        {"tokens", all.size()},
        {"kl_divergence", {{"mean", mean}, {"median", quantile(0.5)}, {"p99", quantile(0.99)}, {"max", all.back()}}},
        {"same_best_token", same},
        {"mean_probability_shift", shift},
        {"layer_errors", json::array(layers.begin(), layers.end())},
        {"perplexity", own},
        {"reference_perplexity", reference}};
    AddAnswers(comparison, report);
    return json::serialize(report) + "\n";
  }
  return fmt::format(
      "tokens            {}\n"
      "KL divergence     {:.6f} mean, {:.6f} median, {:.5f} for 99% at most, {:.4f} largest (nats)\n"
      "same best token   {:.2f}%\n"
      "probability       of the text's tokens shifted by {:.3f}% on average\n"
      "perplexity        {:.4f}, of the reference {:.4f}\n{}{}",
      all.size(), mean, quantile(0.5), quantile(0.99), all.back(), 100 * same, 100 * shift, own, reference,
      LayersText(layers), AnswersText(comparison));
}

}  // namespace

absl::StatusOr<int> QualityCommand(const QualityFlags& flags) {
  PENSTOCK_ASSIGN_OR_RETURN(const EngineOptions options, ToEngineOptions(flags.model));
  if (flags.text_file == "-" && flags.requests_file == "-") {
    return UsageError("--text and --requests cannot both be read from standard input");
  }
  PENSTOCK_ASSIGN_OR_RETURN(const std::string text, ReadTextFlag(flags.text_file, options.memory_bytes));
  std::optional<ValidatedJob> job;
  if (!flags.requests_file.empty()) {
    PENSTOCK_ASSIGN_OR_RETURN(job, ReadCheckedRequests(flags.requests_file));
  }
  const InputReport* const requests = job.has_value() ? &job->report : nullptr;
  const int64_t window = options.context_length > 0 ? options.context_length : kQualityWindow;
  PENSTOCK_ASSIGN_OR_RETURN(ObservedEngine reference,
                            OpenHalf(options, flags.reference_dir, window, text.size(), requests));
  PENSTOCK_ASSIGN_OR_RETURN(ObservedEngine model, OpenHalf(options, options.model_dir, window, text.size(), requests));
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<TokenId> ids, model.engine->Tokenize(text));
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<TokenId> reference_ids, reference.engine->Tokenize(text));
  if (ids != reference_ids || model.engine->model().vocab_size != reference.engine->model().vocab_size) {
    return InputError("the models have different tokenizers: only models with the same tokens can be compared");
  }
  if (ids.size() < 2) return InputError("{}: the text has fewer than two tokens", flags.text_file);
  Comparison comparison;
  PENSTOCK_RETURN_IF_ERROR(Compare(reference, model, ids, window, flags.quiet, comparison));
  if (job.has_value()) {
    reference.layers->Stop();
    model.layers->Stop();
    PENSTOCK_ASSIGN_OR_RETURN(comparison.reference_answers, AnswerFreely(*reference.engine, *job));
    PENSTOCK_ASSIGN_OR_RETURN(comparison.answers, AnswerFreely(*model.engine, *job));
  }
  PENSTOCK_RETURN_IF_ERROR(WriteFully(STDOUT_FILENO, Report(std::move(comparison), flags.as_json), "stdout"));
  return 0;
}

}  // namespace penstock::cli
