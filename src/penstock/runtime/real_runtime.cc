#include "penstock/runtime/real_runtime.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "penstock/base/bytes.h"
#include "penstock/base/check.h"
#include "penstock/base/clock.h"
#include "penstock/base/status.h"
#include "penstock/base/thread.h"
#include "penstock/runtime/cache_lines.h"

namespace penstock {
namespace {

constexpr int kMinReading = 2;  // tasks that are read at once, however large they are

// A thread without work polls for this long before it sleeps.
constexpr double kAwakeSeconds = 50e-6;

// The approximate time to wake a thread; no thread sleeps for less.
constexpr double kWakingSeconds = 20e-6;
// On a fast link the copy itself takes longer than the link, so short transfers are limited in bytes, too.
constexpr uint64_t kShortBytes = 64 * kKiB;

// Asks Linux for short time slices. A thread that serves a link or a disk works for microseconds and then sleeps. It
// should not wait until a computing thread has used up its time slice. Linux accepts the request from 6.12 on, without
// privileges; older kernels ignore it. Without it, with three threads on two cores, pages waited for up to 6 ms and
// prompts took 5 % longer.
void AskForShortTurns() {
  const struct {  // the fields of Linux's sched_attr that are needed
    uint32_t size = 48;
    uint32_t policy = 0;
    uint64_t flags = 0x08;                          // SCHED_FLAG_KEEP_POLICY
    int32_t nice = ::getpriority(PRIO_PROCESS, 0);  // this thread's nice value, unchanged
    uint32_t priority = 0;
    uint64_t runtime_ns = 100'000;  // the shortest time slice
    uint64_t deadline_ns = 0, period_ns = 0;
  } attributes;
  static_assert(sizeof(attributes) == 48);
  (void)::syscall(SYS_sched_setattr, 0, &attributes, 0);
}

absl::Status RunGuarded(const std::function<absl::Status()>& body) {
  if (!body) return absl::OkStatus();
  try {
    return body();
  } catch (const std::exception& e) {
    return MakeError(Fault::kInternal, fmt::format("a task failed: {}", e.what()));
  } catch (...) {
    return MakeError(Fault::kInternal, "a task failed with an exception of unknown type");
  }
}

}  // namespace

// Guarded by the runtime's mutex. While a task runs, its thread owns `task.body` and `task.reads`.
struct RealRuntime::TaskState : Event::State {
  Task task;
  int num_blocking = 0;  // number of events that have not happened
  struct Successor {
    TaskRef task;
    bool takes_status;  // fails when this task fails
    bool in_stream;     // both tasks are on streams: the device waits
  };
  std::vector<Successor> successors;
  // On a stream lane:
  std::shared_ptr<DeviceStream::Mark> mark;  // marks the task's end, from when the stream has it until it has ended
  struct Predecessor {
    TaskRef task;  // on another stream, given before this task
    bool takes_status;
  };
  std::vector<Predecessor> waits_in_stream;
  size_t num_reads_left = 0;
  double begin_s = 0, end_s = 0;
  bool done = false;
  absl::Status status;  // before the end: the first failure among the events that the task waits for
};

void RealRuntime::Bell::Ring() {
  num_rings_.fetch_add(1, std::memory_order_release);
  wake_.notify_one();
}

void RealRuntime::Bell::Wait(Lock& lock) {
  const uint32_t seen = num_rings_.load(std::memory_order_relaxed);
  lock.unlock();
  const auto begin = Clock::now();
  while (num_rings_.load(std::memory_order_acquire) == seen && SecondsSince(begin) < kAwakeSeconds) {
    std::this_thread::yield();
  }
  lock.lock();
  if (num_rings_.load(std::memory_order_relaxed) == seen) wake_.wait(lock);
}

RealRuntime::RealRuntime() : epoch_(Clock::now()) {}

RealRuntime::~RealRuntime() {
  Cancel();
  {
    const Lock lock(mutex_);
    stop_ = true;
    for (const auto& lane : lanes_) {
      lane->bell.Ring();
      lane->end_bell.Ring();
    }
  }
  for (const auto& lane : lanes_) {
    if (lane->thread.joinable()) lane->thread.join();
    if (lane->end_thread.joinable()) lane->end_thread.join();
  }
}

void RealRuntime::StartLaneThread(std::thread& thread, std::function<void()> body) {
  absl::StatusOr<std::thread> started = StartThread(std::move(body));
  lane_status_.Update(started.status());
  if (started.ok()) thread = *std::move(started);
}

LaneIdx RealRuntime::AddLane(std::string name, std::unique_ptr<Lane> owned) {
  Lane& lane = *owned;
  {
    const Lock lock(mutex_);
    lane.idx = static_cast<LaneIdx>(lanes_.size());
    account_.AddLane(std::move(name));
    lanes_.push_back(std::move(owned));
  }
  switch (lane.kind) {
    case LaneKind::kIssuer: break;
    case LaneKind::kThread: StartLaneThread(lane.thread, [this, &lane] { ThreadWork(lane); }); break;
    case LaneKind::kDisk: StartLaneThread(lane.thread, [this, &lane] { DiskWork(lane); }); break;
    case LaneKind::kStream:
      StartLaneThread(lane.thread, [this, &lane] { StreamWork(lane); });
      StartLaneThread(lane.end_thread, [this, &lane] { StreamEndWork(lane); });
      break;
  }
  return lane.idx;
}

LaneIdx RealRuntime::AddIssuerLane(std::string name) { return AddLane(std::move(name), std::make_unique<Lane>()); }

LaneIdx RealRuntime::AddThreadLane(std::string name, double link_bytes_per_s) {
  auto lane = std::make_unique<Lane>();
  lane->kind = LaneKind::kThread;
  lane->link_bytes_per_s = link_bytes_per_s;
  return AddLane(std::move(name), std::move(lane));
}

LaneIdx RealRuntime::AddDiskLane(std::string name, std::unique_ptr<DiskReader> reader, DiskUse use) {
  auto lane = std::make_unique<Lane>();
  lane->kind = LaneKind::kDisk;
  lane->reader = std::move(reader);
  lane->use = use;
  return AddLane(std::move(name), std::move(lane));
}

LaneIdx RealRuntime::AddStreamLane(std::string name, std::unique_ptr<DeviceStream> stream) {
  auto lane = std::make_unique<Lane>();
  lane->kind = LaneKind::kStream;
  lane->stream = std::move(stream);
  return AddLane(std::move(name), std::move(lane));
}

void RealRuntime::RestartClock() { epoch_ = Clock::now(); }

double RealRuntime::now_s() const { return SecondsSince(epoch_); }

const RealRuntime::TaskState* RealRuntime::StateOf(const Event& event) {
  return static_cast<const TaskState*>(event.state_.get());
}

Event RealRuntime::Issue(Task task) {
  auto state = std::make_shared<TaskState>();
  const Lock lock(mutex_);
  PENSTOCK_CHECK(task.lane >= 0 && task.lane < static_cast<LaneIdx>(lanes_.size()));
  Lane& lane = *lanes_[task.lane];
  PENSTOCK_CHECK(lane.kind == LaneKind::kDisk ? !task.body : task.reads.empty());
  const auto wait_for = [&](const Events& events, bool takes_status) {
    for (const Event& event : events) {
      auto* before = static_cast<TaskState*>(event.state_.get());
      if (before == nullptr) continue;
      const bool on_device = lane.kind == LaneKind::kStream && lanes_[before->task.lane]->kind == LaneKind::kStream;
      if (on_device && before->mark != nullptr) {
        if (before->task.lane != task.lane) {
          state->waits_in_stream.push_back({std::static_pointer_cast<TaskState>(event.state_), takes_status});
        }
      } else if (!before->done) {
        before->successors.push_back({state, takes_status, on_device});
        ++state->num_blocking;
      } else if (takes_status) {
        state->status.Update(before->status);
      }
    }
  };
  wait_for(task.after, true);
  wait_for(task.after_end, false);
  task.after.clear();  // a chain of events would keep all tasks before it alive
  task.after_end.clear();
  state->task = std::move(task);
  ++num_unfinished_;
  lane.queue.push_back(state);
  if (lane.queue.size() == 1 && state->num_blocking == 0) WakeLane(lane);
  return Event(std::move(state));
}

void RealRuntime::WakeLane(Lane& lane) {
  if (lane.kind == LaneKind::kIssuer) return;  // the issuer looks before it sleeps, and is woken by every end
  if (lane.in_reader) {
    if (lane.may_read_more()) lane.reader->Wake();
  } else {
    lane.bell.Ring();
  }
}

RealRuntime::TaskRef RealRuntime::TakeReady(Lane& lane, Lock& lock) {
  while (!lane.queue.empty() && lane.queue.front()->num_blocking == 0) {
    TaskRef task = std::move(lane.queue.front());
    lane.queue.pop_front();
    if (cancelling_) task->status.Update(absl::CancelledError("cancelled"));
    if (task->status.ok()) return task;
    absl::Status status = task->status;
    task->begin_s = now_s();
    task->task.cost = {};  // it never ran
    lane.is_running = true;
    End(lane, task, std::move(status), lock);
    lane.is_running = false;
  }
  return nullptr;
}

bool RealRuntime::IsShort(const Lane& lane) {
  const TaskState& task = *lane.queue.front();
  const uint64_t bytes = task.task.cost.link_bytes;
  return task.status.ok() && lane.link_bytes_per_s > 0 && bytes <= kShortBytes &&
         static_cast<double>(bytes) < kWakingSeconds * lane.link_bytes_per_s;
}

void RealRuntime::End(Lane& lane, const TaskRef& task, absl::Status status, Lock& lock, Lane** run) {
  const double end_s = now_s();
  {
    // The body may own large objects. Nobody waits while it is destroyed.
    const std::function<absl::Status()> body = std::move(task->task.body);
    const std::vector<DiskRead> reads = std::move(task->task.reads);
    task->task.body = nullptr;
    lock.unlock();
  }
  lock.lock();
  account_.AddTask(lane.idx, task->task.label, task->task.cost, task->begin_s, end_s);
  task->status = std::move(status);
  task->end_s = end_s;
  task->done = true;
  --num_unfinished_;
  ++num_ended_;
  for (const auto& [successor, takes_status, in_stream] : task->successors) {
    if (takes_status) successor->status.Update(task->status);
    if (--successor->num_blocking > 0) continue;
    Lane& other = *lanes_[successor->task.lane];
    if (other.queue.empty() || other.queue.front() != successor) continue;
    if (run != nullptr && *run == nullptr && !other.is_running && IsShort(other)) {
      *run = &other;
    } else {
      WakeLane(other);
    }
  }
  task->successors.clear();
  issuer_bell_.Ring();
}

void RealRuntime::RunBody(Lane& lane, const TaskRef& task, Lock& lock, bool may_help) {
  lane.is_running = true;
  task->begin_s = now_s();
  lock.unlock();
  absl::Status status = RunGuarded(task->task.body);
  if (lane.link_bytes_per_s > 0) {
    const double seconds = static_cast<double>(task->task.cost.link_bytes) / lane.link_bytes_per_s;
    // Waking takes longer than a small transfer: the last moments are spent polling.
    const double asleep_s = task->begin_s + seconds - kWakingSeconds;
    if (asleep_s - now_s() > 2 * kWakingSeconds) {
      std::this_thread::sleep_until(
          epoch_ + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(asleep_s)));
    }
    while (now_s() < task->begin_s + seconds) std::this_thread::yield();
  }
  lock.lock();
  const bool goes_on = !lane.queue.empty() && lane.queue.front()->num_blocking == 0;
  Lane* link = nullptr;
  End(lane, task, std::move(status), lock, goes_on || !may_help ? nullptr : &link);
  lane.is_running = false;
  if (link == nullptr) return;
  // By now another event may have woken the link's thread.
  const auto has_ready = [&] {
    return !link->is_running && !link->queue.empty() && link->queue.front()->num_blocking == 0;
  };
  if (has_ready() && IsShort(*link)) {
    if (const TaskRef next = TakeReady(*link, lock)) RunBody(*link, next, lock, /*may_help=*/false);
  }
  if (has_ready()) WakeLane(*link);
}

