// Writes a model folder as a packed store: weights in their compute layout, each expert one contiguous read, with
// checksums, and quantised on request. Engine::Open reads a packed store like any model folder.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"

namespace penstock {

struct PackOptions {
  std::string model_dir;
  std::string output_dir;  // must not exist, or be empty
  // "none": the bits of the model folder. "int8", "hqq4", "hqq3": experts, dense FFNs and attention in this format, and
  // in int8 an lm_head that is not the embedding. Routers, norms, biases and embeddings stay as they are.
  std::string quantize = "none";
  // "auto": the checkpoint's own dtype. "bf16": rounded now to what `--dtype bf16` computes with; only with "none".
  std::string dtype = "auto";
  int threads = 0;  // 0: all usable CPUs
};

struct PackProgress {
  uint64_t done_bytes = 0;  // bytes of the source's tensors
  uint64_t total_bytes = 0;
};

// Packs a model. Weights stream through: memory is a few megabytes per thread, whatever the size of the model. The
// store grows in `output_dir`.partial and gets its name when it is complete and on disk. So an interruption leaves no
// half store; a later call removes the rest. Errors: kModel, kUsage (the model is already packed, the output exists),
// kInput (a weight to be quantised is NaN or infinite), kIo, kStopped when `stop` was set.
absl::Status PackModel(const PackOptions& options, const std::function<void(const PackProgress&)>& on_progress,
                       const std::atomic<bool>& stop);

}  // namespace penstock
