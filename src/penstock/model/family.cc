#include "penstock/model/family.h"

#include <array>

namespace penstock {
namespace {

constexpr std::array<const Family*, 3> kFamilies = {&kMixtral, &kOlmoe, &kQwen3Moe};

}  // namespace

std::span<const Family* const> AllFamilies() { return kFamilies; }

const Family* FindFamily(std::string_view architecture) {
  for (const Family* family : kFamilies) {
    if (family->architecture == architecture) return family;
  }
  return nullptr;
}

}  // namespace penstock
