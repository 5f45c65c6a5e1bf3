#include "penstock/model/coded_weights.h"

#include <string>

#include <fmt/format.h>

#include "penstock/base/json.h"
#include "penstock/base/limits.h"

namespace penstock {
namespace {

using Kind = CodedWeights::Kind;

constexpr int64_t kBlockInputs = 128;  // of WeightFormat::kFp8
constexpr int64_t kInt4Inputs = 32;    // of WeightFormat::kQ4_0

// Reads a block of [rows, 128] weights that share a scale.
CodedWeights Fp8InBlocks(ConfigReader& config, std::string_view field, std::string_view scale_suffix) {
  const json::value* block = config.Find(field);
  const json::array* sizes = block == nullptr ? nullptr : block->if_array();
  const bool is_pair = sizes != nullptr && sizes->size() == 2 && (*sizes)[0].is_int64() && (*sizes)[1].is_int64();
  if (!is_pair || (*sizes)[0].get_int64() < 1 || (*sizes)[0].get_int64() > kMaxModelDim ||
      (*sizes)[1].get_int64() != kBlockInputs) {
    config.Fail(field, "[rows, 128]", block == nullptr ? "nothing" : json::serialize(*block).substr(0, 60));
    return {};
  }
  return {
      .kind = Kind::kFp8, .scale_suffix = scale_suffix, .block_rows = (*sizes)[0].get_int64(), .group = kBlockInputs};
}

void CheckIs(ConfigReader& config, std::string_view field, bool default_value, bool expected) {
  if (config.BoolOr(field, default_value) != expected) {
    config.Fail(field, expected ? "true" : "false", expected ? "false" : "true");
  }
}

int64_t Int4Group(ConfigReader& config) {
  const int64_t group = config.IntOr("group_size", -1, -1, kMaxModelDim);
  if (group > 0 && group % kInt4Inputs == 0) return group;
  if (group != -1) config.Fail("group_size", "-1 or a multiple of 32", fmt::format("{}", group));
  return 0;
}

// GPTQ's layout, which AutoRound writes as well. Codes of other widths, codes with zero points, and inputs in another
// order (desc_act) are refused.
CodedWeights ReadGptq(ConfigReader& config) {
  const int64_t bits = config.Int("bits", 1, 16);
  if (bits != 4) config.Fail("bits", "4", fmt::format("{}", bits));
  CheckIs(config, "sym", true, true);
  CheckIs(config, "desc_act", false, false);
  return {.kind = Kind::kInt4Columns, .group = Int4Group(config)};
}

// The weights of one of compressed-tensors' groups of layers.
CodedWeights ReadCompressedWeights(ConfigReader& weights, const std::string& format) {
  const int64_t bits = weights.Int("num_bits", 1, 64);
  CheckIs(weights, "symmetric", true, true);
  const std::string strategy = weights.StringOr("strategy", "group");
  if (format == "pack-quantized") {
    if (bits != 4) weights.Fail("num_bits", "4", fmt::format("{}", bits));
    if (strategy == "channel") return {.kind = Kind::kInt4Rows};
    if (strategy != "group") weights.Fail("strategy", "'group' or 'channel'", fmt::format("'{}'", strategy));
    // These orders choose codes; others also choose which inputs share a scale.
    const std::string order = weights.StringOr("actorder", "weight");
    if (order != "weight" && order != "static") {
      weights.Fail("actorder", "null, 'weight' or 'static'", fmt::format("'{}'", order));
    }
    return {.kind = Kind::kInt4Rows, .group = Int4Group(weights)};
  }
  if (bits != 8) weights.Fail("num_bits", "8", fmt::format("{}", bits));
  if (strategy == "block") return Fp8InBlocks(weights, "block_structure", "_scale");
  if (strategy != "channel" && strategy != "tensor") {
    weights.Fail("strategy", "'tensor', 'channel' or 'block'", fmt::format("'{}'", strategy));
  }
  return {.kind = Kind::kFp8, .scale_suffix = "_scale", .block_rows = strategy == "tensor" ? 0 : 1};
}

CodedWeights ReadCompressedTensors(ConfigReader& config) {
  const std::string format = config.StringOr("format", "");
  if (format != "pack-quantized" && format != "float-quantized") {
    config.Fail("format", "'pack-quantized' or 'float-quantized'", fmt::format("'{}'", format));
    return {};
  }
  const json::value* groups = config.Find("config_groups");
  if (groups == nullptr || !groups->is_object() || groups->get_object().size() != 1) {
    config.Fail("config_groups", "an object with one group", groups == nullptr ? "nothing" : "another one");
    return {};
  }
  const auto& group = groups->get_object().begin()->value();
  const json::value* weights = group.is_object() ? group.get_object().if_contains("weights") : nullptr;
  if (weights == nullptr || !weights->is_object()) {
    config.Fail("config_groups", "a group with an object 'weights'", "another one");
    return {};
  }
  ConfigReader inner("config.json: field 'quantization_config', weights", weights->get_object());
  const CodedWeights coded = ReadCompressedWeights(inner, format);
  config.FailStatus(inner.status());
  return coded;
}

CodedWeights ReadMethod(ConfigReader& config) {
  const std::string method = config.StringOr("quant_method", "");
  if (method == "mxfp4") return {.kind = Kind::kMxfp4, .group = 32};
  if (method == "gptq") return ReadGptq(config);
  if (method == "compressed-tensors") return ReadCompressedTensors(config);
  if (method == "auto-round") {
    const std::string packing = config.StringOr("packing_format", "auto_round:auto_gptq");
    if (packing == "auto_round:auto_gptq") return ReadGptq(config);
    config.Fail("packing_format", "'auto_round:auto_gptq'", fmt::format("'{}'", packing));
    return {};
  }
  if (method == "fp8") {
    const std::string format = config.StringOr("fmt", "e4m3");
    if (format != "e4m3" && format != "float8_e4m3fn") config.Fail("fmt", "'e4m3'", fmt::format("'{}'", format));
    return Fp8InBlocks(config, "weight_block_size", "_scale_inv");
  }
  config.Fail(
      "quant_method",
      "'fp8', 'mxfp4', 'compressed-tensors', 'gptq' or 'auto-round' (otherwise use the f32, f16 or bf16 version "
      "of the model, or a GGUF file)",
      fmt::format("'{}'", method));
  return {};
}

}  // namespace

CodedWeights ReadCodedWeights(ConfigReader& reader) {
  const json::value* found = reader.Find("quantization_config");
  if (found == nullptr) return {};
  if (!found->is_object()) {
    reader.Fail("quantization_config", "an object or null", JsonTypeName(*found));
    return {};
  }
  ConfigReader inner("config.json: field 'quantization_config'", found->get_object());
  const CodedWeights coded = ReadMethod(inner);
  reader.FailStatus(inner.status());
  return coded;
}

}  // namespace penstock
