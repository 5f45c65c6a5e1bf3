#include "penstock/runtime/cache_lines.h"

#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace penstock {
namespace {

#if defined(__x86_64__)
constexpr size_t kLineBytes = 64;  // of every x86-64 processor with the instruction

bool HasClflushopt() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (ebx >> 23 & 1) != 0;
}

__attribute__((target("clflushopt"))) void FlushLines(std::byte* begin, const std::byte* end) {
  for (std::byte* line = begin; line < end; line += kLineBytes) _mm_clflushopt(line);
  _mm_sfence();
}
#endif

}  // namespace

void DropFromCaches(std::span<std::byte> bytes) {
#if defined(__x86_64__)
  static const bool has_clflushopt = HasClflushopt();
  if (!has_clflushopt || bytes.empty()) return;
  std::byte* const begin = bytes.data() - reinterpret_cast<uintptr_t>(bytes.data()) % kLineBytes;
  FlushLines(begin, bytes.data() + bytes.size());
#else
  (void)bytes;
#endif
}

}  // namespace penstock
