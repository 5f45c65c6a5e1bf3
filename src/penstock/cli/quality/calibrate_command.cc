#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "penstock/base/bytes.h"
#include "penstock/base/file.h"
#include "penstock/base/limits.h"
#include "penstock/base/logging.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/checkpoint/importance.h"
#include "penstock/cli/commands.h"
#include "penstock/cli/quality/text_file.h"
#include "penstock/cli/quality/window_progress.h"
#include "penstock/engine/instrumented_engine.h"
#include "penstock/measure/importance_collector.h"
#include "penstock/plan/loaded_model.h"

namespace penstock::cli {
namespace {

// Inputs are seen where the host multiplies them as floats.
absl::Status ComputeInFloats(EngineOptions& options) {
  if (options.dtype.value_or(ComputeDtype::kF32) != ComputeDtype::kF32 ||
      options.activations.value_or(ActivationFormat::kF32) != ActivationFormat::kF32) {
    return UsageError("penstock calibrate computes in f32: leave --dtype and --activations out");
  }
  if (options.device != "auto" && options.device != "cpu") {
    return UsageError("--device {}: penstock calibrate computes on the CPU only", Printable(options.device));
  }
  options.dtype = ComputeDtype::kF32;
  options.activations = ActivationFormat::kF32;
  options.device = "cpu";
  options.batch_size = 1;
  options.decodes = false;
  options.shares_prefixes = false;  // what a prefix saves is not computed
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<int> CalibrateCommand(const CalibrateFlags& flags) {
  PENSTOCK_ASSIGN_OR_RETURN(EngineOptions options, ToEngineOptions(flags.model));
  PENSTOCK_RETURN_IF_ERROR(ComputeInFloats(options));
  PENSTOCK_RETURN_IF_ERROR(CheckNoFileOfTheModel("--output", flags.output_path, options.model_dir));
  PENSTOCK_RETURN_IF_ERROR(CheckReplaceable(flags.output_path));
  PENSTOCK_ASSIGN_OR_RETURN(const std::string text, ReadTextFlag(flags.text_file, options.memory_bytes));
  if (options.context_length == 0) options.context_length = kQualityWindow;
  std::unique_ptr<ImportanceCollector> collector;
  {
    PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<LoadedModel> model, LoadModel(options.model_dir));
    if (model->config.encoder.is_on()) {
      return UsageError("{}: models with an encoder are not calibrated", Printable(options.model_dir));
    }
    const uint64_t bytes = ImportanceCollector::Bytes(model->config, flags.with_products);
    options.caller_memory = [&text, bytes](const ModelInfo&) {
      return CallerMemory{.bytes = bytes + (1 + kTokenizingBytesPerByte) * text.size()};
    };
    collector = std::make_unique<ImportanceCollector>(model->config, flags.with_products);
  }
  EngineHooks hooks;
  hooks.observer = collector.get();
  PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<InstrumentedEngine> engine, OpenInstrumentedEngine(options, hooks));
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<TokenId> ids, engine->Tokenize(text));
  if (ids.size() < 2) return InputError("{}: the text has fewer than two tokens", flags.text_file);
  const auto window = static_cast<size_t>(engine->model().context_length);
  {
    WindowProgress progress(flags.quiet, ids.size(), window);
    for (size_t begin = 0; begin + 1 < ids.size(); begin += window) {
      const auto part = std::span(ids).subspan(begin, std::min(window, ids.size() - begin));
      PENSTOCK_RETURN_IF_ERROR(engine->ScoreTokens(part).status());
      progress.Add(part.size(), engine->stats(), "");
    }
  }
  const std::map<std::string, SiteStatistics> sites = collector->Take();
  int64_t num_experts = 0, num_rare = 0;
  for (const auto& [name, site] : sites) {
    if (!name.ends_with("experts.input")) continue;
    num_experts += std::ssize(site.rows);
    num_rare += std::ranges::count_if(site.rows, [](int64_t rows) { return rows < Importance::kMinRows; });
  }
  PENSTOCK_RETURN_IF_ERROR(WriteImportance(flags.output_path, sites));
  LogInfo("{} of {} experts saw fewer than {} tokens: they count like the mean of their layer", num_rare, num_experts,
          Importance::kMinRows);
  return 0;
}

}  // namespace penstock::cli
