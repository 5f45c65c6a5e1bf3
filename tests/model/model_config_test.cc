// Proves that configs of published models are read with their published dims, and that models which Penstock cannot run
// are refused. Proves that every field with a wrong type, range or relation is refused with a message that names it.
#include "penstock/model/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "penstock/base/file.h"
#include "penstock/base/json.h"
#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "penstock/model/family.h"
#include "penstock/model/generation_config.h"
#include "penstock/model/weight_map.h"

namespace penstock {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

absl::StatusOr<ModelConfig> FromFile(const std::string& path) {
  const auto text = ReadFile(std::string(PENSTOCK_SOURCE_DIR "/tests/") + path, kMaxConfigBytes);
  EXPECT_TRUE(text.ok()) << Message(text.status());
  return ParseModelConfig(text.value_or(""));
}

// Returns a small valid Mixtral as JSON, with `fields` (the inside of an object) replacing its own.
std::string MixtralWith(std::string_view fields) {
  json::object config = ParseJson(R"({"architectures": ["MixtralForCausalLM"], "vocab_size": 300, "hidden_size": 16,
      "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
      "num_local_experts": 4, "num_experts_per_tok": 2, "max_position_embeddings": 128})",
                                  Fault::kInternal)
                            ->get_object();
  const json::value changes = ParseJson(fmt::format("{{{}}}", fields), Fault::kInternal).value();
  for (const auto& [key, value] : changes.get_object()) config[key] = value;
  return std::string(json::serialize(config));
}

// Returns the error for a Mixtral with these fields; empty when it is accepted.
std::string RefusalOf(std::string_view fields) {
  const auto config = ParseModelConfig(MixtralWith(fields));
  if (config.ok()) return "";
  EXPECT_EQ(FaultOf(config.status()), Fault::kModel);
  return Message(config.status());
}

TEST(ModelConfigTest, ReadsMixtral8x7B) {
  const auto config = FromFile("data/configs/mixtral-8x7b.json");
  ASSERT_TRUE(config.ok()) << Message(config.status());
  EXPECT_EQ(config->family, &kMixtral);
  EXPECT_EQ(config->vocab_size, 32000);
  EXPECT_EQ(config->model_dim, 4096);
  EXPECT_EQ(config->num_layers, 32);
  EXPECT_EQ(config->num_heads, 32);
  EXPECT_EQ(config->num_kv_heads, 8);
  EXPECT_EQ(config->head_dim, 128);
  EXPECT_EQ(config->num_experts, 8);
  EXPECT_EQ(config->num_topk, 2);
  EXPECT_EQ(config->expert_dim, 14336);
  EXPECT_EQ(config->max_positions, 32768);
  EXPECT_EQ(config->sliding_window, 0);
  EXPECT_EQ(config->rope.theta, 1e6);
  EXPECT_EQ(config->qk_norm, QkNorm::kNone);
  EXPECT_TRUE(config->router.renormalises);
  EXPECT_FALSE(config->tie_embeddings);
  EXPECT_EQ(config->num_moe_layers(), 32);
  EXPECT_THAT(config->eos_ids, ElementsAre(2));
}

TEST(ModelConfigTest, ReadsMixtral8x22B) {
  const auto config = FromFile("data/configs/mixtral-8x22b.json");
  ASSERT_TRUE(config.ok()) << Message(config.status());
  EXPECT_EQ(config->model_dim, 6144);
  EXPECT_EQ(config->num_layers, 56);
  EXPECT_EQ(config->num_heads, 48);
  EXPECT_EQ(config->expert_dim, 16384);
}

TEST(ModelConfigTest, ReadsQwen3Moe) {
  const auto small = FromFile("data/configs/qwen3-30b-a3b.json");
  ASSERT_TRUE(small.ok()) << Message(small.status());
  EXPECT_EQ(small->family, &kQwen3Moe);
  EXPECT_EQ(small->num_experts, 128);
  EXPECT_EQ(small->num_topk, 8);
  EXPECT_EQ(small->expert_dim, 768);
  EXPECT_EQ(small->dense_ffn_dim, 6144);
  EXPECT_EQ(small->head_dim, 128);
  EXPECT_EQ(small->q_dim(), 4096);  // twice model_dim: head_dim is a separate field
  EXPECT_EQ(small->model_dim, 2048);
  EXPECT_EQ(small->qk_norm, QkNorm::kPerHead);
  EXPECT_EQ(small->sliding_window, 0);
  EXPECT_EQ(small->num_moe_layers(), 48);
  EXPECT_TRUE(small->router.renormalises);
  const auto large = FromFile("data/configs/qwen3-235b-a22b.json");
  ASSERT_TRUE(large.ok()) << Message(large.status());
  EXPECT_EQ(large->num_layers, 94);
  EXPECT_EQ(large->num_kv_heads, 4);
}

