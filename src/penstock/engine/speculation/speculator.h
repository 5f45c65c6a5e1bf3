// Drafts tokens for sequences that decode, so that one pass may compute several tokens of a sequence.
//
// A pass that streams experts takes hardly longer for some more rows. Drafts fill these rows: each guesses a token, and
// a pass computes its row as if it were known. A draft is accepted when the sequence's own choice turns out to be that
// token. So answers do not depend on drafts.
//
// A draft is worth its row when it adds a larger share to the step's expected tokens than to the step's time
// (StepCost). The probability of a guess is learnt from all generated tokens, drafted or not: how often guesses of its
// kind were right. Drafts that an answer's format forbids are left out.
//
// All this is prediction. So a gate measures whether drafts pay after all (DraftGate). Steps for different numbers of
// sequences have gates of their own.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "penstock/engine.h"
#include "penstock/engine/sequence.h"
#include "penstock/engine/speculation/draft_gate.h"
#include "penstock/engine/speculation/ngram_table.h"
#include "penstock/engine/speculation/step_cost.h"
#include "penstock/plan/policy.h"
#include "penstock/schedule/pass_rows.h"

namespace penstock {

// Returns whether tokens may be drafted. There are no drafts beside predictors that work ahead, recorders of choices,
// encoders and attention windows: these would take rows of drafts for rows of the text.
bool CanSpeculate(const EngineOptions& options, const ChosenPolicy& policy, const ModelConfig& config);

class Speculator {
 public:
  static constexpr int64_t kMaxDrafts = 24;  // of one sequence in a step

  // The table of guesses has `table_bytes`. With `drafts_all`, every guess is worth its row, and the gates are open.
  Speculator(uint64_t table_bytes, const ModelConfig& config, bool drafts_all = false);

  // Returns the drafts of each running sequence that are worth their rows, and adds their number to its state. A step
  // has at most `max_rows` rows. Sequences with a recurrent state get drafts if the state can be taken back. With
  // `may_take_pages` they take the pages that this needs.
  std::vector<std::vector<TokenId>> Draft(std::span<const std::unique_ptr<Sequence>> running,
                                          std::span<SequenceState> states, int64_t max_rows, bool may_take_pages);
  // Learns from a step what texts have gained, and how long it took.
  void Learn(std::span<const std::unique_ptr<Sequence>> running, const MeasuredStep& step);

 private:
  // How often the guesses of a kind were right.
  struct Rate {
    double num_right = 0, num_guesses = 0;
    double value() const;
  };
  using Rates = std::array<Rate, NgramTable::kNumKinds>;

  void LearnText(Sequence& sequence);
  Rates& RatesOf(const Sequence& sequence) { return rates_[sequence.sampling().temperature == 0 ? 1 : 0]; }
  const Rates& RatesOf(const Sequence& sequence) const { return rates_[sequence.sampling().temperature == 0 ? 1 : 0]; }
  // Whether the next step may have drafts. Says also which gate measures that step.
  bool MayDraft(std::span<const std::unique_ptr<Sequence>> running);
  // Returns the probability above which a draft is worth its row, beside rows that yield `num_tokens`.
  double LeastProbability(bool has_prompts, double num_tokens, double num_rows) const;

  bool drafts_all_, has_states_;
  NgramTable table_;
  std::array<Rates, 2> rates_;          // of sampled and of greedy answers
  StepCost decode_cost_, prompt_cost_;  // of steps that only decode, and of those with rows of prompts
  double seconds_per_token_ = 0;        // of late steps that only decode; 0: unknown
  // One for each number of sequences that decode: 1, 2, up to 4, up to 8, and so on.
  std::array<DraftGate, 16> gates_;
  DraftGate* measuring_gate_ = nullptr;      // of the next step; null: it has parts of prompts
  double late_tokens_ = 0, late_right_ = 0;  // late steps' tokens, and how many of them the table would have guessed
};

}  // namespace penstock
