#include "penstock/runtime/thread_stream.h"

#include <utility>

namespace penstock {

class ThreadStream::ThreadMark : public Mark {
 public:
  void Reach(absl::Status status) {
    const std::lock_guard<std::mutex> lock(mutex_);
    status_ = std::move(status);
    is_reached_ = true;
    reached_.notify_all();
  }
  absl::Status Wait() const {
    std::unique_lock<std::mutex> lock(mutex_);
    reached_.wait(lock, [&] { return is_reached_; });
    return status_;
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable reached_;
  bool is_reached_ = false;
  absl::Status status_;
};

ThreadStream::ThreadStream() : thread_([this] { Work(); }) {}

ThreadStream::~ThreadStream() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
    given_.notify_one();
  }
  thread_.join();
}

void ThreadStream::Give(std::function<void()> work) {
  const std::lock_guard<std::mutex> lock(mutex_);
  queue_.push_back(std::move(work));
  given_.notify_one();
}

absl::Status ThreadStream::Run(const std::function<absl::Status()>& body) {
  Give([this, body] {
    if (status_.ok()) status_ = body();
  });
  return absl::OkStatus();
}

std::shared_ptr<DeviceStream::Mark> ThreadStream::Record() {
  auto mark = std::make_shared<ThreadMark>();
  Give([this, mark] { mark->Reach(status_); });
  return mark;
}

void ThreadStream::WaitFor(const std::shared_ptr<Mark>& mark) {
  Give([this, mark = std::static_pointer_cast<ThreadMark>(mark)] { status_.Update(mark->Wait()); });
}

absl::Status ThreadStream::Synchronise(const Mark& mark) { return static_cast<const ThreadMark&>(mark).Wait(); }

void ThreadStream::Work() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    given_.wait(lock, [&] { return stop_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const std::function<void()> work = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    work();
    lock.lock();
  }
}

}  // namespace penstock
