// Compiled output formats: the last ones are kept, because many requests have the same.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/status/statusor.h"
#include "penstock/engine.h"
#include "penstock/job/input/format_fields.h"

namespace penstock {

// Any thread may use it.
class FormatCache {
 public:
  // kInput, naming the field, when the format cannot be compiled.
  absl::StatusOr<std::shared_ptr<const Constraint>> Compile(const Engine& engine, const RequestFormat& format);

 private:
  std::mutex mutex_;
  std::deque<std::pair<OutputFormat, std::shared_ptr<const Constraint>>> kept_;
};

}  // namespace penstock
