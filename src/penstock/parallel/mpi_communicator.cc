// Messages over MPI.
//
// All calls are nonblocking, under one mutex, and waiting threads poll. So MPI need not support several threads at
// once, a waiting thread leaves its processor to others, and an error of another rank ends the waiting.
//
// Each rank has a thread that tells the others every second that it is alive. A rank that is silent for kSilence,
// because it was stopped or its machine is gone, ends the job on all others.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <mpi.h>
#include <sched.h>

#include "penstock/base/check.h"
#include "penstock/base/clock.h"
#include "penstock/base/status.h"
#include "penstock/parallel/launcher.h"
#include "penstock/parallel/mpi_ranks.h"

namespace penstock {
namespace {

constexpr int kAbortTag = kNumMessageStreams, kAliveTag = kAbortTag + 1;
constexpr std::chrono::seconds kHeartbeat{1}, kSilence{20};
constexpr std::chrono::seconds kSuspended{5};  // a heart that pauses for longer was itself suspended
constexpr size_t kMaxReason = 1000;            // bytes of a rank's reason to abort
constexpr int kSpins = 200;                    // polls before a waiting thread sleeps
// A thread that waits sleeps between polls for a share of the time that it has waited. So a message is seen late by
// that share at most, and long waits leave the processor to computing: polls every 20 us took a fifth of a core.
constexpr int kSleepShare = 16;
constexpr std::chrono::microseconds kMinSleep{20}, kMaxSleep{500};

// Calls `on_stuck` if it is not destroyed in time.
class Watch {
 public:
  explicit Watch(const std::function<void()>& on_stuck)
      : thread_([this, on_stuck] {
          std::unique_lock<std::mutex> lock(mutex_);
          if (!wake_.wait_for(lock, kPatience, [this] { return is_over_; })) on_stuck();
        }) {}
  ~Watch() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      is_over_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }

 private:
  static constexpr std::chrono::seconds kPatience{60};