TEST(ModelConfigTest, ReadsOlmoeAndLayersWithoutExperts) {
  const auto olmoe = FromFile("golden/olmoe-odd/config.json");
  ASSERT_TRUE(olmoe.ok()) << Message(olmoe.status());
  EXPECT_EQ(olmoe->family, &kOlmoe);
  EXPECT_EQ(olmoe->qk_norm, QkNorm::kWhole);
  EXPECT_FLOAT_EQ(olmoe->clip_qkv, 0.8f);
  EXPECT_EQ(olmoe->head_dim, 10);
  const auto qwen = FromFile("golden/qwen3moe-odd/config.json");
  ASSERT_TRUE(qwen.ok()) << Message(qwen.status());
  // Every second layer has experts, and layer 3 is listed as dense.
  EXPECT_THAT(qwen->layer_has_experts, ElementsAre(false, true, false, false, false, true));
  EXPECT_TRUE(qwen->qkv_bias);
  EXPECT_TRUE(qwen->tie_embeddings);
  const auto sliding = FromFile("golden/mixtral-sliding/config.json");
  ASSERT_TRUE(sliding.ok()) << Message(sliding.status());
  EXPECT_EQ(sliding->sliding_window, 16);
}

TEST(ModelConfigTest, ReadsIndexers) {
  const auto deepseek = FromFile("data/configs/deepseek-v3.2.json");
  ASSERT_TRUE(deepseek.ok()) << Message(deepseek.status());
  EXPECT_EQ(deepseek->family, &kDeepseekV32);
  EXPECT_EQ(deepseek->coded.kind, CodedWeights::Kind::kFp8);
  EXPECT_EQ(deepseek->indexer.num_heads, 64);
  EXPECT_EQ(deepseek->indexer.head_dim, 128);
  EXPECT_EQ(deepseek->indexer.num_topk, 2048);
  EXPECT_FALSE(deepseek->indexer.is_interleaved);
  EXPECT_TRUE(deepseek->rope.is_interleaved);
  EXPECT_EQ(deepseek->num_index_layers(), 61);
  EXPECT_EQ(deepseek->num_mtp_layers, 1);
  EXPECT_EQ(deepseek->router.num_groups, 8);
  const auto glm = FromFile("data/configs/glm-5.json");
  ASSERT_TRUE(glm.ok()) << Message(glm.status());
  EXPECT_EQ(glm->family, &kGlmMoeDsa);
  EXPECT_EQ(glm->indexer.num_heads, 32);
  EXPECT_TRUE(glm->indexer.is_interleaved);
  EXPECT_EQ(glm->num_index_layers(), 78);
  EXPECT_EQ(glm->mla.nope_dim, 192);
  EXPECT_EQ(glm->num_moe_layers(), 75);
  EXPECT_FLOAT_EQ(glm->norm_eps, 1e-5f);
  // Layers 0 to 2 have an indexer, then every fourth.
  const auto sharing = FromFile("data/configs/glm-5.2.json");
  ASSERT_TRUE(sharing.ok()) << Message(sharing.status());
  EXPECT_EQ(sharing->num_index_layers(), 21);
  EXPECT_FALSE(sharing->has_indexer(3));
  EXPECT_TRUE(sharing->has_indexer(6));
  EXPECT_EQ(sharing->index_layer_of(10), 4);
  EXPECT_TRUE(sharing->has_indexer(74));
}

TEST(ModelConfigTest, RefusesIndexersThatCannotBe) {
  const std::string text = ReadFile(PENSTOCK_SOURCE_DIR "/tests/data/configs/glm-5.json", 1 << 20).value();
  const auto refusal = [&](const std::string& field, const std::string& value) {
    json::object config = ParseJson(text, Fault::kInternal)->get_object();
    config[field] = ParseJson(value, Fault::kInternal).value();
    return Message(ParseModelConfig(json::serialize(config)).status());
  };
  EXPECT_THAT(refusal("q_lora_rank", "null"), HasSubstr("q_lora_rank"));
  EXPECT_THAT(refusal("index_topk", "0"), HasSubstr("index_topk"));
  EXPECT_THAT(refusal("index_head_dim", "32"), HasSubstr("index_head_dim 32 is less than qk_rope_head_dim 64"));
  EXPECT_THAT(refusal("index_n_heads", "2048"), HasSubstr("index_n_heads"));
  EXPECT_THAT(refusal("indexer_types", R"(["full"])"), HasSubstr("indexer_types"));
  EXPECT_THAT(refusal("index_topk_pattern", R"("FSX")"), HasSubstr("index_topk_pattern"));
  const std::string shared = '"' + std::string(78, 'S') + '"', first = '"' + std::string(78, 'F') + '"';
  EXPECT_THAT(refusal("index_topk_pattern", shared), HasSubstr("first layer has no indexer"));
  EXPECT_EQ(refusal("index_topk_pattern", first), "");
}

