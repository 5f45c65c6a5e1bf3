// The penstock command.
#include "penstock/cli/command_line.h"

int main(int argc, char** argv) { return penstock::cli::Main(argc, argv); }
