// Continues a text with a model, using only the public API: embed MODEL_DIR TEXT
#include <iostream>

#include <penstock/engine.h>

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: embed MODEL_DIR TEXT\n";
    return 2;
  }
  auto engine = penstock::Engine::Open({.model_dir = argv[1], .memory_bytes = 32 << 20});
  if (!engine.ok()) {
    std::cerr << engine.status().message() << "\n";
    return penstock::ExitCodeOf(engine.status());
  }
  auto prompt_ids = (*engine)->Tokenize(argv[2]);
  if (!prompt_ids.ok()) {
    std::cerr << prompt_ids.status().message() << "\n";
    return penstock::ExitCodeOf(prompt_ids.status());
  }
  auto id = (*engine)->Submit({.prompt_ids = *prompt_ids, .sampling = {.temperature = 0, .max_tokens = 32}});
  while (id.ok() && !(*engine)->idle()) {
    auto finished = (*engine)->Step();
    if (!finished.ok()) {
      std::cerr << finished.status().message() << "\n";
      return penstock::ExitCodeOf(finished.status());
    }
    for (const penstock::Completion& completion : *finished) std::cout << argv[2] << completion.text << "\n";
  }
  return id.ok() ? 0 : penstock::ExitCodeOf(id.status());
}
