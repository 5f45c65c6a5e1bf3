#include <cstdlib>

#include "penstock/base/logging.h"
#include "penstock/base/status.h"
#include "penstock/cli/commands.h"
#include "penstock/cli/job_plan.h"
#include "penstock/cli/stop_signals.h"
#include "penstock/job/format_cache.h"
#include "penstock/job/manifest.h"

namespace penstock::cli {
namespace {

bool IsLocal(const std::string& host) { return host == "localhost" || host == "::1" || host.starts_with("127."); }

}  // namespace

absl::StatusOr<int> ServeCommand(ServeFlags flags) {
  const std::atomic<bool>& stop_requested = StopOnSignals();
  PENSTOCK_ASSIGN_OR_RETURN(EngineOptions options, ToPlannedOptions(flags.model));
  server::ServerOptions& server = flags.server;
  if (const char* key = std::getenv("PENSTOCK_API_KEY"); key != nullptr && *key != '\0') {
    server.api.api_keys.emplace_back(key);
  }
  PENSTOCK_ASSIGN_OR_RETURN(server.settings, SettingsOf(options, server.api.system));
  if (!IsLocal(server.http.host) && server.api.api_keys.empty()) {
    LogWarning("everybody who reaches {} can use this server; give --api-key", server.http.host);
  }
  server.api.sampling = flags.sampling;
  server.api.allows_cors = !server.http.cors_origin.empty();
  // Bodies take as small a part of the memory as formats, but a long prompt must fit.
  server.api.max_format_bytes = FormatBytesOf(options.memory_bytes);
  server.http.max_bodies_bytes = server.api.max_format_bytes;
  server.http.max_body_bytes = server.http.max_bodies_bytes;
  server.api.max_reading_bytes = 2 * server.http.max_bodies_bytes;
  server.api.max_tokenizing_bytes = server.http.max_bodies_bytes;
  server.api.max_held_bytes = 2 * server.http.max_bodies_bytes;
  options.live_view = true;
  options.touches_kv_cache = true;
  options.caller_memory = [&](const ModelInfo& model) { return ServerMemory(server, model); };
  if (WantsPlan(flags.model)) {
    PENSTOCK_ASSIGN_OR_RETURN(const PolicyChoice choice, PlanOfServer(options));
    options = choice.options;
    options.learns_routing = true;
    server.api.predicted_tokens_per_s = choice.estimate.generation_tokens_per_s();
  }
  const auto open_engine = [&]() -> absl::StatusOr<std::unique_ptr<Engine>> { return Engine::Open(options); };
  PENSTOCK_RETURN_IF_ERROR(server::Serve(server, open_engine, stop_requested));
  return 0;
}

}  // namespace penstock::cli
