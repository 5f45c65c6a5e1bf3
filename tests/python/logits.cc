// Writes the logits of Engine::Logits() to stdout as raw floats: logits MODEL_DIR ID... For tests/python/test_llm.py.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "penstock/engine.h"

int main(int argc, char** argv) {
  std::vector<penstock::TokenId> ids;
  for (int i = 2; i < argc; ++i) ids.push_back(std::atoi(argv[i]));
  auto engine = penstock::Engine::Open({.model_dir = argv[1], .memory_bytes = 24 << 20, .device = "cpu"});
  if (!engine.ok()) return penstock::ExitCodeOf(engine.status());
  const auto logits = (*engine)->Logits(ids);
  if (!logits.ok()) return penstock::ExitCodeOf(logits.status());
  return std::fwrite(logits->data(), sizeof(float), logits->size(), stdout) == logits->size() ? 0 : 1;
}
