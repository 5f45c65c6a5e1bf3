// Reads a model's config from the metadata of its GGUF file, and names its tensors there.
//
// The metadata becomes the object that the family's config.json would hold, under GGUF's own keys where they mean the
// same. So one reader per family serves both formats, and messages name the key in the file.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/checkpoint/gguf.h"
#include "penstock/model/family.h"
#include "penstock/model/model_config.h"

namespace penstock {

absl::StatusOr<ModelConfig> ReadGgufConfig(const Gguf& gguf);

// Returns the config.json of a model folder with the same config, for a packed store.
absl::StatusOr<std::string> GgufConfigJson(const Gguf& gguf);

// Returns where GGUF files store weights, with the family's own names first.
std::vector<StoredName> GgufNames(const Family& family);

inline constexpr std::string_view kGgufLayerPrefix = "blk.{layer}.";

// Says whether a tensor holds config values, or is redundant given the config.
bool IsConfigTensor(std::string_view name);

}  // namespace penstock
