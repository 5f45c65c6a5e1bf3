#include <algorithm>
#include <charconv>
#include <filesystem>
#include <system_error>
#include <utility>

#include "penstock/base/bytes.h"
#include "penstock/base/choices.h"
#include "penstock/base/logging.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/cli/commands.h"
#include "penstock/plan/formats.h"
#include "penstock/plan/policy.h"
#include "penstock/plan/policy_file.h"
#include "penstock/routing/expert_predictor.h"
#include "penstock/schedule/schedule.h"

namespace penstock::cli {

namespace {

constexpr char kAuto[] = "auto";

// Reads a size, or "50%" as a share. The other one becomes 0.
absl::Status ReadBudget(const char* flag, const std::string& text, uint64_t& bytes, double& share) {
  bytes = 0;
  share = 0;
  if (text.ends_with('%')) {
    double percent = 0;
    const char* end = text.data() + text.size() - 1;
    const auto [read_to, error] = std::from_chars(text.data(), end, percent, std::chars_format::fixed);
    if (error != std::errc() || read_to != end || !(percent > 0 && percent <= 100)) {
      return UsageError("{} '{}': expected more than 0% and at most 100%", flag, Printable(text));
    }
    share = percent / 100;
    return absl::OkStatus();
  }
  const absl::StatusOr<uint64_t> size = ParseBytes(text);
  if (!size.ok()) return Annotate(size.status(), flag);
  bytes = *size;
  const bool has_unit = text.find_first_not_of("0123456789.") != std::string::npos;
  if (bytes < kMiB && !has_unit) {
    const std::string or_share = bytes <= 100 ? fmt::format(", or {}% of what there is", text) : "";
    return UsageError("{} {}: this is a number of bytes; write {}{}{}", flag, text, text, bytes <= 100 ? "GiB" : "MiB",
                      or_share);
  }
  return absl::OkStatus();
}

// Reads how ranks divide the model: "auto", or parts such as "attention=tp,experts=ep".
absl::Status ReadParallel(std::string_view text, Policy& policy) {
  if (text == kAuto) return absl::OkStatus();
  for (std::string_view rest = text;;) {
    const std::string_view part = rest.substr(0, rest.find(','));
    const size_t equals = std::min(part.find('='), part.size());
    const std::string_view what = part.substr(0, equals), split = part.substr(std::min(equals + 1, part.size()));
    if (what == "attention") {
      PENSTOCK_ASSIGN_OR_RETURN(policy.attention_parallel,
                                ParseChoice("--parallel attention", split, AttentionParallels()));
    } else if (what == "experts") {
      PENSTOCK_ASSIGN_OR_RETURN(policy.expert_parallel, ParseChoice("--parallel experts", split, ExpertParallels()));
    } else {
      return UsageError("--parallel '{}': expected auto, or attention=dp|tp and experts=ep|tp, separated by a comma",
                        Printable(std::string(text)));
    }
    if (part.size() == rest.size()) return absl::OkStatus();
    rest.remove_prefix(part.size() + 1);
  }
}

// Reads "FILE" or "FILE,replicas=N".
absl::Status ReadExpertPlacement(std::string_view text, Policy& policy) {
  constexpr std::string_view kReplicas = ",replicas=";
  const size_t end = std::min(text.rfind(kReplicas), text.size());
  policy.expert_placement = std::string(text.substr(0, end));
  policy.expert_replicas = 0;
  bool is_valid = !policy.expert_placement.empty();
  if (end < text.size()) {
    const std::string_view number = text.substr(end + kReplicas.size());
    const auto [read_to, error] = std::from_chars(number.data(), number.data() + number.size(), policy.expert_replicas);
    is_valid &= error == std::errc() && read_to == number.data() + number.size() && policy.expert_replicas >= 0;
  }
  if (is_valid) return absl::OkStatus();
  return UsageError("--expert-placement '{}': expected FILE or FILE,replicas=N", Printable(std::string(text)));
}

}  // namespace

bool WantsPlan(const ModelFlags& flags) { return flags.policy_path == kAuto || flags.schedule == kAuto; }

absl::Status CheckNoFileOfTheModel(const std::string& flag, const std::string& path, const std::string& model_dir) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (path.empty() || model_dir.empty() || !fs::exists(path, ignored)) return absl::OkStatus();
  const bool is_of_model = fs::is_directory(model_dir, ignored)
                               ? fs::equivalent(fs::absolute(path, ignored).parent_path(), model_dir, ignored)
                               : fs::equivalent(path, model_dir, ignored);
  if (!is_of_model) return absl::OkStatus();
  return UsageError("{} {}: the file exists in the model's folder; choose another name", flag, Printable(path));
}

