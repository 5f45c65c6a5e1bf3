// Proves that quantization_config of published checkpoints, and modelopt's own file, name the codes that they mean.
// tests/cli/bad_configs.py has what is refused.
#include "penstock/model/coded_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>

#include "penstock/base/status.h"
#include "penstock/model/model_config.h"

namespace penstock {
namespace {

using testing::HasSubstr;

constexpr char kConfig[] =
    R"({{"architectures": ["MixtralForCausalLM"], "vocab_size": 300, "hidden_size": 16, "intermediate_size": 24,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4,
    "num_experts_per_tok": 2, "max_position_embeddings": 128, "quantization_config": {}}})";

// Fields of published checkpoints, assembled.
TEST(CodedWeightsTest, ReadsPublishedQuantizationConfigs) {
  struct Published {
    std::string_view config;
    CodedWeights::Kind kind;
    WeightFormat format;
    int64_t group;
    bool has_groups = false;
  };
  using Kind = CodedWeights::Kind;
  const Published kPublished[] = {
      // Qwen3-30B-A3B-AWQ
      {R"({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": true,
           "backend": "autoawq", "do_fuse": false, "modules_to_not_convert": ["mlp.gate"]})",
       Kind::kAwq, WeightFormat::kU4, 128},
      // AWQ of llm-compressor
      {R"({"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head", "re:.*mlp.gate$"],
           "kv_cache_scheme": null, "quantization_status": "compressed", "config_groups": {"group_0": {
           "targets": ["Linear"], "input_activations": null, "output_activations": null, "weights": {"actorder": null,
           "block_structure": null, "dynamic": false, "group_size": 128, "num_bits": 4, "observer": "mse",
           "observer_kwargs": {}, "strategy": "group", "symmetric": false, "type": "int"}}}})",
       Kind::kIntRows, WeightFormat::kU4, 128},
      // DeepSeek-V3.1-NVFP4 and Kimi-K2-Instruct-NVFP4 of nvidia
      {R"({"quant_method": "modelopt", "quant_algo": "NVFP4", "producer": {"name": "modelopt", "version": "0.33.1"},
           "ignore": ["lm_head", "model.layers.0.self_attn*"],
           "kv_cache_scheme": {"dynamic": false, "num_bits": 8, "type": "float"}, "config_groups": {"group_0": {
           "targets": ["Linear"], "input_activations": {"dynamic": false, "num_bits": 4, "type": "float",
           "group_size": 16}, "weights": {"dynamic": false, "num_bits": 4, "type": "float", "group_size": 16}}}})",
       Kind::kNvfp4, WeightFormat::kNvfp4, 16},
      // Qwen3.6-35B-A3B-NVFP4 of nvidia, some of its layers
      {R"({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "ignore": ["mtp.layers.0*", "mtp*"],
           "quantized_layers": {"model.language_model.layers.0.linear_attn.out_proj": {"quant_algo": "FP8"},
           "model.language_model.layers.0.mlp.experts": {"quant_algo": "W4A16_NVFP4", "group_size": 16}}})",
       Kind::kNvfp4, WeightFormat::kNvfp4, 16},
      // NVFP4 of llm-compressor
      {R"({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "ignore": ["lm_head"],
           "config_groups": {"group_0": {"targets": ["Linear"], "input_activations": {"dynamic": "local",
           "group_size": 16, "num_bits": 4, "strategy": "tensor_group", "symmetric": true, "type": "float"},
           "weights": {"dynamic": false, "group_size": 16, "num_bits": 4, "strategy": "tensor_group",
           "symmetric": true, "type": "float"}}}})",
       Kind::kPackedNvfp4, WeightFormat::kNvfp4, 16},
      // Qwen3-30B-A3B-GPTQ-Int4
      {R"({"quant_method": "gptq", "bits": 4, "group_size": 128, "damp_percent": 0.01, "desc_act": false, "sym": true,
           "static_groups": false, "true_sequential": true, "model_name_or_path": null})",
       Kind::kIntColumns, WeightFormat::kQ4_0, 128},
      // Mixtral-8x7B-v0.1-GPTQ of TheBloke, gptq-4bit-128g-actorder_True
      {R"({"quant_method": "gptq", "bits": 4, "group_size": 128, "damp_percent": 0.1, "desc_act": true, "sym": true,
           "true_sequential": true, "model_name_or_path": null, "model_file_base_name": "model"})",
       Kind::kIntColumns, WeightFormat::kQ4_0, 128, true},
      // W8A16 of llm-compressor
      {R"({"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"], "config_groups": {
           "group_0": {"targets": ["Linear"], "weights": {"group_size": null, "num_bits": 8, "strategy": "channel",
           "symmetric": true, "type": "int"}}}})",
       Kind::kIntRows, WeightFormat::kQ8_0, 0},
  };
  for (const Published& published : kPublished) {
    const auto config = ParseModelConfig(fmt::format(kConfig, published.config));
    ASSERT_TRUE(config.ok()) << published.config << Message(config.status());
    EXPECT_EQ(config->coded.kind, published.kind) << published.config;
    EXPECT_EQ(config->coded.format, published.format) << published.config;
    EXPECT_EQ(config->coded.group, published.group) << published.config;
    EXPECT_EQ(config->coded.has_groups, published.has_groups) << published.config;
  }
}

TEST(CodedWeightsTest, ReadsModeloptsOwnFile) {
  const auto coded = ParseModeloptFile(R"({"producer": {"name": "modelopt", "version": "0.23.0"}, "quantization": {
      "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16, "exclude_modules": ["lm_head"]}})");
  ASSERT_TRUE(coded.ok()) << Message(coded.status());
  EXPECT_EQ(coded->kind, CodedWeights::Kind::kNvfp4);
  const auto only_cache = ParseModeloptFile(R"({"quantization": {"quant_algo": null, "kv_cache_quant_algo": "FP8"}})");
  ASSERT_TRUE(only_cache.ok()) << Message(only_cache.status());
  EXPECT_EQ(only_cache->kind, CodedWeights::Kind::kNone);
  EXPECT_THAT(Message(ParseModeloptFile(R"({"quantization": {"quant_algo": "W4A8_AWQ"}})").status()),
              HasSubstr("hf_quant_config.json: field 'quantization': field 'quant_algo': expected 'NVFP4'"));
  EXPECT_THAT(Message(ParseModeloptFile(R"({"quantization": {"quant_algo": "MIXED_PRECISION", "quantized_layers": {
                  "lm_head": {"quant_algo": "W4A8_AWQ"}}}})")
                          .status()),
              HasSubstr("field 'quantized_layers': lm_head: field 'quant_algo': expected 'NVFP4'"));
  EXPECT_THAT(Message(ParseModeloptFile("[]").status()), HasSubstr("'quantization': expected an object"));
}

}  // namespace
}  // namespace penstock