TEST(ModelConfigTest, RefusesModelsItCannotRun) {
  const auto refusal = [](const char* file) {
    const auto config = FromFile(std::string("data/configs/") + file);
    EXPECT_FALSE(config.ok());
    return Message(config.status());
  };
  EXPECT_THAT(refusal("qwen3-0.6b.json"), HasSubstr("'Qwen3ForCausalLM' is not supported"));
  EXPECT_EQ(FromFile("data/configs/deepseek-v3.json")->coded.kind, CodedWeights::Kind::kFp8);
  EXPECT_EQ(FromFile("data/configs/gpt-oss-20b.json")->coded.kind, CodedWeights::Kind::kMxfp4);
  EXPECT_TRUE(FromFile("data/configs/phi-3.5-moe.json").ok());  // its code is not needed
  const auto known_family = [](const std::string& field) {
    return Message(ParseModelConfig(MixtralWith(field)).status());
  };
  EXPECT_THAT(known_family(R"("quantization_config": {})"), HasSubstr("'quantization_config'"));
  EXPECT_THAT(known_family(R"("auto_map": {})"), HasSubstr("custom code is never run"));
  EXPECT_THAT(refusal("qwen3-0.6b.json"),
              AllOf(HasSubstr("'Qwen3ForCausalLM' is not supported"), HasSubstr("MixtralForCausalLM"),
                    HasSubstr("OlmoeForCausalLM"), HasSubstr("Qwen3MoeForCausalLM")));
}

TEST(ModelConfigTest, DefaultsAreThoseOfTheFamilies) {
  const auto config = ParseModelConfig(MixtralWith(R"("num_key_value_heads": null)"));
  ASSERT_TRUE(config.ok()) << Message(config.status());
  EXPECT_EQ(config->num_kv_heads, 4);
  EXPECT_EQ(config->head_dim, 4);
  EXPECT_EQ(config->rope.theta, 1e6);
  EXPECT_TRUE(config->eos_ids.empty());
  const auto new_style = ParseModelConfig(MixtralWith(R"("rope_parameters": {"rope_type": "default"})"));
  ASSERT_TRUE(new_style.ok()) << Message(new_style.status());
  EXPECT_EQ(new_style->rope.theta, 1e6);
}

TEST(ModelConfigTest, DefaultsOfQwen) {
  const std::string fields = R"("architectures": ["Qwen3MoeForCausalLM"], "moe_intermediate_size": 8)";
  const auto plain = ParseModelConfig(MixtralWith(fields));
  ASSERT_TRUE(plain.ok()) << Message(plain.status());
  EXPECT_EQ(plain->norm_eps, 1e-6f);
  EXPECT_EQ(plain->rope.theta, 1e4);
  EXPECT_EQ(plain->sliding_window, 0);
  const auto window = [&](std::string_view more) {
    return ParseModelConfig(MixtralWith(fmt::format(R"({}, "use_sliding_window": true{})", fields, more)))
        ->sliding_window;
  };
  EXPECT_EQ(window(""), 4096);
  EXPECT_EQ(window(R"(, "sliding_window": null)"), 0);
  EXPECT_EQ(window(R"(, "sliding_window": 32)"), 32);
}

TEST(ModelConfigTest, SyntaxErrorsNamePlace) {
  for (const std::string_view text :
       {"", "{", "{'a': 1}", "{\"a\": 1,}", "{\"a\": nan}", "// x\n{}", "{} {}", "\xEF\xBB\xBF{}"}) {
    const auto config = ParseModelConfig(text);
    ASSERT_FALSE(config.ok()) << text;
    EXPECT_THAT(Message(config.status()), AllOf(HasSubstr("config.json: line "), HasSubstr("column "))) << text;
  }
  EXPECT_THAT(Message(ParseModelConfig("[]").status()), HasSubstr("expected an object, found array"));
}

// Python writes such configs. A field that Penstock reads must be finite.
TEST(ModelConfigTest, InfinityIsTakenWhereNobodyReadsIt) {
  const auto with = [](std::string_view field, std::string_view word) {
    std::string text = MixtralWith(fmt::format(R"("{}": "@")", field));
    return ParseModelConfig(text.replace(text.find(R"("@")"), 3, word));
  };
  for (const std::string_view words : {"[0.0, Infinity]", "-Infinity", R"({"y": [NaN]})"}) {
    const auto config = with("time_step_limit", words);
    EXPECT_TRUE(config.ok()) << Message(config.status());
  }
  EXPECT_THAT(Message(with("rope_theta", "Infinity").status()), HasSubstr("'rope_theta': expected a number"));
  EXPECT_THAT(Message(with("rms_norm_eps", "NaN").status()),
              HasSubstr("'rms_norm_eps': expected a number from 0 to 1"));
  EXPECT_THAT(Message(with("num_hidden_layers", "-Infinity").status()),
              HasSubstr("'num_hidden_layers': expected an integer"));
}

