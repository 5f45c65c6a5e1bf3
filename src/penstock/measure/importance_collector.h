// Collects what the matrices of a model are multiplied by (checkpoint/importance.h).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "penstock/model/model_config.h"
#include "penstock/ops/pass_observer.h"

namespace penstock {

class ImportanceCollector : public PassObserver {
 public:
  // `with_products`: also of the products of inputs of the same block.
  ImportanceCollector(const ModelConfig& config, bool with_products);
  // Returns the bytes that a collector takes.
  static uint64_t Bytes(const ModelConfig& config, bool with_products);

  void OnInputs(const Inputs& inputs, ThreadPool& pool) override;
  void OnLayer(int64_t layer_idx, std::span<const float> residual) override;

  // Returns the means over all inputs since the beginning, by the names of the sites. The collector is empty then.
  std::map<std::string, SiteStatistics> Take();

 private:
  std::map<std::string, SiteStatistics> sites_;  // sums
};

}  // namespace penstock
