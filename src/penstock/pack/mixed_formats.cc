#include "penstock/pack/mixed_formats.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "penstock/base/check.h"
#include "penstock/base/status.h"
#include "penstock/checkpoint/tensor_rows.h"
#include "penstock/pack/bit_allocation.h"
#include "penstock/tensor/quantise.h"

namespace penstock {
namespace {

constexpr WeightFormat kFormats[] = {WeightFormat::kTernary, WeightFormat::kHqq2, WeightFormat::kHqq3,
                                     WeightFormat::kHqq4, WeightFormat::kInt8};
// Errors are measured on so many panels of a matrix, spread over it.
constexpr int64_t kMeasuredPanels = 8;
// How much of a relative error of q, k, v, gate or up reaches the output (docs/decisions/mixed-precision.md).
constexpr double kInnerShare = 0.6;

// The mean squares of a matrix's outputs, and of their errors in each format, summed over all outputs.
struct MatrixError {
  double energy = 0;
  double errors[std::size(kFormats)] = {};
};

uint64_t BytesIn(const TensorInfo& tensor, WeightFormat format) {
  return static_cast<uint64_t>(NumMatrices(tensor)) * PackedBytes(format, MatrixRows(tensor), RowElements(tensor));
}

// Measures one panel.
void AddPanel(std::span<const float> rows, int64_t num_cols, int64_t inner_dim, const ErrorWeights* weights,
              MatrixError& sums) {
  const auto mean_square = [&](std::span<const float> row) {
    if (weights != nullptr) return weights->MeanSquare(row);
    double sum = 0;
    for (const float value : row) sum += double{value} * value;
    return sum;
  };
  const auto row_of = [&](int64_t col) { return rows.subspan(col * inner_dim, inner_dim); };
  for (int64_t col = 0; col < num_cols; ++col) sums.energy += mean_square(row_of(col));
  std::vector<float> found(inner_dim);
  for (size_t i = 0; i < std::size(kFormats); ++i) {
    std::vector<std::byte> packed(PanelBytes(kFormats[i], inner_dim));
    QuantisePanel(kFormats[i], rows, num_cols, inner_dim, packed.data(), weights);
    for (int64_t col = 0; col < num_cols; ++col) {
      UnpackColumn(kFormats[i], packed.data(), col, inner_dim, found.data());
      for (int64_t k = 0; k < inner_dim; ++k) found[k] -= row_of(col)[k];
      sums.errors[i] += mean_square(found);
    }
  }
}

// The largest expert takes at most this times the budget's bits of a weight, because every slot in memory has room for
// it.
constexpr double kMaxExpert = 1.25;

// Matrices that compute one output together; the last of them is multiplied last.
struct Unit {
  std::vector<const TensorInfo*> matrices = {};
  bool is_attention = false;
  bool is_expert = false;
};

std::vector<Unit> UnitsOf(const MixedFormatsArgs& args) {
  std::vector<Unit> units;
  const auto add = [&](std::initializer_list<const TensorInfo*> matrices, Unit unit) {
    for (const TensorInfo* tensor : matrices) {
      if (tensor == nullptr) continue;
      if (!args.places.contains(tensor)) return;
      unit.matrices.push_back(tensor);
    }
    if (!unit.matrices.empty()) units.push_back(std::move(unit));
  };
  for (const LayerTensors& layer : args.map.layers) {
    if (args.importance != nullptr) {
      add({layer.q_proj, layer.k_proj, layer.v_proj, layer.o_proj}, {.is_attention = true});
      for (const FfnParts<const TensorInfo*>& ffn : {layer.dense_ffn, layer.shared_ffn}) {
        add({ffn.gate_proj, ffn.up_proj, ffn.down_proj}, {});
      }
    }
    for (const FfnTensors& expert : layer.experts)
      add({expert.gate_proj, expert.up_proj, expert.down_proj}, {.is_expert = true});
  }
  return units;
}

class Chooser {
 public:
  explicit Chooser(const MixedFormatsArgs& args) : args_(&args) {}

  absl::Status Measure(const Unit& unit);
  absl::StatusOr<MatrixFormats> Choose() const;

 private:
  absl::StatusOr<double> Residual(const Unit& unit, double energy) const;
  absl::StatusOr<MatrixError> MeasureMatrix(const TensorInfo& tensor, const ErrorWeights* weights) const;