TEST(ModelConfigTest, ArchitecturesMustBeAKnownOne) {
  for (const std::string_view value : {"null", "[]", "7", "\"MixtralForCausalLM\"", "[7]", "{}"}) {
    EXPECT_THAT(RefusalOf(fmt::format("\"architectures\": {}", value)),
                HasSubstr("field 'architectures': expected a list"));
  }
  EXPECT_THAT(RefusalOf(R"("architectures": ["X"], "auto_map": {})"), HasSubstr("custom code is never run"));
  EXPECT_THAT(RefusalOf(R"("quantization_config": {"quant_method": "hqq"})"),
              HasSubstr("'quant_method': expected 'fp8', 'mxfp4', 'compressed-tensors', 'gptq', 'awq', 'auto-round' or "
                        "'modelopt'"));
}

TEST(ModelConfigTest, EveryIntegerFieldIsChecked) {
  for (const std::string_view field :
       {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
        "num_experts_per_tok", "max_position_embeddings", "num_local_experts", "intermediate_size", "sliding_window"}) {
    for (const std::string_view value : {"\"32\"", "-1", "0", "1.5", "32.0", "1e308", "9007199254740993",
                                         "9223372036854775808", "18446744073709551615", "true", "[32]", "{}"}) {
      EXPECT_THAT(RefusalOf(fmt::format("\"{}\": {}", field, value)),
                  AllOf(HasSubstr(fmt::format("config.json: field '{}': expected an integer from 1 to ", field)),
                        HasSubstr(", found ")))
          << value;
    }
  }
  for (const std::string_view field :
       {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings",
        "num_local_experts", "intermediate_size", "num_experts_per_tok"}) {
    EXPECT_THAT(RefusalOf(fmt::format("\"{}\": null", field)), HasSubstr(fmt::format("field '{}'", field)));
  }
}

TEST(ModelConfigTest, OtherFieldsAreChecked) {
  for (const std::string_view field : {"rms_norm_eps", "rope_theta"}) {
    for (const std::string_view value : {"\"1\"", "-1", "1e308", "[]"}) {
      EXPECT_THAT(RefusalOf(fmt::format("\"{}\": {}", field, value)),
                  HasSubstr(fmt::format("field '{}': expected a number from", field)));
    }
  }
  EXPECT_THAT(RefusalOf(R"("tie_word_embeddings": 1)"), HasSubstr("'tie_word_embeddings': expected true or false"));
  EXPECT_THAT(RefusalOf(R"("hidden_act": "gelu")"), HasSubstr("'hidden_act': expected 'silu', found 'gelu'"));
  EXPECT_THAT(RefusalOf(R"("hidden_act": 7)"), HasSubstr("'hidden_act': expected a string"));
  // The message shortens a long value.
  EXPECT_LT(RefusalOf(fmt::format("\"vocab_size\": \"{}\"", std::string(100000, 'x'))).size(), 300u);
}

TEST(ModelConfigTest, RelationsAreNamed) {
  EXPECT_EQ(RefusalOf(R"("num_experts_per_tok": 5)"),
            "config.json: num_experts_per_tok 5 is more than the number of experts 4");
  EXPECT_EQ(RefusalOf(R"("num_key_value_heads": 3)"),
            "config.json: num_attention_heads 4 is not a multiple of num_key_value_heads 3");
  EXPECT_THAT(RefusalOf(R"("num_attention_heads": 3, "num_key_value_heads": 3)"),
              HasSubstr("hidden_size 16 is not a multiple of num_attention_heads 3"));
  EXPECT_THAT(RefusalOf(R"("head_dim": 5)"), HasSubstr("head_dim 5 must be even"));
}

TEST(ModelConfigTest, UnknownRopeIsRefused) {
  for (const std::string_view field : {"rope_scaling", "rope_parameters"}) {
    for (const std::string_view key : {"type", "rope_type"}) {
      EXPECT_THAT(RefusalOf(fmt::format(R"("{}": {{"{}": "ntk", "factor": 4}})", field, key)),
                  AllOf(HasSubstr(fmt::format("field '{}'", field)), HasSubstr("found 'ntk'")));
    }
    EXPECT_THAT(RefusalOf(fmt::format("\"{}\": 7", field)), HasSubstr("expected an object or null"));
    EXPECT_THAT(RefusalOf(fmt::format(R"("{}": {{"rope_theta": -1}})", field)), HasSubstr("rope_theta"));
  }
  const auto config =
      ParseModelConfig(MixtralWith(R"("rope_parameters": {"rope_type": "default", "rope_theta": 5000})"));
  ASSERT_TRUE(config.ok()) << Message(config.status());
  EXPECT_EQ(config->rope.theta, 5000.0);
}

// Returns a small Gemma 4, with `fields` (the inside of an object) replacing its own.
std::string GemmaWith(std::string_view fields) {
  json::object config = ParseJson(R"({"architectures": ["Gemma4ForCausalLM"], "vocab_size": 300, "hidden_size": 16,
      "intermediate_size": 24, "moe_intermediate_size": 8, "num_hidden_layers": 7, "num_attention_heads": 4,
      "num_key_value_heads": 2, "head_dim": 8, "global_head_dim": 12, "num_global_key_value_heads": 1,
      "attention_k_eq_v": true, "enable_moe_block": true, "num_experts": 4, "top_k_experts": 2,
      "hidden_size_per_layer_input": 0})",
                                  Fault::kInternal)
                            ->get_object();
  const json::value changes = ParseJson(fmt::format("{{{}}}", fields), Fault::kInternal).value();
  for (const auto& [key, value] : changes.get_object()) config[key] = value;
  return std::string(json::serialize(config));
}

