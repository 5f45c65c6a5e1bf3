#include "penstock/measure/importance_collector.h"

#include <algorithm>
#include <utility>

#include "penstock/base/check.h"
#include "penstock/tensor/error_weights.h"

namespace penstock {
namespace {

constexpr int64_t kInputsPerTask = 32;

// Calls visit(layer_idx, site, num_experts, dim) for each site of which inputs are seen.
template <typename Visit>
void ForEachSite(const ModelConfig& config, const Visit& visit) {
  for (int64_t layer_idx = 0; layer_idx < config.num_layers; ++layer_idx) {
    visit(layer_idx, InputSite::kResidual, 1, config.model_dim);
    if (!config.is_recurrent(layer_idx) && !config.mla.is_on()) {
      visit(layer_idx, InputSite::kAttention, 1, config.model_dim);
      visit(layer_idx, InputSite::kAttended, 1, config.attended_dim(layer_idx));
    }
    if (config.layer_has_experts[layer_idx]) {
      visit(layer_idx, InputSite::kExperts, config.num_stored_experts(), config.expert_row_dim());
      visit(layer_idx, InputSite::kExpertsHidden, config.num_stored_experts(), config.expert_dim);
      if (config.shared_ffn_dim == 0) continue;
      visit(layer_idx, InputSite::kSharedFfn, 1, config.model_dim);
      visit(layer_idx, InputSite::kSharedHidden, 1, config.shared_ffn_dim);
    } else if (config.dense_ffn_dim > 0) {
      visit(layer_idx, InputSite::kFfn, 1, config.model_dim);
      visit(layer_idx, InputSite::kHidden, 1, config.dense_ffn_dim);
    }
  }
}

// Adds the squares, or all products, of inputs [begin, end) of each row.
struct Adder {
  const PassObserver::Inputs& inputs;
  float* squares;
  float* products;  // null: only squares

  // Returns row[k] times the square of the row's weight.
  float Weighted(int64_t row, int64_t k) const {
    const float value = inputs.values[row * inputs.stride + k];
    if (inputs.weights.empty()) return value;
    const float weight = inputs.weights[static_cast<size_t>(row)];
    return value * weight * weight;
  }

  void AddSquares(int64_t k) const {
    float sum = 0;
    for (int64_t row = 0; row < inputs.num_rows; ++row) {
      sum += Weighted(row, k) * inputs.values[row * inputs.stride + k];
    }
    squares[k] += sum;
  }

  void AddProducts(int64_t k) const {
    const int64_t first = k / kInputBlock * kInputBlock, size = std::min(kInputBlock, inputs.dim - first);
    float sums[kInputBlock] = {};
    for (int64_t row = 0; row < inputs.num_rows; ++row) {
      const float value = Weighted(row, k);
      const float* const others = inputs.values + row * inputs.stride + first;
      for (int64_t i = 0; i < size; ++i) sums[i] += value * others[i];
    }
    for (int64_t i = 0; i < size; ++i) products[k * kInputBlock + i] += sums[i];
  }
};

}  // namespace

ImportanceCollector::ImportanceCollector(const ModelConfig& config, bool with_products) {
  ForEachSite(config, [&](int64_t layer_idx, InputSite site, int64_t num_experts, int64_t dim) {
    SiteStatistics& sums = sites_[SiteName(layer_idx, site)];
    sums.dim = dim;
    sums.rows.resize(static_cast<size_t>(num_experts));
    sums.squares.resize(static_cast<size_t>(num_experts * dim));
    if (with_products && site != InputSite::kResidual)
      sums.products.resize(static_cast<size_t>(num_experts * dim * kInputBlock));
  });
}

uint64_t ImportanceCollector::Bytes(const ModelConfig& config, bool with_products) {
  uint64_t bytes = 0;
  ForEachSite(config, [&](int64_t, InputSite, int64_t num_experts, int64_t dim) {
    bytes += static_cast<uint64_t>(num_experts * dim) * sizeof(float) * (with_products ? 1 + kInputBlock : 1);
    bytes += static_cast<uint64_t>(num_experts) * sizeof(int64_t) + 256;  // and the site's name and place in the map
  });
  return bytes;
}

void ImportanceCollector::OnInputs(const Inputs& inputs, ThreadPool& pool) {
  const auto found = sites_.find(SiteName(inputs.place.layer_idx, inputs.place.site));
  if (found == sites_.end()) return;
  SiteStatistics& sums = found->second;
  PENSTOCK_CHECK(inputs.dim == sums.dim && inputs.place.expert_idx < std::ssize(sums.rows));
  sums.rows[static_cast<size_t>(inputs.place.expert_idx)] += inputs.num_rows;
  const int64_t first = inputs.place.expert_idx * sums.dim;
  const Adder adder{inputs, sums.squares.data() + first,
                    sums.products.empty() ? nullptr : sums.products.data() + first * kInputBlock};
  pool.ParallelFor((sums.dim + kInputsPerTask - 1) / kInputsPerTask, [&](int64_t task_idx, int) {
    const int64_t begin = task_idx * kInputsPerTask, end = std::min(begin + kInputsPerTask, sums.dim);
    for (int64_t k = begin; k < end; ++k) {
      adder.AddSquares(k);
      if (adder.products != nullptr) adder.AddProducts(k);
    }
  });
}

void ImportanceCollector::OnLayer(int64_t layer_idx, std::span<const float> residual) {
  SiteStatistics& sums = sites_.at(SiteName(layer_idx, InputSite::kResidual));
  for (size_t i = 0; i < residual.size(); ++i) {
    sums.squares[i % static_cast<size_t>(sums.dim)] += residual[i] * residual[i];
  }
  sums.rows[0] += std::ssize(residual) / sums.dim;
}

std::map<std::string, SiteStatistics> ImportanceCollector::Take() {
  for (auto& [name, site] : sites_) {
    for (size_t expert_idx = 0; expert_idx < site.rows.size(); ++expert_idx) {
      const auto rows = static_cast<float>(std::max<int64_t>(1, site.rows[expert_idx]));
      const size_t num_experts = site.rows.size();
      const auto divide = [&](std::vector<float>& values) {
        const size_t count = values.size() / num_experts;
        for (size_t i = expert_idx * count; i < (expert_idx + 1) * count; ++i) values[i] /= rows;
      };
      divide(site.squares);
      divide(site.products);
    }
  }
  return std::exchange(sites_, {});
}

}  // namespace penstock
