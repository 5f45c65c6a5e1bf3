#include "penstock/base/status.h"

#include "absl/strings/cord.h"
#include "penstock/base/check.h"
#include "penstock/base/text.h"

namespace penstock {
namespace {

constexpr char kFaultPayload[] = "penstock/fault";

absl::StatusCode CanonicalCode(Fault fault) {
  switch (fault) {
    case Fault::kInternal: return absl::StatusCode::kInternal;
    case Fault::kUsage: return absl::StatusCode::kInvalidArgument;
    case Fault::kModel: return absl::StatusCode::kDataLoss;
    case Fault::kInput: return absl::StatusCode::kInvalidArgument;
    case Fault::kIo: return absl::StatusCode::kUnavailable;
    case Fault::kResources: return absl::StatusCode::kResourceExhausted;
    case Fault::kStopped: return absl::StatusCode::kCancelled;
  }
  return absl::StatusCode::kInternal;
}

}  // namespace

absl::Status MakeError(Fault fault, std::string_view message) {
  const std::string line = Printable(message);
  absl::Status status(CanonicalCode(fault), absl::string_view(line.data(), line.size()));
  status.SetPayload(kFaultPayload, absl::Cord(std::string(1, static_cast<char>('0' + static_cast<int>(fault)))));
  return status;
}

Fault FaultOf(const absl::Status& status) {
  PENSTOCK_CHECK(!status.ok());
  const auto payload = status.GetPayload(kFaultPayload);
  if (!payload.has_value()) return Fault::kInternal;
  return static_cast<Fault>(std::string(*payload)[0] - '0');
}

int ExitCode(const absl::Status& status) { return status.ok() ? 0 : static_cast<int>(FaultOf(status)); }

std::string Message(const absl::Status& status) { return std::string(status.message()); }

absl::Status Annotate(const absl::Status& status, std::string_view context) {
  if (status.ok()) return status;
  return MakeError(FaultOf(status), fmt::format("{}: {}", context, Message(status)));
}

}  // namespace penstock
