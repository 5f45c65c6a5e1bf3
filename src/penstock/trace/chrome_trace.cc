#include "penstock/trace/chrome_trace.h"

#include <cerrno>
#include <cmath>
#include <iterator>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>

#include "penstock/base/json.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"

namespace penstock {
namespace {

constexpr size_t kBufferBytes = 64 << 10;

// Viewers take track 0 for the kernel's idle thread. The track with the number of the process is shown on top.
constexpr int kStepsTrack = 1;
int TrackOf(LaneIdx lane) { return kStepsTrack + 1 + lane; }

template <typename... Args>
void Append(std::string& out, fmt::format_string<Args...> format, Args&&... args) {
  fmt::format_to(std::back_inserter(out), format, std::forward<Args>(args)...);
}

std::string Quoted(std::string_view text) { return json::serialize(json::string(ReplaceInvalidUtf8(text))); }

// Microseconds with three decimals. Both ends of a slice are rounded before they are subtracted. So rounding never
// makes two slices overlap, nor a span extend beyond the one around it.
int64_t Nanoseconds(double seconds) { return std::llround(seconds * 1e9); }
std::string Microseconds(int64_t ns) { return fmt::format("{}.{:03}", ns / 1000, ns % 1000); }

}  // namespace

absl::StatusOr<std::unique_ptr<ChromeTrace>> ChromeTrace::Create(const std::string& path, int rank) {
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!fd.valid()) return IoError("{}: cannot open the trace for writing: {}", path, ErrnoText(errno));
  return std::unique_ptr<ChromeTrace>(new ChromeTrace(std::move(fd), path, rank));
}

ChromeTrace::ChromeTrace(UniqueFd fd, std::string path, int rank)
    : path_(std::move(path)), process_(rank + 1), fd_(std::move(fd)) {
  buffer_.reserve(kBufferBytes + 4096);
  Append(buffer_, R"([{{"ph":"M","pid":{},"name":"process_name","args":{{"name":{}}}}})", process_,
         Quoted(rank == 0 ? "penstock" : fmt::format("penstock, rank {}", rank)));
  AppendTrackName(kStepsTrack, "steps");
}

ChromeTrace::~ChromeTrace() { Close().IgnoreError(); }

void ChromeTrace::AddLane(LaneIdx lane, std::string_view name) {
  const std::lock_guard lock(mutex_);
  AppendTrackName(TrackOf(lane), name);
  EndEvent();
}

void ChromeTrace::AddTask(LaneIdx lane, const TaskLabel& label, const TaskCost& cost, double begin_s, double end_s) {
  const std::lock_guard lock(mutex_);
  AppendSlice(TrackOf(lane), label.name, begin_s, end_s);
  buffer_ += R"(,"args":{)";
  std::string_view comma;
  const auto append_arg = [&](std::string_view name, auto value) {
    Append(buffer_, R"({}"{}":{})", std::exchange(comma, ","), name, value);
  };
  if (label.layer_idx >= 0) append_arg("layer", label.layer_idx);
  if (label.expert_idx >= 0) append_arg("expert", label.expert_idx);
  if (label.micro_batch_idx >= 0) append_arg("micro_batch", label.micro_batch_idx);
  if (cost.flops > 0) append_arg("flops", cost.flops);
  // Bytes per nanosecond are GB/s. Slices shorter than half a nanosecond have no rate.
  const auto duration_ns = static_cast<double>(Nanoseconds(end_s) - Nanoseconds(begin_s));
  const auto append_rate = [&](std::string_view name, uint64_t bytes) {
    if (bytes > 0 && duration_ns > 0) append_arg(name, fmt::format("{:.4g}", static_cast<double>(bytes) / duration_ns));
  };
  append_rate("memory_gb_per_s", cost.memory_bytes);
  append_rate("link_gb_per_s", cost.link_bytes);
  buffer_ += "}}";
  EndEvent();
}

void ChromeTrace::AddSpan(std::string_view name, double begin_s, double end_s) {
  const std::lock_guard lock(mutex_);
  AppendSlice(kStepsTrack, name, begin_s, end_s);
  buffer_ += '}';
  EndEvent();
}

absl::Status ChromeTrace::Close() {
  const std::lock_guard lock(mutex_);
  if (!fd_.valid()) return status_;
  buffer_ += "\n]\n";
  Flush();
  fd_ = UniqueFd();
  return status_;
}

void ChromeTrace::AppendTrackName(int track, std::string_view name) {
  Append(buffer_,
         ",\n"
         R"({{"ph":"M","pid":{},"tid":{},"name":"thread_name","args":{{"name":{}}}}})",
         process_, track, Quoted(name));
  Append(buffer_,
         ",\n"
         R"({{"ph":"M","pid":{},"tid":{},"name":"thread_sort_index","args":{{"sort_index":{}}}}})",
         process_, track, track);
}

void ChromeTrace::AppendSlice(int track, std::string_view name, double begin_s, double end_s) {
  const int64_t begin_ns = Nanoseconds(begin_s);
  Append(buffer_,
         ",\n"
         R"({{"ph":"X","pid":{},"tid":{},"ts":{},"dur":{},"name":{})",
         process_, track, Microseconds(begin_ns), Microseconds(Nanoseconds(end_s) - begin_ns), Quoted(name));
}

void ChromeTrace::EndEvent() {
  if (!fd_.valid()) {
    buffer_.clear();
  } else if (buffer_.size() >= kBufferBytes) {
    Flush();
  }
}

void ChromeTrace::Flush() {
  // After a failed write, further writes would leave a hole in the file.
  if (status_.ok()) status_ = WriteFully(fd_.get(), buffer_, path_);
  buffer_.clear();
}

}  // namespace penstock
