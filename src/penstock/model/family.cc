#include "penstock/model/family.h"

#include <array>

namespace penstock {
namespace {

constexpr std::array kFamilies = {&kMixtral,   &kOlmoe,         &kQwen2Moe,   &kQwen3Moe,    &kQwen3Next,
                                  &kQwen35Moe, &kQwen35MoeText, &kPhimoe,     &kGraniteMoe,  &kGraniteMoeShared,
                                  &kGlm4Moe,   &kGlm4MoeLite,   &kSolarOpen,  &kErnie45Moe,  &kDots1,
                                  &kDbrx,      &kDeepseekV2,    &kDeepseekV3, &kGptOss,      &kArctic,
                                  &kMinimaxM2, &kHunyuanMoe,    &kExaoneMoe,  &kFlint,       &kHyV3,
                                  &kMellum,    &kGraniteMoeSwa, &kSwitch,     &kDeepseekV32, &kGlmMoeDsa};

}  // namespace

std::span<const Family* const> AllFamilies() { return kFamilies; }

const Family* FindFamily(std::string_view architecture) {
  if (architecture.empty()) return nullptr;
  for (const Family* family : kFamilies) {
    if (family->architecture == architecture || family->other_architecture == architecture) return family;
  }
  return nullptr;
}

}  // namespace penstock
