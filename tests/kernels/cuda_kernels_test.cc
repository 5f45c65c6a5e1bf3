// Proves that all kernels of the device other than matrix products give the host's bits, and that they write only where
// they should. With CUDA this runs on the GPU; otherwise the same code runs on fibers of the host.
#include "penstock/kernels/cuda/cuda_kernels.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/cuda_testing.h"
#include "kernels/kernel_testing.h"

namespace penstock::cuda {
namespace {

using kernels::BitDifference;
using kernels::RandomFloats;
using kernels::RowFormat;

TEST(CudaKernelsTest, NormsHaveTheHostsBits) {
  for (const auto& [dim, norm] : {std::pair<int64_t, Norm>{1, Norm::kRms},
                                  {15, Norm::kRms},
                                  {16, Norm::kRms},
                                  {100, Norm::kRms},
                                  {513, Norm::kRms},
                                  {15, Norm::kLayer},
                                  {513, Norm::kLayer}}) {
    const std::vector<float> bias = RandomFloats(dim, 7);
    const OnDevice<float> device_bias(bias);
    constexpr int64_t kRows = 3;
    const std::vector<float> x = RandomFloats(kRows * dim, 8), weight = RandomFloats(dim, 9);
    const OnDevice<float> device_x(x), device_weight(weight), normed(Size(kRows * dim));
    const int64_t stride = kernels::RowBytes(RowFormat::kInt8, dim);
    const OnDevice<std::byte> prepared(Size(kRows * stride));
    NormRows({.num_rows = kRows,
              .dim = dim,
              .x = device_x.data(),
              .weight = device_weight.data(),
              .eps = 1e-5f,
              .norm = norm,
              .bias = norm == Norm::kLayer ? device_bias.data() : nullptr,
              .normed = normed.data(),
              .format = RowFormat::kInt8,
              .prepared = prepared.data(),
              .prepared_stride_bytes = stride},
             kStream);
    std::vector<float> expected(x.size());
    Host().norm({.num_rows = kRows,
                 .dim = dim,
                 .x = x.data(),
                 .x_stride = dim,
                 .weight = weight.data(),
                 .eps = 1e-5f,
                 .out = expected.data(),
                 .out_stride = dim,
                 .norm = norm,
                 .bias = norm == Norm::kLayer ? bias.data() : nullptr});
    EXPECT_EQ(BitDifference(normed.ToHost(), expected), "");
    const std::vector<std::byte> rows = PreparedOnHost(RowFormat::kInt8, expected, kRows, dim),
                                 actual = prepared.ToHost();
    EXPECT_TRUE(std::equal(rows.begin(), rows.begin() + (dim + 127) / 128 * 144, actual.begin()));
  }
}

TEST(CudaKernelsTest, QkvIsFinishedAsOnTheHost) {
  constexpr int64_t kRows = 3, kHeads = 4, kKvHeads = 2;
  for (const int64_t head_dim : {6, 64}) {
    for (const auto& [per_head, clip] : {std::pair(true, 0.0f), {false, 1.5f}}) {
      const int64_t q_dim = kHeads * head_dim, kv_dim = kKvHeads * head_dim;
      const int64_t rotary_dim = clip > 0 ? head_dim : head_dim / 4 * 2;
      const int64_t q_norm_dim = per_head ? head_dim : q_dim, k_norm_dim = per_head ? head_dim : kv_dim;
      std::vector<float> q = RandomFloats(kRows * q_dim, 10), k = RandomFloats(kRows * kv_dim, 11);
      std::vector<float> v = RandomFloats(kRows * kv_dim, 12), cos = RandomFloats(kRows * head_dim / 2, 13);
      const std::vector<float> sin = RandomFloats(kRows * head_dim / 2, 14), q_norm = RandomFloats(q_norm_dim, 15),
                               k_norm = RandomFloats(k_norm_dim, 16);
      const OnDevice<float> dq(q), dk(k), dv(v), dcos(cos), dsin(sin), dq_norm(q_norm), dk_norm(k_norm);
      FinishQkv({.num_rows = kRows,
                 .num_heads = kHeads,
                 .num_kv_heads = kKvHeads,
                 .head_dim = head_dim,
                 .value_dim = head_dim,
                 .q = dq.data(),
                 .k = dk.data(),
                 .v = dv.data(),
                 .q_stride = q_dim,
                 .k_stride = kv_dim,
                 .v_stride = kv_dim,
                 .q_norm = dq_norm.data(),
                 .k_norm = dk_norm.data(),
                 .q_norm_dim = q_norm_dim,
                 .k_norm_dim = k_norm_dim,
                 .eps = 1e-6f,
                 .clip = clip,
                 .rotary_dim = rotary_dim,
                 .cos = dcos.data(),
                 .sin = dsin.data(),
                 .angles_stride = rotary_dim / 2,
                 .is_interleaved = per_head},
                kStream);
      for (int64_t row = 0; row < kRows; ++row) {
        const auto finish = [&, clip = clip, per_head = per_head](float* x, int64_t dim, std::span<const float> norm) {
          Host().norm({.num_rows = dim / std::ssize(norm),
                       .dim = std::ssize(norm),
                       .x = x,
                       .x_stride = std::ssize(norm),
                       .weight = norm.data(),
                       .eps = 1e-6f,
                       .out = x,
                       .out_stride = std::ssize(norm)});
          if (clip > 0) {
            for (int64_t i = 0; i < dim; ++i) x[i] = std::clamp(x[i], -clip, clip);
          }
          Host().rope({.num_heads = dim / head_dim,
                       .rotary_dim = rotary_dim,
                       .x = x,
                       .head_stride = head_dim,
                       .cos = cos.data() + row * rotary_dim / 2,
                       .sin = sin.data() + row * rotary_dim / 2,
                       .is_interleaved = per_head});
        };
        finish(q.data() + row * q_dim, q_dim, q_norm);
        finish(k.data() + row * kv_dim, kv_dim, k_norm);
      }
      if (clip > 0) {
        for (float& x : v) x = std::clamp(x, -clip, clip);
      }
      EXPECT_EQ(BitDifference(dq.ToHost(), q), "");
      EXPECT_EQ(BitDifference(dk.ToHost(), k), "");
      EXPECT_EQ(BitDifference(dv.ToHost(), v), "");
    }
  }
}

// V from K with a norm and a scale, unit norms behind RoPE, and scales of queries; rows lie apart.
TEST(CudaKernelsTest, ValuesAndQueriesAreFinishedAsOnTheHost) {
  constexpr int64_t kRows = 3, kHeads = 4, kKvHeads = 2, kHeadDim = 20, kRotaryDim = 12, kGap = 5;
  constexpr int64_t kQDim = kHeads * kHeadDim, kKvDim = kKvHeads * kHeadDim;
  constexpr int64_t kQStride = kQDim + kGap, kKvStride = kKvDim + kGap;
  std::vector<float> q = RandomFloats(kRows * kQStride, 10), k = RandomFloats(kRows * kKvStride, 11);
  std::vector<float> v = RandomFloats(kRows * kKvStride, 12);
  const std::vector<float> cos = RandomFloats(kRows * kRotaryDim / 2, 13),
                           sin = RandomFloats(kRows * kRotaryDim / 2, 14);
  const std::vector<float> scales = RandomFloats(kRows, 15);
  const OnDevice<float> dq(q), dk(k), dv(v), dcos(cos), dsin(sin), dscales(scales);
  FinishQkv({.num_rows = kRows,
             .num_heads = kHeads,
             .num_kv_heads = kKvHeads,
             .head_dim = kHeadDim,
             .value_dim = kHeadDim,
             .q = dq.data(),
             .k = dk.data(),
             .v = dv.data(),
             .q_stride = kQStride,
             .k_stride = kKvStride,
             .v_stride = kKvStride,
             .keys_are_values = true,
             .norms_v = true,
             .value_scale = 0.7f,
             .q_norm_dim = kHeadDim,
             .k_norm_dim = kHeadDim,
             .eps = 1e-6f,
             .rotary_dim = kRotaryDim,
             .cos = dcos.data(),
             .sin = dsin.data(),
             .angles_stride = kRotaryDim / 2,
             .norms_after_rope = true,
             .query_scales = dscales.data()},
            kStream);
  const auto norm = [](float* x, int64_t num_heads) {
    Host().norm({.num_rows = num_heads,
                 .dim = kHeadDim,
                 .x = x,
                 .x_stride = kHeadDim,
                 .weight = nullptr,
                 .eps = 1e-6f,
                 .out = x,
                 .out_stride = kHeadDim});
  };
  const auto rotate = [&](float* x, int64_t num_heads, int64_t row) {
    Host().rope({.num_heads = num_heads,
                 .rotary_dim = kRotaryDim,
                 .x = x,
                 .head_stride = kHeadDim,
                 .cos = cos.data() + row * kRotaryDim / 2,
                 .sin = sin.data() + row * kRotaryDim / 2,
                 .is_interleaved = false});
  };
  for (int64_t row = 0; row < kRows; ++row) {
    float* const own_q = q.data() + row * kQStride;
    float* const own_k = k.data() + row * kKvStride;
    float* const own_v = v.data() + row * kKvStride;
    std::copy_n(own_k, kKvDim, own_v);
    norm(own_v, kKvHeads);
    for (int64_t i = 0; i < kKvDim; ++i) own_v[i] *= 0.7f;
    rotate(own_q, kHeads, row);
    rotate(own_k, kKvHeads, row);
    norm(own_q, kHeads);
    norm(own_k, kKvHeads);
    for (int64_t i = 0; i < kQDim; ++i) own_q[i] *= scales[Size(row)];
  }
  EXPECT_EQ(BitDifference(dq.ToHost(), q), "");
  EXPECT_EQ(BitDifference(dk.ToHost(), k), "");
  EXPECT_EQ(BitDifference(dv.ToHost(), v), "");
}

TEST(CudaKernelsTest, LogitsAreCappedAndInputsScaledAsOnTheHost) {
  constexpr int64_t kRows = 3, kDim = 100;
  std::vector<float> x = RandomFloats(kRows * kDim, 16), weights = RandomFloats(kRows, 17);
  for (float& value : x) value *= 20;
  const OnDevice<float> capped(x), scaled(x), device_weights(weights), factor(std::vector<float>{0.3f});
  SoftCap(30, kRows * kDim, capped.data(), kStream);
  MoveWeights(kRows, kDim, scaled.data(), device_weights.data(), kStream);
  ScaleBy(factor.data(), kRows * kDim, scaled.data(), kStream);
  std::vector<float> expected = x;
  Host().soft_cap(30, kRows * kDim, expected.data());
  EXPECT_EQ(BitDifference(capped.ToHost(), expected), "");
  for (int64_t i = 0; i < kRows * kDim; ++i) expected[Size(i)] = x[Size(i)] * weights[Size(i / kDim)] * 0.3f;
  EXPECT_EQ(BitDifference(scaled.ToHost(), expected), "");
  EXPECT_EQ(device_weights.ToHost(), std::vector<float>(kRows, 1.0f));
}

TEST(CudaKernelsTest, RoutersChooseWhatTheHostChooses) {
  constexpr int64_t kRows = 9;
  for (const auto& [num_experts, num_topk] : {std::pair<int64_t, int64_t>{1, 1}, {8, 2}, {33, 33}, {60, 4}, {128, 8}}) {
    const std::vector<float> bias = RandomFloats(num_experts, 18);
    const OnDevice<float> device_bias(bias);
    const bool has_groups = num_experts % 4 == 0;
    for (const RouterRule& rule :
         {RouterRule{.renormalises = false}, RouterRule{}, RouterRule{.scoring = RouterRule::Scoring::kSigmoid},
          RouterRule{.scoring = RouterRule::Scoring::kSparsemixer, .jitter = 0.3f},
          RouterRule{.group_score = RouterRule::GroupScore::kTwoLargest,
          .num_groups = has_groups ? 4 : 1,
          .num_topk_groups = has_groups ? 2 : 1,
          .scale = 2.5f},
          RouterRule{.scoring = RouterRule::Scoring::kSigmoid, .scale = 0.5f, .chooses_by_logits = true},
          RouterRule{.scoring = RouterRule::Scoring::kSigmoid, .chooses_by_logits = true},
          RouterRule{.scoring = RouterRule::Scoring::kSigmoid,
          .num_groups = num_experts == 128 ? 64 : 1,
          .num_topk_groups = num_experts == 128 ? 33 : 1}}) {
      const bool has_bias = rule.scale != 1 || rule.num_groups > 1;
      std::vector<float> scores = RandomFloats(kRows * num_experts, 17);
      for (int64_t i = 0; i < num_experts; ++i) scores[Size(num_experts + i)] = 1;  // ties
      scores[Size(3 * num_experts)] = std::nanf("");
      scores[Size(4 * num_experts)] = -std::numeric_limits<float>::infinity();
      for (int64_t i = 0; i < num_experts; i += 2) scores[Size(5 * num_experts + i)] = 3;
      const std::vector<float> expert_scales = RandomFloats(num_experts, 19);
      const OnDevice<float> device_scores(scores), weights(Size(kRows * num_topk)), device_expert_scales(expert_scales);
      const float logit_scale = rule.chooses_by_logits ? 0.3f : 1.0f;
      for (float& score : scores) score *= logit_scale;
      const OnDevice<int32_t> chosen(Size(kRows * num_topk));
      RouterTopk({.num_rows = kRows,
                  .num_experts = num_experts,
                  .num_topk = num_topk,
                  .rule = rule,
                  .logit_scale = logit_scale,
                  .selection_bias = has_bias ? device_bias.data() : nullptr,
                  .expert_scales = rule.chooses_by_logits ? device_expert_scales.data() : nullptr,
                  .scores = device_scores.data(),
                  .topk_idx = chosen.data(),
                  .topk_weights = weights.data()},
                 kStream);
      std::vector<int32_t> expected(Size(kRows * num_topk));
      std::vector<float> expected_weights(expected.size());
      for (int64_t row = 0; row < kRows; ++row) {
        Host().router_topk({.num_experts = num_experts,
                            .num_topk = num_topk,
                            .scores = scores.data() + row * num_experts,
                            .rule = rule,
                            .selection_bias = has_bias ? bias.data() : nullptr,
                            .topk_idx = expected.data() + row * num_topk,
                            .topk_weights = expected_weights.data() + row * num_topk});
      }
      for (size_t i = 0; rule.chooses_by_logits && i < expected.size(); ++i) {
        expected_weights[i] *= expert_scales[Size(expected[i])];
      }
      EXPECT_EQ(chosen.ToHost(), expected) << num_experts << " experts, top " << num_topk;
      EXPECT_EQ(BitDifference(weights.ToHost(), expected_weights), "");
      EXPECT_EQ(BitDifference(device_scores.ToHost(), scores), "");
    }
  }
}

TEST(CudaKernelsTest, TheLargestIsTheFirstOfItsEquals) {
  constexpr int64_t kDim = 777;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<float> x = RandomFloats(7 * kDim, 19);
  const auto row = [&](int64_t i) { return std::span(x).subspan(Size(i * kDim), Size(kDim)); };
  row(0)[5] = 1000;
  row(1)[300] = row(1)[299] = row(1)[776] = 1000;
  row(2)[700] = std::nanf("");
  row(3)[1] = kInfinity;
  std::ranges::fill(row(4), -kInfinity);
  std::ranges::fill(row(5), -kInfinity);
  row(5)[513] = -3e38f;
  std::ranges::fill(row(6), 0.25f);
  const OnDevice<float> device_x(x);
  const OnDevice<int32_t> best(7);
  ArgMax(device_x.data(), 7, kDim, best.data(), kStream);
  EXPECT_EQ(best.ToHost(), (std::vector<int32_t>{5, 299, -1, -1, -1, 513, 0}));
}

TEST(CudaKernelsTest, AssignmentsAreSortedByExpert) {
  constexpr int64_t kRows = 50, kTopk = 3, kExperts = 7, kBegin = 6 * kTopk, kEnd = 46 * kTopk, kInputBytes = 48;
  std::mt19937 random(18);
  std::vector<int32_t> choices(kRows * kTopk);
  for (int32_t& choice : choices) choice = static_cast<int32_t>(random() % (kExperts - 1));
  std::vector<std::byte> input(kRows * kInputBytes);
  for (std::byte& byte : input) byte = static_cast<std::byte>(random());
  const OnDevice<int32_t> topk_idx(choices);
  const OnDevice<int64_t> offsets(kExperts + 1), assignments(kRows * kTopk), assigned_row(kRows * kTopk);
  const OnDevice<std::byte> device_input(input), gathered(kRows * kTopk * kInputBytes);
  Group({.begin = kBegin,
         .end = kEnd,
         .num_experts = kExperts,
         .num_topk = kTopk,
         .topk_idx = topk_idx.data(),
         .offsets = offsets.data(),
         .assignments = assignments.data(),
         .assigned_row = assigned_row.data(),
         .input = device_input.data(),
         .gathered = gathered.data(),
         .input_bytes = kInputBytes},
        kStream);
  const std::vector<int64_t> places = assignments.ToHost(), rows = assigned_row.ToHost(), begins = offsets.ToHost();
  const std::vector<std::byte> bytes = gathered.ToHost();
  std::vector<int64_t> sorted(kEnd - kBegin);
  std::iota(sorted.begin(), sorted.end(), kBegin);
  std::stable_sort(sorted.begin(), sorted.end(),
                   [&](int64_t a, int64_t b) { return choices[Size(a)] < choices[Size(b)]; });
  for (int64_t i = 0; i < std::ssize(sorted); ++i) {
    const int64_t assignment = sorted[Size(i)], place = kBegin + i;
    ASSERT_EQ(places[Size(assignment)], place);
    ASSERT_EQ(rows[Size(place)], assignment / kTopk);
    ASSERT_TRUE(std::equal(bytes.begin() + place * kInputBytes, bytes.begin() + (place + 1) * kInputBytes,
                           input.begin() + assignment / kTopk * kInputBytes));
    const int32_t expert = choices[Size(assignment)];
    ASSERT_LE(begins[Size(expert)], place);
    ASSERT_GT(begins[Size(expert) + 1], place);
  }
  EXPECT_EQ(begins[0], kBegin);
  EXPECT_EQ(begins[kExperts], kEnd);
  EXPECT_EQ(places[0], -1);
}

TEST(CudaKernelsTest, CombineAndAddHaveTheHostsBits) {
  constexpr int64_t kRows = 4, kDim = 300, kTopk = 3;
  const std::vector<float> residual = RandomFloats(kRows * kDim, 19), z = RandomFloats(kRows * kTopk * kDim, 20),
                           weights = RandomFloats(kRows * kTopk, 21);
  std::vector<int64_t> assignments(kRows * kTopk);
  std::iota(assignments.rbegin(), assignments.rend(), int64_t{0});
  const OnDevice<float> device_residual(residual), device_z(z), device_weights(weights);
  const OnDevice<int64_t> device_assignments(assignments);
  kernels::CombineArgs args = {.num_rows = kRows,
                               .dim = kDim,
                               .num_topk = kTopk,
                               .residual = device_residual.data(),
                               .residual_stride = kDim,
                               .z = device_z.data(),
                               .z_stride = kDim,
                               .assignments = device_assignments.data(),
                               .weights = device_weights.data(),
                               .y = device_residual.data(),
                               .y_stride = kDim};
  Combine(args, kStream);
  Add(device_z.data(), 0.7f, kRows * kDim, device_residual.data(), kStream);
  std::vector<float> expected = residual;
  args.residual = args.y = expected.data();
  args.y = expected.data();
  args.z = z.data();
  args.assignments = assignments.data();
  args.weights = weights.data();
  Host().combine(args);
  Host().add(z.data(), 0.7f, kRows * kDim, expected.data());
  EXPECT_EQ(BitDifference(device_residual.ToHost(), expected), "");
}

struct AttentionCase {
  KvFormat format;
  int64_t head_dim, num_heads, num_kv_heads, window;
  int64_t values_in_key = 0;
  int64_t own_values = 0;
  bool has_chunks = false;  // of the window's size
};

// Sequences of several lengths, some with several rows; checks the stored KV and the outputs of attention.
TEST(CudaKernelsTest, AttentionHasTheHostsBits) {
  const AttentionCase kCases[] = {{KvFormat::kF32, 16, 4, 2, 0},
                                  {KvFormat::kBF16, 64, 6, 1, 0},
                                  {KvFormat::kInt8, 64, 8, 2, 0},
                                  {KvFormat::kInt8, 18, 2, 2, 5},
                                  {KvFormat::kF32, 40, 10, 1, 20},
                                  {KvFormat::kBF16, 128, 2, 1, 33},
                                  {KvFormat::kF32, 24, 3, 1, 0, 17},
                                  {KvFormat::kBF16, 72, 5, 1, 0, 64},
                                  {KvFormat::kInt8, 40, 4, 1, 0, 32},
                                  // The queries of these heads fit into shared memory in three parts.
                                  {KvFormat::kBF16, 576, 41, 1, 0, 512},
                                  {KvFormat::kInt8, 576, 37, 1, 0, 512},
                                  {KvFormat::kInt8, 24, 4, 2, 0, 0, 16},
                                  {KvFormat::kF32, 40, 4, 2, 0, 0, 24},
                                  {KvFormat::kBF16, 32, 4, 2, 20, 0, 0, true}};
  const int64_t lengths[] = {1, 16, 17, 50, 133};
  for (const AttentionCase& c : kCases) {
    SCOPED_TRACE(testing::Message() << "head_dim " << c.head_dim << ", window " << c.window);
    const KvBlock block = {c.format, c.head_dim, c.values_in_key, false, c.own_values};
    const int64_t page_bytes = c.num_kv_heads * block.bytes(), group = c.num_heads / c.num_kv_heads;
    // All positions are stored; the last ones of each sequence are rows that attend.
    std::vector<int64_t> positions, first_page, stored_positions, stored_first_page;
    int64_t num_pages = 0;
    for (const int64_t length : lengths) {
      for (int64_t pos = 0; pos < length; ++pos) {
        stored_positions.push_back(pos);
        stored_first_page.push_back(num_pages);
        if (pos + 11 < length) continue;
        positions.push_back(pos);
        first_page.push_back(num_pages);
      }
      num_pages += (length + kKvPageTokens - 1) / kKvPageTokens;
    }
    const int64_t num_rows = std::ssize(positions), num_stored = std::ssize(stored_positions);
    std::vector<std::byte> host_cache(Size(num_pages * page_bytes), std::byte{0});
    const OnDevice<std::byte> cache{std::span<const std::byte>(host_cache)};
    std::vector<std::byte*> pages, host_pages;
    for (int64_t i = 0; i < num_pages; ++i) {
      pages.push_back(cache.data() + (num_pages - 1 - i) * page_bytes);
      host_pages.push_back(host_cache.data() + (num_pages - 1 - i) * page_bytes);
    }
    const OnDevice<std::byte*> device_pages(pages);
    const OnDevice<int64_t> device_positions(positions), device_first_page(first_page),
        device_stored_positions(stored_positions), device_stored_first_page(stored_first_page);
    KvRows rows = {.format = c.format,
                   .head_dim = c.head_dim,
                   .values_in_key = c.values_in_key,
                   .own_values = c.own_values,
                   .num_kv_heads = c.num_kv_heads,
                   .first_block_bytes = 0,
                   .block_bytes = block.bytes(),
                   .num_rows = num_stored,
                   .pages = device_pages.data(),
                   .first_page = device_stored_first_page.data(),
                   .positions = device_stored_positions.data()};
    const int64_t value_dim = block.value_dim(), v_dim = c.num_kv_heads * value_dim;
    const int64_t kv_dim = c.num_kv_heads * c.head_dim, q_dim = c.num_heads * c.head_dim;
    const std::vector<float> k = RandomFloats(num_stored * kv_dim, 22), v = RandomFloats(num_stored * v_dim, 23),
                             q = RandomFloats(num_rows * q_dim, 24);
    const OnDevice<float> device_k(k), device_v(v), device_q(q);
    StoreKv({.rows = rows, .k = device_k.data(), .v = device_v.data(), .k_stride = kv_dim, .v_stride = v_dim}, kStream);
    for (int64_t row = 0; row < num_stored; ++row) {
      for (int64_t head = 0; head < c.num_kv_heads; ++head) {
        const int64_t pos = stored_positions[Size(row)];
        Host().store_kv(
            {.format = c.format,
             .head_dim = c.head_dim,
             .values_in_key = c.values_in_key,
             .value_dim = c.own_values,
             .k = k.data() + row * kv_dim + head * c.head_dim,
             .v = v.data() + row * v_dim + head * value_dim,
             .block = host_pages[Size(stored_first_page[Size(row)] + pos / kKvPageTokens)] + head * block.bytes(),
             .token = pos % kKvPageTokens});
      }
    }
    EXPECT_EQ(cache.ToHost(), host_cache);
    rows.num_rows = num_rows;
    rows.first_page = device_first_page.data();
    rows.positions = device_positions.data();
    std::vector<int64_t> firsts;
    for (const int64_t pos : positions) firsts.push_back(c.has_chunks ? pos / c.window * c.window : 0);
    const OnDevice<int64_t> device_firsts(firsts);
    if (c.has_chunks) rows.firsts = device_firsts.data();
    constexpr int64_t kMaxPositions = 144;
    const float scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
    const std::vector<float> sinks = RandomFloats(c.num_heads, 23);
    const OnDevice<float> device_sinks(sinks);
    const bool has_sinks = c.window > 0;
    const int64_t out_dim = c.num_heads * block.value_dim();
    std::vector<float> expected(Size(num_rows * out_dim));
    std::vector<float> scratch(Size(kernels::AttentionScratchFloats(group, c.head_dim, kMaxPositions + 1)));
    for (int64_t row = 0; row < num_rows; ++row) {
      for (int64_t head = 0; head < c.num_kv_heads; ++head) {
        const int64_t first_head = head * group;
        Host().attention({.num_rows = 1,
                          .group = group,
                          .head_dim = c.head_dim,
                          .values_in_key = c.values_in_key,
                          .value_dim = c.own_values,
                          .q = q.data() + row * q_dim + first_head * c.head_dim,
                          .q_stride = q_dim,
                          .pages = host_pages.data() + first_page[Size(row)],
                          .kv_format = c.format,
                          .head_offset_bytes = head * block.bytes(),
                          .pos = positions[Size(row)],
                          .window = c.has_chunks ? 0 : c.window,
                          .first = c.has_chunks ? firsts[Size(row)] : 0,
                          .scale = scale,
                          .sinks = has_sinks ? sinks.data() + first_head : nullptr,
                          .scratch = scratch.data(),
                          .out = expected.data() + row * out_dim + first_head * block.value_dim(),
                          .out_stride = out_dim});
      }
    }
    // Runs row by row, and with several rows of a sequence in a block.
    for (const bool share_pages : {false, true}) {
      const OnDevice<float> scores(Size(num_rows * c.num_heads * kMaxPositions)), totals(Size(num_rows * c.num_heads)),
          out(Size(num_rows * out_dim));
      Attention({.rows = rows,
                 .num_heads = c.num_heads,
                 .window = c.window,
                 .scale = scale,
                 .sinks = has_sinks ? device_sinks.data() : nullptr,
                 .q = device_q.data(),
                 .out = out.data(),
                 .q_stride = q_dim,
                 .out_stride = out_dim,
                 .max_positions = kMaxPositions,
                 .scores = scores.data(),
                 .totals = totals.data(),
                 .rows_share_pages = share_pages},
                kStream);
      EXPECT_EQ(BitDifference(out.ToHost(), expected), "") << share_pages;
    }
  }
}

}  // namespace
}  // namespace penstock::cuda
