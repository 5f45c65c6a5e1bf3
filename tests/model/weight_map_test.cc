// Proves that every weight is found under its family's name with its shape. Proves that missing, misshapen and unknown
// tensors are refused: the first ten by name, and their number.
#include "penstock/model/weight_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "penstock/base/status.h"
#include "penstock/checkpoint/tensor_rows.h"
#include "penstock/model/family.h"
#include "tests/checkpoint/test_files.h"

namespace penstock {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr char kMixtralConfig[] =
    R"({"architectures": ["MixtralForCausalLM"], "vocab_size": 10, "hidden_size": 8,
    "intermediate_size": 6, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_local_experts": 3, "num_experts_per_tok": 2, "max_position_embeddings": 16})";

// Returns the tensors that a Mixtral of kMixtralConfig has.
std::vector<TestTensor> MixtralTensors() {
  std::vector<TestTensor> tensors = {{"model.embed_tokens.weight", "F32", {10, 8}},
                                     {"model.norm.weight", "F32", {8}},
                                     {"lm_head.weight", "F32", {10, 8}}};
  for (int layer_idx = 0; layer_idx < 2; ++layer_idx) {
    const std::string prefix = fmt::format("model.layers.{}.", layer_idx);
    tensors.push_back({prefix + "input_layernorm.weight", "F32", {8}});
    tensors.push_back({prefix + "post_attention_layernorm.weight", "F32", {8}});
    tensors.push_back({prefix + "self_attn.q_proj.weight", "F32", {8, 8}});
    tensors.push_back({prefix + "self_attn.k_proj.weight", "F32", {4, 8}});
    tensors.push_back({prefix + "self_attn.v_proj.weight", "F32", {4, 8}});
    tensors.push_back({prefix + "self_attn.o_proj.weight", "F32", {8, 8}});
    tensors.push_back({prefix + "block_sparse_moe.gate.weight", "F32", {3, 8}});
    for (int expert_idx = 0; expert_idx < 3; ++expert_idx) {
      const std::string expert = fmt::format("{}block_sparse_moe.experts.{}.", prefix, expert_idx);
      tensors.push_back({expert + "w1.weight", "F32", {6, 8}});
      tensors.push_back({expert + "w2.weight", "F32", {8, 6}});
      tensors.push_back({expert + "w3.weight", "F32", {6, 8}});
    }
  }
  return tensors;
}

TestTensor& Named(std::vector<TestTensor>& tensors, std::string_view name) {
  for (TestTensor& tensor : tensors) {
    if (tensor.name == name) return tensor;
  }
  ADD_FAILURE() << "no tensor " << name;
  return tensors[0];
}

void Remove(std::vector<TestTensor>& tensors, std::string_view part) {
  std::erase_if(tensors, [&](const TestTensor& tensor) { return tensor.name.find(part) != std::string::npos; });
}

// A config, a checkpoint, and the result of MapWeights for them.
struct Mapped {
  TempFolder dir;
  ModelConfig config;
  Checkpoint checkpoint;
  absl::StatusOr<WeightMap> map = absl::UnknownError("not mapped");
};

std::unique_ptr<Mapped> Map(std::string_view config_json, const std::vector<TestTensor>& tensors) {
  auto mapped = std::make_unique<Mapped>();
  mapped->dir.Write("model.safetensors", FileOf(tensors));
  auto config = ParseModelConfig(config_json);
  auto folder = ModelFolder::Open(mapped->dir.path());
  EXPECT_TRUE(config.ok()) << Message(config.status());
  EXPECT_TRUE(folder.ok());
  auto checkpoint = Checkpoint::Open(*folder);
  EXPECT_TRUE(checkpoint.ok()) << Message(checkpoint.status());
  mapped->config = *std::move(config);
  mapped->checkpoint = *std::move(checkpoint);
  mapped->map = MapWeights(mapped->config, mapped->checkpoint);
  return mapped;
}

std::string RefusalOf(const std::vector<TestTensor>& tensors, std::string_view config_json = kMixtralConfig) {
  const auto mapped = Map(config_json, tensors);
  if (mapped->map.ok()) return "";
  EXPECT_EQ(FaultOf(mapped->map.status()), Fault::kModel);
  return Message(mapped->map.status());
}

// Checkpoints of MiniMax-Text-01 may have constants beside the weights.
TEST(WeightMapTest, ConstantsOfAFamilyAreIgnored) {
  std::vector<TestTensor> tensors = MixtralTensors();
  tensors.push_back({"model.layers.1.self_attn.slope_rate", "F32", {4, 1, 1}});
  std::string minimax(kMixtralConfig);
  minimax.replace(minimax.find("Mixtral"), 7, "MiniMax");
  minimax.insert(1, R"("attn_type_list": [1, 1], )");
  EXPECT_EQ(RefusalOf(tensors, minimax), "");
  EXPECT_THAT(RefusalOf(tensors), HasSubstr("slope_rate is not part of such a model"));
}

// A.X K1's routers may have no bias, and its layers without experts a norm that nothing reads.
TEST(WeightMapTest, AWeightMayBeMissingOrUnread) {
  constexpr std::string_view kAxk1 =
      R"({"architectures": ["AXK1ForCausalLM"], "vocab_size": 10, "hidden_size": 8, "intermediate_size": 6,
      "moe_intermediate_size": 6, "num_hidden_layers": 2, "num_attention_heads": 2, "q_lora_rank": 6, "kv_lora_rank": 4,
      "qk_nope_head_dim": 4, "qk_rope_head_dim": 2, "v_head_dim": 4, "n_routed_experts": 2, "num_experts_per_tok": 2,
      "n_group": 1, "topk_group": 1, "n_shared_experts": 0, "first_k_dense_replace": 1, "max_position_embeddings": 16})";
  std::vector<TestTensor> tensors = {{"model.embed_tokens.weight", "F32", {10, 8}},
                                     {"model.norm.weight", "F32", {8}},
                                     {"lm_head.weight", "F32", {10, 8}}};
  const auto add_ffn = [&](const std::string& prefix) {
    tensors.push_back({prefix + "gate_proj.weight", "F32", {6, 8}});
    tensors.push_back({prefix + "up_proj.weight", "F32", {6, 8}});
    tensors.push_back({prefix + "down_proj.weight", "F32", {8, 6}});
  };
  for (const std::string prefix : {"model.layers.0.", "model.layers.1."}) {
    tensors.push_back({prefix + "input_layernorm.weight", "F32", {8}});
    tensors.push_back({prefix + "post_attention_layernorm.weight", "F32", {8}});
    tensors.push_back({prefix + "post_mlp_layernorm.weight", "F32", {8}});
    tensors.push_back({prefix + "self_attn.q_a_proj.weight", "F32", {6, 8}});
    tensors.push_back({prefix + "self_attn.q_a_layernorm.weight", "F32", {6}});
    tensors.push_back({prefix + "self_attn.q_b_proj.weight", "F32", {12, 6}});
    tensors.push_back({prefix + "self_attn.kv_a_proj_with_mqa.weight", "F32", {6, 8}});
    tensors.push_back({prefix + "self_attn.kv_a_layernorm.weight", "F32", {4}});
    tensors.push_back({prefix + "self_attn.kv_b_proj.weight", "F32", {16, 4}});
    tensors.push_back({prefix + "self_attn.o_proj.weight", "F32", {8, 8}});
  }
  add_ffn("model.layers.0.mlp.");
  tensors.push_back({"model.layers.1.mlp.gate.weight", "F32", {2, 8}});
  add_ffn("model.layers.1.mlp.experts.0.");
  add_ffn("model.layers.1.mlp.experts.1.");
  const auto mapped = Map(kAxk1, tensors);
  ASSERT_TRUE(mapped->map.ok()) << Message(mapped->map.status());
  EXPECT_EQ(mapped->map->layers[1].router_selection_bias, nullptr);
  EXPECT_NE(mapped->map->layers[1].ffn_output_norm, nullptr);
  Remove(tensors, "model.layers.1.post_mlp");
  EXPECT_THAT(RefusalOf(tensors, kAxk1), HasSubstr("model.layers.1.post_mlp_layernorm.weight is missing"));
}

