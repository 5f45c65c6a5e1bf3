#include "penstock/model/coded_weights.h"

#include <algorithm>
#include <iterator>
#include <string>

#include <fmt/format.h>

#include "penstock/base/json.h"
#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"

namespace penstock {
namespace {

using Kind = CodedWeights::Kind;

constexpr int64_t kBlockInputs = 128;                    // of WeightFormat::kFp8
constexpr int64_t kIntInputs = 32;                       // of WeightFormat::kQ4_0, kU4 and kQ8_0
constexpr int64_t kMxfp4Inputs = 32, kNvfp4Inputs = 16;  // that share a scale

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

// Reads how many inputs share a scale: a multiple of 32, or all.
int64_t IntGroup(ConfigReader& config) {
  const int64_t group = config.IntOr("group_size", -1, -1, kMaxModelDim);
  if (group > 0 && group % kIntInputs == 0) return group;
  if (group != -1) config.Fail("group_size", "-1 or a multiple of 32", fmt::format("{}", group));
  return 0;
}

// Reads the width of integer codes. Codes of 8 bits have no zero points of their own.
WeightFormat IntFormat(ConfigReader& config, std::string_view bits_field, std::string_view symmetric_field,
                       bool is_symmetric) {
  const int64_t bits = config.Int(bits_field, 1, 64);
  if (bits != 4 && bits != 8) config.Fail(bits_field, "4 or 8", fmt::format("{}", bits));
  if (bits == 8) CheckIs(config, symmetric_field, is_symmetric, true);
  if (bits == 8) return WeightFormat::kQ8_0;
  return is_symmetric ? WeightFormat::kQ4_0 : WeightFormat::kU4;
}

CodedWeights ReadAwq(ConfigReader& config) {
  const int64_t bits = config.Int("bits", 1, 16);
  if (bits != 4) config.Fail("bits", "4", fmt::format("{}", bits));
  CheckIs(config, "zero_point", true, true);
  const std::string version = config.StringOr("version", "gemm");
  if (version != "gemm" && version != "GEMM") config.Fail("version", "'gemm'", fmt::format("'{}'", version));
  return {.kind = Kind::kAwq, .format = WeightFormat::kU4, .group = IntGroup(config)};
}

// Inputs may be in another order (desc_act). With static groups or one group this only chooses the codes; otherwise it
// also chooses which inputs share a scale.
CodedWeights ReadGptq(ConfigReader& config) {
  const bool is_symmetric = config.BoolOr("sym", true);
  const WeightFormat format = IntFormat(config, "bits", "sym", is_symmetric);
  const int64_t group = IntGroup(config);
  const bool has_groups = group != 0 && config.BoolOr("desc_act", false) && !config.BoolOr("static_groups", false);
  const std::string layout = config.StringOr("checkpoint_format", config.StringOr("format", "gptq"));
  if (layout != "gptq" && layout != "gptq_v2") {
    config.Fail("checkpoint_format", "'gptq' or 'gptq_v2'", fmt::format("'{}'", layout));
  }
  return {.kind = Kind::kIntColumns,
          .format = format,
          .group = group,
          .zeros_are_less_1 = layout == "gptq",
          .has_groups = has_groups};
}

CodedWeights ReadAutoRound(ConfigReader& config) {
  const std::string packing = config.StringOr("packing_format", "auto_round:auto_gptq");
  if (packing == "auto_round:auto_awq") return ReadAwq(config);
  if (packing != "auto_round:auto_gptq") {
    config.Fail("packing_format", "'auto_round:auto_gptq' or 'auto_round:auto_awq'", fmt::format("'{}'", packing));
  }
  CheckIs(config, "sym", true, true);
  return ReadGptq(config);
}

CodedWeights ReadModelopt(ConfigReader& config) {
  const auto check = [](ConfigReader& reader, const std::string& algo) {
    if (algo == "FP8" || algo == "NVFP4" || algo == "W4A16_NVFP4") return;
    reader.Fail("quant_algo", "'NVFP4', 'W4A16_NVFP4' or 'FP8'", fmt::format("'{}'", algo));
  };
  const std::string algo = config.StringOr("quant_algo", "");
  if (algo == "FP8") return Fp8InRows(0);
  // With mixed precision, each weight's dtype tells its format.
  const json::value* layers = algo == "MIXED_PRECISION" ? config.Find("quantized_layers") : nullptr;
  if (layers != nullptr && layers->is_object()) {
    for (const auto& [name, layer] : layers->get_object()) {
      if (!layer.is_object()) continue;
      ConfigReader reader(
          fmt::format("{}: field 'quantized_layers': {}", config.file_name(), Printable(std::string(name))),
          layer.get_object());
      check(reader, reader.StringOr("quant_algo", ""));
      config.FailStatus(reader.status());
    }
  } else {
    check(config, algo);
  }
  return {.kind = Kind::kNvfp4, .format = WeightFormat::kNvfp4, .group = kNvfp4Inputs};
}

// Codes of four bits that are floats (E2M1).
CodedWeights ReadPackedFloats(ConfigReader& weights, Kind kind, WeightFormat format, int64_t group) {
  const int64_t bits = weights.Int("num_bits", 1, 64), found = weights.IntOr("group_size", group, -1, kMaxModelDim);
  CheckIs(weights, "symmetric", true, true);
  if (bits != 4) weights.Fail("num_bits", "4", fmt::format("{}", bits));
  if (found != group) weights.Fail("group_size", fmt::format("{}", group), fmt::format("{}", found));
  return {.kind = kind, .format = format, .group = group};
}

// The weights of one of compressed-tensors' groups of layers.
CodedWeights ReadCompressedWeights(ConfigReader& weights, const std::string& format) {
  if (format == "nvfp4-pack-quantized") {
    return ReadPackedFloats(weights, Kind::kPackedNvfp4, WeightFormat::kNvfp4, kNvfp4Inputs);
  }
  if (format == "mxfp4-pack-quantized") {
    return ReadPackedFloats(weights, Kind::kPackedMxfp4, WeightFormat::kMxfp4, kMxfp4Inputs);
  }
  const std::string strategy = weights.StringOr("strategy", "group");
  const bool is_symmetric = weights.BoolOr("symmetric", true);
  if (format == "pack-quantized") {
    const WeightFormat of_codes = IntFormat(weights, "num_bits", "symmetric", is_symmetric);
    if (strategy == "channel") return {.kind = Kind::kIntRows, .format = of_codes};
    if (strategy != "group") weights.Fail("strategy", "'group' or 'channel'", fmt::format("'{}'", strategy));
    // These orders choose codes; others also choose which inputs share a scale.
    const std::string order = weights.StringOr("actorder", "weight");
    if (order != "weight" && order != "static") {
      weights.Fail("actorder", "null, 'weight' or 'static'", fmt::format("'{}'", order));
    }
    return {.kind = Kind::kIntRows, .format = of_codes, .group = IntGroup(weights)};
  }
  CheckIs(weights, "symmetric", true, true);
  const int64_t bits = weights.Int("num_bits", 1, 64);
  if (bits != 8) weights.Fail("num_bits", "8", fmt::format("{}", bits));
  if (strategy == "block") return Fp8InBlocks(weights, "block_structure", "_scale");
  if (strategy != "channel" && strategy != "tensor") {
    weights.Fail("strategy", "'tensor', 'channel' or 'block'", fmt::format("'{}'", strategy));
  }
  return Fp8InRows(strategy == "tensor" ? 0 : 1);
}

CodedWeights ReadCompressedTensors(ConfigReader& config) {
  const std::string format = config.StringOr("format", "");
  constexpr std::string_view kFormats[] = {"pack-quantized", "float-quantized", "nvfp4-pack-quantized",
                                           "mxfp4-pack-quantized"};
  if (std::ranges::find(kFormats, format) == std::end(kFormats)) {
    config.Fail("format", "'pack-quantized', 'float-quantized', 'nvfp4-pack-quantized' or 'mxfp4-pack-quantized'",
                fmt::format("'{}'", format));
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
  if (method == "mxfp4") return {.kind = Kind::kMxfp4, .format = WeightFormat::kMxfp4, .group = kMxfp4Inputs};
  if (method == "gptq") return ReadGptq(config);
  if (method == "awq") return ReadAwq(config);
  if (method == "auto-round") return ReadAutoRound(config);
  if (method == "modelopt" || method == "modelopt_fp4") return ReadModelopt(config);
  if (method == "compressed-tensors") return ReadCompressedTensors(config);
  if (method == "fp8") {
    const std::string format = config.StringOr("fmt", "e4m3");
    if (format != "e4m3" && format != "float8_e4m3fn") config.Fail("fmt", "'e4m3'", fmt::format("'{}'", format));
    return Fp8InBlocks(config, "weight_block_size", "_scale_inv");
  }
  config.Fail(
      "quant_method",
      "'fp8', 'mxfp4', 'compressed-tensors', 'gptq', 'awq', 'auto-round' or 'modelopt' (otherwise use the f32, f16 or "
      "bf16 version of the model, or a GGUF file)",
      fmt::format("'{}'", method));
  return {};
}

}  // namespace

CodedWeights Fp8InRows(int64_t block_rows) {
  return {.kind = Kind::kFp8, .scale_suffix = "_scale", .block_rows = block_rows};
}

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

absl::StatusOr<CodedWeights> ParseModeloptFile(std::string_view text) {
  const auto parsed = ParseJson(text, Fault::kModel, kPythonJson);
  if (!parsed.ok()) return Annotate(parsed.status(), kModeloptFile);
  const json::value* found = parsed->is_object() ? parsed->get_object().if_contains("quantization") : nullptr;
  if (found == nullptr || !found->is_object()) {
    return ModelError("{}: field 'quantization': expected an object", kModeloptFile);
  }
  ConfigReader reader(fmt::format("{}: field 'quantization'", kModeloptFile), found->get_object());
  if (reader.Find("quant_algo") == nullptr) return CodedWeights();  // only the KV cache has codes
  const CodedWeights coded = ReadModelopt(reader);
  PENSTOCK_RETURN_IF_ERROR(reader.status());
  return coded;
}

}  // namespace penstock
