#include "penstock/cli/inspect_report.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "penstock/base/bytes.h"
#include "penstock/base/text.h"
#include "penstock/base/thread_pool.h"
#include "penstock/checkpoint/tensor_rows.h"
#include "penstock/cli/inspect/weight_kinds.h"
#include "penstock/model/family.h"
#include "penstock/model/recurrent_state.h"
#include "penstock/plan/engine_plan.h"
#include "penstock/plan/loaded_model.h"

namespace penstock::cli {
namespace {

// Usual memory sizes of machines.
constexpr uint64_t kMemorySizes[] = {4 * kGiB,   8 * kGiB,   16 * kGiB,   24 * kGiB,   32 * kGiB,  48 * kGiB,
                                     64 * kGiB,  96 * kGiB,  128 * kGiB,  192 * kGiB,  256 * kGiB, 384 * kGiB,
                                     512 * kGiB, 768 * kGiB, 1024 * kGiB, 1536 * kGiB, 2048 * kGiB};
constexpr uint64_t kGpuSizes[] = {8 * kGiB, 16 * kGiB, 24 * kGiB, 48 * kGiB, 80 * kGiB, 141 * kGiB};
constexpr uint64_t kMaxMemory = uint64_t{16} << 40;

json::array LayersOf(const WeightMap& map) {
  json::array layers;
  for (const LayerTensors& layer : map.layers) {
    uint64_t dense_bytes = 0, expert_bytes = 0;
    layer.ForEachDense([&](const TensorInfo& tensor) { dense_bytes += StoredBytes(tensor); },
                       [&](const TensorInfo& tensor, MatrixKind) { dense_bytes += StoredBytes(tensor); });
    for (const FfnTensors& expert : layer.experts) expert_bytes += expert.total_bytes();
    layers.push_back(
        json::object{{"experts", layer.experts.size()}, {"dense_bytes", dense_bytes}, {"expert_bytes", expert_bytes}});
  }
  return layers;
}

// Plans an engine for various budgets, whatever this machine has.
class Fits {
 public:
  explicit Fits(const DescribedModel& model)
      : model_(&model),
        layouts_(std::make_shared<ExpertLayouts>(model.weights(), model.engine_model().files, ComputeDtype::kF32)) {}

  // Returns nullopt when the model does not run.
  std::optional<MemoryPlan> At(uint64_t memory_bytes, uint64_t gpu_bytes = 0) const {
    EngineOptions options;
    EngineRoom room{.num_threads = NumUsableCpus(), .device = std::nullopt, .budget_bytes = memory_bytes};
    if (gpu_bytes > 0) {
      options.device = "gpu";
      options.device_memory_bytes = gpu_bytes;
      room.device = DeviceSpec{.kind = DeviceKind::kDescribed, .name = "gpu"};
    }
    const auto plan = PlanEngine(options, model_->engine_model(), room, layouts_);
    if (!plan.ok()) return std::nullopt;
    return plan->policy.plan;
  }

  // Returns the least budget in MiB steps for which holds(plan) is true; nullopt when none is enough.
  template <typename Holds>
  std::optional<uint64_t> Least(const Holds& holds) const {
    uint64_t low = 0, high = kMaxMemory / kMiB;
    const auto enough = [&](uint64_t mib) {
      const std::optional<MemoryPlan> plan = At(mib * kMiB);
      return plan.has_value() && holds(*plan);
    };
    if (!enough(high)) return std::nullopt;
    while (low + 1 < high) {
      const uint64_t middle = (low + high) / 2;
      (enough(middle) ? high : low) = middle;
    }
    return high * kMiB;
  }