TEST(WeightMapTest, FindsEveryTensor) {
  const auto mapped = Map(kMixtralConfig, MixtralTensors());
  ASSERT_TRUE(mapped->map.ok()) << Message(mapped->map.status());
  const WeightMap& map = *mapped->map;
  EXPECT_EQ(map.embedding->name, "model.embed_tokens.weight");
  EXPECT_EQ(map.lm_head->name, "lm_head.weight");
  EXPECT_EQ(map.final_norm->name, "model.norm.weight");
  ASSERT_EQ(map.layers.size(), 2u);
  const LayerTensors& layer = map.layers[1];
  EXPECT_EQ(layer.attention_norm->name, "model.layers.1.input_layernorm.weight");
  EXPECT_EQ(layer.ffn_norm->name, "model.layers.1.post_attention_layernorm.weight");
  EXPECT_EQ(layer.k_proj->name, "model.layers.1.self_attn.k_proj.weight");
  EXPECT_EQ(layer.router_proj->name, "model.layers.1.mlp.gate.weight");
  EXPECT_EQ(layer.q_bias, nullptr);
  EXPECT_EQ(layer.q_norm, nullptr);
  EXPECT_EQ(layer.dense_ffn.gate_proj, nullptr);
  ASSERT_EQ(layer.experts.size(), 3u);
  // Mixtral's w1, w3, w2 are gate, up, down.
  EXPECT_EQ(layer.experts[2].gate_proj->name, "model.layers.1.mlp.experts.2.gate_proj.weight");
  EXPECT_EQ(layer.experts[2].up_proj->name, "model.layers.1.mlp.experts.2.up_proj.weight");
  EXPECT_EQ(layer.experts[2].down_proj->name, "model.layers.1.mlp.experts.2.down_proj.weight");
  EXPECT_EQ(layer.experts[2].total_bytes(), 3u * 6 * 8 * 4);
}

