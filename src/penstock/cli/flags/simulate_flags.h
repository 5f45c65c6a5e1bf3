// The flags of penstock simulate.
#pragma once

#include "penstock/cli/commands.h"
#include "penstock/cli/flags/flags.h"

namespace penstock::cli {

// Adds the flags that only this command has.
void AddSimulateFlags(CLI::App& command, SimulateFlags& flags);

}  // namespace penstock::cli