 private:
  const DescribedModel* model_;
  std::shared_ptr<const ExpertLayouts> layouts_;
};

bool HoldsAll(const MemoryPlan& plan) { return plan.num_expert_slots >= plan.num_experts_total; }

json::object FitOf(const DescribedModel& model) {
  const Fits fits(model);
  const std::optional<uint64_t> min = fits.Least([](const MemoryPlan&) { return true; });
  const std::optional<uint64_t> all = fits.Least(HoldsAll);
  json::array memory, gpus;
  for (const uint64_t size : kMemorySizes) {
    const std::optional<MemoryPlan> plan = fits.At(size);
    if (!plan.has_value()) continue;
    if (HoldsAll(*plan)) break;
    memory.push_back(json::object{{"memory_bytes", size},
                                  {"experts_in_dram", std::min(plan->num_expert_slots, plan->num_experts_total)},
                                  {"experts", plan->num_experts_total},
                                  {"batch_size", plan->batch_size}});
  }
  const bool on_gpus = CheckComputedOnGpus("gpu", model.config(), model.weights(), ComputeDtype::kF32).ok();
  for (const uint64_t size : kGpuSizes) {
    if (!on_gpus) break;
    const std::optional<MemoryPlan> plan = fits.At(kMaxMemory, size);
    if (!plan.has_value()) continue;
    const int64_t on_gpu = std::min(plan->device.num_expert_slots, plan->num_experts_total);
    gpus.push_back(
        json::object{{"gpu_memory_bytes", size}, {"experts_on_gpu", on_gpu}, {"experts", plan->num_experts_total}});
    if (on_gpu == plan->num_experts_total) break;
  }
  const auto number = [](const std::optional<uint64_t>& bytes) {
    return bytes.has_value() ? json::value(*bytes) : json::value();
  };
  return {{"least_memory_bytes", number(min)},
          {"all_in_dram_bytes", number(all)},
          {"memory", std::move(memory)},
          {"gpus", std::move(gpus)}};
}

json::value TokenizerOf(const LoadedModel& model) {
  if (model.tokenizer == nullptr) return nullptr;
  const Tokenizer& tokenizer = *model.tokenizer;
  const auto token = [&](TokenId id) {
    if (id < 0) return json::value();
    return json::value(json::object{{"id", id}, {"text", ReplaceInvalidUtf8(std::string(tokenizer.TokenText(id)))}});
  };
  return json::object{
      {"vocab_size", tokenizer.vocab_size()}, {"bos", token(tokenizer.bos_id())}, {"eos", token(tokenizer.eos_id())}};
}

// Returns the values of K and V of a position, in all layers.
int64_t KvValues(const ModelConfig& c) {
  if (c.layer_heads.empty()) return c.num_kv_layers() * (c.kv_dim() + c.v_dim());
  int64_t values = 0;
  for (int64_t layer_idx = 0; layer_idx < c.num_layers; ++layer_idx) {
    values += c.kv_dim(layer_idx) + c.v_dim(layer_idx);
  }
  return values;
}

// Returns the KV heads of each layer; empty if all layers have the same.
json::array HeadsOfLayers(const ModelConfig& c) {
  json::array layers;
  for (size_t layer_idx = 0; layer_idx < c.layer_heads.size(); ++layer_idx) {
    const LayerHeads& heads = c.layer_heads[layer_idx];
    layers.push_back(json::object{{"num_heads", c.num_heads_of(static_cast<int64_t>(layer_idx))},
                                  {"num_kv_heads", heads.num_kv_heads},
                                  {"head_dim", heads.head_dim},
                                  {"value_dim", c.value_dim(static_cast<int64_t>(layer_idx))},
                                  {"keys_are_values", heads.keys_are_values}});
  }
  return layers;
}

std::string_view ScoringName(RouterRule::Scoring scoring) {
  switch (scoring) {
    case RouterRule::Scoring::kSoftmax: return "softmax";
    case RouterRule::Scoring::kSigmoid: return "sigmoid";
    case RouterRule::Scoring::kSparsemixer: return "sparsemixer";
  }
  return "";
}

std::string_view RecurrentKindName(RecurrentKind kind) {
  switch (kind) {
    case RecurrentKind::kDeltaNet: return "gated DeltaNet";
    case RecurrentKind::kKimiDelta: return "Kimi Delta Attention";
    case RecurrentKind::kMamba2: return "Mamba-2";
    case RecurrentKind::kMamba1: return "Mamba";
    case RecurrentKind::kShortConv: return "short convolutions";
    case RecurrentKind::kLightning: return "lightning attention";
  }
  return "";
}

std::string_view QkNormName(QkNorm norm) {
  switch (norm) {
    case QkNorm::kNone: return "none";
    case QkNorm::kPerHead: return "per head";
    case QkNorm::kPerHeadAfterRope: return "per head, after RoPE";
    case QkNorm::kWhole: return "all heads at once";
    case QkNorm::kUnitAfterRope: return "per head without weights, after RoPE";
  }
  return "";
}

int64_t NumTrue(const std::vector<bool>& of_layers, int64_t num_layers) {
  return of_layers.empty() ? num_layers : std::count(of_layers.begin(), of_layers.end(), true);
}

// Returns the rules of the layers, as read from config.json.
json::object RulesOf(const ModelConfig& c) {
  json::array other_thetas;
  for (const Rope& rope : c.other_ropes) other_thetas.push_back(rope.theta);
  int64_t num_scaled = 0;
  for (int64_t layer_idx = 0; layer_idx < c.num_layers; ++layer_idx) num_scaled += c.has_query_scale(layer_idx) ? 1 : 0;
  json::object rules = {
      {"norm", c.norm == Norm::kRms ? "RMSNorm" : "LayerNorm"},
      {"norm_eps", c.norm_eps},
      {"qk_norm", QkNormName(c.qk_norm)},
      {"input_norms", c.input_norms},
      {"output_norms", c.output_norms != OutputNorms::kNone},
      {"parallel_ffn", c.parallel_ffn},
      {"logit_cap", c.logit_cap},
      {"qkv_bias", c.qkv_bias},
      {"sinks", c.attention_sinks},
      {"attention_gate", !c.attention_gate    ? "none"
                         : c.gate_is_softplus ? "softplus"
                                              : "sigmoid"},
      {"attention_gate_per_head", c.gate_is_per_head},
      {"window_layers", c.sliding_window > 0 ? NumTrue(c.layer_has_window, c.num_layers) : 0},
      {"windows_are_chunks", c.windows_are_chunks},
      {"query_scale", c.query_scale.factor},
      {"query_scale_period", c.query_scale.period},
      {"query_scale_layers", num_scaled},
      {"rope_theta", c.rope.theta},
      {"rotary_dim", c.rope.rotary_dim},
      {"rope_of_neighbours", c.rope.is_interleaved},
      {"rope_scale", c.rope.usual.scale},
      {"other_rope_thetas", std::move(other_thetas)},
      {"rope_layers", c.num_layers - std::count(c.layer_rope.begin(), c.layer_rope.end(), kNoRope)},
      {"router", ScoringName(c.router.scoring)},
      {"router_renormalises", c.router.renormalises},
      {"router_scale", c.router.scale},
      {"router_scales_input", c.router_scales_input},
      {"router_chooses_by_logits", c.router.chooses_by_logits},
      {"router_groups", c.router.num_groups},
      {"router_topk_groups", c.router.num_topk_groups},
      {"router_selection_bias", c.router_selection_bias},
  };
  return rules;
}

// Returns the formats of activations that each kind of matrix is multiplied by, by default.
json::object ActivationsOf(const WeightMap& map) {
  const RowFormats rows = RowFormatsOf(map, ComputeDtype::kF32, ActivationFormat::kInt8);
  const auto name = [](kernels::RowFormat format) { return ArithmeticName(RowArithmetic(format)); };
  return {{"attention", name(rows.attention)}, {"ffn", name(rows.ffn)}, {"lm_head", name(rows.lm_head)}};
}

std::string_view FormatName(const Checkpoint& checkpoint) {
  switch (checkpoint.format()) {
    case Checkpoint::Format::kSafetensors: return "safetensors";
    case Checkpoint::Format::kPacked: return "packed store";
    case Checkpoint::Format::kGguf: return "GGUF";
  }
  return "";
}

// Returns the formats of a kind, the largest first: "q4_k 1.2 GiB, q6_k 300 MiB".
std::string FormatsText(const json::object& formats) {
  std::vector<std::pair<uint64_t, std::string>> parts;
  for (const auto& [name, bytes] : formats) parts.emplace_back(bytes.to_number<uint64_t>(), std::string(name));
  std::sort(parts.rbegin(), parts.rend());
  if (parts.size() == 1) return parts[0].second;
  std::string text;
  for (const auto& [bytes, name] : parts)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, FormatBytes(bytes));
  return text;
}

// Adds what only a model's folder says.
void AddFolder(const LoadedModel& model, json::object& report) {
  json::array files;
  for (const OpenedFile& file : model.checkpoint.files()) {
    files.push_back(json::object{{"path", ReplaceInvalidUtf8(file.path)}, {"bytes", file.size_bytes}});
  }
  report["format"] = FormatName(model.checkpoint);
  report["fingerprint"] = model.fingerprint;
  report["packed"] = model.checkpoint.format() == Checkpoint::Format::kPacked;
  report["tokenizer"] = TokenizerOf(model);
  report["chat_template"] = model.chat_prompts.has_value();
  report["chat_template_missing"] =
      model.chat_prompts.has_value() ? json::value() : json::value(Message(model.chat_template_status));
  report["tensors"] = model.checkpoint.tensors().size();
  report["files"] = std::move(files);
}

}  // namespace

