// The messages by which rank 0 runs a job on all ranks: orders to the others, and their reports.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/engine.h"

namespace penstock {

// A request for another rank, with the id that rank 0 gave it.
struct RankRequest {
  RequestId id = 0;
  Request request = {};  // without its constraint, which the rank compiles from `format`
  bool has_format = false;
  OutputFormat format = {};
};

// An order of rank 0 to another rank.
struct RankOrder {
  // kMeasure: measure the network together with all ranks. kOpen: open the engine. kStep: submit the requests, then
  // take a step together with all ranks. kEnd: there is nothing more to do.
  enum class Kind : uint8_t { kMeasure, kOpen, kStep, kEnd } kind = Kind::kEnd;
  int64_t planned_positions = 0;           // kOpen: EngineOptions::planned_positions
  std::string policy = {};                 // kOpen: as in a policy file; empty: own flags
  std::vector<RankRequest> requests = {};  // kStep
};

// A rank's report after a step.
struct RankReport {
  std::vector<Completion> finished;  // with rank 0's ids
  EngineStats stats;                 // totals of the rank, without its lanes
};

// Writes a message. Reading another program's message is not possible: all ranks run the same build.
std::vector<std::byte> ToBytes(const RankOrder& order);
std::vector<std::byte> ToBytes(const RankReport& report);
// Reads a message. kInternal when the bytes are no such message.
absl::StatusOr<RankOrder> OrderFrom(std::span<const std::byte> bytes);
absl::StatusOr<RankReport> ReportFrom(std::span<const std::byte> bytes);

}  // namespace penstock
