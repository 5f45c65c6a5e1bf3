#include "penstock/model/unsupported.h"

#include <fmt/format.h>

namespace penstock {
namespace {

constexpr std::string_view kMamba = "this family's form of Mamba";
constexpr std::string_view kDelta = "this family's form of delta attention";
constexpr std::string_view kConvolutions = "this family's short convolutions";
constexpr std::string_view kBlockIndexer = "attention to blocks of positions that an indexer chooses";
constexpr std::string_view kStreams = "several residual streams (hyper-connections)";
constexpr std::string_view kHeads = "this family's sizes of heads in a layer";

constexpr UnsupportedFamily kUnsupported[] = {
    {"Nemotron3_5TranscribeForConditionalGeneration", {}, kMamba},
    {"Glm5NextForConditionalGeneration", "glm5-next", kDelta},
    {"InklingForCausalLM", {}, kConvolutions},
    {"InklingForConditionalGeneration", {}, kConvolutions},
    {"Inkling2ForCausalLM", {}, kConvolutions},
    {"Inkling2ForConditionalGeneration", {}, kConvolutions},
    {"ZayaForCausalLM", {}, "attention with convolutions of q and k"},
    {"AXK2ForCausalLM", {}, "norms with a gate"},
    {"Dots3NoteForCausalLM", "dots3note", kHeads},
    {"Dots3NoteForConditionalGeneration", {}, kHeads},
    {"MiniMaxM3ForCausalLM", "minimax-m3", kBlockIndexer},
    {"MiniMaxM3VLForCausalLM", {}, kBlockIndexer},
    {"MiniMaxM3SparseForConditionalGeneration", {}, kBlockIndexer},
    {"MistralLarge4ForConditionalGeneration", {}, "layers that share their KV entries"},
    {"DeepseekV4ForCausalLM", "deepseek4", kStreams},
    {"HYV4ForCausalLM", "hy-v4", kStreams},
    {"Qwen4ExpForCausalLM", "qwen4exp", kStreams},
    {"Qwen4ExpForConditionalGeneration", {}, kStreams},
    {"KimiK3ForConditionalGeneration", "kimi-k3", "attention to what the layers before returned"},
    {"BeamForCausalLM", {}, "residuals that shrink with the depth"},
    {"MuseSparkForConditionalGeneration", "muse-glimmer", "gates of the residual"},
    {"JetMoeForCausalLM", {}, "experts of attention"},
    {"DogeForCausalLM", {}, "attention with learned masks, and experts of one neuron"},
    {"BailingMoeForCausalLM", "bailingmoe", "this family's layers: transformers does not have it"},
    {"BailingMoeV2ForCausalLM", "bailingmoe2", "this family's layers: transformers does not have it"},
    {"NllbMoeForConditionalGeneration", {}, "an encoder other than T5's"},
    {"DeepseekOcr2ForConditionalGeneration", {}, "images, and it answers only about images"},
    {"UnlimitedOcrForConditionalGeneration", {}, "images, and it answers only about images"},
};

}  // namespace

std::span<const UnsupportedFamily> UnsupportedFamilies() { return kUnsupported; }

std::string LackOf(std::string_view architecture) {
  for (const UnsupportedFamily& family : kUnsupported) {
    if (!architecture.empty() && (family.architecture == architecture || family.gguf == architecture)) {
      return fmt::format(": Penstock does not compute {}", family.lack);
    }
  }
  return "";
}

}  // namespace penstock
