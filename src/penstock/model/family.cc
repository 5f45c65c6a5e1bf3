#include "penstock/model/family.h"

#include <algorithm>
#include <array>

namespace penstock {
namespace {

constexpr std::array kFamilies = {&kMixtral,
                                  &kOlmoe,
                                  &kQwen2Moe,
                                  &kQwen3Moe,
                                  &kQwen3Next,
                                  &kQwen35Moe,
                                  &kQwen35MoeText,
                                  &kPhimoe,
                                  &kGraniteMoe,
                                  &kGraniteMoeShared,
                                  &kGlm4Moe,
                                  &kGlm4MoeLite,
                                  &kSolarOpen,
                                  &kErnie45Moe,
                                  &kDots1,
                                  &kDbrx,
                                  &kDeepseekV2,
                                  &kDeepseekV3,
                                  &kGptOss,
                                  &kArctic,
                                  &kMinimaxM2,
                                  &kHunyuanMoe,
                                  &kExaoneMoe,
                                  &kFlint,
                                  &kHyV3,
                                  &kMellum,
                                  &kGraniteMoeSwa,
                                  &kSwitch,
                                  &kLlama4,
                                  &kLlama4Text,
                                  &kQwen3VlMoe,
                                  &kQwen3OmniMoe,
                                  &kQwen3OmniThinker,
                                  &kGlm4vMoe,
                                  &kMistral4,
                                  &kMistral3,
                                  &kErnie45VlMoe,
                                  &kAria,
                                  &kDeepseekV32,
                                  &kGlmMoeDsa,
                                  &kAxk1,
                                  &kGemma4,
                                  &kGemma4Text,
                                  &kLfm2Moe,
                                  &kGraniteMoeHybrid,
                                  &kNemotronH,
                                  &kKimiLinear,
                                  &kLongcatFlash,
                                  &kJamba,
                                  &kMinimax,
                                  &kMinimaxM1,
                                  &kFlexOlmo,
                                  &kAfmoe,
                                  &kKolibri1,
                                  &kKimiK25,
                                  &kCohere2Moe,
                                  &kMimoV2Flash,
                                  &kLaguna,
                                  &kStep3p5,
                                  &kStep3p7,
                                  &kBailingHybrid};

}  // namespace

std::span<const Family* const> AllFamilies() { return kFamilies; }

bool MayLack(const Family& family, std::string_view weight) {
  const auto says_so = [=](const StoredName& rule) { return rule.may_lack && rule.name == weight; };
  return std::ranges::any_of(family.stored_names, says_so);
}

const Family* FindFamily(std::string_view architecture) {
  if (architecture.empty()) return nullptr;
  for (const Family* family : kFamilies) {
    if (family->architecture == architecture || family->other_architecture == architecture) return family;
  }
  return nullptr;
}

}  // namespace penstock
