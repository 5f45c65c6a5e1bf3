// Statistics of the inputs of a model's matrices while it read a text (penstock calibrate). Quantising weighs errors by
// them (tensor/error_weights.h).
//
// A safetensors file. Each site of each layer has, for example:
//
//   model.layers.3.mlp.experts.input.rows      I64 [num_experts]            inputs that were seen
//   model.layers.3.mlp.experts.input.squares   F32 [num_experts, dim]       mean squares of their values
//   model.layers.3.mlp.experts.input.products  F32 [num_experts, dim, 256]  mean products of each value with those of
//                                                                           its block of 256 values; optional
//
// An expert's inputs count times the router's weight for it, so that experts can be compared. __metadata__ has
// {"penstock_importance": "1"}.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "penstock/base/file.h"
#include "penstock/checkpoint/safetensors.h"

namespace penstock {

// Matrices with the same inputs.
enum class InputSite : uint8_t {
  kAttention,     // q, k and v
  kAttended,      // attention's output projection
  kFfn,           // gate and up
  kHidden,        // down
  kSharedFfn,     // those of the shared FFN
  kSharedHidden,  //
  kExperts,       // those of experts
  kExpertsHidden,
  kResidual,  // behind a layer; no matrix's inputs, but what errors are compared with
};
// The inputs of one matrix.
struct InputPlace {
  int64_t layer_idx = 0;
  InputSite site = InputSite::kAttention;
  int64_t expert_idx = 0;  // 0 for sites without experts
};
// Returns "model.layers.3.mlp.experts.input".
std::string SiteName(int64_t layer_idx, InputSite site);

// The statistics of a site: those of its experts one after another.
struct SiteStatistics {
  int64_t dim = 0;
  std::vector<int64_t> rows;    // [num_experts]
  std::vector<float> squares;   // [num_experts, dim]
  std::vector<float> products;  // [num_experts, dim, kInputBlock], or empty
};

// Writes the file, in one step. kIo when that fails.
absl::Status WriteImportance(const std::string& path, const std::map<std::string, SiteStatistics>& sites);

class Importance {
 public:
  // A site has its statistics here.
  struct Site {
    int64_t num_experts = 0;
    int64_t dim = 0;
    uint64_t rows_at = 0;
    uint64_t squares_at = 0;
    uint64_t products_at = 0;  // 0: there are none
  };
  using Sites = std::map<std::string, Site, std::less<>>;

  // Opens and checks the file. kInput when it holds no statistics, or others than a header can describe.
  static absl::StatusOr<Importance> Open(const std::string& path);
  // Parses the header (without the 8-byte length) of a file of `file_bytes` bytes.
  static absl::StatusOr<Sites> ParseHeader(std::string_view header, uint64_t file_bytes);

  const std::string& path() const { return path_; }

  struct Moments {
    int64_t rows = 0;
    std::vector<float> squares;   // [dim]
    std::vector<float> products;  // [dim, kInputBlock], or empty
  };
  // Reads the statistics of a matrix's inputs. An expert that saw fewer than kMinRows inputs gets the mean squares of
  // its layer. kInput when there are none, when they are of other dims, or when they are no numbers.
  static constexpr int64_t kMinRows = 64;
  absl::StatusOr<Moments> Read(const InputPlace& place, int64_t num_experts, int64_t dim) const;

 private:
  Importance(std::string path, UniqueFd fd, Sites sites)
      : path_(std::move(path)), fd_(std::move(fd)), sites_(std::move(sites)) {}
  template <typename T>
  absl::StatusOr<std::vector<T>> Values(uint64_t offset_bytes, int64_t count) const;

  std::string path_;
  UniqueFd fd_;
  Sites sites_;
};

}  // namespace penstock
