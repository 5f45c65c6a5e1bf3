#include "penstock/model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>

#include "penstock/base/limits.h"
#include "penstock/base/status.h"

namespace penstock {
namespace {

// The values of rope_theta and of the rope object.
struct RopeConfig {
  std::string type = "default";
  double theta = 1e4;
  double partial_factor = 1;
  int64_t dim = 0;            // dims that get frequencies; if it is odd, one more rotates
  int64_t max_positions = 0;  // of the model
  int64_t original = 0;       // positions before the model was extended

  int64_t num_pairs() const { return (dim + 1) / 2; }
};

// Returns theta^(2 i / dim), in f32 as in transformers.
float Wavelength(const RopeConfig& config, int64_t i) {
  const float exponent = static_cast<float>(2 * i) / static_cast<float>(config.dim);
  return std::pow(static_cast<float>(config.theta), exponent);
}

RopeFrequencies Usual(const RopeConfig& config, float factor = 1) {
  RopeFrequencies result;
  for (int64_t i = 0; i < config.num_pairs(); ++i) result.frequencies.push_back(1.0f / Wavelength(config, i) / factor);
  return result;
}

// Gemma 4: the slowest pairs of the whole head do not rotate (p-RoPE; Barbero et al. 2025). The others have the
// frequencies that they would have if all rotated.
RopeFrequencies Proportional(const RopeConfig& config, float factor) {
  RopeFrequencies result = Usual(config, factor);
  const auto num_rotating =
      static_cast<size_t>(std::floor(config.partial_factor * static_cast<double>(config.dim) / 2));
  for (size_t i = num_rotating; i < result.frequencies.size(); ++i) result.frequencies[i] = 0;
  return result;
}

double YarnMscale(double factor, double mscale) { return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1; }

// YaRN (Peng et al. 2023, section 3): interpolates low frequencies and keeps high ones, with a ramp between them.
void ReadYarn(ConfigReader& reader, const RopeConfig& config, Rope& rope) {
  const auto original = static_cast<double>(config.original);
  const double factor = reader.NumberOr("factor", static_cast<double>(config.max_positions) / original, 1e-3, 1e6);
  const double mscale = reader.NumberOr("mscale", 0, 0, 100), mscale_all = reader.NumberOr("mscale_all_dim", 0, 0, 100);
  const bool has_both = mscale != 0 && mscale_all != 0;
  const double scale = has_both ? YarnMscale(factor, mscale) / YarnMscale(factor, mscale_all) : YarnMscale(factor, 1);
  rope.usual.scale = static_cast<float>(reader.NumberOr("attention_factor", scale, 0, 1e3));
  const auto dim = static_cast<double>(config.dim);
  const auto turning_dim = [&](double num_rotations) {
    return dim * std::log(original / (num_rotations * 2 * std::numbers::pi)) / (2 * std::log(config.theta));
  };
  double low = turning_dim(reader.NumberOr("beta_fast", 32, 1e-6, 1e6));
  double high = turning_dim(reader.NumberOr("beta_slow", 1, 1e-6, 1e6));
  if (reader.BoolOr("truncate", true)) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1);
  if (low == high) high += 0.001;
  for (int64_t i = 0; i < config.num_pairs(); ++i) {
    const float ramp =
        std::clamp((static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low), 0.0f, 1.0f);
    const float kept = 1 - ramp, wavelength = Wavelength(config, i);
    rope.usual.frequencies.push_back(1.0f / (static_cast<float>(factor) * wavelength) * (1 - kept) +
                                     1.0f / wavelength * kept);
  }
}

// The scaling of Llama 3.1 (Grattafiori et al. 2024).
void ReadLlama3(ConfigReader& reader, const RopeConfig& config, Rope& rope) {
  const auto original = static_cast<double>(config.original);
  const auto factor = static_cast<float>(reader.NumberOr("factor", 8, 1e-3, 1e6));
  const double low = reader.NumberOr("low_freq_factor", 1, 1e-6, 1e6);
  const double high = reader.NumberOr("high_freq_factor", 4, 1e-6, 1e6);
  for (const float frequency : Usual(config).frequencies) {
    const double wavelength = 2 * std::numbers::pi / frequency;
    float& scaled = rope.usual.frequencies.emplace_back(frequency);
    if (wavelength > original / low) {
      scaled = frequency / factor;
    } else if (wavelength >= original / high && low != high) {
      const auto smooth = static_cast<float>((original / wavelength - low) / (high - low));
      scaled = (1 - smooth) * frequency / factor + smooth * frequency;
    }
  }
}

std::vector<float> ReadFactors(ConfigReader& reader, std::string_view field, int64_t count) {
  const json::value* value = reader.Find(field);
  const std::string expected = fmt::format("a list of {} positive numbers", count);
  std::vector<float> factors;
  if (value == nullptr || !value->is_array()) {
    reader.Fail(field, expected, value == nullptr ? "nothing" : JsonTypeName(*value));
    return factors;
  }
  for (const json::value& entry : value->get_array()) {
    const double factor = entry.is_number() ? entry.to_number<double>() : 0;
    if (!(factor > 0 && factor < 1e6)) {
      reader.Fail(field, expected, json::serialize(entry).substr(0, 60));
      return factors;
    }
    factors.push_back(static_cast<float>(factor));
  }
  if (std::ssize(factors) != count) reader.Fail(field, expected, fmt::format("{} of them", factors.size()));
  return factors;
}

// LongRoPE (Ding et al. 2024). Phi-3.5-MoE has a scale for short and one for long sequences; other models derive one
// scale from the lengths.
void ReadLongRope(ConfigReader& reader, const RopeConfig& config, Rope& rope) {
  const int64_t original = rope.original_positions = config.original;
  const double factor =
      reader.NumberOr("factor", static_cast<double>(config.max_positions) / static_cast<double>(original), 1e-3, 1e6);
  const double usual_scale =
      factor <= 1 || original <= 1 ? 1 : std::sqrt(1 + std::log(factor) / std::log(static_cast<double>(original)));
  const double scale = reader.NumberOr("attention_factor", usual_scale, 0, 1e3);
  const auto read = [&](std::string_view factors_field, std::string_view scale_field) {
    const std::vector<float> factors = ReadFactors(reader, factors_field, config.num_pairs());
    RopeFrequencies result{.frequencies = {}, .scale = static_cast<float>(reader.NumberOr(scale_field, scale, 0, 1e3))};
    for (size_t i = 0; i < factors.size(); ++i) {
      result.frequencies.push_back(1.0f / (factors[i] * Wavelength(config, static_cast<int64_t>(i))));
    }
    return result;
  };
  rope.usual = read("short_factor", "short_mscale");
  rope.longer = read("long_factor", "long_mscale");
}

// The object that holds the parameters, and the name of its field.
struct RopeScaling {
  std::string_view field = "rope_scaling";
  json::object parameters;
};
// Finds the parameters: in config.json, or the family's defaults. Returns nothing after an error, which `reader` has.
std::optional<RopeScaling> FindScaling(ConfigReader& reader, const RopeDefaults& defaults) {
  // transformers saves rope_parameters; users who extend a model add rope_scaling, which takes precedence.
  const json::value none = json::object();
  RopeScaling result;
  json::value scaling = defaults.scaling.empty() ? none : ParseJson(defaults.scaling, Fault::kInternal).value_or(none);
  for (const std::string_view field : {"rope_parameters", "rope_scaling"}) {
    const json::value* const found = reader.Find(field);
    if (found == nullptr) continue;
    if (!found->is_object()) {
      reader.Fail(field, "an object or null", JsonTypeName(*found));
      return std::nullopt;
    }
    if (found->get_object().empty()) continue;
    scaling = *found;
    result.field = field;
  }
  if (!defaults.layer_type.empty()) {
    const json::value* const found = scaling.get_object().if_contains(defaults.layer_type);
    if (found == nullptr || !found->is_object()) {
      reader.Fail(result.field, fmt::format("an object '{}' in it", defaults.layer_type),
                  found == nullptr ? "none" : JsonTypeName(*found));
      return std::nullopt;
    }
    json::object own = found->get_object();
    // transformers reads this one from the enclosing object.
    own.erase("truncate");
    if (const json::value* truncate = scaling.get_object().if_contains("truncate")) own["truncate"] = *truncate;
    scaling = std::move(own);
  }
  result.parameters = scaling.get_object();
  return result;
}

// Computes the frequencies of the rope type; fails for unknown types.
void ReadFrequencies(ConfigReader& reader, ConfigReader& inner, std::string_view field, const RopeConfig& config,
                     Rope& rope) {
  if (config.type == "default" || config.type == "dynamic") {
    rope.usual = Usual(config);
  } else if (config.type == "linear") {
    rope.usual = Usual(config, static_cast<float>(inner.NumberOr("factor", 1, 1e-3, 1e6)));
  } else if (config.type == "proportional") {
    rope.usual = Proportional(config, static_cast<float>(inner.NumberOr("factor", 1, 1e-3, 1e6)));
  } else if (config.type == "yarn") {
    ReadYarn(inner, config, rope);
  } else if (config.type == "llama3") {
    ReadLlama3(inner, config, rope);
  } else if (config.type == "longrope") {
    ReadLongRope(inner, config, rope);
  } else {
    reader.Fail(field, "rope type default, linear, dynamic, yarn, llama3, longrope or proportional",
                fmt::format("'{}'", config.type));
  }
}

}  // namespace

