#include "penstock/testing/reference/reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "penstock/tensor/kv_block.h"

namespace penstock::kernels::reference {
namespace {

float LoadAs(Dtype dtype, const std::byte* source, int64_t idx) {
  float value = 0;
  ToFloats(dtype, source + idx * static_cast<int64_t>(SizeOf(dtype)), std::span(&value, 1));
  return value;
}

// Values as codes and a scale: x = code * scale.
struct Int8Codes {
  float scale;
  std::vector<int8_t> codes;

  explicit Int8Codes(std::span<const float> values) : codes(values.size()) {
    const bool is_finite = std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); });
    float largest = 0;
    for (const float x : values) largest = std::max(largest, std::abs(x));
    scale = is_finite ? 0 : std::nanf("");
    if (!is_finite || largest < 0x1p-100f) return;
    scale = largest / 127;
    for (size_t i = 0; i < values.size(); ++i) {
      codes[i] = static_cast<int8_t>(std::nearbyint(values[i] * (127 / largest)));
    }
  }
};

void PrepareInt8Row(const PrepareRowsArgs& args, const float* source, std::byte* target) {
  const int64_t num_groups = (args.dim + kInt8Group - 1) / kInt8Group;
  for (int64_t first = 0; first < args.count; first += kInt8Group) {
    const int64_t group_idx = (args.first + first) / kInt8Group;
    Int8Codes values(std::span(source + first, static_cast<size_t>(std::min(kInt8Group, args.count - first))));
    values.codes.resize(kInt8Group);
    Int8RowGroup group = {.scale = values.scale, .code_offset = 0, .code_sums = {0, 0}};
    int16_t sums[8] = {};
    for (int64_t i = 0; i < kInt8Group; ++i) {
      const int8_t code = values.codes[i];
      target[group_idx * kInt8Group + i] = static_cast<std::byte>(code);
      group.code_sums[i / 64] += code;
      group.code_offset -= 128 * code;
      sums[i / 16] = static_cast<int16_t>(sums[i / 16] + code);
    }
    std::memcpy(target + num_groups * (kInt8Group + static_cast<int64_t>(sizeof(group))) +
                    group_idx * static_cast<int64_t>(sizeof(sums)),
                sums, sizeof(sums));
    std::memcpy(target + num_groups * kInt8Group + group_idx * static_cast<int64_t>(sizeof(group)), &group,
                sizeof(group));
  }
}

// Returns input `k` of a prepared row.
double RowValue(const GemmArgs& args, const std::byte* row, int64_t k) {
  if (args.x_format != RowFormat::kInt8) return LoadAs(Dtype::kF32, row, k);
  const int64_t num_groups = (args.inner_dim + kInt8Group - 1) / kInt8Group;
  Int8RowGroup group;
  std::memcpy(&group, row + num_groups * kInt8Group + k / kInt8Group * static_cast<int64_t>(sizeof(group)),
              sizeof(group));
  return static_cast<double>(static_cast<int8_t>(row[k])) * group.scale;
}

}  // namespace

void PrepareRows(const PrepareRowsArgs& args) {
  for (int64_t row = 0; row < args.num_rows; ++row) {
    const float* source = args.source + row * args.source_stride;
    std::byte* target = args.target + row * args.target_stride_bytes;
    if (args.format == RowFormat::kInt8) {
      PrepareInt8Row(args, source, target);
      continue;
    }
    for (int64_t i = 0; i < args.count; ++i) {
      const float value = args.format == RowFormat::kBF16 ? ToFloat(penstock::ToBF16(source[i])) : source[i];
      std::memcpy(target + 4 * (args.first + i), &value, 4);
    }
  }
}

