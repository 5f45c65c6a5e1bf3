// The recipe of a golden model's weights, VARIANT/weights.json, as tools/golden/weights.py and make_gguf.py write it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/testing/golden/random_weights.h"

namespace penstock::golden {

// One tensor of a GGUF file: elements of tensors of the folder, one tensor after the other.
struct TakenTensor {
  struct Loop {
    int64_t count = 0;
    int64_t step = 0;
  };
  std::vector<std::string> sources;
  // Places in a source: `first` plus the loops' steps, the outermost loop first.
  struct Take {
    int64_t first = 0;
    std::vector<Loop> loops;
  };
  std::vector<Take> takes = {};     // one after the other; empty: all elements of each source
  std::optional<Dtype> dtype = {};  // where it is not that of the sources
  // A value x is replaced by x + 1, or by -exp(x) computed in f64, as f32.
  enum class Change : uint8_t { kNone, kPlusOne, kMinusExp };
  Change change = Change::kNone;
  std::vector<float> values = {};  // not empty: these numbers, and there are no sources
};

struct RecipeFile {
  std::string name;                        // in the model folder
  uint64_t xxh3 = 0;                       // of the whole file
  std::vector<RandomTensor> tensors = {};  // of a safetensors file, in their order
  std::string header = {};                 // not empty: of a GGUF file, all that comes before the tensors
  std::vector<TakenTensor> taken = {};     // of a GGUF file
};

struct Recipe {
  uint64_t seed = 0;
  std::vector<RecipeFile> files;
};

// kInput for a text that is no recipe, or one of another version of the generator.
absl::StatusOr<Recipe> ParseRecipe(std::string_view text);

// "layers.{0-1}.w{1-2}": layers.0.w1, layers.0.w2, layers.1.w1, layers.1.w2. kInput for a range that is none.
absl::StatusOr<std::vector<std::string>> ExpandPattern(std::string_view pattern);

}  // namespace penstock::golden