  const MixedFormatsArgs* args_;
  std::vector<MatrixChoice> choices_;
  std::vector<std::vector<const TensorInfo*>> matrices_;  // of each choice
  int64_t num_units_ = 0;
};

absl::StatusOr<MatrixError> Chooser::MeasureMatrix(const TensorInfo& tensor, const ErrorWeights* weights) const {
  PENSTOCK_RETURN_IF_ERROR(args_->begin(tensor));
  const int64_t num_rows = MatrixRows(tensor), inner_dim = RowElements(tensor);
  const int64_t num_panels = NumPanels(num_rows), num_measured = std::min(num_panels, kMeasuredPanels);
  std::vector<MatrixError> parts(num_measured);
  std::vector<absl::Status> statuses(num_measured);
  std::vector<int64_t> counts(num_measured);
  args_->pool.ParallelFor(num_measured, [&](int64_t i, int) {
    const int64_t first = i * num_panels / num_measured * kPanelCols;
    counts[i] = std::min(kPanelCols, num_rows - first);
    const absl::StatusOr<std::vector<float>> rows = args_->rows(tensor, first, counts[i]);
    statuses[i] = rows.status();
    if (rows.ok()) AddPanel(*rows, counts[i], inner_dim, weights, parts[i]);
  });
  MatrixError sums;
  int64_t num_cols = 0;
  for (int64_t i = 0; i < num_measured; ++i) {
    PENSTOCK_RETURN_IF_ERROR(statuses[i]);
    num_cols += counts[i];
    sums.energy += parts[i].energy;
    for (size_t format = 0; format < std::size(kFormats); ++format) sums.errors[format] += parts[i].errors[format];
  }
  const double scale = static_cast<double>(num_rows) / static_cast<double>(num_cols);
  sums.energy *= scale;
  for (double& error : sums.errors) error *= scale;
  return sums;
}

// Returns the mean square of the residual to which a unit's output of `energy` is added: behind the layer, or, for
// attention, behind the layer before it, with the output.
absl::StatusOr<double> Chooser::Residual(const Unit& unit, double energy) const {
  const InputPlace& place = args_->places.at(unit.matrices[0]);
  const int64_t layer_idx = unit.is_attention ? place.layer_idx - 1 : place.layer_idx;
  if (layer_idx < 0) return energy;
  PENSTOCK_ASSIGN_OR_RETURN(const Importance::Moments behind,
                            args_->importance->Read({layer_idx, InputSite::kResidual}, 1, args_->config.model_dim));
  double sum = unit.is_attention ? energy : 0;
  for (const float square : behind.squares) sum += square;
  return sum;
}

// Later layers see an error's share of the residual. The last matrix of a unit errs in the output that is added
// to it. An error of another matrix shifts the output by kInnerShare of its own share, more or less. Gate and up get
// one format, because GPUs compute them together.
absl::Status Chooser::Measure(const Unit& unit) {
  std::vector<MatrixError> measured;
  double rows = 1;
  for (const TensorInfo* tensor : unit.matrices) {
    MatrixErrors errors;
    if (args_->importance != nullptr) {
      PENSTOCK_ASSIGN_OR_RETURN(errors,
                                ReadMatrixErrors(*args_->importance, args_->places.at(tensor), args_->config, *tensor));
      rows = static_cast<double>(errors.moments.rows);
    }
    const ErrorWeights* const weights = errors.weights.has_value() ? &*errors.weights : nullptr;
    PENSTOCK_ASSIGN_OR_RETURN(measured.emplace_back(), MeasureMatrix(*tensor, weights));
  }
  double output = 1;
  if (args_->importance != nullptr) {
    PENSTOCK_ASSIGN_OR_RETURN(const double residual, Residual(unit, measured.back().energy));
    output = residual > 0 ? std::max(1.0, rows) * measured.back().energy / residual : 0;
  }
  for (size_t i = 0; i < measured.size(); ++i) {
    const bool is_last = i + 1 == measured.size();
    if (i == 0 || unit.is_attention || is_last) {
      choices_.emplace_back().group = unit.is_expert ? num_units_ : -1;
      matrices_.emplace_back();
      for (const WeightFormat format : kFormats) choices_.back().formats.push_back({.format = format});
    }
    matrices_.back().push_back(unit.matrices[i]);
    for (size_t format = 0; format < std::size(kFormats); ++format) {
      const double share = measured[i].energy > 0 ? measured[i].errors[format] / measured[i].energy : 0;
      FormatCost& cost = choices_.back().formats[format];
      cost.bytes += BytesIn(*unit.matrices[i], kFormats[format]);
      cost.error += output * share * (is_last ? 1 : kInnerShare);
    }
  }
  ++num_units_;
  return absl::OkStatus();
}

absl::StatusOr<MatrixFormats> Chooser::Choose() const {
  MatrixFormats formats;
  for (const auto& together : matrices_) {
    for (const TensorInfo* tensor : together) formats[tensor] = kFormats[0];
  }
  uint64_t fixed_bytes = 0, num_weights = 0, expert_weights = 0;
  const auto add = [&](const TensorInfo& tensor) {
    num_weights += static_cast<uint64_t>(NumRows(tensor) * RowElements(tensor));
    if (formats.try_emplace(&tensor, WeightFormat::kInt8).second) fixed_bytes += BytesIn(tensor, WeightFormat::kInt8);
  };
  for (const LayerTensors& layer : args_->map.layers) {
    layer.ForEachDense([](const TensorInfo&) {},
                       [&](const TensorInfo& tensor, MatrixKind kind) {
                         if (kind != MatrixKind::kRouter) add(tensor);
                       });
    for (const FfnTensors& expert : layer.experts) {
      const uint64_t before = num_weights;
      expert.ForEach(add);
      expert_weights = std::max(expert_weights, num_weights - before);
    }
  }
  const auto budget = static_cast<uint64_t>(args_->bits / 8 * static_cast<double>(num_weights));
  const auto max_expert_bytes =
      static_cast<uint64_t>(kMaxExpert * args_->bits / 8 * static_cast<double>(expert_weights));
  const auto chosen =
      budget < fixed_bytes ? std::nullopt : AllocateBits(choices_, budget - fixed_bytes, max_expert_bytes);
  if (!chosen.has_value()) {
    uint64_t least = fixed_bytes;
    for (const MatrixChoice& choice : choices_) {
      least += std::ranges::min(choice.formats, {}, &FormatCost::bytes).bytes;
    }
    return UsageError("--bits {:g}: the smallest formats take {:.2f} bits a weight of this model", args_->bits,
                      std::ceil(800.0 * static_cast<double>(least) / static_cast<double>(num_weights)) / 100);
  }
  for (size_t i = 0; i < matrices_.size(); ++i) {
    for (const TensorInfo* tensor : matrices_[i]) formats[tensor] = choices_[i].formats[(*chosen)[i]].format;
  }
  return formats;
}

}  // namespace

InputPlaces PlacesOfInputs(const ModelConfig& config, const WeightMap& map) {
  InputPlaces places;
  const auto add = [&](const TensorInfo* tensor, const InputPlace& place) {
    if (tensor != nullptr && NumMatrices(*tensor) == 1) places[tensor] = place;
  };
  const auto add_ffn = [&](const FfnParts<const TensorInfo*>& ffn, InputPlace place, InputSite hidden) {
    add(ffn.gate_proj, place);
    add(ffn.up_proj, place);
    place.site = hidden;
    add(ffn.down_proj, place);
  };
  for (int64_t layer_idx = 0; layer_idx < std::ssize(map.layers); ++layer_idx) {
    const LayerTensors& layer = map.layers[layer_idx];
    if (!config.is_recurrent(layer_idx) && !config.mla.is_on() && !config.encoder.is_on()) {
      for (const TensorInfo* tensor : {layer.q_proj, layer.k_proj, layer.v_proj}) {
        add(tensor, {layer_idx, InputSite::kAttention});
      }
      if (config.attention_gate) add(layer.gate_proj, {layer_idx, InputSite::kAttention});
      add(layer.o_proj, {layer_idx, InputSite::kAttended});
    }
    add_ffn(layer.dense_ffn, {layer_idx, InputSite::kFfn}, InputSite::kHidden);
    add_ffn(layer.shared_ffn, {layer_idx, InputSite::kSharedFfn}, InputSite::kSharedHidden);
    for (int64_t expert_idx = 0; expert_idx < std::ssize(layer.experts); ++expert_idx) {
      add_ffn(layer.experts[expert_idx], {layer_idx, InputSite::kExperts, expert_idx}, InputSite::kExpertsHidden);
    }
  }
  return places;
}

absl::StatusOr<MatrixErrors> ReadMatrixErrors(const Importance& importance, const InputPlace& place,
                                              const ModelConfig& config, const TensorInfo& tensor) {
  const bool is_of_expert = place.site == InputSite::kExperts || place.site == InputSite::kExpertsHidden;
  MatrixErrors errors;
  PENSTOCK_ASSIGN_OR_RETURN(
      errors.moments, importance.Read(place, is_of_expert ? config.num_stored_experts() : 1, RowElements(tensor)));
  errors.weights.emplace(InputStatistics{.mean_squares = errors.moments.squares, .products = errors.moments.products});
  return errors;
}

absl::StatusOr<MatrixFormats> ChooseMixedFormats(const MixedFormatsArgs& args) {
  Chooser chooser(args);
  for (const Unit& unit : UnitsOf(args)) PENSTOCK_RETURN_IF_ERROR(chooser.Measure(unit));
  return chooser.Choose();
}

}  // namespace penstock
