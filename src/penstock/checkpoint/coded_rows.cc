#include "penstock/checkpoint/coded_rows.h"

#include <array>
#include <cstring>

#include "penstock/base/check.h"
#include "penstock/base/checked.h"
#include "penstock/base/file.h"
#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "penstock/tensor/block_formats.h"

namespace penstock {
namespace {

constexpr int64_t kWordRows = 8;  // whose codes share a word in AWQ's order
constexpr uint64_t kWordBytes = 4;
constexpr uint32_t kPlacesInWord[kWordRows] = {0, 4, 1, 5, 2, 6, 3, 7};  // in AWQ's order

uint32_t LoadWord(const std::byte* source) {
  uint32_t word;
  std::memcpy(&word, source, sizeof(word));
  return word;
}

// Writes the scales of one stored row as floats, one for each `group` inputs. `all` begins with the scales of the
// tensor's first matrix.
void ReadScaleRow(const Scales& scales, int64_t num_rows, const std::byte* all, int64_t stored_row,
                  std::span<float> target) {
  const uint64_t scale_bytes = SizeOf(scales.dtype);
  if (scales.order != CodeOrder::kRows) {
    for (size_t group = 0; group < target.size(); ++group) {
      const uint64_t place = group * static_cast<uint64_t>(num_rows) + static_cast<uint64_t>(stored_row);
      ToFloats(scales.dtype, all + place * scale_bytes, target.subspan(group, 1));
    }
    return;
  }
  const auto row = static_cast<uint64_t>((scales.first_row + stored_row) / scales.block_rows);
  ToFloats(scales.dtype, all + row * target.size() * scale_bytes, target);
}

// Writes the zero points of one stored row, one for each group.
void ReadZeroRow(const Scales& scales, int64_t num_rows, const std::byte* words, int64_t stored_row,
                 std::span<uint8_t> target) {
  const int64_t row = scales.first_row + stored_row;
  const auto word_idx = static_cast<uint64_t>(row / kWordRows);
  const auto place = static_cast<uint32_t>(row % kWordRows);
  const uint32_t shift = 4 * (scales.order == CodeOrder::kRowWords ? kPlacesInWord[place] : place);
  const uint32_t step = scales.zeros_are_less_1 ? 0x11111111 : 0;  // the sum carries from one zero point to the next
  const bool is_by_rows = scales.order == CodeOrder::kRows;
  const uint64_t words_of_group = CeilDiv(static_cast<uint64_t>(num_rows), static_cast<uint64_t>(kWordRows));
  for (size_t group = 0; group < target.size(); ++group) {
    const uint64_t at = is_by_rows ? word_idx * target.size() + group : group * words_of_group + word_idx;
    target[group] = (LoadWord(words + at * kWordBytes) + step) >> shift & 15;
  }
}

void MakeNvfp4CodedRow(const Scales& scales, std::span<const std::byte> codes, const ScaleBytes& bytes,
                       int64_t stored_row, std::byte* target) {
  const size_t num_groups = CeilDiv(2 * codes.size(), static_cast<size_t>(Scales::kGroupUnit));
  float scale_of_scales;
  std::memcpy(&scale_of_scales, bytes.extra, sizeof(scale_of_scales));
  if (scales.divides) scale_of_scales = 1 / scale_of_scales;
  const auto row = static_cast<size_t>(scales.first_row + stored_row);
  MakeNvfp4Row(codes, {bytes.scales + row * num_groups, num_groups}, scale_of_scales, target);
}

}  // namespace

absl::StatusOr<ReadScales> ReadScales::Of(std::span<const OpenedFile> files, const TensorInfo& tensor) {
  ReadScales read;
  if (!tensor.scales.has_value()) return read;
  const auto read_part = [&](int file_idx, const FileExtent& extent, std::vector<std::byte>& target) {
    target.resize(extent.size_bytes);
    return PreadFully(files[file_idx].fd.get(), target, extent.offset_bytes, files[file_idx].path);
  };
  const Scales& scales = *tensor.scales;
  PENSTOCK_RETURN_IF_ERROR(read_part(scales.file_idx, scales.extent, read.scales_));
  if (scales.extra != nullptr) {
    PENSTOCK_RETURN_IF_ERROR(read_part(scales.extra->file_idx, scales.extra->extent, read.extra_));
  }
  if (scales.groups != nullptr) {
    PENSTOCK_RETURN_IF_ERROR(read_part(scales.groups->file_idx, scales.groups->extent, read.groups_));
    PENSTOCK_RETURN_IF_ERROR(CheckGroups(tensor, read.groups_.data()));
  }
  return read;
}

absl::Status CheckGroups(const TensorInfo& tensor, const std::byte* groups) {
  const int64_t inputs = tensor.shape.back(), group = tensor.scales->group(inputs);
  const auto num_groups = static_cast<uint32_t>((inputs + group - 1) / group);
  for (int64_t i = 0; i < inputs; ++i) {
    const uint32_t found = LoadWord(groups + static_cast<uint64_t>(i) * kWordBytes);
    if (found < num_groups) continue;
    return ModelError("{}: input {} has group {}, expected 0 to {}", tensor.scales->groups->name, i,
                      static_cast<int32_t>(found), num_groups - 1);
  }
  return absl::OkStatus();
}

void DequantiseGroups(const Scales& scales, const CodedMatrix& matrix, std::span<const std::byte> codes,
                      const ScaleBytes& bytes, int64_t stored_row, std::span<float> target) {
  const int64_t group = scales.group(matrix.inputs);
  const auto num_groups = static_cast<size_t>((matrix.inputs + group - 1) / group);
  const bool has_bytes = scales.format == WeightFormat::kQ8_0;
  std::vector<float> floats(num_groups);
  std::vector<uint8_t> zeros(num_groups, has_bytes ? 128 : 8);
  ReadScaleRow(scales, matrix.num_rows, bytes.scales, stored_row, floats);
  if (scales.format == WeightFormat::kU4) ReadZeroRow(scales, matrix.num_rows, bytes.extra, stored_row, zeros);
  for (size_t i = 0; i < target.size(); ++i) {
    const uint32_t own = LoadWord(bytes.groups + i * kWordBytes);
    const int code = std::to_integer<int>(codes[has_bytes ? i : i / 2]) >> (has_bytes || i % 2 == 0 ? 0 : 4);
    target[i] = static_cast<float>((has_bytes ? code : code & 15) - zeros[own]) * floats[own];
  }
}

void MakeCodedRow(const Scales& scales, const CodedMatrix& matrix, std::span<const std::byte> codes,
                  const ScaleBytes& bytes, int64_t stored_row, std::byte* target) {
  if (scales.format == WeightFormat::kNvfp4) return MakeNvfp4CodedRow(scales, codes, bytes, stored_row, target);
  const int64_t group = scales.group(matrix.inputs);
  const auto num_groups = static_cast<size_t>((matrix.inputs + group - 1) / group);
  if (scales.format == WeightFormat::kMxfp4) {
    const int64_t row = (scales.first_row + stored_row) / scales.block_rows;
    return MakeMxfp4Row(codes, {bytes.scales + static_cast<size_t>(row) * num_groups, num_groups}, target);
  }
  constexpr size_t kMaxGroups = kMaxModelDim / 32;
  std::array<float, kMaxGroups> floats;
  PENSTOCK_CHECK(num_groups <= kMaxGroups);
  const auto own = std::span(floats).first(num_groups);
  ReadScaleRow(scales, matrix.num_rows, bytes.scales, stored_row, own);
  if (scales.format == WeightFormat::kQ4_0) return MakeQ4_0Row(codes, own, group, target);
  if (scales.format == WeightFormat::kQ8_0) return MakeQ8_0Row(codes, own, group, target);
  if (scales.format == WeightFormat::kFp8) return MakeFp8Row(codes, own, group, target);
  std::array<uint8_t, kMaxGroups> zeros;
  const auto own_zeros = std::span(zeros).first(num_groups);
  ReadZeroRow(scales, matrix.num_rows, bytes.extra, stored_row, own_zeros);
  MakeU4Row(codes, own, own_zeros, group, target);
}

// Two inputs at a time become one byte of each row.
void GatherRowWords(const CodedMatrix& matrix, const std::byte* stored, int64_t first, int64_t count,
                    std::byte* target) {
  constexpr uint32_t kLow = 0x0F0F0F0F;
  constexpr int kEvenRows[] = {0, 4, 1, 5}, kOddRows[] = {2, 6, 3, 7};  // of low and high halves of a word's bytes
  const uint64_t row_bytes = CeilDiv(static_cast<uint64_t>(matrix.inputs), 2);
  const uint64_t input_bytes = static_cast<uint64_t>(matrix.num_rows / kWordRows) * kWordBytes;
  for (int64_t word_idx = first / kWordRows; word_idx * kWordRows < first + count; ++word_idx) {
    const std::byte* source = stored + static_cast<uint64_t>(word_idx) * kWordBytes;
    std::byte* rows[kWordRows];  // null: not wanted
    for (int64_t i = 0; i < kWordRows; ++i) {
      const int64_t own = word_idx * kWordRows + i - first;
      rows[i] = own >= 0 && own < count ? target + static_cast<uint64_t>(own) * row_bytes : nullptr;
    }
    for (int64_t input = 0; input < matrix.inputs; input += 2) {
      const bool has_next = input + 1 < matrix.inputs;
      const uint32_t even = LoadWord(source), odd = has_next ? LoadWord(source + input_bytes) : 0;
      const uint32_t low = (even & kLow) | (odd & kLow) << 4, high = (even >> 4 & kLow) | (odd & ~kLow);
      for (int i = 0; i < 4; ++i) {
        std::byte* const of_low = rows[kEvenRows[i]];
        std::byte* const of_high = rows[kOddRows[i]];
        if (of_low != nullptr) of_low[input / 2] = static_cast<std::byte>(low >> 8 * i & 255);
        if (of_high != nullptr) of_high[input / 2] = static_cast<std::byte>(high >> 8 * i & 255);
      }
      source += 2 * input_bytes;
    }
  }
}

}  // namespace penstock
