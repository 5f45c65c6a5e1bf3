#include "penstock/cli/quality/window_progress.h"

#include <utility>

#include <unistd.h>

namespace penstock::cli {

WindowProgress::WindowProgress(bool quiet, size_t num_tokens, size_t window)
    : progress_(ChooseProgressMode(quiet), STDERR_FILENO),
      counts_{.unit = "windows", .num_requests = static_cast<int64_t>((num_tokens - 1 + window - 1) / window)} {}

WindowProgress::~WindowProgress() { progress_.Finish(counts_, stats_, SecondsSince(start_)); }

void WindowProgress::Add(size_t num_tokens, const EngineStats& stats, std::string result) {
  ++counts_.num_done;
  counts_.finished.prompt += static_cast<double>(num_tokens);
  counts_.result = std::move(result);
  stats_ = stats;
  progress_.Update(counts_, stats_, SecondsSince(start_));
}

}  // namespace penstock::cli
