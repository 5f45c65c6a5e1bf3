// A model family: the names in its config.json and of its tensors, and how its layers differ from other families'.
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

struct Gguf;

// Where a family's checkpoints store a weight that they do not store under our name (weight_map.h). Names of layers'
// weights are relative to the layer; `{expert}` stands for the expert's index, and `{part}` for the layer's place among
// those that share its number (Family::layers_of_number).
//
// Several weights with one stored name are the rows of one tensor, in the order of the list. An expert's weight whose
// stored name has no `{expert}` lies in one tensor with those of all experts, one expert after another.
struct StoredName {
  std::string_view name;
  std::string_view stored;
  bool is_transposed = false;      // stored as [inputs, outputs] of one expert
  bool is_interleaved = false;     // the weights of this stored name have alternating rows
  bool is_paired = false;          // rows that RoPE rotates together are neighbours in each head (RowPlaces::head_rows)
  bool is_grouped = false;         // each group of heads has rows of all weights of this stored name, one after another
  bool may_be_transposed = false;  // is_transposed where the shape is [.., inputs, outputs]
  bool may_lack = false;           // checkpoints may be without this vector, which then changes nothing
};

// The family as GGUF files describe it (gguf_model.h).
struct GgufFamily {
  std::string_view architecture = {};  // general.architecture; empty: GGUF does not have it
  // Tells families with one architecture apart: true for the family whose routers use sigmoids, or whose files have
  // expert_shared_feed_forward_length.
  std::optional<bool> is_sigmoid = {};
  std::optional<bool> has_shared_ffn = {};
  bool has_default_window = false;  // read_config takes a sliding window where nothing says that there is none
  std::span<const StoredName> stored_names = {};
  // Adds fields of config.json that the file says in a way of its own, after the common ones.
  absl::Status (*add_fields)(const Gguf& gguf, int64_t num_layers, json::object& config) = nullptr;
};

enum class LayerRopes : uint8_t {
  kAlike,    // the same in all layers that rotate
  kByType,   // rope_parameters has an object for each of layer_types (Mellum)
  kByTheta,  // layer_rope_theta has a theta for each layer, 0 where nothing rotates (Granite)
  kNone,     // nothing rotates (T5)
};

struct Family {
  std::string_view name;                     // model_type in config.json
  std::string_view architecture;             // architectures[0] in config.json
  std::string_view other_architecture = {};  // in older checkpoints

  // Its checkpoints come with Python code (auto_map), which predates the family's support in transformers. Penstock
  // never runs that code.
  bool comes_with_code = false;

  // The object of config.json with the fields of the language model, where that is a part of a larger model; a path if
  // it lies in another object. Fields that it does not have are those of config.json itself.
  std::string_view config_object = {};
  bool config_may_be_flat = false;  // its fields may lie in config.json itself

  // transformers' defaults for fields that config.json does not have.
  int64_t default_head_dim = 0;       // 0: hidden_size / num_attention_heads
  int64_t default_max_positions = 0;  // 0: config.json must have it
  double default_rope_theta = 1e4;
  std::string_view default_rope_scaling = {};  // the JSON of rope_scaling
  double default_norm_eps = 1e-5;
  double default_partial_rotary = 1;            // fraction of a head's dims
  bool takes_partial_rotary = false;            // other families refuse a fraction, which transformers ignores for them
  LayerRopes layer_ropes = LayerRopes::kAlike;  // kByType and kByTheta need layer_has_window
  bool takes_rope_alpha = false;                // RoPE type "dynamic": one longer base for all lengths (Hunyuan)
  bool yarn_scales_attention = false;           // Rope::attention_factor is applied

  // The family's other names for the common fields (model_config.cc) and for those of read_config.
  std::span<const FieldName> field_names = {};

  std::string_view layer_prefix = "model.layers.{layer}.";
  int64_t layers_of_number = 1;  // how many layers share a number in the names of weights
  std::span<const StoredName> stored_names = {};

  // For an encoder-decoder model: the same for the encoder's layers, whose numbers begin at 0, like the decoder's.
  std::string_view encoder_prefix = {};
  std::span<const StoredName> encoder_names = {};
  std::span<const std::string_view> ignored_names = {};     // copies of the embedding, which checkpoints may have
  std::span<const std::string_view> ignored_prefixes = {};  // of weights that text does not need: a vision tower's
  std::span<const std::string_view> ignored_suffixes = {};  // of constants, and of weights that no layer reads
  // Experts of a higher index than num_experts, and a second gate, are for images (ERNIE 4.5 VL).
  bool has_experts_of_images = false;
  // The activation function of the FFNs, under the name of config.json. If FFNs are gated and it is not silu,
  // read_config sets ModelConfig::glu.
  std::string_view hidden_act = "silu";
  int64_t default_topk = 0;  // 0: config.json must have it

  GgufFamily gguf = {};

  // Gives an older form of config.json the fields that read_config reads. Leaves what is not valid as it is.
  void (*rewrite)(json::object& config) = nullptr;
  // Fills the family's own fields; the common fields are already filled. Errors go to the reader.
  void (*read_config)(ConfigReader& reader, ModelConfig& config);
};

extern const Family kMixtral;
extern const Family kOlmoe;
extern const Family kQwen2Moe;
extern const Family kQwen3Moe;
extern const Family kQwen3Next;
extern const Family kQwen35Moe;
extern const Family kQwen35MoeText;
extern const Family kPhimoe;
extern const Family kGraniteMoe;
extern const Family kGraniteMoeShared;
extern const Family kGraniteMoeSwa;
extern const Family kGraniteMoeHybrid;
extern const Family kGlm4Moe;
extern const Family kGlm4MoeLite;
extern const Family kSolarOpen;
extern const Family kErnie45Moe;
extern const Family kDots1;
extern const Family kDbrx;
extern const Family kDeepseekV2;
extern const Family kDeepseekV3;
extern const Family kDeepseekV32;
extern const Family kGlmMoeDsa;
extern const Family kAxk1;
extern const Family kGptOss;
extern const Family kArctic;
extern const Family kMinimaxM2;
extern const Family kHunyuanMoe;
extern const Family kExaoneMoe;
extern const Family kFlint;
extern const Family kHyV3;
extern const Family kMellum;
extern const Family kSwitch;
extern const Family kLlama4;
extern const Family kLlama4Text;
extern const Family kQwen3VlMoe;
extern const Family kQwen3OmniMoe;
extern const Family kQwen3OmniThinker;
extern const Family kGlm4vMoe;
extern const Family kMistral4;
extern const Family kMistral3;
extern const Family kErnie45VlMoe;
extern const Family kAria;
extern const Family kGemma4;
extern const Family kGemma4Text;
extern const Family kLfm2Moe;
extern const Family kNemotronH;
extern const Family kKimiLinear;
extern const Family kLongcatFlash;
extern const Family kBailingHybrid;
extern const Family kJamba;
extern const Family kMinimax;
extern const Family kMinimaxM1;
extern const Family kFlexOlmo;
extern const Family kAfmoe;
extern const Family kKolibri1;
extern const Family kKimiK25;
extern const Family kCohere2Moe;
extern const Family kMimoV2Flash;
extern const Family kLaguna;
extern const Family kStep3p5;
extern const Family kStep3p7;

std::span<const Family* const> AllFamilies();

// Says whether checkpoints may be without a weight (StoredName::may_lack).
bool MayLack(const Family& family, std::string_view weight);

// Returns nullptr when there is none.
const Family* FindFamily(std::string_view architecture);

}  // namespace penstock
