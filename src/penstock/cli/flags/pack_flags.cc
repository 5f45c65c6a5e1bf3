// The flags of penstock pack.
#include "penstock/cli/flags/pack_flags.h"

#include "penstock/base/limits.h"

namespace penstock::cli {

void AddPackFlags(CLI::App& command, PackOptions& options) {
  BeginGroup(command, "Store");
  AddFlag(command, "-m,--model", options.model_dir, "model: a Hugging Face folder, a GGUF file or its folder")
      .Required()
      .TypeName("DIR");
  AddFlag(command, "-o,--output", options.output_dir, "folder to write; must not exist").Required().TypeName("DIR");
  const Flag quantize = AddFlag(command, "--quantize", options.quantize, "none, int8, hqq4, hqq3, hqq2 or ternary")
                            .Values("none int8 hqq4 hqq3 hqq2 ternary")
                            .ShowDefault();
  AddFlag(command, "--bits", options.bits,
          "bits a weight on average, with scales: each matrix gets the format with which the whole errs least")
      .NumberFrom(1, 16)
      .TypeName("B")
      .Excludes(quantize);
  AddFlag(command, "--importance", options.importance_path,
          "with --bits or --quantize hqq4 to ternary: weigh errors by what penstock calibrate recorded")
      .TypeName("FILE");
  AddFlag(command, "--dtype", options.dtype, "auto (the checkpoint's own) or bf16").Values("auto bf16").ShowDefault();
  AddFlag(command, "--compress", options.compress,
          "none, auto or bf16: store experts in bf16 compressed, without loss (auto: where it pays)")
      .Values("none auto bf16")
      .ShowDefault();
  AddFlag(command, "-t,--threads", options.threads, "compute threads (default: all usable CPUs)")
      .InRange(1, kMaxThreads);
}

}  // namespace penstock::cli
