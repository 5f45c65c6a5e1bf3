#include "penstock/hardware/supported_loops.h"

#include "penstock/hardware/cpu_features.h"

namespace penstock {

std::vector<ReadLoop> SupportedReadLoops() {
  std::vector<ReadLoop> loops(std::begin(kBaselineReadLoops), std::end(kBaselineReadLoops));
#if defined(__x86_64__)
  const auto add = [&](const ReadLoop(&more)[2]) { loops.insert(loops.end(), std::begin(more), std::end(more)); };
  if (MachineCpuFeatures().avx2) add(kAvx2ReadLoops);
  if (MachineCpuFeatures().avx512) add(kAvx512ReadLoops);
#endif
  return loops;
}

std::vector<const PeakLoop*> SupportedPeakLoops(Arithmetic arithmetic) {
  std::vector<const PeakLoop*> loops;
  if (arithmetic == Arithmetic::kF32) loops.push_back(&kBaselineF32Loop);
#if defined(__x86_64__)
  const CpuFeatures& cpu = MachineCpuFeatures();
  const auto add_if = [&](bool supported, const PeakLoop& loop) {
    if (supported) loops.push_back(&loop);
  };
  switch (arithmetic) {
    case Arithmetic::kF32:
      add_if(cpu.avx2, kAvx2F32Loop);
      add_if(cpu.avx512, kAvx512F32Loop);
      break;
    case Arithmetic::kBf16: add_if(cpu.avx512_bf16, kAvx512Bf16Loop); break;
    case Arithmetic::kInt8:
      add_if(cpu.avx2, kAvx2Int8Loop);
      add_if(cpu.avx512, kAvx512Int8Loop);
      add_if(cpu.avx_vnni, kAvxVnniInt8Loop);
      add_if(cpu.avx512_vnni, kAvx512VnniInt8Loop);
      add_if(cpu.amx_int8, kAmxInt8Loop);
      break;
  }
#endif
  return loops;
}

}  // namespace penstock