json::object InspectReport(const DescribedModel& described) {
  const ModelConfig& c = described.config();
  const WeightMap& weights = described.weights();
  json::object kinds;
  uint64_t expert_bytes = 0, known_bytes = 0;
  for (const Kind& kind : KindsOf(weights)) {
    json::object formats;
    for (const auto& [format, bytes] : kind.formats) formats[format] = bytes;
    kinds[kind.name] = {{"bytes", kind.bytes()},
                        {"bits_per_weight", kind.bits_per_weight()},
                        {"tensors", kind.num_tensors},
                        {"formats", std::move(formats)}};
    if (kind.name == "experts") expert_bytes = kind.bytes();
    known_bytes += kind.bytes();
  }
  const uint64_t total_bytes = described.weights_bytes();
  const int64_t kv_values = KvValues(c) + c.num_index_layers() * c.indexer.head_dim;
  json::object report = {{"model", ReplaceInvalidUtf8(described.name())},
                         {"family", c.family->name},
                         {"dtype", StoredFormatName(weights)},
                         {"activations", ActivationsOf(weights)},
                         {"vocab_size", c.vocab_size},
                         {"model_dim", c.model_dim},
                         {"num_layers", c.num_layers},
                         {"num_moe_layers", c.num_moe_layers()},
                         {"encoder_layers", c.encoder.num_layers},
                         {"expert_capacity", c.encoder.expert_capacity},
                         {"num_heads", c.num_heads},
                         {"num_kv_heads", c.num_kv_heads},
                         {"head_dim", c.head_dim},
                         {"layer_heads", HeadsOfLayers(c)},
                         {"kv_lora_rank", c.mla.kv_lora_rank},
                         {"kv_bytes_per_position", kv_values * 4},
                         {"index_layers", c.num_index_layers()},
                         {"index_heads", c.indexer.num_heads},
                         {"index_head_dim", c.indexer.head_dim},
                         {"index_topk", c.indexer.num_topk},
                         {"recurrent_layers", c.num_recurrent_layers()},
                         {"recurrent_kind", c.recurrent.is_on() ? RecurrentKindName(c.recurrent.kind) : "none"},
                         {"state_bytes_per_sequence", RecurrentState::Bytes(c)},
                         {"num_experts", c.num_experts},
                         {"num_identity_experts", c.num_identity_experts},
                         {"num_topk", c.num_topk},
                         {"expert_dim", c.expert_dim},
                         {"latent_dim", c.latent_dim},
                         {"shared_ffn_dim", c.shared_ffn_dim},
                         {"max_positions", c.max_positions},
                         {"sliding_window", c.sliding_window},
                         {"tie_embeddings", c.tie_embeddings},
                         {"rules", RulesOf(c)},
                         {"total_bytes", total_bytes},
                         {"expert_bytes", expert_bytes},
                         {"dense_bytes", known_bytes - expert_bytes},
                         {"unused_bytes", total_bytes > known_bytes ? total_bytes - known_bytes : 0}};
  const int64_t num_experts = c.num_moe_layers() * c.num_stored_experts();
  report["bytes_per_expert"] = num_experts > 0 ? expert_bytes / static_cast<uint64_t>(num_experts) : 0;
  report["kinds"] = std::move(kinds);
  report["layers"] = LayersOf(weights);
  if (described.loaded() != nullptr) AddFolder(*described.loaded(), report);
  report["fit"] = FitOf(described);
  return report;
}

