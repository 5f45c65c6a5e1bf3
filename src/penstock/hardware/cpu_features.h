// Detects which instructions this machine's processor has and its operating system allows. The floors above decide what
// to do with them.
#pragma once

namespace penstock {

struct CpuFeatures {
  bool avx2 = false;         // with FMA, F16C and BMI2
  bool avx512 = false;       // F, BW, DQ and VL; implies avx2
  bool avx_vnni = false;     // 256-bit VPDPBUSD, which needs no AVX-512; implies avx2
  bool avx512_vnni = false;  // 512-bit VPDPBUSD; implies avx512
  bool avx512_vbmi = false;  // permutes of bytes over vectors (VPERMI2B); implies avx512
  bool avx512_bf16 = false;  // VDPBF16PS; implies avx512
  bool amx_int8 = false;     // TDPBSUD on tiles, which the system lets this process use; implies avx512
  bool asimd_dot = false;    // SDOT on 64-bit ARM
};

// Asks the processor once, because asking is slow in a virtual machine.
const CpuFeatures& MachineCpuFeatures();

}  // namespace penstock