template <typename Predicate>
void RealRuntime::WorkUntil(Predicate happened) {
  Lock lock(mutex_);
  while (!happened()) {
    const int64_t num_ended = num_ended_;
    for (const auto& lane : lanes_) {
      if (lane->kind != LaneKind::kIssuer) continue;
      if (const TaskRef task = TakeReady(*lane, lock)) {
        RunBody(*lane, task, lock);
        break;
      }
    }
    // The end of a task may have made a task ready on a lane that this loop had already passed.
    if (num_ended == num_ended_) issuer_bell_.Wait(lock);
  }
}

absl::Status RealRuntime::Wait(const Event& event) {
  const TaskState* state = StateOf(event);
  if (state == nullptr) return absl::OkStatus();
  WorkUntil([&] { return state->done; });
  return state->status;
}

size_t RealRuntime::WaitAny(std::span<const Event> events) {
  PENSTOCK_CHECK(!events.empty());
  size_t first = 0;
  WorkUntil([&] {
    for (first = 0; first < events.size(); ++first) {
      const TaskState* state = StateOf(events[first]);
      if (state == nullptr || state->done) return true;
    }
    return false;
  });
  return first;
}

bool RealRuntime::Done(const Event& event) const {
  const Lock lock(mutex_);
  return StateOf(event) == nullptr || StateOf(event)->done;
}

