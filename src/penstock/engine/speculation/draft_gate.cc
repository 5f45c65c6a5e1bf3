#include "penstock/engine/speculation/draft_gate.h"

#include <algorithm>
#include <cmath>

namespace penstock {
namespace {

// The first step of a block is not counted: it may still bear what the steps before left behind, such as rows to
// repeat and experts that were evicted.
constexpr int64_t kBlockSteps = 5;
// Steps of each form before a trial may end: a block of them, faded.
constexpr double kLeastSteps = 3.5;
// The weight of a step falls by this factor with each later one.
constexpr double kStepDecay = 1 - 1.0 / 512;
// A step counts as at most so many mean ones of its form: the machine did something else.
constexpr double kLongestStep = 4;
// The least scatter of the steps' times, as a share: they may look alike by chance.
constexpr double kLeastScatter = 0.05;
// Logarithms of gains: what opens the gate, what keeps it open, and what closes it.
constexpr double kOpens = 0.02, kKeeps = 0.005, kCloses = -0.01;
// The gain exceeds so many standard errors before the gate opens or closes. Opening too early costs more.
constexpr double kErrorsToOpen = 2, kErrorsToClose = 1;
// The loss of a trial, as a share of the pause behind it.
constexpr double kTrialShare = 0.01;
constexpr int64_t kLeastPause = 256, kLongestPause = 8192;  // steps
// The work has changed if the share of right guesses has: a gate that closed tries again when it rises by so much, and
// an open one when it falls.
constexpr double kOtherShare = 0.2;

}  // namespace

void DraftGate::Form::Add(double num_tokens, double num_seconds) {
  if (num > 0) num_seconds = std::min(num_seconds, kLongestStep * seconds / num);
  num += 1;
  tokens += num_tokens;
  seconds += num_seconds;
  tokens2 += num_tokens * num_tokens;
  seconds2 += num_seconds * num_seconds;
  products += num_tokens * num_seconds;
}

void DraftGate::Form::Fade(double factor) {
  for (double* sum : {&num, &tokens, &seconds, &tokens2, &seconds2, &products}) *sum *= factor;
}

double DraftGate::Form::error2() const {
  const double ratio = seconds_per_token();
  const double residuals = std::max(0.0, seconds2 - 2 * ratio * products + ratio * ratio * tokens2);
  return residuals / (seconds * seconds) * num / (num - 1) + kLeastScatter * kLeastScatter / num;
}

void DraftGate::BeginTrial() {
  phase_ = Phase::kTrial;
  block_ = step_of_block_ = 0;
  with_ = without_ = {};
}

void DraftGate::Close(double share_right) {
  phase_ = Phase::kClosed;
  share_right_ = share_right;
  pause_s_ = (with_.seconds - with_.tokens * without_.seconds_per_token()) / kTrialShare;
  pause_steps_ = std::max(kLeastPause, next_pause_steps_);
  next_pause_steps_ = std::min(kLongestPause, 2 * pause_steps_);
}

void DraftGate::Judge(double share_right) {
  if (std::min(with_.num, without_.num) < kLeastSteps) return;
  const double gain = std::log(without_.seconds_per_token() / with_.seconds_per_token());
  const double error = std::sqrt(with_.error2() + without_.error2());
  if (phase_ == Phase::kOpen) {
    // The blocks without drafts may be old, so only a trial closes the gate.
    if (gain < kKeeps || share_right < share_right_ - kOtherShare) BeginTrial();
  } else if (gain > std::max(kOpens, kErrorsToOpen * error)) {
    phase_ = Phase::kOpen;
    share_right_ = share_right;
    next_pause_steps_ = 0;
  } else if (gain < std::min(kCloses, -kErrorsToClose * error)) {
    Close(share_right);
  }
}

void DraftGate::Add(int64_t num_tokens, double seconds, double share_right) {
  if (num_tokens <= 0 || seconds <= 0) return;
  if (phase_ == Phase::kClosed) {
    pause_s_ -= seconds;
    --pause_steps_;
    if ((pause_s_ <= 0 && pause_steps_ <= 0) || share_right > share_right_ + kOtherShare) BeginTrial();
    return;
  }
  if (step_of_block_ > 0) {
    with_.Fade(kStepDecay);
    without_.Fade(kStepDecay);
    (is_open() ? with_ : without_).Add(static_cast<double>(num_tokens), seconds);
  }
  if (++step_of_block_ < kBlockSteps) return;
  step_of_block_ = 0;
  ++block_;
  Judge(share_right);
}

}  // namespace penstock
