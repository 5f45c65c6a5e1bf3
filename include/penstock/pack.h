// Writes a model folder as a packed store. Its weights lie in their compute layout, with checksums, and each expert is
// one contiguous read. They are quantised on request. Engine::Open reads a packed store like any model folder.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"

namespace penstock {

struct PackOptions {
  std::string model_dir;
  std::string output_dir;  // must not exist or must be an empty folder
  // "none": the bits of the model folder. "int8", "hqq4", "hqq3", "hqq2", "ternary": the format of experts, dense FFNs
  // and attention. With these, an lm_head that is not the embedding becomes int8. Routers, norms, biases and embeddings
  // stay as they are.
  std::string quantize = "none";
  // Instead of `quantize`: the bits of a weight, with scales, on average over experts, dense FFNs and attention. Each
  // matrix gets the format with which the weighted errors of all are least.
  std::optional<double> bits = {};
  // The statistics by which errors are weighed (penstock calibrate); empty: none. Only with `bits`, hqq or ternary.
  std::string importance_path = {};
  // "auto": the checkpoint's own dtype. "bf16": weights are rounded as `--dtype bf16` does; only with quantize "none".
  std::string dtype = "auto";
  // Lossless compression of experts in bf16. "none"; "bf16": all of them; "auto": those that become smaller by 1.15
  // times at least and are large enough. An expert is decompressed after it was read, to the same bits.
  std::string compress = "none";
  int threads = 0;  // 0: all usable CPUs
};

struct PackProgress {
  uint64_t done_bytes = 0;  // bytes of the source's tensors that are packed
  uint64_t total_bytes = 0;
};

// Packs a model. Weights stream through a few megabytes of memory per thread, whatever the size of the model. A matrix
// that is stored transposed is held whole. The store grows in `output_dir`.partial and gets its name when it is
// complete and on disk. So an interruption leaves no half store, and a later call removes the leftovers. Errors: kModel
// (also when a weight to be quantised is NaN or infinite), kUsage (the model is already packed), kIo (also when
// the output exists), and kStopped when `stop` was set.
absl::Status PackModel(const PackOptions& options, const std::function<void(const PackProgress&)>& on_progress,
                       const std::atomic<bool>& stop);

struct MirrorOptions {
  std::string model_dir;
  std::string output_dir;   // must not exist or must be an empty folder
  uint64_t size_bytes = 0;  // of what is copied, at most; 0: all experts
};

// Copies experts of a model into a mirror: a sparse copy of the model's files, with an index of what it holds. Earlier
// runs with --policy auto say which experts were wanted most; if there were none, the mirror holds the same number of
// each layer. Crash-safe like PackModel(), with the same errors.
absl::Status MirrorModel(const MirrorOptions& options, const std::function<void(const PackProgress&)>& on_progress,
                         const std::atomic<bool>& stop);

}  // namespace penstock