TEST(WeightMapTest, MapsTheGoldenModelsOfEveryFamily) {
  for (const char* name : {"mixtral-odd", "olmoe-odd", "qwen3moe-odd"}) {
    const auto folder = ModelFolder::Open(fmt::format("{}/{}", PENSTOCK_GOLDEN_DIR, name));
    ASSERT_TRUE(folder.ok());
    const auto config = LoadModelConfig(*folder);
    ASSERT_TRUE(config.ok()) << Message(config.status());
    const auto checkpoint = Checkpoint::Open(*folder);
    ASSERT_TRUE(checkpoint.ok()) << Message(checkpoint.status());
    const auto map = MapWeights(*config, *checkpoint);
    ASSERT_TRUE(map.ok()) << Message(map.status());
    for (int64_t layer_idx = 0; layer_idx < config->num_layers; ++layer_idx) {
      const LayerTensors& layer = map->layers[layer_idx];
      EXPECT_EQ(!layer.experts.empty(), config->layer_has_experts[layer_idx]);
      EXPECT_EQ(layer.dense_ffn.gate_proj == nullptr, config->layer_has_experts[layer_idx]);
      EXPECT_EQ(layer.q_norm != nullptr, config->qk_norm != QkNorm::kNone);
      EXPECT_EQ(layer.o_bias != nullptr, config->o_bias);
    }
  }
}

