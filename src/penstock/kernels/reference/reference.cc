#include "penstock/kernels/reference/reference.h"

#include <algorithm>
#include <cmath>
#include <span>

namespace penstock::kernels::reference {
namespace {

float LoadAs(Dtype dtype, const std::byte* source, int64_t idx) {
  float value = 0;
  ToFloats(dtype, source + idx * static_cast<int64_t>(SizeOf(dtype)), std::span(&value, 1));
  return value;
}

float ToFloat32(float x) { return x; }
float ToFloat32(BF16 x) { return ToFloat(x); }

template <typename Args>
void Gemm(const Args& args, Dtype w_dtype) {
  for (int64_t row = 0; row < args.num_rows; ++row) {
    for (int64_t col = 0; col < args.num_cols; ++col) {
      double sum = args.bias != nullptr ? args.bias[col] : 0.0;
      for (int64_t k = 0; k < args.inner_dim; ++k) {
        sum += static_cast<double>(ToFloat32(args.x[row * args.x_stride + k])) *
               LoadAs(w_dtype, args.w, col * args.w_stride + k);
      }
      args.y[row * args.y_stride + col] = static_cast<float>(sum);
    }
  }
}

}  // namespace

void GemmF32(const GemmF32Args& args) { Gemm(args, args.w_dtype); }
void GemmBf16(const GemmBf16Args& args) { Gemm(args, Dtype::kBF16); }

void RmsNorm(const RmsNormArgs& args) {
  for (int64_t row = 0; row < args.num_rows; ++row) {
    const float* x = args.x + row * args.x_stride;
    double squares = 0;
    for (int64_t d = 0; d < args.dim; ++d) squares += static_cast<double>(x[d]) * x[d];
    const double scale = 1 / std::sqrt(squares / static_cast<double>(args.dim) + args.eps);
    for (int64_t d = 0; d < args.dim; ++d) {
      args.out[row * args.out_stride + d] = static_cast<float>(x[d] * scale * args.weight[d]);
    }
  }
}

void Rope(const RopeArgs& args) {
  const int64_t half = args.rotary_dim / 2;
  for (int64_t head = 0; head < args.num_heads; ++head) {
    for (int64_t d = 0; d < half; ++d) {
      float& first = args.x[head * args.head_stride + d];
      float& second = args.x[head * args.head_stride + d + half];
      const double a = first, b = second, cos = args.cos[d], sin = args.sin[d];
      first = static_cast<float>(a * cos - b * sin);
      second = static_cast<float>(b * cos + a * sin);
    }
  }
}

void RouterTopk(const RouterTopkArgs& args) {
  const double max = *std::max_element(args.scores, args.scores + args.num_experts);
  double total = 0;
  for (int64_t i = 0; i < args.num_experts; ++i) total += std::exp(args.scores[i] - max);
  for (int64_t i = 0; i < args.num_experts; ++i) {
    args.scores[i] = static_cast<float>(std::exp(args.scores[i] - max) / total);
  }
  double sum = 0;
  for (int64_t j = 0; j < args.num_topk; ++j) {
    int64_t best = -1;
    for (int64_t i = 0; i < args.num_experts; ++i) {
      const bool is_taken = std::find(args.topk_idx, args.topk_idx + j, i) != args.topk_idx + j;
      if (!is_taken && (best < 0 || args.scores[i] > args.scores[best])) best = i;
    }
    args.topk_idx[j] = static_cast<int32_t>(best);
    args.topk_weights[j] = args.scores[best];
    sum += args.scores[best];
  }
  if (args.renormalise == Renormalise::kNo) return;
  for (int64_t j = 0; j < args.num_topk; ++j) args.topk_weights[j] = static_cast<float>(args.topk_weights[j] / sum);
}

void Swiglu(const SwigluArgs& args) {
  for (int64_t row = 0; row < args.num_rows; ++row) {
    for (int64_t d = 0; d < args.dim; ++d) {
      const double x = args.gate[row * args.gate_stride + d];
      args.out[row * args.out_stride + d] =
          static_cast<float>(x / (1 + std::exp(-x)) * args.up[row * args.up_stride + d]);
    }
  }
}

void Attention(const AttentionArgs& args) {
  const auto load = [&](int64_t offset_bytes, int64_t pos, int64_t d) {
    const std::byte* token =
        args.pages[pos / args.page_tokens] + offset_bytes + pos % args.page_tokens * args.token_stride_bytes;
    return static_cast<double>(LoadAs(args.kv_dtype, token, d));
  };
  for (int64_t head = 0; head < args.group; ++head) {
    float* p = args.scratch + head * args.scratch_stride - args.first_pos;
    float* out = args.out + head * args.out_stride;
    for (int64_t pos = args.first_pos; pos < args.end_pos; ++pos) {
      double score = 0;
      for (int64_t d = 0; d < args.head_dim; ++d) {
        score += args.q[head * args.q_stride + d] * load(args.k_offset_bytes, pos, d);
      }
      p[pos] = static_cast<float>(score * args.scale);
    }
    const double max = *std::max_element(p + args.first_pos, p + args.end_pos);
    double sum = 0;
    for (int64_t pos = args.first_pos; pos < args.end_pos; ++pos) {
      p[pos] = static_cast<float>(std::exp(p[pos] - max));
      sum += p[pos];
    }
    for (int64_t d = 0; d < args.head_dim; ++d) {
      double weighted = 0;
      for (int64_t pos = args.first_pos; pos < args.end_pos; ++pos) {
        weighted += p[pos] * load(args.v_offset_bytes, pos, d);
      }
      out[d] = static_cast<float>(weighted / sum);
    }
  }
}

void Combine(const CombineArgs& args) {
  for (int64_t row = 0; row < args.num_rows; ++row) {
    for (int64_t d = 0; d < args.dim; ++d) {
      double sum = args.residual[row * args.residual_stride + d];
      for (int64_t j = row * args.num_topk; j < (row + 1) * args.num_topk; ++j) {
        sum += static_cast<double>(args.weights[j]) * args.z[args.assignments[j] * args.z_stride + d];
      }
      args.y[row * args.y_stride + d] = static_cast<float>(sum);
    }
  }
}

void Exp(const float* source, int64_t count, float* target) {
  for (int64_t i = 0; i < count; ++i) target[i] = static_cast<float>(std::exp(static_cast<double>(source[i])));
}

void Add(const float* source, int64_t count, float* target) {
  for (int64_t i = 0; i < count; ++i) target[i] += source[i];
}

void ToBf16(const float* source, int64_t count, BF16* target) {
  for (int64_t i = 0; i < count; ++i) target[i] = penstock::ToBF16(source[i]);
}

void ToF32(Dtype dtype, const std::byte* source, int64_t count, float* target) {
  ToFloats(dtype, source, std::span(target, static_cast<size_t>(count)));
}

}  // namespace penstock::kernels::reference
