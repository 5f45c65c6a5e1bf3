// Keeps how a model's routers chose in its runs, for the plans of later ones.
#pragma once

#include <optional>
#include <string>

#include "penstock/model/model_config.h"
#include "penstock/plan/described_model.h"
#include "penstock/routing/routing_counts.h"

namespace penstock {

// Adds a run's counts to those that were kept for this model (its fingerprint).
void LearnRouting(const std::string& fingerprint, const ModelConfig& config, RoutingCounts counts);

// Returns how texts are routed: as in the model's runs so far, or like the demo model's if nothing was kept.
RoutingSpec ExpectedRouting(const DescribedModel& model);

// Returns what was kept; nothing when no run was, or when it is not this model's.
std::optional<RoutingCounts> LearnedRouting(const std::string& fingerprint, const ModelConfig& config);

}  // namespace penstock
