#include "penstock/engine/rank_agreement.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "penstock/base/choices.h"
#include "penstock/base/status.h"
#include "penstock/schedule/schedule.h"

namespace penstock {

namespace {

// Returns an error unless all ranks have the same text; `what` they have is part of the message.
absl::Status CheckSame(Communicator& communicator, std::string_view own, std::string_view what) {
  constexpr size_t kMaxBytes = 1000;
  const auto bytes = std::as_bytes(std::span(own));
  PENSTOCK_ASSIGN_OR_RETURN(const auto all, AllGather(communicator, MessageStream::kSteps, bytes, kMaxBytes));
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (std::ranges::equal(all[rank], bytes)) continue;
    return UsageError("rank {} has {} than rank {}", rank, what, communicator.rank());
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status AgreeOnOptions(Communicator& communicator, std::string_view identity, const ExpertPlacement* placement,
                            const MemoryPlan& plan, EngineOptions& options, CallerMemory& caller) {
  Policy& policy = options.policy;
  const std::string own = fmt::format(
      "{}, schedule {} {}, micro-batch {}, groups {}, split {} {}", identity, ChoiceName(policy.schedule, Schedules()),
      policy.multi_batch, policy.micro_batch_size, policy.expert_groups, plan.shares_heads, plan.cuts_experts);
  PENSTOCK_RETURN_IF_ERROR(CheckSame(communicator, own,
                                     "another model, other formats, another schedule, or with --dtype bf16 another "
                                     "instruction set,"));
  const std::string digest = fmt::format("{:x}", placement == nullptr ? 0 : placement->Digest());
  PENSTOCK_RETURN_IF_ERROR(CheckSame(communicator, digest, "another placement of experts (--expert-placement)"));
  const std::array<int64_t, 5> values = {
      -plan.batch_size, -plan.prefill_chunk, plan.schedule == ScheduleKind::kOnDemand ? 0 : 1,
      static_cast<int64_t>(caller.bytes_per_sequence), static_cast<int64_t>(caller.bytes_per_position)};
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<int64_t> max, MaxOfRanks(communicator, values));
  options.batch_size = -max[0];
  options.prefill_chunk = -max[1];
  // Ranks whose experts all fit would choose on-demand, and the others klotski.
  if (!policy.schedule.has_value()) policy.schedule = max[2] > 0 ? ScheduleKind::kKlotski : ScheduleKind::kOnDemand;
  caller.bytes_per_sequence = static_cast<uint64_t>(max[3]);
  caller.bytes_per_position = static_cast<uint64_t>(max[4]);
  return absl::OkStatus();
}

}  // namespace penstock
