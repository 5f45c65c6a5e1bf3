#include "penstock/job/input/input_digest.h"

#include <fmt/format.h>
#include <xxhash.h>

#include "penstock/base/status.h"

namespace penstock {

InputDigest::InputDigest() : state_(XXH3_createState(), [](XXH3_state_s* state) { XXH3_freeState(state); }) {
  XXH3_128bits_reset(state_.get());
}

void InputDigest::Add(const Line& line) {
  XXH3_128bits_update(state_.get(), line.text.data(), line.text.size());
  if (line.too_long) XXH3_128bits_update(state_.get(), &line.num_bytes, sizeof(line.num_bytes));
  XXH3_128bits_update(state_.get(), "\n", 1);
  if (line.number % checkpoints_.stride != 0) return;
  if (checkpoints_.digests.size() == kMaxInputCheckpoints) {
    for (size_t i = 0; i < kMaxInputCheckpoints / 2; ++i) checkpoints_.digests[i] = checkpoints_.digests[2 * i + 1];
    checkpoints_.digests.resize(kMaxInputCheckpoints / 2);
    checkpoints_.stride *= 2;
    if (line.number % checkpoints_.stride != 0) return;
  }
  checkpoints_.digests.push_back(XXH3_128bits_digest(state_.get()).low64);
}

std::string InputDigest::Hex() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(state_.get());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

absl::StatusOr<std::string> DigestOf(const Inputs& inputs) {
  InputDigest digest;
  InputReader reader(inputs);
  Line line;
  while (true) {
    PENSTOCK_ASSIGN_OR_RETURN(const bool more, reader.Next(line));
    if (!more) return digest.Hex();
    digest.Add(line);
  }
}

}  // namespace penstock