void Gemm(const GemmArgs& args) {
  std::vector<float> w(args.inner_dim);
  for (int64_t col = 0; col < args.num_cols; ++col) {
    UnpackColumn(args.w_format, args.w, col, args.inner_dim, w.data());
    if (args.x_format == RowFormat::kBF16) {
      for (float& weight : w) weight = ToFloat(penstock::ToBF16(weight));
    }
    for (int64_t row = 0; row < args.num_rows; ++row) {
      double sum = args.bias != nullptr ? args.bias[col] : 0.0;
      for (int64_t k = 0; k < args.inner_dim; ++k) {
        sum += RowValue(args, args.x + row * args.x_stride_bytes, k) * w[k];
      }
      args.y[row * args.y_stride + col] = static_cast<float>(sum);
    }
  }
}

void NormRows(const NormArgs& args) {
  for (int64_t row = 0; row < args.num_rows; ++row) {
    std::vector<double> x(args.x + row * args.x_stride, args.x + row * args.x_stride + args.dim);
    if (args.norm == Norm::kLayer) {
      const double mean = std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(args.dim);
      for (double& value : x) value -= mean;
    }
    const double squares = std::inner_product(x.begin(), x.end(), x.begin(), 0.0);
    const double scale = 1 / std::sqrt(squares / static_cast<double>(args.dim) + args.eps);
    for (int64_t d = 0; d < args.dim; ++d) {
      const double bias = args.bias == nullptr ? 0 : args.bias[d];
      args.out[row * args.out_stride + d] =
          static_cast<float>(x[d] * scale * (args.weight == nullptr ? 1 : args.weight[d]) + bias);
    }
  }
}

void Rope(const RopeArgs& args) {
  const int64_t half = args.rotary_dim / 2;
  for (int64_t head = 0; head < args.num_heads; ++head) {
    for (int64_t d = 0; d < half; ++d) {
      float* const x = args.x + head * args.head_stride;
      float& first = args.is_interleaved ? x[2 * d] : x[d];
      float& second = args.is_interleaved ? x[2 * d + 1] : x[d + half];
      const double a = first, b = second, cos = args.cos[d], sin = args.sin[d];
      first = static_cast<float>(a * cos - b * sin);
      second = static_cast<float>(b * cos + a * sin);
    }
  }
}

namespace {

std::vector<double> SoftmaxOf(const std::vector<double>& logits) {
  const double max = *std::max_element(logits.begin(), logits.end());
  std::vector<double> p;
  double total = 0;
  for (const double x : logits) total += p.emplace_back(std::exp(x - max));
  for (double& x : p) x /= total;
  return p;
}

// Returns the index of the largest element, the first among equals.
int64_t ArgMax(const std::vector<double>& x) { return std::max_element(x.begin(), x.end()) - x.begin(); }

constexpr double kNever = -std::numeric_limits<double>::infinity();

void Sparsemixer(const RouterTopkArgs& args, std::vector<double> logits) {
  const std::vector<double> all = logits;
  for (int64_t j = 0; j < args.num_topk; ++j) {
    const int64_t best = ArgMax(logits);
    const double max = logits[best];
    std::vector<double> near = logits;
    for (size_t i = 0; i < near.size(); ++i) {
      if ((max - all[i]) / std::max(std::abs(all[i]), max) > 2 * static_cast<double>(args.rule.jitter))
        near[i] = kNever;
    }
    args.topk_idx[j] = static_cast<int32_t>(best);
    args.topk_weights[j] = static_cast<float>(SoftmaxOf(near)[best]);
    logits[best] = kNever;
  }
}

}  // namespace

