// The progress of commands that read a text window by window: perplexity, quality and calibrate.
#pragma once

#include <cstddef>
#include <string>

#include "penstock/base/clock.h"
#include "penstock/engine.h"
#include "penstock/job/progress.h"

namespace penstock::cli {

class WindowProgress {
 public:
  // Windows of `window` tokens follow each other without overlap. One token alone is no window.
  WindowProgress(bool quiet, size_t num_tokens, size_t window);
  ~WindowProgress();  // writes the last line

  WindowProgress(const WindowProgress&) = delete;
  WindowProgress& operator=(const WindowProgress&) = delete;

  // Counts a window that was read. `result`: what was found so far; may be empty.
  void Add(size_t num_tokens, const EngineStats& stats, std::string result);

 private:
  Progress progress_;
  ProgressCounts counts_;
  EngineStats stats_;
  Clock::time_point start_ = Clock::now();
};

}  // namespace penstock::cli
