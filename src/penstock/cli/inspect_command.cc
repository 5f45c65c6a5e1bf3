#include "penstock/cli/commands.h"

#include <xxhash.h>

#include <bit>
#include <memory>

#include <unistd.h>

#include "penstock/base/bytes.h"
#include "penstock/base/file.h"
#include "penstock/base/json.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/checkpoint/packed_index.h"
#include "penstock/checkpoint/tensor_rows.h"
#include "penstock/engine/formats.h"
#include "penstock/engine/loaded_model.h"
#include "penstock/model/family.h"

namespace penstock::cli {
namespace {

struct LayerSizes {
  uint64_t dense_bytes = 0;
  uint64_t expert_bytes = 0;  // of all experts of the layer
};

LayerSizes SizesOf(const LayerTensors& l) {
  LayerSizes sizes;
  l.ForEachDense([&](const TensorInfo& tensor) { sizes.dense_bytes += StoredBytes(tensor); },
                 [&](const TensorInfo& tensor, MatrixKind) { sizes.dense_bytes += StoredBytes(tensor); });
  for (const FfnTensors& expert : l.experts) sizes.expert_bytes += expert.total_bytes();
  return sizes;
}

json::object Describe(const LoadedModel& model) {
  const ModelConfig& c = model.config;
  uint64_t expert_bytes = 0;
  json::array layers;
  for (const LayerTensors& layer : model.weights.layers) {
    const LayerSizes sizes = SizesOf(layer);
    expert_bytes += sizes.expert_bytes;
    layers.push_back(json::object{
        {"experts", layer.experts.size()}, {"dense_bytes", sizes.dense_bytes}, {"expert_bytes", sizes.expert_bytes}});
  }
  const uint64_t total_bytes = model.checkpoint.total_bytes();
  json::array files;
  for (const OpenedFile& file : model.checkpoint.files()) {
    files.push_back(json::object{{"path", ReplaceInvalidUtf8(file.path)}, {"bytes", file.size_bytes}});
  }
  return {{"model", ReplaceInvalidUtf8(model.name)},
          {"family", c.family->name},
          {"fingerprint", model.fingerprint},
          {"dtype", StoredFormatName(model.weights)},
          {"packed", !model.checkpoint.quantize().empty()},
          {"vocab_size", c.vocab_size},
          {"model_dim", c.model_dim},
          {"num_layers", c.num_layers},
          {"num_heads", c.num_heads},
          {"num_kv_heads", c.num_kv_heads},
          {"head_dim", c.head_dim},
          {"num_experts", c.num_experts},
          {"num_topk", c.num_topk},
          {"expert_dim", c.expert_dim},
          {"max_positions", c.max_positions},
          {"sliding_window", c.sliding_window},
          {"tie_embeddings", c.tie_embeddings},
          {"tokenizer", model.tokenizer != nullptr},
          {"chat_template", model.chat_template.has_value()},
          {"tensors", model.checkpoint.tensors().size()},
          {"total_bytes", total_bytes},
          {"expert_bytes", expert_bytes},
          {"dense_bytes", total_bytes - expert_bytes},
          {"bytes_per_expert",
           c.num_moe_layers() > 0 ? expert_bytes / static_cast<uint64_t>(c.num_moe_layers() * c.num_experts) : 0},
          {"files", std::move(files)},
          {"layers", std::move(layers)}};
}

std::string Table(const json::object& d) {
  const auto number = [&](const char* key) { return d.at(key).to_number<int64_t>(); };
  const auto bytes = [&](const char* key) { return FormatBytes(d.at(key).to_number<uint64_t>()); };
  const auto text = [&](const char* key) { return std::string(d.at(key).get_string()); };
  const auto yes_no = [&](const char* key) { return d.at(key).get_bool() ? "yes" : "no"; };
  std::string out;
  const auto row = [&](std::string_view name, std::string_view value) {
    out += fmt::format("{:<18}{}\n", name, value);
  };
  row("model", Printable(text("model")));
  row("family", fmt::format("{} ({}{})", text("family"), text("dtype"), d.at("packed").get_bool() ? ", packed" : ""));
  row("layers", fmt::format("{}, model_dim {}", number("num_layers"), number("model_dim")));
  row("attention", fmt::format("{} heads, {} KV heads, head_dim {}", number("num_heads"), number("num_kv_heads"),
                               number("head_dim")));
  row("experts", fmt::format("{} per layer, top-{}, expert_dim {}, {} each", number("num_experts"), number("num_topk"),
                             number("expert_dim"), bytes("bytes_per_expert")));
  row("vocabulary", fmt::format("{} tokens, {} positions", number("vocab_size"), number("max_positions")));
  row("tokenizer", fmt::format("{}, chat template: {}", yes_no("tokenizer"), yes_no("chat_template")));
  row("total", fmt::format("{} in {} tensors, {} files", bytes("total_bytes"), number("tensors"),
                           d.at("files").get_array().size()));
  row("  always in DRAM", bytes("dense_bytes"));
  row("  experts (disk)", bytes("expert_bytes"));
  out += "\nlayer   experts   dense       experts\n";
  int layer_idx = 0;
  for (const json::value& layer : d.at("layers").get_array()) {
    const json::object& l = layer.get_object();
    out += fmt::format("{:>5}   {:>7}   {:<10}  {}\n", layer_idx++, l.at("experts").to_number<int64_t>(),
                       FormatBytes(l.at("dense_bytes").to_number<uint64_t>()),
                       FormatBytes(l.at("expert_bytes").to_number<uint64_t>()));
  }
  return out;
}

// Reads every tensor, compares its checksum where it has one, and counts values that are no finite numbers.
absl::Status VerifyWeights(const LoadedModel& model) {
  std::vector<std::byte> chunk(kMiB);
  std::vector<float> values;
  std::string faults;
  int64_t num_faulty = 0;
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> digest(XXH3_createState(), &XXH3_freeState);
  for (const TensorInfo& tensor : model.checkpoint.tensors()) {
    const OpenedFile& file = model.checkpoint.files()[tensor.file_idx];
    const bool is_float = !tensor.packed.has_value() || IsFloat(*tensor.packed);
    const Dtype dtype = is_float && tensor.packed.has_value() ? DtypeOf(*tensor.packed) : tensor.dtype;
    XXH3_64bits_reset(digest.get());
    int64_t num_bad = 0;
    for (uint64_t done = 0; done < tensor.extent.size_bytes; done += chunk.size()) {
      const uint64_t size = std::min<uint64_t>(chunk.size(), tensor.extent.size_bytes - done);
      PENSTOCK_RETURN_IF_ERROR(
          PreadFully(file.fd.get(), std::span(chunk).first(size), tensor.extent.offset_bytes + done, file.path));
      XXH3_64bits_update(digest.get(), chunk.data(), size);
      if (!is_float) continue;  // packing refused them
      values.resize(size / SizeOf(dtype));
      ToFloats(dtype, chunk.data(), values);
      for (const float value : values) num_bad += (std::bit_cast<uint32_t>(value) & 0x7F800000) == 0x7F800000 ? 1 : 0;
    }
    PENSTOCK_RETURN_IF_ERROR(CheckSum(tensor, XXH3_64bits_digest(digest.get())));
    if (num_bad == 0) continue;
    if (++num_faulty <= 10) faults += fmt::format("{}{} has {}", faults.empty() ? "" : "; ", tensor.name, num_bad);
  }
  if (num_faulty == 0) return absl::OkStatus();
  return ModelError("values that are NaN or infinite: {}{} ({} tensors in all)", faults, num_faulty > 10 ? "; ..." : "",
                    num_faulty);
}

}  // namespace

absl::StatusOr<int> InspectCommand(const InspectFlags& flags) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<LoadedModel> model, LoadModel(flags.model_dir));
  if (flags.verify) PENSTOCK_RETURN_IF_ERROR(VerifyWeights(*model));
  const json::object description = Describe(*model);
  const std::string text = flags.as_json ? json::serialize(description) + "\n" : Table(description);
  PENSTOCK_RETURN_IF_ERROR(WriteFully(STDOUT_FILENO, text, "stdout"));
  return 0;
}

}  // namespace penstock::cli