void RouterTopk(const RouterTopkArgs& args) {
  const RouterRule& rule = args.rule;
  const size_t num_experts = args.num_experts;
  const std::vector<double> logits(args.scores, args.scores + num_experts);
  std::vector<double> scores = SoftmaxOf(logits);
  if (rule.scoring == RouterRule::Scoring::kSigmoid) {
    for (size_t i = 0; i < num_experts; ++i) scores[i] = 1 / (1 + std::exp(-logits[i]));
  }
  for (size_t i = 0; i < num_experts; ++i) args.scores[i] = static_cast<float>(scores[i]);
  if (rule.scoring == RouterRule::Scoring::kSparsemixer) return Sparsemixer(args, logits);

  std::vector<double> keys;
  for (size_t i = 0; i < num_experts; ++i) {
    const double key = rule.chooses_by_logits ? logits[i] : args.scores[i];
    keys.push_back(key + (args.selection_bias == nullptr ? 0 : args.selection_bias[i]));
  }
  const size_t group_size = num_experts / static_cast<size_t>(rule.num_groups);
  std::vector<double> groups;
  for (size_t begin = 0; begin < num_experts; begin += group_size) {
    std::vector<double> group(keys.begin() + static_cast<int64_t>(begin),
                              keys.begin() + static_cast<int64_t>(begin + group_size));
    std::sort(group.rbegin(), group.rend());
    const bool takes_two = rule.group_score == RouterRule::GroupScore::kTwoLargest;
    groups.push_back(takes_two ? group[0] + (group_size > 1 ? group[1] : kNever) : group[0]);
  }
  std::vector<bool> is_chosen(groups.size());
  for (int32_t n = 0; n < rule.num_topk_groups; ++n) {
    const size_t best = ArgMax(groups);
    is_chosen[best] = true;
    groups[best] = kNever;
  }
  for (size_t i = 0; i < num_experts; ++i) {
    if (!is_chosen[i / group_size]) keys[i] = kNever;
  }
  double sum = 0;
  for (int64_t j = 0; j < args.num_topk; ++j) {
    const int64_t best = ArgMax(keys);
    keys[best] = kNever;
    args.topk_idx[j] = static_cast<int32_t>(best);
    args.topk_weights[j] = args.scores[best];
    sum += args.scores[best];
  }
  for (int64_t j = 0; j < args.num_topk; ++j) {
    args.topk_weights[j] = static_cast<float>(args.topk_weights[j] / (rule.renormalises ? sum : 1) * rule.scale);
  }
}

void Swiglu(const SwigluArgs& args) {
  const GluRule& rule = args.rule;
  for (int64_t row = 0; row < args.num_rows; ++row) {
    for (int64_t d = 0; d < args.dim; ++d) {
      double g = args.gate[row * args.gate_stride + d], u = args.up[row * args.up_stride + d];
      if (rule.limit > 0) {
        g = std::min<double>(g, rule.limit);
        u = std::clamp<double>(u, -rule.limit, rule.limit);
      }
      double activated = g / (1 + std::exp(-rule.alpha * (g + rule.cubic * g * g * g)));
      u += rule.up_offset;
      if (rule.output_limit > 0) {
        activated = std::min<double>(activated, rule.output_limit);
        u = std::clamp<double>(u, -rule.output_limit, rule.output_limit);
      }
      args.out[row * args.out_stride + d] = static_cast<float>(activated * u);
    }
  }
}

void StoreKv(const StoreKvArgs& args) {
  const KvBlock block = {args.format, args.head_dim, args.values_in_key, args.is_by_token, args.value_dim};
  const auto store = [&](const float* source, int64_t dim, auto place, int code_offset, int64_t scales_offset) {
    const Int8Codes int8(std::span(source, static_cast<size_t>(dim)));
    for (int64_t d = 0; d < dim; ++d) {
      std::byte* target = args.block + place(d);
      switch (args.format) {
        case KvFormat::kF32: std::memcpy(target, source + d, 4); break;
        case KvFormat::kBF16: {
          const BF16 rounded = penstock::ToBF16(source[d]);
          std::memcpy(target, &rounded, 2);
          break;
        }
        case KvFormat::kInt8: *target = static_cast<std::byte>(int8.codes[d] + code_offset); break;
      }
    }
    if (args.format == KvFormat::kInt8) std::memcpy(args.block + scales_offset + 4 * args.token, &int8.scale, 4);
  };
  store(
      args.k, args.head_dim, [&](int64_t d) { return block.k_offset(d, args.token); }, kKvCodeOffset,
      block.k_scales_offset());
  if (args.values_in_key > 0) return;
  store(
      args.v, block.value_dim(),
      [&](int64_t d) { return block.v_offset() + args.token * block.v_stride() + d * block.size(); }, 0,
      block.v_scales_offset());
}

