// Prometheus metrics of a server. Names are vLLM's where they mean the same, so that its dashboards work; Penstock's
// own begin with "penstock:".
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/engine.h"
#include "penstock/server/api/answering.h"
#include "penstock/server/engine_service.h"

namespace penstock::server {

// Counts values in buckets with given upper bounds.
class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds) : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}
  void Add(double value, int64_t times = 1);
  void Append(std::string_view name, std::string_view help, std::string_view label, std::string& out) const;

 private:
  std::vector<double> bounds_;
  std::vector<int64_t> counts_;  // [bounds + 1]: the last one has no bound
  double sum_ = 0;
};

// Any thread may use it.
class Metrics {
 public:
  Metrics();

  void AddRequest(const AnsweringReport& report);
  void AddGap(double seconds, int64_t num_tokens);
  // A request that was refused; `reason` is "full", "invalid", "unauthorized" ...
  void AddRefusal(const std::string& reason);

  // Returns the text for Prometheus. `memory_bytes` is the process's resident memory.
  std::string Text(const ModelInfo& model, const MemoryPlan& plan, const EngineSnapshot& engine,
                   int64_t num_connections, uint64_t memory_bytes) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, int64_t> finished_;  // by reason
  std::map<std::string, int64_t> refused_;
  Histogram first_token_s_, gap_s_, total_s_, prompt_tokens_, generated_tokens_;
};

}  // namespace penstock::server
