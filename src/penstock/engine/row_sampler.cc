#include "penstock/engine/row_sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "penstock/base/status.h"

namespace penstock {

absl::Status BrokenLogits() {
  return ModelError("the model gave logits that are no numbers: its weights hold NaN or infinity");
}

RowSampler::RowSampler(const kernels::KernelTable& kernels, ThreadPool& pool, const ModelConfig& config,
                       bool random_answers)
    : pool_(&pool), config_(&config), random_answers_(random_answers) {
  for (int i = 0; i < pool.num_workers(); ++i) samplers_.emplace_back(kernels, config.vocab_size);
}

bool RowSampler::WantsBestOnly(const SequenceBatch& rows) const {
  return !random_answers_ && std::ranges::all_of(rows.batch.logit_rows, [&](int64_t row) {
    const Sequence& sequence = *rows.sequence_of_row[row];
    return IsArgMax(sequence.sampling()) && !sequence.format().has_value() &&
           !sequence.wants_prompt_logprobs(rows.batch.positions[row] + 1);
  });
}

absl::Status RowSampler::MaskLogits(const Sequence& sequence, std::span<float> logits) const {
  const ConstraintState& format = *sequence.format();
  const SamplingParams& sampling = sequence.sampling();
  grammar::TokenMask mask(grammar::MaskWords(std::ssize(logits)), 0);
  PENSTOCK_RETURN_IF_ERROR(format.AllowedTokens(mask));
  const auto allow = [&](const std::vector<TokenId>& ids, bool is_allowed) {
    for (const TokenId id : ids) {
      const uint64_t bit = uint64_t{1} << (id % 64);
      mask[id / 64] = is_allowed ? mask[id / 64] | bit : mask[id / 64] & ~bit;
    }
  };
  allow(config_->eos_ids, format.is_complete() && !sampling.ignore_eos);
  allow(sampling.stop_token_ids, format.is_complete());
  for (size_t id = 0; id < logits.size(); ++id) {
    if (!grammar::HasToken(mask, static_cast<TokenId>(id))) logits[id] = -std::numeric_limits<float>::infinity();
  }
  return absl::OkStatus();
}

RowSampler::Choice RowSampler::Choose(const Sequence& sequence, int64_t pos, std::span<float> logits,
                                      Sampler& sampler) const {
  const SamplingParams& sampling = sequence.sampling();
  Choice choice;
  if (sequence.wants_prompt_logprobs(pos + 1)) {
    const std::vector<TokenId> scored = sequence.scored_at(pos + 1);
    choice.of_prompt = sampler.Logprobs(logits, scored, sampling.prompt_logprobs);
    if (!std::isnan(choice.of_prompt[0].chosen.logprob)) choice.token_id = scored[0];
    return choice;
  }
  std::vector<float> original;
  const bool has_format = sequence.format().has_value();
  if (sampling.logprobs >= 0 && (has_format || ChangesLogits(sampling))) original.assign(logits.begin(), logits.end());
  choice.token_id = sequence.forced_token();
  if (choice.token_id < 0) {
    if (has_format) choice.status = MaskLogits(sequence, logits);
    if (!choice.status.ok()) return choice;
    choice.token_id = sampler.Sample(
        logits, sampling,
        {.history = sequence.history(), .generated = sequence.generated_ids(), .eos_ids = config_->eos_ids});
    if (choice.token_id < 0 && has_format) {
      choice.status = InputError("the output format and the request's other fields allow no token");
    }
  }
  if (random_answers_ && choice.token_id >= 0) {
    const double uniform =
        CounterUniform(static_cast<uint64_t>(sequence.id()), static_cast<uint64_t>(sequence.num_generated()));
    choice.token_id = static_cast<TokenId>(uniform * static_cast<double>(config_->vocab_size));
  }
  if (sampling.logprobs >= 0 && choice.token_id >= 0) {
    choice.logprobs = std::move(sampler.Logprobs(original.empty() ? std::span<const float>(logits) : original,
                                                 {&choice.token_id, 1}, sampling.logprobs)[0]);
  }
  return choice;
}

// Returns how many tokens the sequence got that are a part of its answer.
int64_t RowSampler::Take(Sequence& sequence, int64_t pos, Choice choice) const {
  if (sequence.failed()) return 0;
  if (choice.token_id < 0) {
    sequence.Fail(choice.status.ok() ? BrokenLogits() : choice.status);
    return 0;
  }
  if (sequence.wants_prompt_logprobs(pos + 1)) {
    sequence.SetPromptLogprobs(pos + 1, std::move(choice.of_prompt));
    return 0;
  }
  const SamplingParams& sampling = sequence.sampling();
  const auto is_one_of = [&](const std::vector<TokenId>& ids) {
    return std::ranges::find(ids, choice.token_id) != ids.end();
  };
  if (is_one_of(sampling.stop_token_ids) || (is_one_of(config_->eos_ids) && !sampling.ignore_eos)) {
    sequence.FinishByEos();
    return 0;
  }
  const int64_t num_before = sequence.num_generated();
  sequence.Append(choice.token_id, sampling.logprobs >= 0, std::move(choice.logprobs));
  return sequence.num_generated() - num_before;
}

int64_t RowSampler::Sample(const RowLogits& result, const SequenceBatch& rows) {
  const size_t vocab_size = static_cast<size_t>(config_->vocab_size);
  std::vector<Choice> choices(result.rows.size());
  pool_->ParallelFor(static_cast<int64_t>(choices.size()), [&](int64_t i, int worker_idx) {
    const int64_t row = result.rows[i];
    if (!result.best.empty()) {
      choices[i].token_id = result.best[i];
    } else {
      choices[i] =
          Choose(*rows.sequence_of_row[row], rows.batch.positions[row],
                 result.logits.subspan(static_cast<size_t>(i) * vocab_size, vocab_size), samplers_[worker_idx]);
    }
  });
  int64_t num_generated = 0;
  for (size_t i = 0; i < choices.size(); ++i) {
    const int64_t row = result.rows[i];
    num_generated += Take(*rows.sequence_of_row[row], rows.batch.positions[row], std::move(choices[i]));
  }
  return num_generated;
}

}  // namespace penstock
