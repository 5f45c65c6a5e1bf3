// The progress line of commands that write a store or a mirror: redrawn on a terminal, otherwise one line every ten
// seconds.
#pragma once

#include <string>
#include <utility>

#include "penstock/base/clock.h"
#include "penstock/job/progress.h"
#include "penstock/pack.h"

namespace penstock::cli {

class PackProgressLine {
 public:
  // The line reads "VERB 1 GiB of 2 GiB".
  PackProgressLine(std::string verb, bool quiet) : verb_(std::move(verb)), mode_(ChooseProgressMode(quiet)) {}
  ~PackProgressLine();  // clears the line

  void Update(const PackProgress& progress);

 private:
  std::string verb_;
  ProgressMode mode_;
  Clock::time_point last_ = Clock::now();
  bool is_drawn_ = false;
};

}  // namespace penstock::cli
