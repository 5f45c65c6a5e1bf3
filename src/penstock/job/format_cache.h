// Compiled output formats: the last ones are kept, because many requests have the same.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/engine.h"
#include "penstock/job/input/format_fields.h"

namespace penstock {

// Returns the bytes that are set aside for formats: a small part of the budget (0: the default one).
uint64_t FormatBytesOf(uint64_t budget_bytes);

// Any thread may use it.
class FormatCache {
 public:
  // `max_bytes` bounds the formats that are kept or in use. Only the last ones compiled may exceed it.
  explicit FormatCache(uint64_t max_bytes = UINT64_MAX) : max_bytes_(max_bytes) {}

  // kInput, naming the field, when the format cannot be compiled. kResources when others take too much memory.
  absl::StatusOr<std::shared_ptr<const Constraint>> Compile(const Engine& engine, const RequestFormat& format);
  // Returns whether Compile() has room for a format. Forgets formats that no request has, if that helps.
  bool HasRoom();

 private:
  // REQUIRES: mutex_ is held.
  bool MakesRoom();
  uint64_t LiveBytes() const;

  uint64_t max_bytes_;
  std::mutex mutex_;
  std::vector<std::weak_ptr<const Constraint>> live_;
  std::deque<std::pair<OutputFormat, std::shared_ptr<const Constraint>>> kept_;
};

}  // namespace penstock