namespace {

// Returns the table rows about the rules of the layers.
std::vector<std::pair<std::string_view, std::string>> RuleRows(const json::object& d) {
  const json::object& rules = d.at("rules").get_object();
  const auto integer = [&](const char* key) { return rules.at(key).to_number<int64_t>(); };
  const auto number = [&](const char* key) { return rules.at(key).to_number<double>(); };
  const auto is = [&](const char* key) { return rules.at(key).get_bool(); };
  const auto text = [&](const char* key) { return std::string(rules.at(key).get_string()); };
  const int64_t num_layers = d.at("num_layers").to_number<int64_t>();
  std::string norms = fmt::format("{}, eps {:g}", text("norm"), number("norm_eps"));
  if (text("qk_norm") != "none") norms += fmt::format("; of q and k: {}", text("qk_norm"));
  if (!is("input_norms")) norms += "; of no inputs";
  if (is("output_norms")) norms += "; of the outputs of attention and FFNs";
  std::string rope = fmt::format("theta {:g}", number("rope_theta"));
  for (const json::value& theta : rules.at("other_rope_thetas").get_array()) {
    rope += fmt::format(", in other layers {:g}", theta.to_number<double>());
  }
  rope += fmt::format(", {} dims of a head", integer("rotary_dim"));
  if (is("rope_of_neighbours")) rope += ", neighbours";
  if (number("rope_scale") != 1) rope += fmt::format(", cos and sin x {:.4g}", number("rope_scale"));
  if (integer("rope_layers") < num_layers) rope += fmt::format(", in {} layers", integer("rope_layers"));
  if (integer("rope_layers") == 0) rope = "none";
  std::string router = text("router");
  if (is("router_chooses_by_logits")) router += ", chosen by logits";
  if (is("router_selection_bias")) router += ", chosen with a bias";
  if (integer("router_groups") > 1) {
    router += fmt::format(", from {} of {} groups", integer("router_topk_groups"), integer("router_groups"));
  }
  if (is("router_renormalises")) router += ", weights divided by their sum";
  if (number("router_scale") != 1) router += fmt::format(", x {:g}", number("router_scale"));
  if (is("router_scales_input")) router += ", weights multiply inputs";
  std::vector<std::pair<std::string_view, std::string>> rows = {{"norms", norms}, {"RoPE", rope}, {"router", router}};
  if (integer("query_scale_layers") > 0) {
    rows.emplace_back("queries", fmt::format("x 1 + {:g} log(1 + position / {}) in {} layers", number("query_scale"),
                                             integer("query_scale_period"), integer("query_scale_layers")));
  }
  if (const int64_t index_layers = d.at("index_layers").to_number<int64_t>(); index_layers > 0) {
    const auto field = [&](const char* key) { return d.at(key).to_number<int64_t>(); };
    std::string indexer = fmt::format("{} heads of {} dims choose {} positions for each token", field("index_heads"),
                                      field("index_head_dim"), field("index_topk"));
    if (index_layers < num_layers) indexer += fmt::format(", in {} layers; the others share them", index_layers);
    rows.emplace_back("indexer", indexer);
  }
  if (const int64_t recurrent = d.at("recurrent_layers").to_number<int64_t>(); recurrent > 0) {
    rows.emplace_back("recurrent",
                      fmt::format("{} of the {} layers have {} in place of attention; its state takes {} a sequence",
                                  recurrent, num_layers, std::string_view(d.at("recurrent_kind").get_string()),
                                  FormatBytes(d.at("state_bytes_per_sequence").to_number<uint64_t>())));
  }
  if (const int64_t of_encoder = d.at("encoder_layers").to_number<int64_t>(); of_encoder > 0) {
    rows.emplace_back("encoder", fmt::format("{} of the {} layers; {} rows of a prompt for each expert", of_encoder,
                                             num_layers, d.at("expert_capacity").to_number<int64_t>()));
  }
  std::string sees;
  if (const int64_t window = d.at("sliding_window").to_number<int64_t>(); window > 0) {
    sees = fmt::format("{} {} positions in {} of {} layers", is("windows_are_chunks") ? "chunks of" : "the last",
                       window, integer("window_layers"), num_layers);
  }
  if (is("sinks")) sees += sees.empty() ? "attention sinks" : "; attention sinks";
  if (!sees.empty()) rows.emplace_back("window", sees);
  return rows;
}

// Returns the KV heads of the layers: "8 KV heads, head_dim 256 in 5 layers; 2 KV heads, head_dim 512 in 1 layers".
std::string HeadsText(const json::object& d) {
  std::vector<std::pair<std::string, int>> kinds;
  const auto text_of = [](const json::object& heads) {
    return fmt::format("{} KV heads, head_dim {}", heads.at("num_kv_heads").to_number<int64_t>(),
                       heads.at("head_dim").to_number<int64_t>());
  };
  for (const json::value& value : d.at("layer_heads").get_array()) {
    const json::object& heads = value.get_object();
    const auto field = [&](const char* key) { return heads.at(key).to_number<int64_t>(); };
    std::string text = text_of(heads);
    if (field("num_heads") != d.at("num_heads").to_number<int64_t>()) {
      text = fmt::format("{} heads, {}", field("num_heads"), text);
    }
    if (heads.at("keys_are_values").get_bool()) text += ", V from K";
    if (field("value_dim") != field("head_dim")) text += fmt::format(", {} of V", field("value_dim"));
    const auto known = std::ranges::find(kinds, text, &std::pair<std::string, int>::first);
    known == kinds.end() ? (void)kinds.emplace_back(text, 1) : (void)++known->second;
  }
  if (kinds.empty()) return text_of(d);
  std::string out;
  for (const auto& [text, count] : kinds) {
    out += fmt::format("{}{} in {} of {} layers", out.empty() ? "" : "; ", text, count,
                       d.at("num_layers").to_number<int64_t>());
  }
  return out;
}

std::string Bytes(const json::value& value) { return FormatBytes(value.to_number<uint64_t>()); }

// Returns a table of how many bytes each kind of weight takes, and in which formats.
std::string WeightTable(const json::object& kinds) {
  std::string out = "\nweights              bytes        bits    stored as\n";
  for (const auto& [name, value] : kinds) {
    const json::object& kind = value.get_object();
    out +=
        fmt::format("{:<20} {:<12} {:<7.2f} {}\n", std::string_view(name.data(), name.size()), Bytes(kind.at("bytes")),
                    kind.at("bits_per_weight").to_number<double>(), FormatsText(kind.at("formats").get_object()));
  }
  return out;
}

// Returns tables of how many experts fit into DRAM and into the memory of a GPU.
std::string FitTable(const json::object& fit) {
  std::string out = "\nDRAM (--memory)   experts in DRAM\n";
  if (!fit.at("least_memory_bytes").is_null()) {
    out += fmt::format("{:<17} the least; the requests of a job come on top\n", Bytes(fit.at("least_memory_bytes")));
  }
  const auto share = [](const json::object& place, const char* key) {
    const auto part = place.at(key).to_number<int64_t>(), all = place.at("experts").to_number<int64_t>();
    return fmt::format("{} of {} ({:.0f} %)", part, all,
                       all > 0 ? 100.0 * static_cast<double>(part) / static_cast<double>(all) : 100.0);
  };
  for (const json::value& value : fit.at("memory").get_array()) {
    const json::object& place = value.get_object();
    out += fmt::format("{:<17} {}\n", Bytes(place.at("memory_bytes")), share(place, "experts_in_dram"));
  }
  if (!fit.at("all_in_dram_bytes").is_null()) {
    out += fmt::format("{:<17} all\n", Bytes(fit.at("all_in_dram_bytes")));
  }
  if (!fit.at("gpus").get_array().empty()) out += "\nGPU memory        experts on the GPU\n";
  for (const json::value& value : fit.at("gpus").get_array()) {
    const json::object& place = value.get_object();
    out += fmt::format("{:<17} {}\n", Bytes(place.at("gpu_memory_bytes")), share(place, "experts_on_gpu"));
  }
  return out;
}

// Returns a table of the layers: their experts and bytes.
std::string LayerTable(const json::array& layers) {
  std::string out = "\nlayer   experts   dense       experts\n";
  int layer_idx = 0;
  for (const json::value& value : layers) {
    const json::object& layer = value.get_object();
    out += fmt::format("{:>5}   {:>7}   {:<10}  {}\n", layer_idx++, layer.at("experts").to_number<int64_t>(),
                       Bytes(layer.at("dense_bytes")), Bytes(layer.at("expert_bytes")));
  }
  return out;
}

std::string Row(std::string_view name, std::string_view value) { return fmt::format("{:<18}{}\n", name, value); }

// Returns the table's rows about a folder's tokenizer and template.
std::string FolderRows(const json::object& d) {
  std::string out;
  if (d.at("tokenizer").is_null()) {
    out += Row("tokenizer", "none: prompts must be token ids");
  } else {
    const json::object& tokenizer = d.at("tokenizer").get_object();
    const auto token = [&](const char* key) {
      const json::value& value = tokenizer.at(key);
      return value.is_null() ? std::string("none") : Printable(std::string(value.get_object().at("text").get_string()));
    };
    out += Row("tokenizer", fmt::format("{} tokens, bos {}, eos {}", tokenizer.at("vocab_size").to_number<int64_t>(),
                                        token("bos"), token("eos")));
  }
  const bool has_template = d.at("chat_template").get_bool();
  return out + Row("chat template",
                   has_template ? "yes" : Printable(std::string(d.at("chat_template_missing").get_string())));
}

// Returns what the layers' experts are.
std::string ExpertsText(const json::object& d) {
  const auto number = [&](const char* key) { return d.at(key).to_number<int64_t>(); };
  std::string text = fmt::format("{} per layer, top-{}, expert_dim {}, {} each", number("num_experts"),
                                 number("num_topk"), number("expert_dim"), Bytes(d.at("bytes_per_expert")));
  if (const int64_t count = number("num_identity_experts"); count > 0) {
    text += fmt::format("; {} of them return their input and have no weights", count);
  }
  if (const int64_t dim = number("latent_dim"); dim > 0) text += fmt::format("; their rows have {} values", dim);
  if (const int64_t dim = number("shared_ffn_dim"); dim > 0) {
    text += fmt::format("; {} columns beside them for all tokens", dim);
  }
  return text;
}

}  // namespace

