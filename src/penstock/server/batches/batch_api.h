// The endpoints /v1/files and /v1/batches.
#pragma once

#include <memory>

#include "penstock/server/api/api_server.h"
#include "penstock/server/batches/batch_runner.h"
#include "penstock/server/batches/batch_store.h"

namespace penstock::server {

class BatchApi {
 public:
  explicit BatchApi(BatchStore& store) : store_(store) {}
  void AddRoutes(ApiServer& api);
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

  BatchStore& store_;
  std::atomic<BatchRunner*> runner_{nullptr};
};

}  // namespace penstock::server