void ReadRope(ConfigReader& reader, const RopeDefaults& defaults, Rope& rope) {
  RopeConfig config{.theta = reader.NumberOr("rope_theta", defaults.theta, 1e-3, 1e15),
                    .partial_factor = reader.NumberOr("partial_rotary_factor", defaults.partial_factor, 1e-3, 1),
                    .max_positions = defaults.max_positions};
  // MiniMax-M2 gives the number of dims that rotate.
  if (defaults.takes_part && reader.Find("rotary_dim") != nullptr && reader.Find("partial_rotary_factor") == nullptr) {
    config.partial_factor = static_cast<double>(reader.Int("rotary_dim", 2, std::max<int64_t>(2, defaults.dim))) /
                            static_cast<double>(defaults.dim);
  }
  const std::optional<RopeScaling> scaling = FindScaling(reader, defaults);
  if (!scaling.has_value()) return;
  ConfigReader inner(fmt::format("{}: field '{}'", reader.file_name(), scaling->field), scaling->parameters);
  config.type = inner.StringOr("rope_type", inner.StringOr("type", "default"));
  config.theta = inner.NumberOr("rope_theta", config.theta, 1e-3, 1e15);
  config.partial_factor = inner.NumberOr("partial_rotary_factor", config.partial_factor, 1e-3, 1);
  if (defaults.layer_theta != 0) config.theta = defaults.layer_theta;
  const bool is_proportional = config.type == "proportional";
  if (config.partial_factor != 1 && !defaults.takes_part && !is_proportional) {
    return reader.Fail("partial_rotary_factor", "1 in this family", fmt::format("{}", config.partial_factor));
  }
  // The field may be in this object or outside it; the outer one takes precedence.
  config.original = inner.IntOr("original_max_position_embeddings", config.max_positions, 1, kMaxContext);
  if (defaults.layer_type.empty())
    config.original = reader.IntOr("original_max_position_embeddings", config.original, 1, kMaxContext);
  config.dim =
      is_proportional ? defaults.dim : static_cast<int64_t>(static_cast<double>(defaults.dim) * config.partial_factor);
  rope.theta = config.theta;
  rope.rotary_dim = 2 * config.num_pairs();
  if (config.dim < 1 || rope.rotary_dim > defaults.dim) {
    return reader.FailRelation(fmt::format("head_dim {} must be even, and so must the number of dims that rotate, {}",
                                           defaults.dim, config.dim));
  }
  if (const double mscale = inner.NumberOr("mscale_all_dim", 0, 0, 100); mscale != 0 && config.type != "default") {
    const double scale = YarnMscale(inner.NumberOr("factor", 1, 1e-3, 1e6), mscale);
    rope.attention_factor = static_cast<float>(scale * scale);
  }
  // Hunyuan: one longer base for all lengths. Without alpha, type "dynamic" changes nothing up to
  // max_position_embeddings, and longer sequences are refused.
  const double alpha = defaults.takes_alpha ? inner.NumberOr("alpha", 0, 0, 1e9) : 0;
  if (config.type == "dynamic" && alpha > 0) {
    const auto dim = static_cast<double>(config.dim);
    config.theta *= std::pow(alpha, dim / std::max(1.0, dim - 2));
    rope.theta = config.theta;
  }
  ReadFrequencies(reader, inner, scaling->field, config, rope);
  reader.FailStatus(inner.status());
}

}  // namespace penstock
