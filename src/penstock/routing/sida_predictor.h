// The predictor `sida`: runs SiDA's network (sida_network.h) over the tokens of each sequence.
#pragma once

#include <memory>

#include "penstock/routing/expert_predictor.h"

namespace penstock {

// REQUIRES: args.network is set, for as many layers and experts.
std::unique_ptr<ExpertPredictor> MakeSidaPredictor(const ExpertPredictor::Args& args);

}  // namespace penstock
