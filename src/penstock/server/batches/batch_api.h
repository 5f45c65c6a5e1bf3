// The endpoints /v1/files and /v1/batches.
#pragma once

#include <memory>

#include "penstock/server/api/api_server.h"
#include "penstock/server/batches/batch_runner.h"
#include "penstock/server/batches/batch_store.h"

namespace penstock::server {

class BatchApi {
 public:
  // Both must outlive this.
  BatchApi(BatchStore& store, ApiServer& api) : store_(store), api_(api) {}
  void AddRoutes();
  // Until then, batches only wait.
  void SetRunner(BatchRunner& runner) { runner_ = &runner; }

 private:
  void Upload(Exchange& exchange);
  void ListFiles(Exchange& exchange);
  void GetFile(Exchange& exchange);
  void GetContent(Exchange& exchange);
  void DeleteFile(Exchange& exchange);
  void CreateBatch(Exchange& exchange);
  void ListBatches(Exchange& exchange);
  void GetBatch(Exchange& exchange);
  void CancelBatch(Exchange& exchange);
  void RespondError(Exchange& exchange, const ApiError& error) { api_.RespondError(exchange, error); }

  BatchStore& store_;
  ApiServer& api_;
  std::atomic<BatchRunner*> runner_{nullptr};
};

}  // namespace penstock::server
