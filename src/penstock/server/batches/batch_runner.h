// Runs a store's batches, one after the other, as resumable jobs on the places that a server's requests leave free.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "absl/container/flat_hash_set.h"
#include "penstock/job/job.h"
#include "penstock/job/manifest.h"
#include "penstock/server/batches/batch_store.h"
#include "penstock/server/engine_service.h"

namespace penstock::server {

class BatchRunner {
 public:
  struct Args {
    BatchStore& store;
    EngineService& service;
    std::string model_name;             // that results name
    SamplingOverrides sampling;         // where requests say nothing
    std::optional<std::string> system;  // see JobOptions
    Settings settings;                  // SettingsOf()
    uint64_t memory_bytes = 0;          // that a job may need besides the engine's
  };
  // Continues the batches that are not done.
  explicit BatchRunner(Args args);
  ~BatchRunner() { Stop(); }

  // Says that the store has another batch.
  void Wake();
  // Makes a batch end early. Returns its object, or kInput if it has ended.
  absl::StatusOr<json::object> Cancel(const std::string& id);
  // Leaves the batches as they are; another server continues them.
  void Stop();

 private:
  void Run();
  // Returns the oldest batch that has work, if any.
  std::optional<json::object> Next();
  void RunBatch(json::object batch);
  absl::StatusOr<JobSummary> RunJobOf(const json::object& batch);
  // Returns the memory that the job needs and the server's own budget does not count.
  uint64_t MemoryBesideEngine(const InputReport& report) const;
  // Makes files of the job's results and ends the batch.
  absl::Status Finalize(json::object& batch);
  // Writes fields of a batch beside what others have written.
  absl::Status Update(const std::string& id, const json::object& fields);

  Args args_;
  std::mutex mutex_;  // of these three
  std::condition_variable wake_;
  std::string running_;                       // the id of the batch that runs
  absl::flat_hash_set<std::string> blocked_;  // batches that this server cannot continue

  std::atomic<bool> stops_job_{false};
  std::atomic<bool> is_stopping_{false};
  std::thread thread_;
};

}  // namespace penstock::server
