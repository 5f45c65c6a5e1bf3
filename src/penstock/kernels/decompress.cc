#include "penstock/kernels/decompress.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "penstock/base/check.h"
#include "penstock/kernels/checksum.h"
#include "penstock/tensor/exponent_code.h"

namespace penstock::kernels {
namespace {

// Decodes the block at `from`, where kExponentScratchBytes can be read. Returns whether it had as many codes as its
// header says.
bool DecodeBlock(const KernelTable& kernels, const ExponentBlock& block, const std::byte* from,
                 std::span<std::byte> values) {
  if (block.is_coded == 0) {
    std::copy_n(from + kExponentHeaderBytes, values.size(), values.data());
    return true;
  }
  const auto num_groups = static_cast<int64_t>(values.size() / kExponentGroupBytes);
  const DecodedExponents decoded = kernels.decode_exponents({.num_groups = num_groups,
                                                             .exponents = block.exponents.data(),
                                                             .first = from + ExponentBlock::first_offset(),
                                                             .signs = from + ExponentBlock::signs_offset(num_groups),
                                                             .second = from + ExponentBlock::second_offset(num_groups),
                                                             .third = from + block.third_offset(num_groups),
                                                             .escapes = from + block.escapes_offset(num_groups),
                                                             .target = reinterpret_cast<uint16_t*>(values.data())});
  return decoded.num_second == block.num_second && decoded.num_third == block.num_third &&
         decoded.num_escapes == block.num_escapes;
}

}  // namespace

std::optional<uint64_t> Decompress(const KernelTable& kernels, std::span<const std::byte> compressed,
                                   std::span<std::byte> scratch, std::span<std::byte> values) {
  PENSTOCK_CHECK(values.size() % kExponentGroupBytes == 0 && scratch.size() >= kExponentScratchBytes);
  RunningChecksum checksum;
  while (!values.empty()) {
    const std::span<std::byte> own = values.first(std::min<size_t>(values.size(), kExponentBlockBytes));
    const std::optional<ExponentBlock> block =
        ParseExponentBlock(compressed, static_cast<int64_t>(own.size() / kExponentGroupBytes));
    if (!block.has_value()) return std::nullopt;
    // In place, the values of the last blocks overwrite them. Near the end, decoders could read too far.
    const std::byte* from = compressed.data();
    const bool overlap = own.data() < from + block->block_bytes && from < own.data() + own.size();
    if (overlap || compressed.size() < kExponentScratchBytes) {
      std::memcpy(scratch.data(), from, block->block_bytes);
      from = scratch.data();
    }
    checksum.Add({from, static_cast<size_t>(block->block_bytes)});
    if (!DecodeBlock(kernels, *block, from, own)) return std::nullopt;
    if (Checksum(own) != block->xxh3) return std::nullopt;
    compressed = compressed.subspan(block->block_bytes);
    values = values.subspan(own.size());
  }
  if (!compressed.empty()) return std::nullopt;
  return checksum.value();
}

}  // namespace penstock::kernels
