#include "penstock/cli/machine/pack_progress_line.h"

#include <chrono>

#include <fmt/format.h>
#include <unistd.h>

#include "penstock/base/bytes.h"
#include "penstock/base/file.h"

namespace penstock::cli {

PackProgressLine::~PackProgressLine() {
  if (is_drawn_) (void)WriteFully(STDERR_FILENO, "\r\x1b[K", "stderr");
}

void PackProgressLine::Update(const PackProgress& progress) {
  const auto now = Clock::now();
  const auto period = mode_ == ProgressMode::kRedraw ? std::chrono::milliseconds(100) : std::chrono::seconds(10);
  if (mode_ == ProgressMode::kSilent || now - last_ < period) return;
  last_ = now;
  const std::string text =
      fmt::format("penstock: {} {} of {}", verb_, FormatBytes(progress.done_bytes), FormatBytes(progress.total_bytes));
  is_drawn_ = mode_ == ProgressMode::kRedraw;
  (void)WriteFully(STDERR_FILENO, is_drawn_ ? "\r\x1b[K" + text : text + "\n", "stderr");
}

}  // namespace penstock::cli
