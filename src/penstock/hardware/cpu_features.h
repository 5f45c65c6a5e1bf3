// Which instructions this machine's processor has and its operating system allows. What follows from them is for the
// floors above to say.
#pragma once

namespace penstock {

struct CpuFeatures {
  bool avx2 = false;         // with FMA and F16C
  bool avx512 = false;       // F, BW, DQ and VL; implies avx2
  bool avx_vnni = false;     // VPDPBUSD of 256 bits, which needs no AVX-512; implies avx2
  bool avx512_vnni = false;  // VPDPBUSD of 512 bits; implies avx512
  bool avx512_bf16 = false;  // VDPBF16PS; implies avx512
  bool asimd_dot = false;    // SDOT of 64-bit ARM
};

// Asks the processor once, as that is slow in a virtual machine.
const CpuFeatures& MachineCpuFeatures();

}  // namespace penstock
