// A model family: how its config.json and its tensors are named, and what its layers do differently.
//
// A new family is one file that defines a Family, and one line in family.cc's table (docs/adding-a-model.md). The
// operations themselves (ops/operations.h) read only ModelConfig.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "penstock/model/config_reader.h"
#include "penstock/model/model_config.h"

namespace penstock {

// Where a family keeps a weight that is not stored under its own name (weight_map.h). Names of layers' weights are
// those below the layer; `{expert}` stands for the expert's index.
//
// Several weights with one stored name are the rows of one tensor, in the order of the list. An expert's weight whose
// stored name has no `{expert}` is in one tensor with those of all experts, which come one after the other.
struct StoredName {
  std::string_view name;
  std::string_view stored;
  bool is_transposed = false;   // [inputs, outputs] of one expert
  bool is_interleaved = false;  // the weights of this stored name have rows in turn
  bool is_paired = false;       // heads have rows that RoPE rotates together as neighbours (RowPlaces::head_rows)
};

// The family in GGUF files (gguf_model.h).
struct GgufFamily {
  std::string_view architecture = {};  // general.architecture; empty: it is not known there
  // Of families that share one: those whose routers take sigmoids, or that have expert_shared_feed_forward_length.
  std::optional<bool> is_sigmoid = {};
  std::optional<bool> has_shared_ffn = {};
  bool has_default_window = false;  // read_config takes a sliding window where nothing says that there is none
  std::span<const StoredName> stored_names = {};
};

enum class LayerRopes : uint8_t {
  kAlike,    // in all layers that rotate
  kByType,   // rope_parameters has an object for each of layer_types (Mellum)
  kByTheta,  // layer_rope_theta has a theta for each layer, 0 where nothing rotates (Granite)
};

struct Family {
  std::string_view name;                     // model_type in config.json
  std::string_view architecture;             // architectures[0] in config.json
  std::string_view other_architecture = {};  // that older checkpoints have there

  // Its checkpoints come with Python code (auto_map), from before transformers had the family. It is never run.
  bool comes_with_code = false;

  // What transformers takes where config.json says nothing.
  int64_t default_head_dim = 0;       // 0: hidden_size / num_attention_heads
  int64_t default_max_positions = 0;  // 0: config.json must say it
  double default_rope_theta = 1e4;
  std::string_view default_rope_scaling = {};  // the JSON of rope_scaling
  double default_norm_eps = 1e-5;
  double default_partial_rotary = 1;  // of a head's dims
  bool takes_partial_rotary = false;  // elsewhere a part of a head is refused, as transformers takes no notice of it
  LayerRopes layer_ropes = LayerRopes::kAlike;  // the others need layer_has_window
  bool takes_rope_alpha = false;                // of type "dynamic": one longer base for all lengths (Hunyuan)
  bool yarn_scales_attention = false;           // Rope::attention_factor counts

  // Where config.json calls the common fields (model_config.cc) or those of read_config otherwise.
  std::span<const FieldName> field_names = {};

  std::string_view layer_prefix = "model.layers.{layer}.";
  std::span<const StoredName> stored_names = {};

  GgufFamily gguf = {};

  // Fills what the families differ in; the common fields are filled already. Errors go to the reader.
  void (*read_config)(ConfigReader& reader, ModelConfig& config);
};

extern const Family kMixtral;
extern const Family kOlmoe;
extern const Family kQwen2Moe;
extern const Family kQwen3Moe;
extern const Family kPhimoe;
extern const Family kGraniteMoe;
extern const Family kGraniteMoeShared;
extern const Family kGraniteMoeSwa;
extern const Family kGlm4Moe;
extern const Family kGlm4MoeLite;
extern const Family kSolarOpen;
extern const Family kErnie45Moe;
extern const Family kDots1;
extern const Family kDbrx;
extern const Family kDeepseekV2;
extern const Family kDeepseekV3;
extern const Family kGptOss;
extern const Family kArctic;
extern const Family kMinimaxM2;
extern const Family kHunyuanMoe;
extern const Family kExaoneMoe;
extern const Family kFlint;
extern const Family kHyV3;
extern const Family kMellum;

std::span<const Family* const> AllFamilies();

// nullptr when there is none.
const Family* FindFamily(std::string_view architecture);

}  // namespace penstock