double RealRuntime::Seconds(const Event& event) const {
  const Lock lock(mutex_);
  const TaskState* state = StateOf(event);
  return state == nullptr || !state->done ? 0 : state->end_s - state->begin_s;
}

void RealRuntime::Cancel() {
  {
    const Lock lock(mutex_);
    cancelling_ = true;
    for (const auto& lane : lanes_) WakeLane(*lane);
  }
  WorkUntil([&] { return num_unfinished_ == 0; });
  const Lock lock(mutex_);
  cancelling_ = false;
}

std::vector<LaneUsage> RealRuntime::Usage() const {
  const Lock lock(mutex_);
  return account_.usage();
}

void RealRuntime::ResetUsage() {
  const Lock lock(mutex_);
  account_.ResetUsage();
}

void RealRuntime::SetSink(TaskSink* sink) {
  const Lock lock(mutex_);
  account_.SetSink(sink);
}

void RealRuntime::ThreadWork(Lane& lane) {
  if (lane.link_bytes_per_s > 0) {
    AskForShortTurns();
    (void)::prctl(PR_SET_TIMERSLACK, 1000UL);  // a throttled link sleeps for parts of a millisecond
  }
  Lock lock(mutex_);
  for (;;) {
    const TaskRef task = lane.is_running ? nullptr : TakeReady(lane, lock);
    if (task != nullptr) {
      RunBody(lane, task, lock);
    } else if (stop_) {
      return;
    } else {
      lane.bell.Wait(lock);
    }
  }
}

