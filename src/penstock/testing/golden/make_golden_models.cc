// make_golden_models SOURCE TARGET: the golden models of SOURCE (tests/golden) as whole model folders in TARGET.
#include <cstdio>

#include "penstock/base/status.h"
#include "penstock/testing/golden/golden_models.h"

int main(int argc, char** argv) {
  const absl::Status status = argc == 3 ? penstock::golden::MakeModels(argv[1], argv[2])
                                        : penstock::UsageError("usage: make_golden_models SOURCE TARGET");
  if (!status.ok()) std::fprintf(stderr, "make_golden_models: %s\n", penstock::Message(status).c_str());
  return penstock::ExitCode(status);
}
