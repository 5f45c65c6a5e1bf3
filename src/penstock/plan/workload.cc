#include "penstock/plan/workload.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"

namespace penstock {
namespace {

struct NamedWorkload {
  std::string_view name;
  Workload workload;
  std::string_view source;
};
constexpr NamedWorkload kWorkloads[] = {
    {"mtbench", {.prompt_tokens = 77, .max_prompt_tokens = 418, .new_tokens = 128}, "MoE-Lightning, Table 3"},
    {"reasoning", {.prompt_tokens = 242, .max_prompt_tokens = 256, .new_tokens = 50}, "MoE-Lightning, Table 3"},
    {"summarization", {.prompt_tokens = 1693, .max_prompt_tokens = 1984, .new_tokens = 64}, "MoE-Lightning, Table 3"},
    {"klotski", {.prompt_tokens = 512, .max_prompt_tokens = 512, .new_tokens = 32}, "Klotski"},
};

constexpr int64_t kMaxRequests = 1'000'000;

absl::Status Malformed(std::string_view spec) {
  return UsageError(
      "workload '{}': expected prompt=N,gen=N[,max-prompt=N,requests=N,shared=N,sampled=1], or mtbench, reasoning, "
      "summarization or klotski, and changes behind a colon",
      Printable(spec));
}

}  // namespace

std::string WorkloadList() {
  std::string list;
  for (const auto& [name, workload, source] : kWorkloads) {
    list += fmt::format("{:<14} prompts of {} tokens, {} at most, answers of {} ({})\n", name, workload.prompt_tokens,
                        workload.max_prompt_tokens, workload.new_tokens, source);
  }
  return list;
}

int64_t Workload::PromptTokens(int64_t request_idx) const {
  if (max_prompt_tokens <= prompt_tokens) return prompt_tokens;
  if (prompt_tokens <= 1) return 1;
  // 1 + (max - 1) * u^p with u spread evenly over (0, 1) has the average 1 + (max - 1) / (p + 1).
  const auto max = static_cast<double>(max_prompt_tokens - 1);
  const double p = max / static_cast<double>(prompt_tokens - 1) - 1;
  constexpr double kGolden = 0.6180339887498949;
  const double u = std::fmod(0.5 + static_cast<double>(request_idx) * kGolden, 1.0);
  return 1 + std::lround(max * std::pow(u, p));
}

absl::StatusOr<Workload> ParseWorkload(std::string_view spec, bool model_draws) {
  Workload workload;
  std::string_view fields = spec;
  const std::string_view name = spec.substr(0, spec.find(':'));
  for (const NamedWorkload& named : kWorkloads) {
    if (named.name != name) continue;
    workload = named.workload;
    fields = spec.size() > name.size() ? spec.substr(name.size() + 1) : "";
  }
  const bool is_named = workload.prompt_tokens > 0;
  workload.draws_tokens = model_draws;
  if (!is_named && fields.empty()) return Malformed(spec);
  bool max_given = false, prompt_given = false;
  while (!fields.empty()) {
    const size_t comma = fields.find(',');
    const std::string_view field = fields.substr(0, comma);
    fields = comma == std::string_view::npos ? "" : fields.substr(comma + 1);
    const size_t equals = field.find('=');
    if (equals == std::string_view::npos) return Malformed(spec);
    const std::string_view key = field.substr(0, equals), text = field.substr(equals + 1);
    int64_t sampled = 0;
    int64_t* target = key == "prompt"       ? &workload.prompt_tokens
                      : key == "max-prompt" ? &workload.max_prompt_tokens
                      : key == "gen"        ? &workload.new_tokens
                      : key == "requests"   ? &workload.num_requests
                      : key == "shared"     ? &workload.shared_tokens
                      : key == "sampled"    ? &sampled
                                            : nullptr;
    if (target == nullptr) return Malformed(spec);
    max_given = max_given || key == "max-prompt";
    prompt_given = prompt_given || key == "prompt";
    const int64_t min = key == "sampled" ? 0 : 1;
    const int64_t max = key == "requests" ? kMaxRequests : key == "sampled" ? 1 : kMaxContext;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *target);
    if (error != std::errc() || end != text.data() + text.size() || *target < min || *target > max) {
      return UsageError("workload: {}: expected a whole number from {} to {}, found '{}'", key, min, max,
                        Printable(text));
    }
    if (key == "sampled") workload.draws_tokens = sampled > 0;
  }
  if (prompt_given && !max_given) workload.max_prompt_tokens = workload.prompt_tokens;
  if (workload.prompt_tokens == 0 || workload.new_tokens == 0) return Malformed(spec);
  if (workload.max_prompt_tokens < workload.prompt_tokens) {
    return UsageError("workload: max-prompt is {}, less than prompt ({}), which is the average",
                      workload.max_prompt_tokens, workload.prompt_tokens);
  }
  if (workload.shared_tokens >= workload.prompt_tokens) {
    return UsageError("workload: shared is {}, and prompts of {} tokens need one of their own", workload.shared_tokens,
                      workload.prompt_tokens);
  }
  return workload;
}

}  // namespace penstock