namespace {

double KvValue(KvFormat format, const std::byte* element, int code_offset, const std::byte* scale) {
  switch (format) {
    case KvFormat::kF32: return LoadAs(Dtype::kF32, element, 0);
    case KvFormat::kBF16: return LoadAs(Dtype::kBF16, element, 0);
    case KvFormat::kInt8: break;
  }
  const auto code = static_cast<int8_t>(static_cast<int>(*element) - code_offset);
  return static_cast<double>(code) * LoadAs(Dtype::kF32, scale, 0);
}

}  // namespace

void Attention(const AttentionArgs& args) {
  const KvBlock block = {args.kv_format, args.head_dim, args.values_in_key, false, args.value_dim};
  const auto block_of = [&](int64_t pos) { return args.pages[pos / kKvPageTokens] + args.head_offset_bytes; };
  const auto k = [&](int64_t pos, int64_t d) {
    const int64_t token = pos % kKvPageTokens;
    return KvValue(args.kv_format, block_of(pos) + block.k_offset(d, token), kKvCodeOffset,
                   block_of(pos) + block.k_scales_offset() + 4 * token);
  };
  const auto v = [&](int64_t pos, int64_t d) {
    if (args.values_in_key > 0) return k(pos, d);
    const int64_t token = pos % kKvPageTokens;
    return KvValue(args.kv_format, block_of(pos) + block.v_offset() + token * block.v_stride() + d * block.size(), 0,
                   block_of(pos) + block.v_scales_offset() + 4 * token);
  };
  for (int64_t head = 0; head < args.num_rows * args.group; ++head) {
    const int64_t row = head / args.group;
    const int64_t end_pos = args.end > 0 ? args.end : args.pos + row + 1;
    const int64_t first_pos = args.window > 0 ? std::max<int64_t>(0, end_pos - args.window) : args.first;
    const auto bias_of = [&](int64_t pos) -> double {
      if (args.bias == nullptr) return 0;
      const int64_t reach = args.bias_reach, distance = std::clamp(pos - args.pos - row, -reach, reach);
      return args.bias[head % args.group * (2 * reach + 1) + reach + distance];
    };
    const float* values = args.q + row * args.q_stride + head % args.group * args.head_dim;
    std::vector<double> q(values, values + args.head_dim);
    if (args.kv_format == KvFormat::kInt8) {
      const Int8Codes int8(std::span(values, q.size()));
      for (size_t d = 0; d < q.size(); ++d) q[d] = static_cast<double>(int8.codes[d]) * int8.scale;
    }
    float* out = args.out + row * args.out_stride + head % args.group * block.value_dim();
    std::vector<double> p;
    for (int64_t pos = first_pos; pos < end_pos; ++pos) {
      double score = 0;
      for (int64_t d = 0; d < args.head_dim; ++d) score += q[d] * k(pos, d);
      p.push_back(static_cast<float>((score + bias_of(pos)) * args.scale));
    }
    double max = *std::max_element(p.begin(), p.end());
    const double sink = args.sinks == nullptr ? kNever : args.sinks[head % args.group];
    max = std::max(max, sink);
    double sum = std::exp(sink - max);
    for (double& x : p) sum += x = static_cast<float>(std::exp(x - max));
    for (int64_t d = 0; d < block.value_dim(); ++d) {
      double weighted = 0;
      for (int64_t pos = first_pos; pos < end_pos; ++pos) weighted += p[pos - first_pos] * v(pos, d);
      out[d] = static_cast<float>(weighted / sum);
    }
  }
}