bool RealRuntime::Lane::may_read_more() const {
  return num_reading < use.max_reading && (num_reading < kMinReading || reading_bytes < kReadAheadBytes);
}

void RealRuntime::BeginReads(Lane& lane, Lock& lock) {
  while (lane.may_read_more()) {
    TaskRef task = TakeReady(lane, lock);
    if (task == nullptr) return;
    task->begin_s = now_s();
    task->num_reads_left = task->task.reads.size();
    if (task->num_reads_left == 0) {
      End(lane, task, absl::OkStatus(), lock);
      continue;
    }
    auto place = std::find(lane.reading.begin(), lane.reading.end(), nullptr);
    if (place == lane.reading.end()) place = lane.reading.insert(place, nullptr);
    *place = task;
    ++lane.num_reading;
    lane.reading_bytes += task->task.cost.link_bytes;
    const auto tag = static_cast<uint64_t>(place - lane.reading.begin());
    lock.unlock();
    for (DiskRead& read : task->task.reads) {
      read.tag = tag;
      // Caches hold nothing of a target that was never filled. Dropping it would only map pages of zeros.
      if (lane.use.cached_targets && !lane.filled.insert(read.target).second) {
        DropFromCaches({read.target, DiskReader::WrittenBytes(read)});
      }
      lane.reader->Submit(read);
    }
    lock.lock();
  }
}