TEST(WeightMapTest, NumbersAnEncodersLayersBeforeTheDecoders) {
  const auto folder = ModelFolder::Open(std::string(PENSTOCK_GOLDEN_DIR) + "/switch-odd");
  ASSERT_TRUE(folder.ok());
  const auto config = LoadModelConfig(*folder);
  ASSERT_TRUE(config.ok()) << Message(config.status());
  const auto checkpoint = Checkpoint::Open(*folder);
  ASSERT_TRUE(checkpoint.ok()) << Message(checkpoint.status());
  const auto map = MapWeights(*config, *checkpoint);
  ASSERT_TRUE(map.ok()) << Message(map.status());
  ASSERT_EQ(map->layers.size(), 8u);
  EXPECT_EQ(map->layers[2].cross_q_proj, nullptr);
  ASSERT_NE(map->layers[3].cross_q_proj, nullptr);
  EXPECT_EQ(map->layers[3].cross_q_proj->name, "model.layers.3.cross_attn.q_proj.weight");
  EXPECT_EQ(map->layers[2].experts.size(), 5u);
  EXPECT_EQ(map->layers[2].experts[4].gate_proj, nullptr);
  EXPECT_EQ(map->layers[2].experts[4].total_bytes(), 2u * 37 * 29 * 4);
  EXPECT_EQ(map->layers[3].dense_ffn.gate_proj, nullptr);
  EXPECT_NE(map->encoder_bias->extent.offset_bytes, map->decoder_bias->extent.offset_bytes);
  EXPECT_EQ(map->lm_head, map->embedding);
}

TEST(WeightMapTest, ListsMissingMisshapenAndUnknownTensors) {
  auto tensors = MixtralTensors();
  Remove(tensors, "layers.1.block_sparse_moe.experts.2.w2");
  EXPECT_THAT(RefusalOf(tensors),
              AllOf(HasSubstr("model.layers.1.block_sparse_moe.experts.2.w2.weight is missing (in all 1)"),
                    HasSubstr("does config.json belong to another model?")));
  tensors = MixtralTensors();
  Named(tensors, "model.layers.0.self_attn.k_proj.weight").shape = {8, 8};
  EXPECT_THAT(RefusalOf(tensors),
              HasSubstr("model.layers.0.self_attn.k_proj.weight has shape [8, 8], expected [4, 8] (in all 1)"));
  tensors = MixtralTensors();
  Named(tensors, "model.layers.0.block_sparse_moe.experts.0.w2.weight").shape = {6, 8};  // transposed
  EXPECT_THAT(RefusalOf(tensors), HasSubstr("has shape [6, 8], expected [8, 6]"));
  tensors = MixtralTensors();
  Named(tensors, "model.norm.weight").shape = {8, 1};
  EXPECT_THAT(RefusalOf(tensors), HasSubstr("has shape [8, 1], expected [8]"));
  tensors = MixtralTensors();
  tensors.push_back({"model.layers.0.self_attn.q_proj.bias", "F32", {8}});
  EXPECT_THAT(RefusalOf(tensors),
              HasSubstr("model.layers.0.self_attn.q_proj.bias is not part of such a model (in all 1)"));
}

TEST(WeightMapTest, ListsTheFirstTenAndTheTotal) {
  auto tensors = MixtralTensors();
  Remove(tensors, "layers.1.");
  const std::string refusal = RefusalOf(tensors);
  EXPECT_THAT(
      refusal,
      AllOf(HasSubstr("model.layers.1.input_layernorm.weight is missing; "), HasSubstr("; ... (in all 16)"),
            HasSubstr("model.layers.1.block_sparse_moe.experts.0.w3.weight is missing"), Not(HasSubstr("experts.1."))));
}

TEST(WeightMapTest, TiedEmbeddings) {
  const std::string tied = std::string(kMixtralConfig).insert(1, R"("tie_word_embeddings": true, )");
  auto tensors = MixtralTensors();
  auto mapped = Map(tied, tensors);
  ASSERT_TRUE(mapped->map.ok()) << Message(mapped->map.status());  // a separate lm_head in the file is ignored
  EXPECT_EQ(mapped->map->lm_head, mapped->map->embedding);
  Remove(tensors, "lm_head");
  mapped = Map(tied, tensors);
  ASSERT_TRUE(mapped->map.ok()) << Message(mapped->map.status());
  EXPECT_EQ(mapped->map->lm_head, mapped->map->embedding);
  EXPECT_THAT(RefusalOf(tensors), HasSubstr("lm_head.weight is missing (in all 1)"));
}

