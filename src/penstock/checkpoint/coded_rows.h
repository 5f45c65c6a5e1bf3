// Rows of codes, with the scales and zero points that lie elsewhere, become rows of blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/checkpoint/model_folder.h"
#include "penstock/checkpoint/safetensors.h"

namespace penstock {

// The bytes of Scales::extent, Scales::extra and Scales::groups; null where there are none.
struct ScaleBytes {
  const std::byte* scales = nullptr;
  const std::byte* extra = nullptr;
  const std::byte* groups = nullptr;
};

// Checks that each input of a tensor with Scales::groups has one of its groups.
absl::Status CheckGroups(const TensorInfo& tensor, const std::byte* groups);

// A tensor's scales, as they were read.
class ReadScales {
 public:
  static absl::StatusOr<ReadScales> Of(std::span<const OpenedFile> files, const TensorInfo& tensor);
  ScaleBytes bytes() const { return {scales_.data(), extra_.data(), groups_.data()}; }

 private:
  std::vector<std::byte> scales_;
  std::vector<std::byte> extra_;
  std::vector<std::byte> groups_;
};

// The dims of a stored matrix.
struct CodedMatrix {
  int64_t num_rows = 0;  // of no meaning with the order kRows
  int64_t inputs = 0;
};

// Makes a row of blocks of scales.format from the codes of a stored row.
void MakeCodedRow(const Scales& scales, const CodedMatrix& matrix, std::span<const std::byte> codes,
                  const ScaleBytes& bytes, int64_t stored_row, std::byte* target);

// Makes floats from the codes of a stored row with Scales::groups, which CheckGroups() has checked.
void DequantiseGroups(const Scales& scales, const CodedMatrix& matrix, std::span<const std::byte> codes,
                      const ScaleBytes& bytes, int64_t stored_row, std::span<float> target);

// Copies the codes of rows [first, first + count) of a matrix in the order kRowWords. Two codes share a byte.
void GatherRowWords(const CodedMatrix& matrix, const std::byte* stored, int64_t first, int64_t count,
                    std::byte* target);

}  // namespace penstock