// The weights add up to the published 25.2 billion.
TEST(ModelConfigTest, ReadsGemma4) {
  const auto config = FromFile("data/configs/gemma-4-26b-a4b.json");
  ASSERT_TRUE(config.ok()) << Message(config.status());
  EXPECT_EQ(config->family, &kGemma4);
  EXPECT_EQ(config->num_layers, 30);
  EXPECT_EQ(config->num_topk, 8);
  EXPECT_EQ(config->shared_ffn_dim, 2112);
  EXPECT_TRUE(config->tie_embeddings);
  EXPECT_EQ(config->attention_scale, 1);
  EXPECT_EQ(config->logit_cap, 30);
  EXPECT_EQ(config->window_of(4), 1024);
  EXPECT_EQ(config->window_of(5), 0);
  EXPECT_EQ(config->heads_of(4).head_dim, 256);
  EXPECT_EQ(config->heads_of(4).num_kv_heads, 8);
  EXPECT_FALSE(config->heads_of(4).keys_are_values);
  EXPECT_EQ(config->heads_of(5).head_dim, 512);
  EXPECT_EQ(config->heads_of(5).num_kv_heads, 2);
  EXPECT_TRUE(config->heads_of(5).keys_are_values);
  EXPECT_EQ(config->q_dim(4), 4096);
  EXPECT_EQ(config->q_dim(), 8192);
  EXPECT_EQ(config->kv_dim(5), 1024);
  EXPECT_EQ(config->kv_dim(), 2048);
  EXPECT_EQ(config->rotary_dim_of(4), 256);
  EXPECT_EQ(config->rotary_dim_of(5), 512);
  EXPECT_EQ(config->num_angles(), 128 + 256);
  EXPECT_EQ(config->first_angle_of(5), 128);
  const std::vector<float>& frequencies = config->other_ropes[0].usual.frequencies;
  EXPECT_GT(frequencies[63], 0);
  EXPECT_EQ(frequencies[64], 0);  // a quarter of the pairs rotates
  int64_t num_weights = 0;
  for (const TensorInfo& tensor : DescribeWeights(*config, WeightFormat::kBF16).own) {
    int64_t count = 1;
    for (const int64_t dim : tensor.shape) count *= dim;
    num_weights += count;
  }
  EXPECT_EQ((num_weights + 50'000'000) / 100'000'000, 252);
}

TEST(ModelConfigTest, GemmaHasHeadsByLayer) {
  const ModelConfig config = ParseModelConfig(GemmaWith("")).value();
  EXPECT_THAT(config.layer_has_window, ElementsAre(true, true, true, true, true, false, false));  // the last never has
  EXPECT_EQ(config.heads_of(5).head_dim, 12);
  EXPECT_EQ(config.heads_of(5).num_kv_heads, 1);
  // Without attention_k_eq_v, transformers ignores the other number of KV heads.
  const ModelConfig own_values = ParseModelConfig(GemmaWith(R"("attention_k_eq_v": false)")).value();
  EXPECT_EQ(own_values.heads_of(5).num_kv_heads, 2);
  EXPECT_FALSE(own_values.heads_of(5).keys_are_values);
  const ModelConfig by_layer = ParseModelConfig(GemmaWith(R"("per_layer_config": {"6": {"head_dim": 10}})")).value();
  EXPECT_EQ(by_layer.heads_of(5).head_dim, 8);
  EXPECT_EQ(by_layer.heads_of(6).head_dim, 10);
  EXPECT_EQ(by_layer.heads_of(6).num_kv_heads, 2);
}