TEST(WeightMapTest, IgnoresRopeFrequencies) {
  auto tensors = MixtralTensors();
  tensors.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", "F32", {1}});
  EXPECT_EQ(RefusalOf(tensors), "");
}

TEST(WeightMapTest, ConfigOfAnotherModel) {
  const std::string olmoe =
      R"({"architectures": ["OlmoeForCausalLM"], "vocab_size": 10, "hidden_size": 8, "intermediate_size": 6,
      "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "num_experts": 3, "num_experts_per_tok": 2,
      "max_position_embeddings": 16})";
  EXPECT_THAT(RefusalOf(MixtralTensors(), olmoe), HasSubstr("model.layers.0.self_attn.q_norm.weight is missing; "));
  // With the largest accepted config, MapWeights stops early instead of looking up every tensor.
  const std::string huge =
      R"({"architectures": ["MixtralForCausalLM"], "vocab_size": 10, "hidden_size": 8, "intermediate_size": 6,
      "num_hidden_layers": 1024, "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4096,
      "num_experts_per_tok": 2, "max_position_embeddings": 16})";
  EXPECT_THAT(RefusalOf(MixtralTensors(), huge),
              HasSubstr("model.layers.0.block_sparse_moe.gate.weight has shape [3, 8], "
                        "expected [4096, 8]"));
}

// The tensors of a GGUF file for kMixtralConfig, whose attention weights have these names and numbers of rows. They lie
// one behind the other.
Checkpoint GgufCheckpoint(const std::vector<std::pair<std::string, int64_t>>& attention) {
  Gguf gguf;
  uint64_t offset = 0;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    uint64_t size = sizeof(float);
    for (const int64_t dim : shape) size *= static_cast<uint64_t>(dim);
    gguf.tensors.push_back({.name = name, .shape = std::move(shape), .extent = {offset, size}});
    offset += size;
  };
  for (int layer_idx = 0; layer_idx < 2; ++layer_idx) {
    const std::string prefix = fmt::format("blk.{}.", layer_idx);
    for (const auto& [name, rows] : attention) add(prefix + name, {rows, 8});
    add(prefix + "attn_output.weight", {8, 8});
    add(prefix + "attn_norm.weight", {8});
    add(prefix + "ffn_norm.weight", {8});
    add(prefix + "ffn_gate_inp.weight", {3, 8});
    add(prefix + "ffn_gate_exps.weight", {3, 6, 8});
    add(prefix + "ffn_up_exps.weight", {3, 6, 8});
    add(prefix + "ffn_down_exps.weight", {3, 8, 6});
  }
  add("token_embd.weight", {10, 8});
  add("output_norm.weight", {8});
  add("output.weight", {10, 8});
  return Checkpoint::FromGguf(std::move(gguf)).value();
}

