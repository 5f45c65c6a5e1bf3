// The thread that owns a server's engine: it takes requests from other threads, steps the engine, and hands out what
// answers gain.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "penstock/base/clock.h"
#include "penstock/engine.h"

namespace penstock::server {

// Hears what becomes of a request. The engine's thread calls it, so it must return soon.
class AnswerListener {
 public:
  virtual ~AnswerListener() = default;
  virtual void OnPiece(const AnswerPiece& piece) { (void)piece; }
  // The last call. If the completion is not OK, the engine may also have refused the request.
  virtual void OnEnd(Completion completion) = 0;
};

using Ticket = uint64_t;

// Numbers of the engine after its last step.
struct EngineSnapshot {
  EngineStats stats;
  int64_t num_running = 0;
  int64_t num_waiting = 0;
  int64_t num_waiting_tokens = 0;
  int64_t num_steps = 0;
  double step_s = 0;  // seconds since the step under way began; 0: none is under way
};

class EngineService {
 public:
  explicit EngineService(std::unique_ptr<Engine> engine);
  ~EngineService() { Stop(); }
  EngineService(const EngineService&) = delete;
  EngineService& operator=(const EngineService&) = delete;

  // Only for the functions about texts and chats, and for what never changes: model(), memory_plan(),
  // default_sampling().
  const Engine& engine() const { return *engine_; }

  // Any thread may call these. A request that is cancelled gets no further call, except one that is under way.
  Ticket Submit(Request request, std::shared_ptr<AnswerListener> listener);
  void Cancel(Ticket ticket);
  EngineSnapshot Snapshot() const;
  // Returns a look at the engine between two steps: the last one that the engine's thread took. Asks for the next one.
  LiveView View();
  // The fault that ended the engine; OK while it works.
  absl::Status status() const;

  // Fails all requests that are not finished, and ends the thread.
  void Stop();
  // Closes the engine's traces. REQUIRES: stopped.
  absl::Status CloseTraces() { return engine_->CloseTraces(); }

 private:
  struct Order {
    Ticket ticket = 0;
    bool cancels = false;
    Request request = {};
    std::shared_ptr<AnswerListener> listener = {};
  };
  struct Active {
    Ticket ticket = 0;
    std::shared_ptr<AnswerListener> listener;
  };

  void Run();
  void Obey(Order order);
  // Steps the engine, and ends the requests that finished. Returns false if the engine is broken.
  bool Step();
  void FailAll(const absl::Status& status);
  void TakeSnapshot();

  std::unique_ptr<Engine> engine_;
  absl::flat_hash_map<RequestId, Active> active_;
  absl::flat_hash_map<Ticket, RequestId> request_of_;

  mutable std::mutex mutex_;  // of all that follow
  std::condition_variable wake_;
  std::vector<Order> orders_;
  Ticket next_ticket_ = 1;
  bool is_stopping_ = false;
  absl::Status status_;
  EngineSnapshot snapshot_;
  LiveView view_;
  bool wants_view_ = true;
  std::optional<Clock::time_point> step_start_;

  std::thread thread_;
};

}  // namespace penstock::server