TEST(ModelConfigTest, GemmaIsRefusedByField) {
  const std::pair<std::string_view, std::string_view> cases[] = {
      {R"("enable_moe_block": false)", "'enable_moe_block': expected true: only models with experts are computed"},
      {R"("hidden_size_per_layer_input": 256)", "'hidden_size_per_layer_input': expected 0, found 256"},
      {R"("hidden_size_per_layer_input": null)", "'hidden_size_per_layer_input': expected 0, found 256"},
      {R"("num_kv_shared_layers": 2)", "'num_kv_shared_layers': expected 0, found 2"},
      {R"("use_bidirectional_attention": "all")", "'use_bidirectional_attention': expected null or 'vision'"},
      {R"("hidden_activation": "silu")", "'hidden_activation': expected 'gelu_pytorch_tanh', found 'silu'"},
      {R"("num_global_key_value_heads": 3)", "num_attention_heads 4 is not a multiple of num_key_value_heads 3"},
      {R"("global_head_dim": 4096)", "'global_head_dim'"},
      {R"("global_head_dim": 11)", "head_dim 11 must be even"},
      {R"("per_layer_config": 7)", "'per_layer_config': expected an object"},
      {R"("per_layer_config": {"7": {}})", "'per_layer_config': expected an object for each index of a layer"},
      {R"("per_layer_config": {"x": {}})", "'per_layer_config': expected an object for each index of a layer"},
      {R"("per_layer_config": {"1": {"hidden_size": 8}})", "only head_dim and num_key_value_heads in it"},
      {R"("per_layer_config": {"1": {"head_dim": 0}})", "'per_layer_config': field 'head_dim'"},
      {R"("rope_parameters": {"sliding_attention": {"partial_rotary_factor": 0.5}, "full_attention": {}})",
       "'partial_rotary_factor': expected 1 in this family"},
  };
  for (const auto& [fields, expected] : cases) {
    EXPECT_THAT(Message(ParseModelConfig(GemmaWith(fields)).status()), HasSubstr(expected)) << fields;
  }
}

// Returns the config of a family that may have a RoPE for each layer.
std::string GraniteWith(std::string_view fields) {
  return fmt::format(R"({{"architectures": ["GraniteMoeSWAForCausalLM"], "vocab_size": 300, "hidden_size": 16,
      "intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4,
      "num_experts_per_tok": 2, "max_position_embeddings": 64, {}}})",
                     fields);
}
std::string MellumWith(std::string_view rope_parameters) {
  return fmt::format(R"({{"architectures": ["MellumForCausalLM"], "vocab_size": 300, "hidden_size": 16, "head_dim": 4,
      "moe_intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
      "num_experts": 4, "num_experts_per_tok": 2, "layer_types": ["sliding_attention", "full_attention"],
      "rope_parameters": {}}})",
                     rope_parameters);
}
std::string WhyNot(const std::string& config) { return Message(ParseModelConfig(config).status()); }

TEST(ModelConfigTest, LayersMayHaveThetasOfTheirOwn) {
  const ModelConfig config =
      ParseModelConfig(GraniteWith(R"("num_hidden_layers": 4, "layer_rope_theta": [900, 0, 300, 900])")).value();
  EXPECT_EQ(config.rope.theta, 900);
  ASSERT_EQ(config.other_ropes.size(), 1u);
  EXPECT_EQ(config.other_ropes[0].theta, 300);
  EXPECT_THAT(config.layer_rope, ElementsAre(0, kNoRope, 1, 0));
  EXPECT_EQ(config.num_angles(), config.rope.rotary_dim);
  EXPECT_EQ(config.first_angle_of(2), config.rope.rotary_dim / 2);
  EXPECT_EQ(config.rotary_dim_of(1), 0);
  const ModelConfig none =
      ParseModelConfig(GraniteWith(R"("num_hidden_layers": 2, "layer_rope_theta": [0, 0])")).value();
  EXPECT_EQ(none.rotary_dim_of(0) + none.rotary_dim_of(1), 0);
  for (const std::string_view thetas : {"[900]", "7", "[900, -1]", "[900, \"x\"]", "[1, 2, 3]", "[900, 1e300]"}) {
    EXPECT_THAT(WhyNot(GraniteWith(fmt::format(R"("num_hidden_layers": 2, "layer_rope_theta": {})", thetas))),
                HasSubstr("'layer_rope_theta': expected a list of 2 numbers"));
  }
  std::string many = "1";
  for (int theta = 2; theta <= 20; ++theta) many += fmt::format(", {}", theta);
  EXPECT_THAT(WhyNot(GraniteWith(fmt::format(R"("num_hidden_layers": 20, "layer_rope_theta": [{}])", many))),
              HasSubstr("more than 16 kinds of RoPE"));
  // Other families ignore the field, as transformers does.
  EXPECT_EQ(ParseModelConfig(MixtralWith(R"("layer_rope_theta": [0, 7])"))->layer_rope.size(), 0u);
}

TEST(ModelConfigTest, LayersMayHaveRopesByType) {
  const std::string both = R"({"full_attention": {"rope_theta": 500}, "sliding_attention": {"rope_theta": 700}})";
  const ModelConfig config = ParseModelConfig(MellumWith(both)).value();
  EXPECT_EQ(config.rope.theta, 700);
  ASSERT_EQ(config.other_ropes.size(), 1u);
  EXPECT_EQ(config.other_ropes[0].theta, 500);
  EXPECT_THAT(config.layer_rope, ElementsAre(0, 1));
  EXPECT_EQ(ParseModelConfig(MellumWith("null"))->rope.theta, 1e4);
  EXPECT_THAT(WhyNot(MellumWith(R"({"full_attention": {"rope_theta": 500}})")),
              HasSubstr("'rope_parameters': expected an object 'sliding_attention' in it, found none"));
  EXPECT_THAT(WhyNot(MellumWith(R"({"full_attention": {}, "sliding_attention": 7})")), HasSubstr("found integer"));
  EXPECT_THAT(WhyNot(MellumWith(both + R"(, "rope_scaling": {"type": "yarn", "factor": 4})")),
              HasSubstr("'rope_scaling': expected an object 'sliding_attention' in it"));
}

