// A model's config from the metadata of its GGUF file, and what its tensors are called there.
//
// The metadata becomes what the family's config.json would say, under its own keys where they mean the same, so that
// one reader per family serves both and messages name the key that the file has.
#pragma once

#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/checkpoint/gguf.h"
#include "penstock/model/family.h"
#include "penstock/model/model_config.h"

namespace penstock {

absl::StatusOr<ModelConfig> ReadGgufConfig(const Gguf& gguf);

// Where GGUF files keep weights: the family's own names first.
std::vector<StoredName> GgufNames(const Family& family);

inline constexpr std::string_view kGgufLayerPrefix = "blk.{layer}.";

// A tensor of a GGUF file that is read into the config, or that the config makes needless.
bool IsConfigTensor(std::string_view name);

}  // namespace penstock
