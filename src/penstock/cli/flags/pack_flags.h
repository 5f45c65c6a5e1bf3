// The flags of penstock pack.
#pragma once

#include "penstock/cli/flags/flags.h"
#include "penstock/pack.h"

namespace penstock::cli {

// Adds the flags that only this command has.
void AddPackFlags(CLI::App& command, PackOptions& options);

}  // namespace penstock::cli
