// The server: an engine, the HTTP API in front of it, and its beginning and end.
#pragma once

#include <atomic>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "penstock/engine.h"
#include "penstock/job/manifest.h"
#include "penstock/server/api/api_server.h"
#include "penstock/server/http/http_server.h"

namespace penstock::server {

struct ServerOptions {
  HttpOptions http;
  ApiOptions api;
  std::string batch_dir;  // folder of files and batches; empty: there are none
  Settings settings;      // SettingsOf(): a batch that a server began continues only with the same
  double drain_s = 30;    // time for requests under way to finish after `stop` was set
};

// Returns the memory that the server itself needs of the engine's budget: bodies that are parsed, prompts that wait,
// compiled formats, log-probabilities.
CallerMemory ServerMemory(const ServerOptions& options, const ModelInfo& model);

// Listens, opens the engine, and answers requests until `stop` is set. OK after an orderly end. The error of opening or
// listening, or the fault that ended the engine.
absl::Status Serve(const ServerOptions& options,
                   absl::FunctionRef<absl::StatusOr<std::unique_ptr<Engine>>()> open_engine,
                   const std::atomic<bool>& stop);

}  // namespace penstock::server
