#include "penstock/server/engine_service.h"

#include <utility>

#include "penstock/base/status.h"

namespace penstock::server {

EngineService::EngineService(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {
  engine_->SetPieceSink([this](const AnswerPiece& piece) {
    const auto found = active_.find(piece.request_id);
    if (found != active_.end()) found->second.listener->OnPiece(piece);
  });
  snapshot_.stats = engine_->stats();
  thread_ = std::thread([this] { Run(); });
}

Ticket EngineService::Submit(Request request, std::shared_ptr<AnswerListener> listener) {
  const std::lock_guard lock(mutex_);
  const Ticket ticket = next_ticket_++;
  orders_.push_back({ticket, false, std::move(request), std::move(listener)});
  wake_.notify_one();
  return ticket;
}

void EngineService::Cancel(Ticket ticket) {
  const std::lock_guard lock(mutex_);
  orders_.push_back({.ticket = ticket, .cancels = true});
  wake_.notify_one();
}

EngineSnapshot EngineService::Snapshot() const {
  const std::lock_guard lock(mutex_);
  EngineSnapshot snapshot = snapshot_;
  for (const Order& order : orders_) {
    if (order.cancels) continue;
    ++snapshot.num_waiting;
    snapshot.num_waiting_tokens += std::ssize(order.request.prompt_ids);
  }
  if (step_start_.has_value()) snapshot.step_s = SecondsSince(*step_start_);
  return snapshot;
}

LiveView EngineService::View() {
  const std::lock_guard lock(mutex_);
  wants_view_ = true;
  wake_.notify_one();
  return view_;
}

absl::Status EngineService::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

void EngineService::Stop() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
    wake_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

void EngineService::Run() {
  bool works = true;
  while (true) {
    std::vector<Order> orders;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return is_stopping_ || wants_view_ || !orders_.empty() || (works && !engine_->idle()); });
      orders.swap(orders_);
      if (is_stopping_) {
        lock.unlock();
        for (Order& order : orders) Obey(std::move(order));
        return FailAll(MakeError(Fault::kStopped, "the server stops"));
      }
    }
    for (Order& order : orders) Obey(std::move(order));
    if (works && !engine_->idle()) works = Step();
    TakeSnapshot();
  }
}

void EngineService::Obey(Order order) {
  if (order.cancels) {
    const auto found = request_of_.find(order.ticket);
    if (found == request_of_.end()) return;  // it has finished
    engine_->Cancel(found->second);
    active_.erase(found->second);
    request_of_.erase(found);
    return;
  }
  const absl::Status broken = status();
  const absl::StatusOr<RequestId> id =
      broken.ok() ? engine_->Submit(std::move(order.request)) : absl::StatusOr<RequestId>(broken);
  if (!id.ok()) {
    Completion refused;
    refused.status = id.status();
    return order.listener->OnEnd(std::move(refused));
  }
  request_of_[order.ticket] = *id;
  active_[*id] = {order.ticket, std::move(order.listener)};
}

bool EngineService::Step() {
  {
    const std::lock_guard lock(mutex_);
    step_start_ = Clock::now();
  }
  absl::StatusOr<std::vector<Completion>> finished = engine_->Step();
  {
    const std::lock_guard lock(mutex_);
    step_start_.reset();
    status_ = finished.status();
    ++snapshot_.num_steps;
  }
  if (!finished.ok()) {
    FailAll(finished.status());
    return false;
  }
  for (Completion& completion : *finished) {
    const auto found = active_.find(completion.request_id);
    if (found == active_.end()) continue;
    const Active active = std::move(found->second);
    active_.erase(found);
    request_of_.erase(active.ticket);
    active.listener->OnEnd(std::move(completion));
  }
  return true;
}

void EngineService::FailAll(const absl::Status& status) {
  for (auto& [id, active] : std::exchange(active_, {})) {
    Completion failed;
    failed.request_id = id;
    failed.status = status;
    active.listener->OnEnd(std::move(failed));
  }
  request_of_.clear();
}

void EngineService::TakeSnapshot() {
  const std::lock_guard lock(mutex_);
  if (std::exchange(wants_view_, false)) view_ = engine_->View();
  snapshot_.stats = engine_->stats();
  snapshot_.num_running = engine_->num_running();
  snapshot_.num_waiting = engine_->num_waiting();
  snapshot_.num_waiting_tokens = engine_->num_waiting_tokens();
}

}  // namespace penstock::server