  std::mutex mutex_;
  std::condition_variable wake_;
  bool is_over_ = false;
  std::thread thread_;  // last: it uses the others
};

absl::Status StatusOf(int code, std::string_view what) {
  if (code == MPI_SUCCESS) return absl::OkStatus();
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  return IoError("{}: {}", what, std::string_view(text, static_cast<size_t>(length)));
}

class MpiCommunicator : public Communicator {
 public:
  explicit MpiCommunicator(std::function<void()> on_stuck) : on_stuck_(std::move(on_stuck)) {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &num_ranks_);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    beats_.assign(num_ranks_, MPI_REQUEST_NULL);
    last_seen_.assign(num_ranks_, Clock::now());
    heart_ = std::thread([this] { Beat(); });
  }
  ~MpiCommunicator() override {
    // The heart beats until all ranks are here.
    MPI_Request barrier = MPI_REQUEST_NULL;
    bool all_end = false;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      all_end = aborted_.ok() && MPI_Ibarrier(MPI_COMM_WORLD, &barrier) == MPI_SUCCESS;
    }
    all_end = all_end && Complete(barrier, "ending").ok();
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ends_ = true;
    }
    wake_.notify_all();
    heart_.join();
    // After an error another rank may never arrive here, and MPI_Finalize() waits for all.
    if (!all_end) return;
    const Watch watch(on_stuck_);
    MPI_Waitall(num_ranks_, beats_.data(), MPI_STATUSES_IGNORE);
    TakeBeats();
    MPI_Finalize();
  }

  int rank() const override { return rank_; }
  int num_ranks() const override { return num_ranks_; }

  absl::Status Send(int to, MessageStream stream, std::span<const std::byte> bytes) override {
    PENSTOCK_CHECK(bytes.size() <= kMaxMessageBytes);
    MPI_Request request = MPI_REQUEST_NULL;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      PENSTOCK_RETURN_IF_ERROR(aborted_);
      PENSTOCK_RETURN_IF_ERROR(StatusOf(MPI_Isend(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, to,
                                                  static_cast<int>(stream), MPI_COMM_WORLD, &request),
                                        "sending to another rank"));
    }
    return Complete(request, "sending to another rank");
  }

  absl::StatusOr<Received> ReceiveAny(std::span<const int> ranks, MessageStream stream, RoomOfRank room) override {
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Request request = MPI_REQUEST_NULL;
    Received received;
    const absl::Status came = Poll([&](bool& is_done) -> absl::Status {
      MPI_Status status;
      int found = 0;
      for (const int from : ranks) {
        PENSTOCK_RETURN_IF_ERROR(StatusOf(
            MPI_Improbe(from, static_cast<int>(stream), MPI_COMM_WORLD, &found, &message, &status), "receiving"));
        if (found != 0) break;
      }
      if (found == 0) return absl::OkStatus();
      int size = 0;
      MPI_Get_count(&status, MPI_BYTE, &size);
      received = {status.MPI_SOURCE, static_cast<size_t>(size)};
      const std::span<std::byte> to = room(received.from);
      PENSTOCK_RETURN_IF_ERROR(CheckMessageFits(received.from, rank_, received.size, to.size()));
      is_done = true;
      return StatusOf(MPI_Imrecv(to.data(), size, MPI_BYTE, &message, &request), "receiving");
    });
    PENSTOCK_RETURN_IF_ERROR(came);
    PENSTOCK_RETURN_IF_ERROR(Complete(request, "receiving"));
    return received;
  }

  void Abort(const absl::Status& why) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!aborted_.ok()) return;
    aborted_ = Annotate(why, fmt::format("rank {}", rank_));
    const std::string reason = std::to_string(static_cast<int>(FaultOf(why))) + Message(aborted_).substr(0, kMaxReason);
    for (int to = 0; to < num_ranks_; ++to) {
      // A message this small does not wait for its receiver.
      if (to != rank_) {
        MPI_Send(reason.data(), static_cast<int>(reason.size()), MPI_BYTE, to, kAbortTag, MPI_COMM_WORLD);
      }
    }
  }

 private:
  absl::Status Complete(MPI_Request request, std::string_view what) {
    return Poll([&](bool& is_done) {
      int done = 0;
      const int code = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
      is_done = done != 0;
      return StatusOf(code, what);
    });
  }

  // The work of the thread heart_.
  void Beat() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!ends_ && aborted_.ok()) {
      for (int to = 0; to < num_ranks_; ++to) {
        int done = 0;
        // A rank that does not take messages gets no more of them.
        if (to == rank_ || MPI_Test(&beats_[to], &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done == 0) continue;
        MPI_Isend(nullptr, 0, MPI_BYTE, to, kAliveTag, MPI_COMM_WORLD, &beats_[to]);
      }
      TakeBeats();
      LookForAbort();
      const Clock::time_point now = Clock::now();
      if (now - std::exchange(last_beat_, now) > kSuspended) last_seen_.assign(num_ranks_, now);
      for (int from = 0; from < num_ranks_ && aborted_.ok(); ++from) {
        if (from == rank_ || now - last_seen_[from] < kSilence) continue;
        aborted_ = MakeError(Fault::kStopped,
                             fmt::format("rank {} has been silent for {} s: it was stopped, or its machine or network "
                                         "is gone",
                                         from, kSilence.count()));
      }
      wake_.wait_for(lock, kHeartbeat, [this] { return ends_; });
    }
  }

  // Takes the other ranks' signs of life.
  void TakeBeats() {
    int found = 0;
    MPI_Status status;
    while (MPI_Iprobe(MPI_ANY_SOURCE, kAliveTag, MPI_COMM_WORLD, &found, &status) == MPI_SUCCESS && found != 0) {
      MPI_Recv(nullptr, 0, MPI_BYTE, status.MPI_SOURCE, kAliveTag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      last_seen_[status.MPI_SOURCE] = Clock::now();
    }
  }

  // Calls step(is_done) until it is done, fails, or a rank has aborted.
  template <typename Step>
  absl::Status Poll(const Step& step) {
    const Clock::time_point start = Clock::now();
    for (int num_polls = 0;; ++num_polls) {
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        PENSTOCK_RETURN_IF_ERROR(aborted_);
        bool is_done = false;
        PENSTOCK_RETURN_IF_ERROR(step(is_done));
        if (is_done) return absl::OkStatus();
        LookForAbort();
      }
      if (num_polls < kSpins) {
        std::this_thread::yield();
      } else {
        const auto waited = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start);
        std::this_thread::sleep_for(std::clamp(waited / kSleepShare, kMinSleep, kMaxSleep));
      }
    }
  }

  // Takes another rank's reason to abort, if one has come.
  void LookForAbort() {
    int found = 0;
    MPI_Status status;
    if (MPI_Iprobe(MPI_ANY_SOURCE, kAbortTag, MPI_COMM_WORLD, &found, &status) != MPI_SUCCESS || found == 0) return;
    int size = 0;
    MPI_Get_count(&status, MPI_BYTE, &size);
    std::string reason(static_cast<size_t>(size), '\0');
    MPI_Recv(reason.data(), size, MPI_BYTE, status.MPI_SOURCE, kAbortTag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    const int fault = reason.empty() ? 1 : reason[0] - '0';
    aborted_ = MakeError(static_cast<Fault>(fault), reason.substr(1));
  }

  const std::function<void()> on_stuck_;
  std::mutex mutex_;  // guards what follows, and all calls of MPI
  int rank_ = 0;
  int num_ranks_ = 1;
  absl::Status aborted_;
  std::vector<MPI_Request> beats_;            // [num_ranks]: the last sign of life that was sent
  std::vector<Clock::time_point> last_seen_;  // [num_ranks]
  Clock::time_point last_beat_ = Clock::now();
  bool ends_ = false;
  std::condition_variable wake_;
  std::thread heart_;
};