absl::StatusOr<EngineOptions> ToEngineOptions(const ModelFlags& flags) {
  EngineOptions options = flags.engine;
  for (const auto& [flag, path] : {std::pair("--trace", options.trace_path),
                                   {"--trace-html", options.trace_html_path},
                                   {"--record-routing", options.routing_path},
                                   {"--record-correlation", options.correlation_path}}) {
    if (path == "-") return UsageError("{} -: expected a file's name, not standard output", flag);
    PENSTOCK_RETURN_IF_ERROR(CheckNoFileOfTheModel(flag, path, options.model_dir));
  }
  if (flags.gpu_memory.has_value()) {
    PENSTOCK_RETURN_IF_ERROR(
        ReadBudget("--gpu-memory", *flags.gpu_memory, options.device_memory_bytes, options.device_memory_share));
  }
  if (flags.policy_path == kAuto) {
    return UsageError("--policy auto works only with run and serve; penstock plan --output writes a policy file");
  }
  if (flags.schedule == kAuto) {
    return UsageError(
        "--schedule auto works only with run and serve; without --schedule the model's usual one is taken");
  }
  if (!flags.policy_path.empty()) PENSTOCK_RETURN_IF_ERROR(ApplyPolicyFile(flags.policy_path, options));
  if (flags.engine.context_length > 0) {
    options.context_length = flags.engine.context_length;
  } else if (options.context_length > 0) {
    LogInfo("{} sets the context length to {}: longer prompts get errors, and answers end there (--context-length)",
            Printable(flags.policy_path), options.context_length);
  }
  if (flags.memory.has_value()) {
    PENSTOCK_RETURN_IF_ERROR(ReadBudget("--memory", *flags.memory, options.memory_bytes, options.memory_share));
  }
  if (flags.schedule.has_value()) {
    PENSTOCK_ASSIGN_OR_RETURN(options.policy.schedule, ParseChoice("--schedule", *flags.schedule, Schedules()));
  }
  if (flags.predictor.has_value()) {
    PENSTOCK_RETURN_IF_ERROR(ParsePredictor(*flags.predictor, options.policy));
  }
  PENSTOCK_ASSIGN_OR_RETURN(options.dtype, ParseChoice("dtype", flags.dtype, ComputeDtypes()));
  PENSTOCK_ASSIGN_OR_RETURN(const std::optional<ActivationFormat> activations,
                            ParseChoice("activations", flags.activations, ActivationFormats()));
  if (activations.has_value()) options.activations = activations;
  PENSTOCK_ASSIGN_OR_RETURN(const std::optional<KvFormat> kv, ParseChoice("kv-dtype", flags.kv_dtype, KvFormats()));
  if (kv.has_value()) options.kv_dtype = kv;
  PENSTOCK_ASSIGN_OR_RETURN(const std::optional<CommFormat> comm,
                            ParseChoice("comm-dtype", flags.comm_dtype, CommFormats()));
  if (comm.has_value()) options.comm_dtype = comm;
  PENSTOCK_RETURN_IF_ERROR(ReadParallel(flags.parallel, options.policy));
  if (flags.expert_placement.has_value()) {
    PENSTOCK_RETURN_IF_ERROR(ReadExpertPlacement(*flags.expert_placement, options.policy));
  }
  if (flags.batch_size.has_value()) options.batch_size = *flags.batch_size;
  if (flags.micro_batch_size.has_value()) options.policy.micro_batch_size = *flags.micro_batch_size;
  options.shares_prefixes = !flags.no_prefix_sharing;
  options.speculates = flags.speculate != "off";
  if (flags.prefix_dir_size.has_value()) {
    if (options.prefix_dir.empty()) return UsageError("--prefix-dir-size: give --prefix-dir, too");
    const absl::StatusOr<uint64_t> size = ParseBytes(*flags.prefix_dir_size);
    if (!size.ok()) return Annotate(size.status(), "--prefix-dir-size");
    options.prefix_dir_bytes = *size;
  }
  if (flags.prefill_chunk.has_value()) options.prefill_chunk = *flags.prefill_chunk;
  return options;
}

absl::StatusOr<EngineOptions> ToPlannedOptions(ModelFlags flags) {
  if (flags.policy_path == kAuto) flags.policy_path.clear();
  if (flags.schedule == kAuto) flags.schedule.reset();
  return ToEngineOptions(flags);
}

}  // namespace penstock::cli