TEST(ModelConfigTest, AlphaIsHunyuansOnly) {
  const std::string scaling = R"("rope_scaling": {"type": "dynamic", "factor": 1, "alpha": 1000})";
  EXPECT_EQ(ParseModelConfig(MixtralWith(scaling))->rope.theta, ParseModelConfig(MixtralWith("\"x\": 0"))->rope.theta);
}

TEST(ModelConfigTest, DynamicRopeChangesNothingUpToMaxPositions) {
  const auto frequencies = [](std::string_view scaling) {
    return ParseModelConfig(MixtralWith(fmt::format("\"rope_scaling\": {}", scaling)))->rope.usual.frequencies;
  };
  EXPECT_EQ(frequencies(R"({"type": "dynamic", "factor": 4})"), frequencies("null"));
  EXPECT_NE(frequencies(R"({"type": "linear", "factor": 4})"), frequencies("null"));
}

TEST(ModelConfigTest, EndOfSequenceIds) {
  const auto ids = [](std::string_view value) {
    const auto config = ParseModelConfig(MixtralWith(fmt::format("\"eos_token_id\": {}", value)));
    EXPECT_TRUE(config.ok()) << Message(config.status());
    return config.ok() ? config->eos_ids : std::vector<TokenId>();
  };
  EXPECT_THAT(ids("7"), ElementsAre(7));
  EXPECT_THAT(ids("[7, 299]"), ElementsAre(7, 299));
  EXPECT_THAT(ids("[]"), ElementsAre());
  EXPECT_THAT(ids("null"), ElementsAre());
  for (const std::string_view value :
       {"300", "-1", "1099511627776", "\"</s>\"", "[1, 300]", "[[1]]", "1.5", "true", "{}"}) {
    EXPECT_THAT(RefusalOf(fmt::format("\"eos_token_id\": {}", value)),
                HasSubstr("'eos_token_id': expected token ids from 0 to 299"));
  }
}

TEST(ModelConfigTest, DenseLayersOfQwen) {
  const std::string fields = R"("architectures": ["Qwen3MoeForCausalLM"], "moe_intermediate_size": 8)";
  EXPECT_EQ(RefusalOf(fields), "");  // num_local_experts is the newer name of num_experts
  EXPECT_THAT(RefusalOf(fields + R"(, "mlp_only_layers": [2])"), HasSubstr("'mlp_only_layers'"));
  EXPECT_THAT(RefusalOf(fields + R"(, "mlp_only_layers": 1)"), HasSubstr("expected a list of layer indices"));
  EXPECT_THAT(RefusalOf(fields + R"(, "decoder_sparse_step": 0)"), HasSubstr("'decoder_sparse_step'"));
  EXPECT_THAT(RefusalOf(fields + R"(, "num_experts": 1)"), HasSubstr("more than the number of experts 1"));
}

// Returns google/switch-base-8's dims as published, with `fields` replacing its own.
std::string SwitchWith(std::string_view fields) {
  json::object config = ParseJson(R"({"architectures": ["SwitchTransformersForConditionalGeneration"],
      "vocab_size": 32128, "d_model": 768, "d_kv": 64, "d_ff": 3072, "num_layers": 12, "num_decoder_layers": 12,
      "num_sparse_encoder_layers": 6, "num_sparse_decoder_layers": 6, "num_heads": 12, "num_experts": 8,
      "expert_capacity": 64, "eos_token_id": 1, "pad_token_id": 0, "layer_norm_epsilon": 1e-6})",
                                  Fault::kInternal)
                            ->get_object();
  const json::value changes = ParseJson(fmt::format("{{{}}}", fields), Fault::kInternal).value();
  for (const auto& [key, value] : changes.get_object()) config[key] = value;
  return std::string(json::serialize(config));
}