// Returns the rows of a matrix in a file that consists of the floats 0, 1, 2, ...
std::vector<float> RowsOf(const TensorInfo& tensor) {
  std::vector<float> file(10'000), rows(static_cast<size_t>(NumRows(tensor) * RowElements(tensor)));
  for (size_t i = 0; i < file.size(); ++i) file[i] = static_cast<float>(i);
  GatherRows(tensor, reinterpret_cast<const std::byte*>(file.data()) + tensor.extent.offset_bytes, 0, NumRows(tensor),
             reinterpret_cast<std::byte*>(rows.data()));
  return rows;
}

TEST(WeightMapTest, FusedHeadsInPairsAreThoseOfSeparateTensors) {
  const ModelConfig config = ParseModelConfig(kMixtralConfig).value();
  const Checkpoint separate = GgufCheckpoint({{"attn_q.weight", 8}, {"attn_k.weight", 4}, {"attn_v.weight", 4}});
  const Checkpoint fused = GgufCheckpoint({{"attn_qkv.weight", 16}});
  const WeightMap expected = MapWeights(config, separate).value(), found = MapWeights(config, fused).value();
  for (size_t layer_idx = 0; layer_idx < 2; ++layer_idx) {
    const LayerTensors &a = expected.layers[layer_idx], &b = found.layers[layer_idx];
    EXPECT_EQ(RowsOf(*b.q_proj), RowsOf(*a.q_proj));
    EXPECT_EQ(RowsOf(*b.k_proj), RowsOf(*a.k_proj));
    EXPECT_EQ(RowsOf(*b.v_proj), RowsOf(*a.v_proj));
  }
}

// A Mixtral whose o_proj in layer 1 is stored as codes.
constexpr char kCoded[] = "model.layers.1.self_attn.o_proj.";
std::string RefusalOfCoded(std::string_view quantization, const std::vector<TestTensor>& codes) {
  std::vector<TestTensor> tensors = MixtralTensors();
  const std::string name = std::string(kCoded) + "weight";
  Remove(tensors, name);
  for (const TestTensor& code : codes) tensors.push_back({kCoded + code.name, code.dtype, code.shape});
  std::string config = kMixtralConfig;
  config.insert(config.rfind('}'), fmt::format(", \"quantization_config\": {}", quantization));
  return RefusalOf(tensors, config);
}

// Returns `codes` with one tensor changed, or without it if its shape is {-1}.
std::vector<TestTensor> Changed(std::vector<TestTensor> codes, const TestTensor& changed) {
  std::erase_if(codes, [&](const TestTensor& tensor) { return tensor.name == changed.name; });
  if (changed.shape != std::vector<int64_t>{-1}) codes.push_back(changed);
  return codes;
}

TEST(WeightMapTest, CodesByColumnsNeedZeroPoints) {
  constexpr std::string_view kAwq = R"({"quant_method": "awq", "bits": 4, "group_size": -1})";
  constexpr std::string_view kGptq = R"({"quant_method": "gptq", "bits": 4, "group_size": -1, "sym": false})";
  const std::vector<TestTensor> codes = {
      {"qweight", "I32", {8, 1}}, {"qzeros", "I32", {1, 1}}, {"scales", "F16", {1, 8}}};
  EXPECT_EQ(RefusalOfCoded(kAwq, codes), "");
  EXPECT_EQ(RefusalOfCoded(kGptq, Changed(codes, {"qweight", "I32", {1, 8}})), "");
  EXPECT_THAT(RefusalOfCoded(kAwq, Changed(codes, {"qzeros", "I32", {-1}})), HasSubstr("o_proj.qzeros is missing"));
  EXPECT_THAT(RefusalOfCoded(kAwq, Changed(codes, {"qzeros", "I32", {1, 8}})),
              HasSubstr("o_proj.qzeros has shape [1, 8], expected [1, 1]"));
  EXPECT_THAT(RefusalOfCoded(kAwq, Changed(codes, {"qzeros", "F16", {1, 1}})),
              HasSubstr("o_proj.qzeros has dtype f16, expected i32"));
  EXPECT_THAT(RefusalOfCoded(kAwq, Changed(codes, {"scales", "F16", {8, 1}})),
              HasSubstr("o_proj.scales has shape [8, 1], expected [1, 8]"));
  EXPECT_THAT(RefusalOfCoded(kAwq, Changed(codes, {"scales", "I32", {1, 8}})),
              HasSubstr("o_proj.scales has dtype i32, expected a float"));
  EXPECT_THAT(RefusalOfCoded(kAwq, Changed(codes, {"qweight", "I32", {8, 2}})), HasSubstr("o_proj"));
  EXPECT_THAT(RefusalOfCoded(kAwq, Changed(codes, {"qweight", "F16", {8, 1}})), HasSubstr("expected a matrix of i32"));
}

TEST(WeightMapTest, CodesByRowsNeedZeroPointsOrAScaleOfScales) {
  const auto compressed = [](std::string_view form, std::string_view fields) {
    return fmt::format(R"({{"quant_method": "compressed-tensors", "format": "{}", "config_groups": {{"group_0": {{
        "weights": {{{}}}}}}}}})",
                       form, fields);
  };
  const std::string integers =
      compressed("pack-quantized", R"("num_bits": 4, "strategy": "channel", "symmetric": false)");
  const std::vector<TestTensor> rows = {
      {"weight_packed", "I32", {8, 1}}, {"weight_scale", "BF16", {8, 1}}, {"weight_zero_point", "I32", {1, 1}}};
  EXPECT_EQ(RefusalOfCoded(integers, rows), "");
  EXPECT_THAT(RefusalOfCoded(integers, Changed(rows, {"weight_zero_point", "I32", {8, 1}})),
              HasSubstr("weight_zero_point has shape [8, 1], expected [1, 1]"));
  EXPECT_THAT(RefusalOfCoded(integers, Changed(rows, {"weight_zero_point", "I32", {-1}})),
              HasSubstr("weight_zero_point is missing"));
  EXPECT_EQ(RefusalOfCoded(compressed("pack-quantized", R"("num_bits": 8, "strategy": "channel")"),
                           {{"weight_packed", "I32", {8, 2}}, {"weight_scale", "BF16", {8, 1}}}),
            "");
  // The rows have 8 inputs, and 16 or 32 share a scale.
  EXPECT_THAT(RefusalOfCoded(compressed("mxfp4-pack-quantized", R"("num_bits": 4)"),
                             {{"weight_packed", "U8", {8, 4}}, {"weight_scale", "U8", {8, 1}}}),
              HasSubstr("expected a multiple of 32 inputs"));
  EXPECT_THAT(RefusalOfCoded(R"({"quant_method": "modelopt", "quant_algo": "NVFP4"})", {{"weight", "U8", {8, 4}}}),
              HasSubstr("expected a multiple of 16 inputs"));
}

