#include "penstock/server/server.h"

#include <chrono>
#include <optional>
#include <thread>

#include "penstock/base/bytes.h"
#include "penstock/base/limits.h"
#include "penstock/base/logging.h"
#include "penstock/base/status.h"
#include "penstock/server/api/messages_api.h"
#include "penstock/server/api/responses_api.h"
#include "penstock/server/batches/batch_api.h"
#include "penstock/server/batches/batch_runner.h"
#include "penstock/server/batches/batch_store.h"
#include "penstock/server/page/page_route.h"

namespace penstock::server {

namespace {

// Returns the memory that the job of a batch may need.
uint64_t BatchBytes(const ServerOptions& options) {
  constexpr uint64_t kTimesBodies = 4;
  return options.batch_dir.empty() ? 0 : kTimesBodies * options.http.max_bodies_bytes;
}

}  // namespace

CallerMemory ServerMemory(const ServerOptions& options, const ModelInfo& model) {
  CallerMemory memory;
  memory.bytes = BatchBytes(options) + options.http.max_bodies_bytes + options.api.max_reading_bytes +
                 kTokenizingBytesPerByte * MaxTextBytes(options.api, model) + kMaxWaitingTokens * sizeof(TokenId) +
                 options.api.max_format_bytes + options.api.max_held_bytes + model.format_bytes;
  // An answer's tokens and text are there once for the engine and once for the client.
  memory.bytes_per_position = 16;
  return memory;
}

absl::Status Serve(const ServerOptions& options,
                   absl::FunctionRef<absl::StatusOr<std::unique_ptr<Engine>>()> open_engine,
                   const std::atomic<bool>& stop) {
  ApiServer api(options.api);
  AddMessagesRoutes(api);
  AddResponsesRoutes(api);
  AddPageRoute(api);
  std::unique_ptr<BatchStore> store;
  std::optional<BatchApi> batches;
  if (!options.batch_dir.empty()) {
    PENSTOCK_ASSIGN_OR_RETURN(store, BatchStore::Open(options.batch_dir));
    batches.emplace(*store, api).AddRoutes();
  }
  PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<HttpServer> http, HttpServer::Start(options.http, api));
  api.SetConnectionCount([&http] { return http->num_connections(); });
  LogInfo("listening at http://{}:{}; the model is being loaded", options.http.host, http->port());
  absl::StatusOr<std::unique_ptr<Engine>> engine = open_engine();
  if (!engine.ok()) {
    http->Stop(0);
    return engine.status();
  }
  EngineService service(*std::move(engine));
  api.SetEngine(service);
  std::optional<BatchRunner> runner;
  if (batches.has_value()) {
    runner.emplace(BatchRunner::Args{.store = *store,
                                     .service = service,
                                     .model_name = api.model_name(),
                                     .sampling = options.api.sampling,
                                     .system = options.api.system,
                                     .settings = options.settings,
                                     .memory_bytes = BatchBytes(options)});
    batches->SetRunner(*runner);
  }
  const MemoryPlan& plan = service.engine().memory_plan();
  LogInfo("serving {} at http://{}:{}/v1 with {} places; context length {}", api.model_name(), options.http.host,
          http->port(), plan.batch_size, plan.context_length);
  while (!stop.load() && service.status().ok()) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  api.BeginDraining();
  const EngineSnapshot last = service.Snapshot();
  if (stop.load() && last.num_running + last.num_waiting > 0) {
    LogInfo("stopping: {} requests under way have {:.0f} s to finish; a second signal stops at once",
            last.num_running + last.num_waiting, options.drain_s);
  }
  if (runner.has_value()) runner->Stop();
  http->Drain(service.status().ok() ? options.drain_s : 0);
  service.Stop();
  http->Stop(1);
  PENSTOCK_RETURN_IF_ERROR(service.status());
  return service.CloseTraces();
}

}  // namespace penstock::server
