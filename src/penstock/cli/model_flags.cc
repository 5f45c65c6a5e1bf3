#include "penstock/base/bytes.h"
#include "penstock/base/status.h"
#include "penstock/cli/commands.h"
#include "penstock/plan/policy_file.h"

namespace penstock::cli {

constexpr char kAuto[] = "auto";

bool WantsPlan(const ModelFlags& flags) { return flags.policy_path == kAuto || flags.schedule == kAuto; }

absl::StatusOr<EngineOptions> ToEngineOptions(const ModelFlags& flags) {
  EngineOptions options = flags.engine;
  if (!flags.memory.empty()) {
    auto bytes = ParseBytes(flags.memory);
    if (!bytes.ok()) return Annotate(bytes.status(), "--memory");
    options.memory_bytes = *bytes;
  }
  if (!flags.gpu_memory.empty()) {
    auto bytes = ParseBytes(flags.gpu_memory);
    if (!bytes.ok()) return Annotate(bytes.status(), "--gpu-memory");
    options.device_memory_bytes = *bytes;
  }
  if (flags.policy_path == kAuto) {
    return UsageError(
        "--policy auto works only with run, which knows its requests; penstock plan --output writes a policy file");
  }
  if (!flags.policy_path.empty()) PENSTOCK_RETURN_IF_ERROR(ApplyPolicyFile(flags.policy_path, options));
  if (flags.schedule.has_value()) options.policy.schedule = *flags.schedule;
  if (flags.predictor.has_value()) options.policy.predictor = *flags.predictor;
  if (flags.batch_size.has_value()) options.batch_size = *flags.batch_size;
  if (flags.micro_batch_size.has_value()) options.policy.micro_batch_size = *flags.micro_batch_size;
  if (flags.prefill_chunk.has_value()) options.prefill_chunk = *flags.prefill_chunk;
  return options;
}

}  // namespace penstock::cli
