// A model family: how its config.json and its tensors are named, and what its layers do differently.
//
// A new family is one file that defines a Family, and one line in family.cc's table. The operations themselves
// (schedule/operations.h) read only ModelConfig.
#pragma once

#include <span>
#include <string_view>

#include "penstock/model/config_reader.h"
#include "penstock/model/model_config.h"

namespace penstock {

struct Family {
  std::string_view name;          // model_type in config.json
  std::string_view architecture;  // architectures[0] in config.json

  // What transformers takes where config.json says nothing.
  double default_rope_theta = 1e4;
  double default_rms_norm_eps = 1e-5;

  // Names below `model.layers.{layer}.`; experts have `{expert}` in theirs.
  std::string_view router;
  std::string_view expert_gate_proj;
  std::string_view expert_up_proj;
  std::string_view expert_down_proj;

  // Fills what the families differ in; the common fields are filled already. Errors go to the reader.
  void (*read_config)(ConfigReader& reader, ModelConfig& config);
};

extern const Family kMixtral;
extern const Family kOlmoe;
extern const Family kQwen3Moe;

std::span<const Family* const> AllFamilies();

// nullptr when there is none.
const Family* FindFamily(std::string_view architecture);

}  // namespace penstock
