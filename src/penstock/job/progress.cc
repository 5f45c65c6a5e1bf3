#include "penstock/job/progress.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "penstock/base/file.h"

namespace penstock {
namespace {

constexpr int kBarWidth = 24;
constexpr double kRedrawPeriod_s = 0.1;
constexpr double kPlainPeriod_s = 10;

std::string FormatDuration(double seconds) {
  const int64_t total = static_cast<int64_t>(std::llround(std::clamp(seconds, 0.0, 1e9)));
  if (total < 60) return fmt::format("{}s", total);
  if (total < 3600) return fmt::format("{}m{:02}s", total / 60, total % 60);
  return fmt::format("{}h{:02}m", total / 3600, total / 60 % 60);
}

// Returns ", 1m40s left". Prompts and answers have their own speeds.
std::string FormatLeft(const ProgressCounts& counts, const EngineStats& stats, double elapsed_s) {
  const auto num_now = static_cast<double>(counts.num_done - counts.num_resumed);
  const auto num_left = static_cast<double>(counts.num_requests - counts.num_done);
  const double compute_s = stats.prefill_s + stats.decode_s;
  if (num_left <= 0 || compute_s <= 0) return "";
  const bool knows = num_now > 0 && counts.finished.prompt + counts.finished.answer > 0;
  // Before steps have decoded for a while, nothing is known about the answers' speed.
  constexpr double kMinDecode_s = 0.5;
  if (!knows && counts.max_expected.answer > 0 && stats.decode_s < kMinDecode_s) return "";
  const double num_known = knows ? num_now : 1;
  const TokenCounts& known = knows ? counts.finished : counts.max_expected;
  const auto seconds_left = [&](double tokens, int64_t num_done, double seconds) {
    const double left = tokens / num_known * (num_now + num_left) - static_cast<double>(num_done);
    return num_done > 0 ? std::max(0.0, left) * seconds / static_cast<double>(num_done) : 0;
  };
  const double seconds = (seconds_left(known.prompt, stats.prompt_tokens, stats.prefill_s) +
                          seconds_left(known.answer, stats.generated_tokens, stats.decode_s)) *
                         std::max(1.0, elapsed_s / compute_s);
  if (seconds <= 0) return "";
  return fmt::format(", {}{} left", knows ? "" : "at most ", FormatDuration(seconds));
}

// Returns the width of the terminal; 0 when it is unknown.
int Columns(int fd) {
  winsize size = {};
  return ::ioctl(fd, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

}  // namespace

void ProgressCounts::AddFailure(Failures one) {
  ++num_failed;
  const auto found = std::ranges::find(failures, one.code, &Failures::code);
  if (found == failures.end()) {
    failures.push_back(std::move(one));
  } else {
    found->num_requests += one.num_requests;
  }
}

ProgressMode ChooseProgressMode(bool quiet) {
  if (quiet) return ProgressMode::kSilent;
  const char* term = std::getenv("TERM");
  const char* no_color = std::getenv("NO_COLOR");
  const bool plain = ::isatty(STDERR_FILENO) == 0 || term == nullptr || std::string_view(term) == "dumb" ||
                     (no_color != nullptr && *no_color != '\0');
  return plain ? ProgressMode::kPlain : ProgressMode::kRedraw;
}

std::string FormatProgress(const ProgressCounts& counts, const EngineStats& stats, double elapsed_s,
                           double predicted_tokens_per_s, int columns) {
  const double share =
      counts.num_requests > 0 ? static_cast<double>(counts.num_done) / static_cast<double>(counts.num_requests) : 1.0;
  const int filled = std::clamp(static_cast<int>(share * kBarWidth), 0, kBarWidth);
  const std::string bar = fmt::format("[{}{}] ", std::string(filled, '#'), std::string(kBarWidth - filled, '-'));
  std::string done = fmt::format("{}/{} {}", counts.num_done, counts.num_requests, counts.unit);
  if (!counts.result.empty()) done += ", " + counts.result;
  if (counts.num_failed > 0) done += fmt::format(", {} failed", counts.num_failed);
  const double compute_s = stats.prefill_s + stats.decode_s;
  if (compute_s > 0 && elapsed_s > 0) {
    const bool generates = stats.generated_tokens > 0 || counts.finished.answer > 0;
    const int64_t num_tokens = generates ? stats.generated_tokens : stats.prompt_tokens;
    done += fmt::format(", {:.1f} {}tokens/s", static_cast<double>(num_tokens) / elapsed_s, generates ? "" : "prompt ");
    if (predicted_tokens_per_s > 0) done += fmt::format(" of {:.1f} predicted", predicted_tokens_per_s);
  }
  // A lane that is always busy limits the job.
  std::string lanes;
  for (const LaneStats& lane : stats.lanes) {
    if (lane.busy_s > 0 && compute_s > 0) {
      lanes += fmt::format(", {} {:.0f}%", lane.name, std::min(100.0, 100 * lane.busy_s / compute_s));
    }
  }
  const std::string left = FormatLeft(counts, stats, elapsed_s);
  const std::string versions[] = {bar + done + lanes + left, bar + done + left, done + left};
  for (const std::string& text : versions) {
    if (columns <= 0 || std::ssize(text) < columns) return text;
  }
  return versions[2].substr(0, static_cast<size_t>(columns - 1));
}

// Ignores errors: a closed stderr must not stop the job.
void Progress::Write(const std::string& text) { (void)WriteFully(fd_, text, "stderr"); }

void Progress::Update(const ProgressCounts& counts, const EngineStats& stats, double elapsed_s) {
  if (mode_ == ProgressMode::kSilent) return;
  const double period = mode_ == ProgressMode::kRedraw ? kRedrawPeriod_s : kPlainPeriod_s;
  if (last_s_ < 0 && mode_ == ProgressMode::kPlain) last_s_ = 0;  // a short job prints only its last line
  if (last_s_ >= 0 && elapsed_s - last_s_ < period) return;
  last_s_ = elapsed_s;
  const int columns = mode_ == ProgressMode::kRedraw ? Columns(fd_) : 0;
  const std::string text = FormatProgress(counts, stats, elapsed_s, predicted_tokens_per_s_, columns);
  Write(mode_ == ProgressMode::kRedraw ? "\r\x1b[K" + text : text + "\n");
  drawn_ = true;
}

void Progress::Finish(const ProgressCounts& counts, const EngineStats& stats, double elapsed_s) {
  if (mode_ == ProgressMode::kSilent) return;
  const std::string text = FormatProgress(counts, stats, elapsed_s, predicted_tokens_per_s_) + "\n";
  Write(mode_ == ProgressMode::kRedraw && drawn_ ? "\r\x1b[K" + text : text);
}

void Progress::Print(const std::string& text) {
  if (!text.empty() && mode_ != ProgressMode::kSilent) Write(text);
}

}  // namespace penstock