void IndexScores(const IndexScoresArgs& args) {
  const KvBlock block = {args.format, args.head_dim, args.head_dim};
  std::fill_n(args.scores, args.num_pages * kKvPageTokens, 0.0f);
  for (int64_t pos = 0; pos < args.num_pages * kKvPageTokens; ++pos) {
    const std::byte* const keys = args.pages[pos / kKvPageTokens] + args.block_offset_bytes;
    const int64_t token = pos % kKvPageTokens;
    double score = 0;
    for (int64_t head = 0; head < args.num_heads; ++head) {
      const std::span<const float> values(args.q + head * args.head_dim, static_cast<size_t>(args.head_dim));
      const Int8Codes int8(values);
      double product = 0;
      for (int64_t d = 0; d < args.head_dim; ++d) {
        const double q = args.format == KvFormat::kInt8 ? int8.codes[d] * static_cast<double>(int8.scale) : values[d];
        product += q * KvValue(args.format, keys + block.k_offset(d, token), kKvCodeOffset,
                               keys + block.k_scales_offset() + 4 * token);
      }
      score += args.weights[head] * std::max(0.0, product);
    }
    args.scores[pos] = static_cast<float>(score);
  }
}

void SelectTopk(const SelectTopkArgs& args) {
  std::vector<int32_t> order(static_cast<size_t>(args.count));
  std::iota(order.begin(), order.end(), 0);
  // A NaN is below all numbers.
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    const float x = args.scores[a], y = args.scores[b];
    return std::isnan(x) || std::isnan(y) ? std::isnan(y) && !std::isnan(x) : x > y;
  });
  order.resize(static_cast<size_t>(args.num_topk));
  std::sort(order.begin(), order.end());
  std::copy(order.begin(), order.end(), args.selected);
}

void GatherKv(const GatherKvArgs& args) {
  const KvBlock source = {args.format, args.head_dim, args.values_in_key, /*is_by_token=*/true};
  const KvBlock target = {args.format, args.head_dim, args.values_in_key};
  for (int64_t i = 0; i < args.count; ++i) {
    const int64_t from = args.positions[i] % kKvPageTokens, to = i % kKvPageTokens;
    const std::byte* const page = args.pages[args.positions[i] / kKvPageTokens] + args.block_offset_bytes;
    std::byte* const block = args.blocks + i / kKvPageTokens * target.bytes();
    for (int64_t d = 0; d < args.head_dim; ++d) {
      std::memcpy(block + target.k_offset(d, to), page + source.k_offset(d, from), target.size());
    }
    if (args.format == KvFormat::kInt8) {
      std::memcpy(block + target.k_scales_offset() + 4 * to, page + source.k_scales_offset() + 4 * from, 4);
    }
  }
}

void Combine(const CombineArgs& args) {
  for (int64_t row = 0; row < args.num_rows; ++row) {
    for (int64_t d = 0; d < args.dim; ++d) {
      double sum = 0;
      for (int64_t j = row * args.num_topk; j < (row + 1) * args.num_topk; ++j) {
        sum += static_cast<double>(args.weights[j]) * args.z[args.assignments[j] * args.z_stride + d];
      }
      args.y[row * args.y_stride + d] =
          static_cast<float>(args.residual[row * args.residual_stride + d] + args.scale * sum);
    }
  }
}

namespace {

double SigmoidOf(double x) { return 1 / (1 + std::exp(-x)); }

}  // namespace

void ShortConv(const ShortConvArgs& args) {
  for (int64_t channel = 0; channel < args.num_channels; ++channel) {
    std::vector<float> inputs;  // those of the state, then the rows'
    for (int64_t i = 0; i + 1 < args.width; ++i) inputs.push_back(args.state[i * args.state_stride + channel]);
    for (int64_t row = 0; row < args.num_rows; ++row) {
      inputs.push_back(args.x[row * args.x_stride + channel]);
      double sum = args.bias == nullptr ? 0 : args.bias[channel];
      for (int64_t i = 0; i < args.width; ++i) {
        sum += static_cast<double>(args.weight[i * args.weight_stride + channel]) * inputs[row + i];
      }
      args.out[row * args.out_stride + channel] = static_cast<float>(args.has_silu ? sum * SigmoidOf(sum) : sum);
    }
    for (int64_t i = 0; i + 1 < args.width; ++i) {
      args.state[i * args.state_stride + channel] = inputs[args.num_rows + i];
    }
  }
}

