// Digests by which a job recognises its input, also when it is resumed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/job/input/inputs.h"

struct XXH3_state_s;

namespace penstock {

// Digests of the input's first `stride`, 2 * stride, ... lines. The stride doubles whenever there are too many. So a
// short input has one digest per line, and a long input still shows roughly where it changed.
struct InputCheckpoints {
  int64_t stride = 1;
  std::vector<uint64_t> digests;
};

inline constexpr size_t kMaxInputCheckpoints = 4096;

// Digests each line's text and a newline, so that CRLF and a missing last newline make no difference.
class InputDigest {
 public:
  InputDigest();

  void Add(const Line& line);
  std::string Hex() const;  // 128 bits
  InputCheckpoints Release() { return std::move(checkpoints_); }

 private:
  std::unique_ptr<XXH3_state_s, void (*)(XXH3_state_s*)> state_;
  InputCheckpoints checkpoints_;
};

// Reads the whole input.
absl::StatusOr<std::string> DigestOf(const Inputs& inputs);

}  // namespace penstock