TEST(ModelConfigTest, ReadsAnEncoderAndADecoder) {
  const auto config = ParseModelConfig(SwitchWith(R"("num_layers": 6, "num_sparse_encoder_layers": 3)"));
  ASSERT_TRUE(config.ok()) << Message(config.status());
  EXPECT_EQ(config->encoder.num_layers, 6);
  EXPECT_EQ(config->num_layers, 18);
  EXPECT_EQ(config->num_kv_layers(), 12);
  EXPECT_THAT(config->moe_layers(), ElementsAre(1, 3, 5, 7, 9, 11, 13, 15, 17));
  EXPECT_EQ(config->kv_layer_of(5), 5);
  EXPECT_EQ(config->kv_layer_of(6), 0);
  EXPECT_FALSE(config->has_cross_attention(5));
  EXPECT_TRUE(config->has_cross_attention(6));
  EXPECT_EQ(config->encoder.expert_capacity, 64);
  EXPECT_EQ(config->encoder.num_buckets, 32);
  EXPECT_EQ(config->encoder.max_distance, 128);
  EXPECT_EQ(config->num_topk, 1);
  EXPECT_FALSE(config->is_gated);
  EXPECT_FALSE(config->router.renormalises);
  EXPECT_TRUE(config->tie_embeddings);
  EXPECT_EQ(config->attention_scale, 1);
  EXPECT_EQ(config->rotary_dim_of(0), 0);
  EXPECT_EQ(config->dense_ffn_dim, 3072);
  // A deeper encoder takes the KV pages' layers several times.
  const auto deep = ParseModelConfig(SwitchWith(
      R"("num_layers": 5, "num_decoder_layers": 2, "num_sparse_decoder_layers": 1, "decoder_start_token_id": 7)"));
  ASSERT_TRUE(deep.ok()) << Message(deep.status());
  EXPECT_EQ(deep->kv_layer_of(4), 0);
  EXPECT_EQ(deep->encoder.start_id, 7);
  // Nothing rotates in pairs.
  const auto odd = ParseModelConfig(SwitchWith(R"("d_kv": 5, "relative_attention_num_buckets": 7)"));
  ASSERT_TRUE(odd.ok()) << Message(odd.status());
  EXPECT_EQ(odd->head_dim, 5);
}

TEST(ModelConfigTest, RefusesEncodersThatItCannotRun) {
  for (const auto& [field, message] : std::initializer_list<std::pair<const char*, const char*>>{
           {R"("feed_forward_proj": "gated-gelu")", "'relu'"},
           {R"("dense_act_fn": "gelu_new")", "'relu'"},
           {R"("num_selected_experts": 2)", "num_selected_experts: expected 1"},
           {R"("tie_word_embeddings": false)", "tie_word_embeddings: expected true"},
           {R"("router_dtype": "bfloat16")", "'router_dtype'"},
           {R"("expert_capacity": 0)", "'expert_capacity'"},
           {R"("relative_attention_max_distance": 16)", "maximum distance, 16"},
           {R"("num_decoder_layers": 1020)", "1032 layers in encoder and decoder"},
           {R"("num_sparse_encoder_layers": 13, "num_sparse_decoder_layers": 13)", "no layer has experts"},
           {R"("decoder_start_token_id": 32128)", "'decoder_start_token_id'"}}) {
    const auto config = ParseModelConfig(SwitchWith(field));
    ASSERT_FALSE(config.ok()) << field;
    EXPECT_EQ(FaultOf(config.status()), Fault::kModel);
    EXPECT_THAT(Message(config.status()), HasSubstr(message));
  }
}

TEST(GenerationConfigTest, ReadsAndRefuses) {
  const auto config =
      ParseGenerationConfig(R"({"eos_token_id": [1, 2], "do_sample": true, "temperature": 0.7, "top_k": 20,
      "top_p": 0.8, "min_p": 0.1, "repetition_penalty": 1.05, "max_new_tokens": 77, "transformers_version": "4.51.0"})",
                            100);
  ASSERT_TRUE(config.ok()) << Message(config.status());
  EXPECT_THAT(config->eos_ids, ElementsAre(1, 2));
  EXPECT_TRUE(config->do_sample);
  EXPECT_EQ(config->temperature, 0.7);
  EXPECT_EQ(config->top_k, 20);
  EXPECT_EQ(config->top_p, 0.8);
  EXPECT_EQ(config->min_p, 0.1);
  EXPECT_EQ(config->repetition_penalty, 1.05);
  EXPECT_EQ(config->max_new_tokens, 77);
  const auto plain = ParseGenerationConfig("{}", 100);
  ASSERT_TRUE(plain.ok());
  EXPECT_FALSE(plain->do_sample);
  EXPECT_EQ(plain->max_new_tokens, 0);
  EXPECT_TRUE(plain->eos_ids.empty());
  for (const std::string_view field :
       {"\"temperature\": -1", "\"top_k\": -1", "\"top_k\": 1.5", "\"top_p\": 2", "\"min_p\": -1",
        "\"repetition_penalty\": 0", "\"do_sample\": 1", "\"eos_token_id\": 100", "\"max_new_tokens\": 0"}) {
    const auto bad = ParseGenerationConfig(fmt::format("{{{}}}", field), 100);
    ASSERT_FALSE(bad.ok()) << field;
    EXPECT_THAT(Message(bad.status()), HasSubstr("generation_config.json: field '" + std::string(field.substr(1, 4))));
    EXPECT_EQ(FaultOf(bad.status()), Fault::kModel);
  }
  EXPECT_THAT(Message(ParseGenerationConfig("{,}", 100).status()),
              HasSubstr("generation_config.json: line 1, column "));
  EXPECT_THAT(Message(ParseGenerationConfig("[]", 100).status()), HasSubstr("expected an object, found array"));
}

}  // namespace
}  // namespace penstock
