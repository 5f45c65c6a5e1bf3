// Flags, environment variables, option files, and how an error ends the process.
//
// Precedence: flag, then environment variable PENSTOCK_<FLAG>, then option file, then default.
#pragma once

namespace penstock::cli {

// The whole command line: parses, runs the chosen command, returns the exit code.
int Main(int argc, char** argv);

}  // namespace penstock::cli
