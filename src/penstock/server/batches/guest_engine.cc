#include "penstock/server/batches/guest_engine.h"

#include <algorithm>
#include <utility>

#include "penstock/base/status.h"

namespace penstock::server {

namespace {
constexpr int kGuestPriority = -1;
}

// A request that is no longer active has been given up, or has finished.
class GuestEngine::Listener : public AnswerListener {
 public:
  Listener(std::shared_ptr<State> state, RequestId id) : state_(std::move(state)), id_(id) {}

  void OnPiece(const AnswerPiece&) override {
    const std::lock_guard lock(state_->mutex);
    const auto found = state_->active.find(id_);
    if (found != state_->active.end()) found->second.has_begun = true;
  }
  void OnEnd(Completion completion) override {
    const std::lock_guard lock(state_->mutex);
    if (state_->active.erase(id_) == 0) return;
    completion.request_id = id_;
    state_->finished.push_back(std::move(completion));
    state_->has_finished.notify_one();
  }

 private:
  std::shared_ptr<State> state_;
  RequestId id_;
};

GuestEngine::~GuestEngine() {
  const std::lock_guard lock(state_->mutex);
  for (const auto& [id, active] : state_->active) service_.Cancel(active.ticket);
  state_->active.clear();
}

absl::StatusOr<RequestId> GuestEngine::Submit(Request request) {
  PENSTOCK_RETURN_IF_ERROR(Check(request));
  const RequestId id = next_id_++;
  const std::lock_guard lock(state_->mutex);
  Active& active = state_->active[id];
  active.num_prompt_tokens = std::ssize(request.prompt_ids);
  request.priority = kGuestPriority;
  active.ticket = service_.Submit(std::move(request), std::make_shared<Listener>(state_, id));
  return id;
}

std::vector<RequestId> GuestEngine::DropWaiting() {
  std::vector<RequestId> dropped;
  const std::lock_guard lock(state_->mutex);
  for (const auto& [id, active] : state_->active) {
    if (!active.has_begun) dropped.push_back(id);
  }
  std::ranges::sort(dropped);
  for (const RequestId id : dropped) {
    service_.Cancel(state_->active[id].ticket);
    state_->active.erase(id);
  }
  return dropped;
}

bool GuestEngine::Cancel(RequestId id) {
  const std::lock_guard lock(state_->mutex);
  const auto found = state_->active.find(id);
  if (found == state_->active.end()) return false;
  service_.Cancel(found->second.ticket);
  state_->active.erase(found);
  return true;
}

int64_t GuestEngine::num_running() const {
  const std::lock_guard lock(state_->mutex);
  const auto num_active = std::ssize(state_->active) + std::ssize(state_->finished);
  return std::min(num_active, memory_plan().batch_size);
}

int64_t GuestEngine::num_waiting() const {
  const std::lock_guard lock(state_->mutex);
  const auto num_active = std::ssize(state_->active) + std::ssize(state_->finished);
  return std::max<int64_t>(0, num_active - memory_plan().batch_size);
}

int64_t GuestEngine::num_waiting_tokens() const {
  const std::lock_guard lock(state_->mutex);
  int64_t num_tokens = 0;
  for (const auto& [id, active] : state_->active) num_tokens += active.has_begun ? 0 : active.num_prompt_tokens;
  return num_tokens;
}

absl::StatusOr<std::vector<Completion>> GuestEngine::Step() {
  std::vector<Completion> finished;
  {
    std::unique_lock lock(state_->mutex);
    state_->has_finished.wait_for(lock, std::chrono::milliseconds(100), [&] { return !state_->finished.empty(); });
    finished.swap(state_->finished);
  }
  stats_ = service_.Snapshot().stats;
  // A fault of the whole engine, or its end, is not the fault of a request.
  for (const Completion& completion : finished) {
    if (completion.status.ok()) continue;
    const Fault fault = FaultOf(completion.status);
    if (fault == Fault::kStopped || !service_.status().ok()) return completion.status;
  }
  return finished;
}

absl::StatusOr<std::vector<double>> GuestEngine::ScoreTokens(std::span<const TokenId>) {
  return UsageError("texts are scored by an engine of one's own");
}

absl::StatusOr<std::vector<float>> GuestEngine::Logits(std::span<const TokenId>, int64_t) {
  return UsageError("logits are those of an engine of one's own");
}

}  // namespace penstock::server
