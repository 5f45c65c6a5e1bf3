#include "penstock/engine/rank_messages.h"

#include <exception>
#include <sstream>
#include <string>

#include <cereal/archives/binary.hpp>
#include <cereal/types/string.hpp>
#include <cereal/types/utility.hpp>
#include <cereal/types/vector.hpp>

#include "penstock/base/status.h"

// Each function names all fields of its struct: a field that is added to the struct does not compile until it is added
// here.
namespace penstock {

template <class Archive>
void serialize(Archive& archive, SamplingParams& params) {
  auto& [temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty, logit_bias,
         bad_words, seed, max_tokens, min_tokens, stop, includes_stop, stop_token_ids, ignore_eos, logprobs,
         prompt_logprobs] = params;
  archive(temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty, logit_bias,
          bad_words, seed, max_tokens, min_tokens, stop, includes_stop, stop_token_ids, ignore_eos, logprobs,
          prompt_logprobs);
}

template <class Archive>
void serialize(Archive& archive, Request& request) {
  auto& [prompt_ids, sampling, continues_text, first_scored, num_encoded, rivals, priority, constraint] = request;
  (void)constraint;  // RankRequest has its format
  archive(prompt_ids, sampling, continues_text, first_scored, num_encoded, rivals, priority);
}

template <class Archive>
void serialize(Archive& archive, TokenLogprob& logprob) {
  auto& [token_id, value] = logprob;
  archive(token_id, value);
}

template <class Archive>
void serialize(Archive& archive, TokenLogprobs& logprobs) {
  auto& [chosen, top] = logprobs;
  archive(chosen, top);
}

template <class Archive>
void serialize(Archive& archive, Completion& completion) {
  auto& [request_id, token_ids, text, finish_reason, stop_text, logprobs, prompt_logprobs, rivals, num_prompt_tokens,
         num_shared_tokens, status] = completion;
  int32_t fault = 0;  // 0: OK
  std::string message;
  if (!status.ok()) {
    fault = static_cast<int32_t>(FaultOf(status));
    message = Message(status);
  }
  archive(request_id, token_ids, text, finish_reason, stop_text, logprobs, prompt_logprobs, rivals, num_prompt_tokens,
          num_shared_tokens, fault, message);
  status = fault == 0 ? absl::OkStatus() : MakeError(static_cast<Fault>(fault), message);
}

template <class Archive>
void serialize(Archive& archive, ProcessorWork& work) {
  auto& [memory_bytes, flops] = work;
  archive(memory_bytes, flops);
}

template <class Archive>
void serialize(Archive& archive, EngineStats& stats) {
  auto& [prompt_tokens, computed_prompt_tokens, generated_tokens, drafted_tokens, accepted_tokens, load_s, prefill_s,
         decode_s, kv_usage, disk_bytes, unused_disk_bytes, dram_to_device_bytes, device_to_dram_bytes, work, host_work,
         expert_hits, expert_misses, prefetch_issued, prefetch_used, experts_named_hot, experts_named_right, prefix_dir,
         lanes, directories] = stats;
  (void)kv_usage, (void)prefix_dir, (void)lanes, (void)directories;  // rank 0 tells its own
  archive(prompt_tokens, computed_prompt_tokens, generated_tokens, drafted_tokens, accepted_tokens, load_s, prefill_s,
          decode_s, disk_bytes, unused_disk_bytes, dram_to_device_bytes, device_to_dram_bytes, work, host_work,
          expert_hits, expert_misses, prefetch_issued, prefetch_used, experts_named_hot, experts_named_right);
}

template <class Archive>
void serialize(Archive& archive, OutputFormat& format) {
  auto& [kind, text, parts] = format;
  archive(kind, text, parts);
}

template <class Archive>
void serialize(Archive& archive, RankRequest& rank_request) {
  auto& [id, request, has_format, format] = rank_request;
  archive(id, request, has_format, format);
}

template <class Archive>
void serialize(Archive& archive, RankOrder& order) {
  auto& [kind, planned_positions, policy, requests] = order;
  archive(kind, planned_positions, policy, requests);
}

template <class Archive>
void serialize(Archive& archive, RankReport& report) {
  auto& [finished, stats] = report;
  archive(finished, stats);
}

namespace {

template <typename T>
std::vector<std::byte> Write(const T& message) {
  std::ostringstream stream;
  cereal::BinaryOutputArchive archive(stream);
  archive(message);
  const std::string text = stream.str();
  const auto* const data = reinterpret_cast<const std::byte*>(text.data());
  return {data, data + text.size()};
}

template <typename T>
absl::StatusOr<T> Read(std::span<const std::byte> bytes) {
  std::istringstream stream(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  T message;
  try {
    cereal::BinaryInputArchive archive(stream);
    archive(message);
  } catch (const std::exception& error) {
    return MakeError(Fault::kInternal, fmt::format("a message of another rank cannot be read: {}", error.what()));
  }
  return message;
}

}  // namespace

std::vector<std::byte> ToBytes(const RankOrder& order) { return Write(order); }
std::vector<std::byte> ToBytes(const RankReport& report) { return Write(report); }
absl::StatusOr<RankOrder> OrderFrom(std::span<const std::byte> bytes) { return Read<RankOrder>(bytes); }
absl::StatusOr<RankReport> ReportFrom(std::span<const std::byte> bytes) { return Read<RankReport>(bytes); }

}  // namespace penstock
