// The flags of penstock serve.
#pragma once

#include "penstock/cli/commands.h"
#include "penstock/cli/flags/flags.h"

namespace penstock::cli {

// Adds the flags that only this command has.
void AddServeFlags(CLI::App& command, ServeFlags& flags);

}  // namespace penstock::cli
