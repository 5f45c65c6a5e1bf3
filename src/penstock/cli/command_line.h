// The command line: flags, environment variables, option files, and the exit code after an error.
//
// Precedence: flag, then environment variable PENSTOCK_<FLAG>, then option file, then default.
#pragma once

namespace penstock::cli {

// Parses the command line, runs the chosen command and returns the exit code.
int Main(int argc, char** argv);

}  // namespace penstock::cli
