#include <chrono>

#include <fmt/format.h>
#include <unistd.h>

#include "penstock/base/bytes.h"
#include "penstock/base/clock.h"
#include "penstock/base/file.h"
#include "penstock/base/logging.h"
#include "penstock/cli/commands.h"
#include "penstock/cli/stop_signals.h"
#include "penstock/job/progress.h"

namespace penstock::cli {
namespace {

// A progress line: redrawn on a terminal, otherwise one line every ten seconds.
class PackProgressLine {
 public:
  explicit PackProgressLine(bool quiet) : mode_(ChooseProgressMode(quiet)) {}
  ~PackProgressLine() {
    if (is_drawn_) (void)WriteFully(STDERR_FILENO, "\r\x1b[K", "stderr");
  }

  void Update(const PackProgress& progress) {
    const auto now = Clock::now();
    const auto period = mode_ == ProgressMode::kRedraw ? std::chrono::milliseconds(100) : std::chrono::seconds(10);
    if (mode_ == ProgressMode::kSilent || now - last_ < period) return;
    last_ = now;
    const std::string text =
        fmt::format("penstock: packed {} of {}", FormatBytes(progress.done_bytes), FormatBytes(progress.total_bytes));
    is_drawn_ = mode_ == ProgressMode::kRedraw;
    (void)WriteFully(STDERR_FILENO, is_drawn_ ? "\r\x1b[K" + text : text + "\n", "stderr");
  }

 private:
  ProgressMode mode_;
  Clock::time_point last_ = Clock::now();
  bool is_drawn_ = false;
};

}  // namespace

absl::StatusOr<int> PackCommand(const PackFlags& flags) {
  const std::atomic<bool>& stop_requested = StopOnSignals();
  const auto start = Clock::now();
  PackProgress last;
  {
    PackProgressLine line(flags.quiet);
    PENSTOCK_RETURN_IF_ERROR(PackModel(
        flags.pack,
        [&](const PackProgress& progress) {
          last = progress;
          line.Update(progress);
        },
        stop_requested));
  }
  const double seconds = SecondsSince(start);
  LogInfo("{} packed into {} in {:.1f} s", FormatBytes(last.total_bytes), flags.pack.output_dir, seconds);
  return 0;
}

}  // namespace penstock::cli