void RealRuntime::DiskWork(Lane& lane) {
  AskForShortTurns();
  Lock lock(mutex_);
  for (;;) {
    BeginReads(lane, lock);
    if (lane.num_reading == 0) {
      if (stop_) return;
      lane.bell.Wait(lock);
      continue;
    }
    lane.in_reader = true;
    lock.unlock();
    const std::optional<DiskCompletion> completion = lane.reader->NextCompleted();
    lock.lock();
    lane.in_reader = false;
    if (!completion.has_value()) continue;
    const TaskRef task = lane.reading[completion->tag];
    task->status.Update(completion->status);
    if (--task->num_reads_left > 0) continue;
    lane.reading[completion->tag] = nullptr;
    --lane.num_reading;
    lane.reading_bytes -= task->task.cost.link_bytes;
    absl::Status status = task->status;
    End(lane, task, std::move(status), lock);
  }
}

// Gives the task to its stream. From now on, tasks of other streams wait for its mark; the host waits for its end.
void RealRuntime::GiveToStream(Lane& lane, const TaskRef& task, Lock& lock) {
  task->begin_s = now_s();
  std::vector<std::shared_ptr<DeviceStream::Mark>> marks;
  for (const auto& [before, takes_status] : task->waits_in_stream) {
    if (before->mark != nullptr) {
      marks.push_back(before->mark);
    } else if (takes_status) {
      task->status.Update(before->status);  // `before` has ended
    }
  }
  absl::Status status = task->status;
  std::shared_ptr<DeviceStream::Mark> mark;
  if (status.ok()) {
    lock.unlock();
    for (const std::shared_ptr<DeviceStream::Mark>& other : marks) lane.stream->WaitFor(other);
    status = lane.stream->Run([task] { return RunGuarded(task->task.body); });
    if (status.ok()) mark = lane.stream->Record();
    lock.lock();
  }
  if (!status.ok()) {
    End(lane, task, std::move(status), lock);
    return;
  }
  task->mark = std::move(mark);
  lane.given.push_back(task);
  lane.end_bell.Ring();
  std::erase_if(task->successors, [&](const TaskState::Successor& successor) {
    if (!successor.in_stream) return false;
    Lane& other = *lanes_[successor.task->task.lane];
    if (&other != &lane) successor.task->waits_in_stream.push_back({task, successor.takes_status});
    if (--successor.task->num_blocking == 0 && !other.queue.empty() && other.queue.front() == successor.task) {
      WakeLane(other);
    }
    return true;
  });
}

void RealRuntime::StreamWork(Lane& lane) {
  Lock lock(mutex_);
  for (;;) {
    const TaskRef task = TakeReady(lane, lock);
    if (task != nullptr) {
      GiveToStream(lane, task, lock);
    } else if (stop_) {
      return;
    } else {
      lane.bell.Wait(lock);
    }
  }
}

void RealRuntime::StreamEndWork(Lane& lane) {
  AskForShortTurns();
  Lock lock(mutex_);
  for (;;) {
    if (lane.given.empty()) {
      if (stop_) return;
      lane.end_bell.Wait(lock);
      continue;
    }
    const TaskRef task = lane.given.front();
    lock.unlock();
    absl::Status status = lane.stream->Synchronise(*task->mark);
    lock.lock();
    lane.given.pop_front();
    // The task waited in the stream for the task before it, and for tasks of other streams.
    task->begin_s = std::max(task->begin_s, lane.last_end_s);
    for (const auto& before : task->waits_in_stream) task->begin_s = std::max(task->begin_s, before.task->end_s);
    task->waits_in_stream.clear();
    End(lane, task, std::move(status), lock);
    lane.last_end_s = task->end_s;
    task->mark = nullptr;
  }
}

}  // namespace penstock
