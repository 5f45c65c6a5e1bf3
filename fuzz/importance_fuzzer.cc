// Feeds bytes as the header of an importance file. Accepted headers describe sites that lie in the file.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "penstock/base/status.h"
#include "penstock/checkpoint/importance.h"
#include "penstock/tensor/error_weights.h"

namespace {

void Require(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // The size of a file whose header this is: what its largest offset says is up to the bytes.
  constexpr uint64_t kFileBytes = 1 << 20;
  const std::string_view header(reinterpret_cast<const char*>(data), size);
  if (size > kFileBytes - 8) return 0;
  const auto sites = penstock::Importance::ParseHeader(header, kFileBytes);
  if (!sites.ok()) {
    Require(penstock::FaultOf(sites.status()) == penstock::Fault::kInput);
    return 0;
  }
  for (const auto& [name, site] : *sites) {
    const auto num_experts = static_cast<uint64_t>(site.num_experts), dim = static_cast<uint64_t>(site.dim);
    Require(num_experts > 0 && dim > 0);
    Require(site.rows_at >= 8 + size && site.rows_at + 8 * num_experts <= kFileBytes);
    Require(site.squares_at >= 8 + size && site.squares_at + 4 * num_experts * dim <= kFileBytes);
    Require(site.products_at == 0 || site.products_at + 4 * num_experts * dim * penstock::kInputBlock <= kFileBytes);
  }
  return 0;
}
