// Writes a model folder as a packed store: weights in the layout in which they are computed, each expert one contiguous
// read, with checksums, and quantised if asked for. Engine::Open reads it like any model folder.
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
  // an lm_head that is not the embedding in int8; routers, norms, biases and embeddings stay as they are.
  std::string quantize = "none";
  // "auto": the checkpoint's own. "bf16": what `--dtype bf16` computes with, rounded now; only without quantising.
  std::string dtype = "auto";
  int threads = 0;  // 0: all usable CPUs
};

struct PackProgress {
  uint64_t done_bytes = 0;  // of the source's tensors
  uint64_t total_bytes = 0;
};

// Weights stream through: memory is a few megabytes a thread, whatever the size of the model. The store grows in
// `output_dir`.partial and gets its name when it is whole and on disk, so that an end at any point leaves no half
// store; a later call removes what was left. Errors: kModel, kUsage (the model is packed already, the output exists),
// kInput (a weight to be quantised is no finite number), kIo, kStopped when `stop` was set.
absl::Status PackModel(const PackOptions& options, const std::function<void(const PackProgress&)>& on_progress,
                       const std::atomic<bool>& stop);

}  // namespace penstock
