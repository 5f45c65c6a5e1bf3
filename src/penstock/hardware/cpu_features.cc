#include "penstock/hardware/cpu_features.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace penstock {
namespace {

#if defined(__x86_64__)
// Where CPUID reports a feature. HasBit reads CPUID itself because not every compiler's __builtin_cpu_supports knows
// every feature. That builtin also asks whether the operating system saves the registers.
enum class Register { kEax, kEcx, kEdx };

bool HasBit(unsigned leaf, unsigned subleaf, Register reg, int bit) {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(leaf, subleaf, &eax, &ebx, &ecx, &edx) == 0) return false;
  const unsigned value = reg == Register::kEax ? eax : reg == Register::kEcx ? ecx : edx;
  return (value >> bit & 1) != 0;
}

// Linux gives a process the tiles of AMX, which take 8 KiB of each thread's state, only on demand. Threads that exist
// already get them, too.
bool MayUseTiles() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

CpuFeatures Detect() {
  __builtin_cpu_init();
  CpuFeatures features;
  features.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2") &&
                  HasBit(1, 0, Register::kEcx, 29);  // F16C
  features.avx512 = features.avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  features.avx_vnni = features.avx2 && HasBit(7, 1, Register::kEax, 4);
  features.avx512_vnni = features.avx512 && HasBit(7, 0, Register::kEcx, 11);
  features.avx512_vbmi = features.avx512 && HasBit(7, 0, Register::kEcx, 1);
  features.amx_int8 =
      features.avx512 && HasBit(7, 0, Register::kEdx, 24) && HasBit(7, 0, Register::kEdx, 25) && MayUseTiles();
  features.avx512_bf16 = features.avx512 && HasBit(7, 1, Register::kEax, 5);
  return features;
}
#elif defined(__aarch64__)
CpuFeatures Detect() { return {.asimd_dot = (::getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0}; }
#else
CpuFeatures Detect() { return {}; }
#endif

}  // namespace

const CpuFeatures& MachineCpuFeatures() {
  static const CpuFeatures features = Detect();
  return features;
}

}  // namespace penstock
