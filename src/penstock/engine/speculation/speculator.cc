#include "penstock/engine/speculation/speculator.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <queue>
#include <utility>

namespace penstock {
namespace {

// The weight of a guess falls by this factor with each later one.
constexpr double kGuessDecay = 0.995;
// The weight of a step's tokens falls by this factor with each later step.
constexpr double kTokenDecay = 0.98;
// Before guesses show more, a third of them is right.
constexpr double kAssumedRight = 1, kAssumedGuesses = 3;

double Smoothed(double average, double value) {
  constexpr double kShare = 0.1;
  return average == 0 ? value : (1 - kShare) * average + kShare * value;
}

// A token that a sequence may go on with.
struct Candidate {
  double probability;  // that this draft and all before it are right
  size_t sequence_idx;
  TokenId token_id;
  bool operator<(const Candidate& other) const { return probability < other.probability; }
};

}  // namespace

Speculator::Speculator(uint64_t table_bytes, const ModelConfig& config, bool drafts_all)
    : drafts_all_(drafts_all),
      has_states_(config.num_recurrent_layers() > 0),
      table_(table_bytes),
      decode_cost_(config.num_experts, config.num_topk),
      prompt_cost_(config.num_experts, config.num_topk) {}

double Speculator::Rate::value() const { return (num_right + kAssumedRight) / (num_guesses + kAssumedGuesses); }

bool CanSpeculate(const EngineOptions& options, const ChosenPolicy& policy, const ModelConfig& config) {
  return !config.encoder.is_on() && !policy.kv_window.on() && policy.schedule.max_ahead == 0 &&
         !policy.schedule.replaces_routers && options.routing_path.empty() && !options.routing_scores &&
         options.correlation_path.empty();
}

void Speculator::Learn(std::span<const std::unique_ptr<Sequence>> running, const MeasuredStep& step) {
  late_tokens_ *= kTokenDecay;
  late_right_ *= kTokenDecay;
  for (const auto& sequence : running) {
    if (!sequence->in_prefill()) LearnText(*sequence);
  }
  if (measuring_gate_ != nullptr) {
    measuring_gate_->Add(step.num_generated, step.seconds, late_tokens_ == 0 ? 0 : late_right_ / late_tokens_);
  }
  if (step.num_decoding == 0) return;
  (step.num_prompt_rows > 0 ? prompt_cost_ : decode_cost_).Add(step);
  if (step.num_prompt_rows > 0) return;
  seconds_per_token_ =
      Smoothed(seconds_per_token_, step.seconds / static_cast<double>(std::max<int64_t>(1, step.num_generated)));
}

void Speculator::LearnText(Sequence& sequence) {
  const std::span<const TokenId> tokens = sequence.token_ids();
  for (int64_t pos = std::max<int64_t>(1, sequence.SetLearned()); pos < std::ssize(tokens); ++pos) {
    const NgramTable::Guess guess = table_.Next(tokens.first(pos));
    const bool is_generated = pos >= sequence.num_prompt_tokens(), is_right = guess.token_id == tokens[pos];
    if (is_generated) {
      late_tokens_ += 1;
      late_right_ += is_right ? 1 : 0;
    }
    if (guess.token_id >= 0 && is_generated) {
      Rate& rate = RatesOf(sequence)[guess.kind];
      rate.num_right = kGuessDecay * rate.num_right + (is_right ? 1 : 0);
      rate.num_guesses = kGuessDecay * rate.num_guesses + 1;
    }
    table_.Learn(tokens.first(pos + 1));
  }
}

bool Speculator::MayDraft(std::span<const std::unique_ptr<Sequence>> running) {
  const int64_t num_prompts =
      std::ranges::count_if(running, [](const auto& sequence) { return sequence->in_prefill(); });
  const auto num_decoding = static_cast<uint64_t>(std::ssize(running) - num_prompts);
  if (num_decoding == 0) return false;
  DraftGate& gate = gates_[std::min<size_t>(gates_.size() - 1, std::bit_width(num_decoding - 1))];
  if (num_prompts > 0) return gate.pays();
  measuring_gate_ = &gate;
  return gate.is_open();
}

double Speculator::LeastProbability(bool has_prompts, double num_tokens, double num_rows) const {
  if (drafts_all_) return 0;
  if (!has_prompts) {
    if (decode_cost_.seconds() == 0) return 1;
    return num_tokens * decode_cost_.OfNextRow(num_rows) / decode_cost_.seconds();
  }
  // An accepted draft saves a token's part of a later step that only decodes.
  if (prompt_cost_.seconds() == 0 || seconds_per_token_ == 0) return 1;
  return prompt_cost_.OfNextRow(prompt_cost_.mean_rows()) / seconds_per_token_;
}

std::vector<std::vector<TokenId>> Speculator::Draft(std::span<const std::unique_ptr<Sequence>> running,
                                                    std::span<SequenceState> states, int64_t max_rows,
                                                    bool may_take_pages) {
  std::vector<std::vector<TokenId>> drafts(running.size());
  measuring_gate_ = nullptr;
  if (!drafts_all_ && !MayDraft(running)) return drafts;
  std::vector<std::vector<TokenId>> ends(running.size());               // of the texts, with their drafts so far
  std::vector<std::optional<ConstraintState>> formats(running.size());  // behind those drafts
  std::priority_queue<Candidate> candidates;
  const auto propose = [&](size_t i, double probability_before) {
    const Sequence& sequence = *running[i];
    const int64_t most = std::min(kMaxDrafts, sequence.max_length() - sequence.num_known() - 1);
    if (std::ssize(drafts[i]) >= most) return;
    const NgramTable::Guess guess = table_.Next(ends[i]);
    if (guess.token_id < 0 || (formats[i].has_value() && !formats[i]->Accept(guess.token_id))) return;
    candidates.push({probability_before * RatesOf(sequence)[guess.kind].value(), i, guess.token_id});
  };
  int64_t num_decoding = 0, num_rows = 0;
  for (size_t i = 0; i < running.size(); ++i) {
    if (states[i].in_prefill) continue;
    num_rows += states[i].num_pending;
    ++num_decoding;
    if (has_states_ && (!may_take_pages || running[i]->kv()->StateToTakeBack().empty())) continue;
    const std::span<const TokenId> tokens = running[i]->token_ids();
    const auto end = tokens.last(std::min<size_t>(tokens.size(), NgramTable::kMaxOrder));
    ends[i].assign(end.begin(), end.end());
    formats[i] = running[i]->format();
    propose(i, 1);
  }
  const bool has_prompts = num_decoding < std::ssize(running);
  // Most of the rows that are left belong to prompts, if there are any.
  const int64_t max_drafts = (max_rows - num_rows) / (has_prompts ? 4 : 1);
  auto num_tokens = static_cast<double>(num_decoding);
  for (int64_t num_drafts = 0; num_drafts < max_drafts && !candidates.empty(); ++num_drafts) {
    const Candidate best = candidates.top();
    if (best.probability <= LeastProbability(has_prompts, num_tokens, static_cast<double>(num_rows + num_drafts))) {
      break;
    }
    candidates.pop();
    drafts[best.sequence_idx].push_back(best.token_id);
    ends[best.sequence_idx].push_back(best.token_id);
    num_tokens += best.probability;
    propose(best.sequence_idx, best.probability);
  }
  for (size_t i = 0; i < drafts.size(); ++i) states[i].num_drafts = std::ssize(drafts[i]);
  return drafts;
}

}  // namespace penstock
