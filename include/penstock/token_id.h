// The id of a token in a model's vocabulary.
#pragma once

#include <cstdint>

namespace penstock {

using TokenId = int32_t;

}  // namespace penstock