void RecurrentGates(const RecurrentGatesArgs& args) {
  for (int64_t i = 0; i < args.num_decays; ++i) {
    const double step = std::log1p(std::exp(static_cast<double>(args.decay[i]) + args.decay_bias[i]));
    const double log = args.decay_log == nullptr ? 0 : args.decay_log[i / args.decays_of_log];
    if (args.decay_floor < 0) {
      const double sum = static_cast<double>(args.decay[i]) + args.decay_bias[i];
      args.decay[i] = static_cast<float>(std::exp(args.decay_floor * SigmoidOf(std::exp(log) * sum)));
      continue;
    }
    args.decay[i] = static_cast<float>(args.decay_log == nullptr ? step : std::exp(-std::exp(log) * step));
    if (args.beta_is_step) args.beta[i] = static_cast<float>(step);
  }
  if (args.beta_is_step) return;
  for (int64_t i = 0; i < args.num_betas; ++i) args.beta[i] = static_cast<float>(SigmoidOf(args.beta[i]));
}

void StateRule(const StateRuleArgs& args) {
  for (int64_t row = 0; row < args.num_rows; ++row) {
    const float* k = args.k + row * args.k_stride;
    const float* q = args.q + row * args.k_stride;
    const auto decay = [&](int64_t dim) -> double {
      return args.decay[row * args.decay_stride + (args.decays_dims ? dim : 0)];
    };
    const double beta = args.beta[row * args.beta_stride];
    for (int64_t col = 0; col < args.value_dim; ++col) {
      const double v = args.v[row * args.v_stride + col];
      double predicted = 0, out = args.has_delta ? 0 : args.skip * v;
      for (int64_t dim = 0; dim < args.key_dim; ++dim) {
        predicted += decay(dim) * args.state[dim * args.value_dim + col] * k[dim];
      }
      const double delta = (args.has_delta ? v - predicted : v) * beta;
      for (int64_t dim = 0; dim < args.key_dim; ++dim) {
        float& s = args.state[dim * args.value_dim + col];
        s = static_cast<float>(decay(dim) * s + k[dim] * delta);
        out += static_cast<double>(s) * q[dim];
      }
      args.out[row * args.out_stride + col] = static_cast<float>(out);
    }
  }
}

void SelectiveScan(const SelectiveScanArgs& args) {
  for (int64_t row = 0; row < args.num_rows; ++row) {
    for (int64_t col = 0; col < args.value_dim; ++col) {
      const double v = args.v[row * args.v_stride + col], step = args.step[row * args.v_stride + col];
      double out = args.skip[col] * v;
      for (int64_t dim = 0; dim < args.key_dim; ++dim) {
        float& s = args.state[dim * args.value_dim + col];
        const double rate = std::exp(static_cast<double>(args.decay_log[dim * args.log_stride + col]));
        s = static_cast<float>(std::exp(-rate * step) * s + args.k[row * args.k_stride + dim] * step * v);
        out += static_cast<double>(s) * args.q[row * args.k_stride + dim];
      }
      args.out[row * args.v_stride + col] = static_cast<float>(out);
    }
  }
}

void ScaleBySigmoid(const float* gate, int64_t count, float* target) {
  for (int64_t i = 0; i < count; ++i) target[i] = static_cast<float>(target[i] * SigmoidOf(gate[i]));
}

void Exp(const float* source, int64_t count, float* target) {
  for (int64_t i = 0; i < count; ++i) target[i] = static_cast<float>(std::exp(static_cast<double>(source[i])));
}

void SoftCap(float cap, int64_t count, float* x) {
  for (int64_t i = 0; i < count; ++i) x[i] = static_cast<float>(cap * std::tanh(static_cast<double>(x[i]) / cap));
}

void Add(const float* source, float scale, int64_t count, float* target) {
  for (int64_t i = 0; i < count; ++i) target[i] += scale * source[i];
}

void ToBf16(const float* source, int64_t count, BF16* target) {
  for (int64_t i = 0; i < count; ++i) target[i] = penstock::ToBF16(source[i]);
}

void ToF32(Dtype dtype, const std::byte* source, int64_t count, float* target) {
  ToFloats(dtype, source, std::span(target, static_cast<size_t>(count)));
}

}  // namespace penstock::kernels::reference
