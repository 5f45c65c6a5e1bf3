#include "penstock/engine/row_sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
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

bool RowSampler::WantsBestOnly(const StepBatch& batch) const {
  return !random_answers_ && std::ranges::all_of(batch.rows().logit_rows, [&](int64_t row) {
    const Sequence& sequence = batch.sequence_of(row);
    return IsArgMax(sequence.sampling()) && !sequence.format().has_value() &&
           !sequence.wants_prompt_logprobs(batch.rows().positions[row] + 1);
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

int64_t RowSampler::Sample(const RowLogits& result, const StepBatch& batch) {
  const size_t vocab_size = static_cast<size_t>(config_->vocab_size);
  // A sequence's choice for one row decides on its next rows. So one worker takes all rows of a sequence.
  std::vector<size_t> first_rows;
  for (size_t i = 0; i < result.rows.size(); ++i) {
    if (i == 0 || &batch.sequence_of(result.rows[i]) != &batch.sequence_of(result.rows[i - 1])) first_rows.push_back(i);
  }
  first_rows.push_back(result.rows.size());
  std::vector<int64_t> num_generated(first_rows.size() - 1);
  pool_->ParallelFor(std::ssize(num_generated), [&](int64_t part, int worker_idx) {
    for (size_t i = first_rows[part]; i < first_rows[part + 1]; ++i) {
      const int64_t row = result.rows[i], pos = batch.rows().positions[row];
      if (batch.is_draft(row) && !batch.IsLastKnown(row)) continue;
      Sequence& sequence = batch.sequence_of(row);
      Choice choice;
      if (!result.best.empty()) {
        choice.token_id = result.best[i];
      } else {
        choice = Choose(sequence, pos, result.logits.subspan(i * vocab_size, vocab_size), samplers_[worker_idx]);
      }
      num_generated[part] += Take(sequence, pos, std::move(choice));
    }
  });
  return std::accumulate(num_generated.begin(), num_generated.end(), int64_t{0});
}

}  // namespace penstock
