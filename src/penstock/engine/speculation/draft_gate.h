// Measures whether steps with drafts yield more tokens per second than steps without, and opens only if they do.
//
// A trial takes both forms in alternation: without, with, with, without, and so on, in blocks of a few steps. So a
// machine that becomes slower, and texts that become longer, change both forms alike. The estimate of each form is the
// ratio of sums of seconds and of tokens. Its error comes from the scatter of its steps. A trial ends as soon as the
// difference exceeds its error:
//   - If drafts pay, the gate opens. Now and then a block without drafts renews the comparison. If the gain is gone,
//     or guesses are right much less often, another trial begins.
//   - If drafts lose time, the gate closes. The next trial waits until its loss would be 1 % of the time in between.
//     Each such pause is also at least twice as long as the one before. A pause ends early if guesses have become
//     right much more often.
// A trial of drafts that neither pay nor lose goes on. That costs nothing.
//
// A new gate is closed. Its first trial begins when many guesses are right, or after a pause: a short job has no time
// to make good the loss of a trial.
#pragma once

#include <cstdint>

namespace penstock {

class DraftGate {
 public:
  // Whether the next step may have drafts.
  bool is_open() const { return phase_ == Phase::kOpen ? block_ % kOpenBlocks != 0 : is_trial() && TrialDrafts(); }
  // Whether drafts were found to pay. Steps that are not measured have drafts then.
  bool pays() const { return phase_ == Phase::kOpen; }
  bool is_trial() const { return phase_ == Phase::kTrial; }

  // Adds a step that did what is_open() said. Of all tokens of late steps, this share was guessed right.
  void Add(int64_t num_tokens, double seconds, double share_right);

 private:
  enum class Phase { kTrial, kOpen, kClosed };
  static constexpr int64_t kOpenBlocks = 32;  // of which one has no drafts

  // Steps of one form; later ones count more.
  struct Form {
    double num = 0, tokens = 0, seconds = 0;
    double tokens2 = 0, seconds2 = 0, products = 0;  // sums of squares, and of tokens * seconds

    // A step that is much longer than the others counts less.
    void Add(double num_tokens, double num_seconds);
    void Fade(double factor);
    double seconds_per_token() const { return seconds / tokens; }
    // The square of the relative standard error of seconds_per_token().
    double error2() const;
  };

  // The first and the last of each four blocks have no drafts.
  bool TrialDrafts() const { return block_ % 4 == 1 || block_ % 4 == 2; }
  void BeginTrial();
  void Close(double share_right);
  // Changes the phase if the steps so far say so.
  void Judge(double share_right);

  Phase phase_ = Phase::kClosed;
  int64_t block_ = 0, step_of_block_ = 0;
  Form with_, without_;
  // The rest of the pause, and the least length of its successor.
  double pause_s_ = 0;
  int64_t pause_steps_ = 1024, next_pause_steps_ = 0;
  double share_right_ = 0.2;  // when the gate opened or closed; at first, a share that seldom pays
};

}  // namespace penstock