std::string InspectTable(const json::object& d) {
  const auto number = [&](const char* key) { return d.at(key).to_number<int64_t>(); };
  const auto text = [&](const char* key) { return std::string(d.at(key).get_string()); };
  std::string out;
  const auto row = [&](std::string_view name, std::string_view value) { out += Row(name, value); };
  row("model", Printable(text("model")));
  const bool has_folder = d.contains("files");
  row("family", fmt::format("{} ({}, {})", text("family"), has_folder ? text("format") : "config.json", text("dtype")));
  const auto activation = [&](const char* kind) {
    return std::string(d.at("activations").as_object().at(kind).get_string());
  };
  row("activations", fmt::format("{} for attention, {} for FFNs, {} for the output", activation("attention"),
                                 activation("ffn"), activation("lm_head")));
  row("layers", fmt::format("{} ({} with experts), model_dim {}", number("num_layers"), number("num_moe_layers"),
                            number("model_dim")));
  const std::string heads = number("kv_lora_rank") > 0
                                ? fmt::format("{} heads, KV compressed to {} + {} (MLA)", number("num_heads"),
                                              number("kv_lora_rank"), number("head_dim") - number("kv_lora_rank"))
                                : fmt::format("{} heads, {}", number("num_heads"), HeadsText(d));
  row("attention", fmt::format("{}; KV cache {} a token in f32", heads, Bytes(d.at("kv_bytes_per_position"))));
  for (const auto& [name, value] : RuleRows(d)) row(name, value);
  row("experts", ExpertsText(d));
  row("vocabulary", fmt::format("{} tokens, {} positions", number("vocab_size"), number("max_positions")));
  if (has_folder) out += FolderRows(d);
  row("total", has_folder ? fmt::format("{} in {} tensors, {} files", Bytes(d.at("total_bytes")), number("tensors"),
                                        d.at("files").get_array().size())
                          : Bytes(d.at("total_bytes")));
  row("  always in DRAM", Bytes(d.at("dense_bytes")));
  row("  experts (disk)", Bytes(d.at("expert_bytes")));
  if (number("unused_bytes") > 0) row("  not used", Bytes(d.at("unused_bytes")));
  return out + WeightTable(d.at("kinds").get_object()) + FitTable(d.at("fit").get_object()) +
         LayerTable(d.at("layers").get_array());
}

}  // namespace penstock::cli
