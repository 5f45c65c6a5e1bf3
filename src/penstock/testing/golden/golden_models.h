// Writes the golden models of tests/golden/ as whole model folders: with the weights that their recipes stand for.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "penstock/testing/golden/recipe.h"

namespace penstock::golden {

// The bytes of a file of the recipe; `folder` has the headers of GGUF files. kInput when they have not the recipe's
// hash.
absl::StatusOr<std::string> MakeFile(const Recipe& recipe, const RecipeFile& file, const std::string& folder);

// `target` becomes a copy of the folder `source`, with the recipe's files in place of the recipe and of headers.
absl::Status MakeModel(const std::string& source, const std::string& target);

// MakeModel for each folder in `source`; removes every other folder in `target`.
absl::Status MakeModels(const std::string& source, const std::string& target);

}  // namespace penstock::golden