TEST(WeightMapTest, Fp8MayStandBesideNvfp4) {
  constexpr std::string_view kMixed = R"({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION",
      "quantized_layers": {"model.layers.0.self_attn.o_proj": {"quant_algo": "FP8"}}})";
  const std::vector<TestTensor> codes = {
      {"weight", "F8_E4M3", {8, 8}}, {"weight_scale", "F32", {}}, {"input_scale", "F32", {}}};
  EXPECT_EQ(RefusalOfCoded(kMixed, codes), "");
  EXPECT_THAT(RefusalOfCoded(kMixed, Changed(codes, {"weight_scale", "F32", {-1}})),
              HasSubstr("weight_scale is missing"));
  EXPECT_THAT(RefusalOfCoded(kMixed, Changed(codes, {"weight_scale", "F8_E4M3", {8, 1}})),
              HasSubstr("weight_scale has dtype f8_e4m3, expected a float"));
}

TEST(WeightMapTest, Nvfp4NeedsScalesOfBothKinds) {
  constexpr std::string_view kModelopt = R"({"quant_method": "modelopt", "quant_algo": "NVFP4"})";
  const std::vector<TestTensor> codes = {{"weight", "U8", {8, 8}},
                                         {"weight_scale", "F8_E4M3", {8, 1}},
                                         {"weight_scale_2", "F32", {}},
                                         {"input_scale", "F32", {}}};
  // All faults but that of the inputs, of which this Mixtral has 8.
  const auto faults = [&](const TestTensor& changed) { return RefusalOfCoded(kModelopt, Changed(codes, changed)); };
  EXPECT_THAT(faults({"weight_scale_2", "F32", {-1}}), HasSubstr("weight_scale_2 is missing"));
  EXPECT_THAT(faults({"weight_scale_2", "F16", {2}}), HasSubstr("weight_scale_2 has shape [2], expected []"));
  EXPECT_THAT(faults({"weight_scale", "F8_E4M3", {-1}}), HasSubstr("weight_scale is missing"));
  EXPECT_THAT(faults({"weight_scale", "U8", {8, 1}}), HasSubstr("weight_scale has dtype u8, expected f8_e4m3"));
  EXPECT_THAT(faults({"weight_scale", "F8_E4M3", {4, 1}}),
              AllOf(HasSubstr("weight_scale has shape [4, 1], expected [8, 1]"),
                    HasSubstr("weight has shape [8, 16], expected [8, 8]"), HasSubstr("in all 2")));
}

}  // namespace
}  // namespace penstock