// Makes Open MPI use both directions of a TCP link at once. By default it sends a long message as one piece, and its
// answers to the other rank's messages wait behind that piece, and behind megabytes in the socket's buffer. At 0.2
// Gbit/s the exchange of a layer took 1.4 times as long. Settings of the user win.
void TuneOpenMpi() {
  setenv("OMPI_MCA_btl_tcp_flags", "send,inplace", /*overwrite=*/0);
  setenv("OMPI_MCA_btl_tcp_sndbuf", "131072", /*overwrite=*/0);
  for (const char* const limit : {"OMPI_MCA_btl_tcp_eager_limit", "OMPI_MCA_btl_tcp_rndv_eager_limit"}) {
    setenv(limit, "262144", /*overwrite=*/0);
  }
}

// Fills in which ranks are on this machine, and which of them may use the same CPUs.
void FindNeighbours(MpiRanks& ranks) {
  MPI_Comm here = MPI_COMM_NULL;
  if (MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here) != MPI_SUCCESS) return;
  int rank_here = 0;
  MPI_Comm_size(here, &ranks.num_ranks_here);
  MPI_Comm_rank(here, &rank_here);
  cpu_set_t own;
  CPU_ZERO(&own);
  sched_getaffinity(0, sizeof(own), &own);
  std::vector<cpu_set_t> all(ranks.num_ranks_here);
  MPI_Allgather(&own, sizeof(own), MPI_BYTE, all.data(), sizeof(own), MPI_BYTE, here);
  const auto is_shared = [&](const cpu_set_t& other) { return CPU_EQUAL(&own, &other) != 0; };
  ranks.num_sharing_cpus = static_cast<int>(std::count_if(all.begin(), all.end(), is_shared));
  ranks.place_among_sharing = static_cast<int>(std::count_if(all.begin(), all.begin() + rank_here, is_shared));
  MPI_Comm_free(&here);
}

}  // namespace

absl::StatusOr<MpiRanks> JoinMpiRanks(std::function<void()> on_stuck) {
  MpiRanks ranks;
  if (!IsLaunchedWithOthers()) return ranks;
  const Watch watch(on_stuck);
  TuneOpenMpi();
  int provided = 0;
  PENSTOCK_RETURN_IF_ERROR(StatusOf(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI"));
  if (provided < MPI_THREAD_SERIALIZED) {
    return ResourceError("this MPI cannot be used by several threads, not even one after another");
  }
  FindNeighbours(ranks);
  ranks.communicator = std::make_unique<MpiCommunicator>(std::move(on_stuck));
  if (ranks.communicator->num_ranks() > 1) return ranks;
  return UsageError(
      "a launcher started several processes, but MPI sees this one only: use the launcher of the MPI that "
      "this program was built with");
}

}  // namespace penstock
