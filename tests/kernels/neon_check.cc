// Proves that the NEON kernels give the bits of the scalar ones. It is a separate program without libraries, so that a
// cross compiler and an emulator can build and run it without an ARM machine (neon_check.py).
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "penstock/kernels/cpu/tables.h"

namespace penstock::kernels {
namespace {

int num_failed = 0;
int num_compared = 0;

void ExpectSameBytes(const void* actual, const void* expected, size_t num_bytes, const char* kernel, const char* what,
                     long size) {
  ++num_compared;
  if (std::memcmp(actual, expected, num_bytes) == 0) return;
  ++num_failed;
  std::printf("%s differs: %s, size %ld\n", kernel, what, size);
}

std::mt19937 generator(1);

std::vector<float> RandomFloats(int64_t count) {
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(generator);
  return values;
}

// Returns words that are small finite numbers as f32, as two f16 or bf16, and as scales of any format.
std::vector<uint32_t> RandomWords(int64_t num_bytes) {
  std::vector<uint32_t> words(num_bytes / 4 + 16);
  for (uint32_t& word : words) word = (static_cast<uint32_t>(generator()) & 0x807F807Fu) | 0x3C003C00u;
  return words;
}

struct Kind {
  std::string name;
  RowFormat x_format;
  WeightFormat w_format;
};
// Every format of weights with the rows that it is multiplied by.
std::vector<Kind> Kinds() {
  std::vector<Kind> kinds = {{"bf16 rows", RowFormat::kBF16, WeightFormat::kBF16}};
  for (const WeightFormatTraits& format : kWeightFormats) {
    const std::string name(format.name);
    kinds.push_back({name, RowFormat::kF32, format.value});
    if (MultipliesInt8Rows(format.value)) kinds.push_back({name + ", int8 rows", RowFormat::kInt8, format.value});
  }
  return kinds;
}

std::vector<float> RunGemm(const KernelTable& table, const Kind& kind, int64_t num_rows, int64_t num_cols, int64_t dim,
                           const std::vector<float>& source, const std::vector<uint32_t>& w, int64_t panel_bytes,
                           std::vector<uint32_t>* prepared) {
  const int64_t row_bytes = (8 * dim + 1024) / 64 * 64;
  prepared->assign(num_rows * row_bytes / 4, 0);
  auto* x = reinterpret_cast<std::byte*>(prepared->data());
  table.prepare_rows({.num_rows = num_rows,
                      .dim = dim,
                      .first = 0,
                      .count = dim,
                      .source = source.data(),
                      .source_stride = dim,
                      .format = kind.x_format,
                      .target = x,
                      .target_stride_bytes = row_bytes});
  const std::vector<float> bias(num_cols, 0.25f);
  std::vector<float> y(num_rows * num_cols);
  table.gemm({.num_rows = num_rows,
              .num_cols = num_cols,
              .inner_dim = dim,
              .x_format = kind.x_format,
              .x = x,
              .x_stride_bytes = row_bytes,
              .w_format = kind.w_format,
              .w = reinterpret_cast<const std::byte*>(w.data()),
              .panel_bytes = panel_bytes,
              .bias = bias.data(),
              .y = y.data(),
              .y_stride = num_cols});
  return y;
}

void CheckGemms() {
  for (const Kind& kind : Kinds()) {
    for (const int64_t dim : {1, 63, 128, 300, 512}) {
      for (const int64_t num_rows : {1, 5, 6, 17, 70}) {
        const int64_t num_cols = 45, panel_bytes = 64 * (2 * dim + 128);
        const std::vector<float> source = RandomFloats(num_rows * dim);
        const std::vector<uint32_t> w = RandomWords(2 * panel_bytes);
        std::vector<uint32_t> actual_rows, expected_rows;
        const auto actual = RunGemm(kNeonKernels, kind, num_rows, num_cols, dim, source, w, panel_bytes, &actual_rows);
        const auto expected =
            RunGemm(kScalarKernels, kind, num_rows, num_cols, dim, source, w, panel_bytes, &expected_rows);
        ExpectSameBytes(actual_rows.data(), expected_rows.data(), actual_rows.size() * 4, "prepare_rows",
                        kind.name.c_str(), dim);
        ExpectSameBytes(actual.data(), expected.data(), actual.size() * 4, "gemm", kind.name.c_str(), dim);
      }
    }
  }
}

std::vector<float> Attend(const KernelTable& table, KvFormat format, int64_t head_dim, int64_t num_rows, int64_t pos,
                          std::vector<uint32_t>* memory) {
  generator.seed(7);
  const int64_t block_bytes = KvBlock{format, head_dim}.bytes(), num_pages = (pos + num_rows) / kKvPageTokens + 1;
  memory->assign(num_pages * block_bytes / 4, 0);
  std::vector<const std::byte*> pages;
  for (int64_t i = 0; i < num_pages; ++i) {
    pages.push_back(reinterpret_cast<const std::byte*>(memory->data()) + i * block_bytes);
  }
  for (int64_t i = 0; i < pos + num_rows; ++i) {
    const std::vector<float> k = RandomFloats(head_dim), v = RandomFloats(head_dim);
    table.store_kv({.format = format,
                    .head_dim = head_dim,
                    .k = k.data(),
                    .v = v.data(),
                    .block = const_cast<std::byte*>(pages[i / kKvPageTokens]),
                    .token = i % kKvPageTokens});
  }
  constexpr int64_t kGroup = 3;
  const std::vector<float> q = RandomFloats(num_rows * kGroup * head_dim);
  std::vector<float> scratch(num_rows * kGroup * (pos + num_rows + 64 + 3 * head_dim)), out(q.size());
  table.attention({.num_rows = num_rows,
                   .group = kGroup,
                   .head_dim = head_dim,
                   .q = q.data(),
                   .q_stride = kGroup * head_dim,
                   .pages = pages.data(),
                   .kv_format = format,
                   .head_offset_bytes = 0,
                   .pos = pos,
                   .window = 0,
                   .scale = 0.1f,
                   .scratch = scratch.data(),
                   .out = out.data(),
                   .out_stride = kGroup * head_dim});
  return out;
}

void CheckAttention() {
  for (const KvFormat format : {KvFormat::kF32, KvFormat::kBF16, KvFormat::kInt8}) {
    for (const int64_t head_dim : {7, 32, 128}) {
      for (const int64_t num_rows : {1, 4}) {
        std::vector<uint32_t> actual_kv, expected_kv;
        const auto actual = Attend(kNeonKernels, format, head_dim, num_rows, 50, &actual_kv);
        const auto expected = Attend(kScalarKernels, format, head_dim, num_rows, 50, &expected_kv);
        ExpectSameBytes(actual_kv.data(), expected_kv.data(), actual_kv.size() * 4, "store_kv", "format", head_dim);
        ExpectSameBytes(actual.data(), expected.data(), actual.size() * 4, "attention", "format", head_dim);
      }
    }
  }
}

void CheckRows() {
  for (const int64_t dim : {1, 16, 45, 300}) {
    const std::vector<float> x = RandomFloats(dim), weight = RandomFloats(dim), cosine = RandomFloats(dim);
    const auto compare = [&](const char* kernel, auto&& run) {
      std::vector<float> actual(x), expected(x);
      run(kNeonKernels, actual.data());
      run(kScalarKernels, expected.data());
      ExpectSameBytes(actual.data(), expected.data(), actual.size() * 4, kernel, "rows", dim);
    };
    compare("norm", [&](const KernelTable& table, float* out) {
      table.norm({.num_rows = 1,
                  .dim = dim,
                  .x = x.data(),
                  .x_stride = dim,
                  .weight = weight.data(),
                  .eps = 1e-5f,
                  .out = out,
                  .out_stride = dim});
    });
    compare("layer norm", [&](const KernelTable& table, float* out) {
      table.norm({.num_rows = 1,
                  .dim = dim,
                  .x = x.data(),
                  .x_stride = dim,
                  .weight = weight.data(),
                  .eps = 1e-5f,
                  .out = out,
                  .out_stride = dim,
                  .norm = Norm::kLayer,
                  .bias = weight.data()});
    });
    compare("rope", [&](const KernelTable& table, float* out) {
      table.rope({.num_heads = 1,
                  .rotary_dim = dim / 2 * 2,
                  .x = out,
                  .head_stride = dim,
                  .cos = cosine.data(),
                  .sin = weight.data()});
    });
    compare("swiglu", [&](const KernelTable& table, float* out) {
      table.swiglu({.num_rows = 1,
                    .dim = dim,
                    .gate = x.data(),
                    .gate_stride = dim,
                    .up = weight.data(),
                    .up_stride = dim,
                    .out = out,
                    .out_stride = dim});
    });
    compare("exp", [&](const KernelTable& table, float* out) { table.exp(x.data(), dim, out); });
    compare("add", [&](const KernelTable& table, float* out) { table.add(weight.data(), 0.3f, dim, out); });
    compare("to_bf16",
            [&](const KernelTable& table, float* out) { table.to_bf16(x.data(), dim, reinterpret_cast<BF16*>(out)); });
    const std::vector<uint32_t> words = RandomWords(4 * dim);
    for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBF16}) {
      compare("to_f32", [&](const KernelTable& table, float* out) {
        table.to_f32(dtype, reinterpret_cast<const std::byte*>(words.data()), dim, out);
      });
    }
    std::vector<int32_t> actual_idx(2), expected_idx(2);
    std::vector<float> actual_weights(2), expected_weights(2), actual_scores(x), expected_scores(x);
    const int64_t num_topk = dim < 2 ? dim : 2;
    kNeonKernels.router_topk({.num_experts = dim,
                              .num_topk = num_topk,
                              .scores = actual_scores.data(),
                              .rule = {},
                              .selection_bias = weight.data(),
                              .topk_idx = actual_idx.data(),
                              .topk_weights = actual_weights.data()});
    kScalarKernels.router_topk({.num_experts = dim,
                                .num_topk = num_topk,
                                .scores = expected_scores.data(),
                                .rule = {},
                                .selection_bias = weight.data(),
                                .topk_idx = expected_idx.data(),
                                .topk_weights = expected_weights.data()});
    ExpectSameBytes(actual_idx.data(), expected_idx.data(), 8, "router_topk", "experts", dim);
    ExpectSameBytes(actual_weights.data(), expected_weights.data(), 8, "router_topk", "weights", dim);
  }
}

int Main() {
  CheckGemms();
  CheckAttention();
  CheckRows();
  std::printf("%d comparisons, %d differ\n", num_compared, num_failed);
  return num_failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace penstock::kernels

int main() { return penstock::kernels::Main(); }
