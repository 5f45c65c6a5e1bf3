#include "penstock/plan/prefix_dir.h"

#include <string>

#include "penstock/base/bytes.h"
#include "penstock/base/status.h"
#include "penstock/base/version.h"
#include "penstock/model/family.h"
#include "penstock/schedule/schedule.h"

namespace penstock {
namespace {

// Names all that decides the bits of entries. Budgets, batches, threads and schedules change none. On GPUs, rows of
// bf16 are summed in an order of their own, which depends on what computes them.
std::string IdentityOf(const LoadedModel& model, const EnginePlan& plan, kernels::Isa isa) {
  const Formats& formats = plan.formats;
  std::string identity =
      fmt::format("penstock {}, model {}, dtype {}, activations {}, kv {}, rows {} {}", Version(), model.fingerprint,
                  static_cast<int>(formats.dtype), static_cast<int>(formats.activations), KvFormatName(formats.kv),
                  static_cast<int>(formats.rows.attention), static_cast<int>(formats.rows.ffn));
  if (formats.dtype == ComputeDtype::kBF16 && kernels::SumsPairs(isa)) identity += ", pairs";
  const std::optional<DeviceSpec>& device = plan.policy.device;
  if (device.has_value() && device->kind == DeviceKind::kCuda) {
    identity += fmt::format(", {} with {}", device->model, TraitsOf(plan.policy.schedule.kind).name);
  }
  return identity;
}

}  // namespace

absl::Status CheckPrefixDir(const EngineOptions& options, const ModelConfig& config, bool shares_prefixes,
                            bool has_ranks) {
  if (options.prefix_dir.empty()) return absl::OkStatus();
  if (has_ranks) return UsageError("--prefix-dir: several ranks keep no entries in files, so far");
  if (config.encoder.is_on()) {
    return UsageError("--prefix-dir: {} models have an encoder, whose entries depend on the whole prompt",
                      config.family->name);
  }
  if (options.attention_window > 0) {
    return UsageError("--prefix-dir: with --attention-window, entries leave the KV cache and are not kept in files");
  }
  if (!shares_prefixes) return UsageError("--prefix-dir: this run computes every prompt in full");
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<PrefixStore>> OpenPrefixStore(const EngineOptions& options, const LoadedModel& model,
                                                             const EnginePlan& plan, kernels::Isa isa, KvCache& cache) {
  if (options.prefix_dir.empty()) return nullptr;
  absl::StatusOr<std::unique_ptr<PrefixStore>> store = PrefixStore::Open(
      {.folder = options.prefix_dir,
       .max_bytes = options.prefix_dir_bytes,
       .identity = IdentityOf(model, plan, isa),
       .cache = cache,
       .buffer_bytes = PrefixStore::BufferBytes(model.config, plan.formats.kv, plan.policy.plan.context_length)});
  if (!store.ok()) return Annotate(store.status(), "--prefix-dir");
  cache.SetStore(store->get());
  return store;
}

}  // namespace penstock
