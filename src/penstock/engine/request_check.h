// Checks requests against the model before they are queued.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "penstock/engine.h"
#include "penstock/plan/loaded_model.h"

namespace penstock {

// Completes a request to an encoder-decoder model that gives only a prompt: the decoder begins with its start token.
void BeginDecoding(const LoadedModel& model, Request& request);

// kInput with one line for a request that the model cannot take.
absl::Status CheckRequest(const Request& request, const LoadedModel& model, int64_t context_length);

}  // namespace penstock
