// Compiles output formats, draws random answers and reads instances, for tools/conformance/structured_output.py.
//
//   grammar_tool < formats > results
//
// Each line of the input is {"kind": "json|json_schema|regex|grammar", "text": ..., "seed": N, "num_samples": N,
// "instances": [texts]}. Each line of the output is {"error": ...} or {"num_states": N, "samples": [texts or null],
// "accepts": [booleans]}. A sample is null if it did not end.
#include <algorithm>
#include <iostream>
#include <string>
#include <vector>

#include "penstock/base/json.h"
#include "tests/grammar/walks.h"

namespace penstock {
namespace {

json::value Answer(const json::object& task) {
  static constexpr std::string_view kKinds[] = {"json", "json_schema", "regex", "grammar"};
  const std::string_view kind = View(task.at("kind").get_string());
  const auto idx = std::ranges::find(kKinds, kind) - std::begin(kKinds);
  const OutputFormat format{.kind = static_cast<OutputFormat::Kind>(idx),
                            .text = std::string(View(task.at("text").get_string()))};
  const auto compiled = Constraint::Compile(format, ByteVocabulary());
  if (!compiled.ok()) return json::object{{"error", Message(compiled.status())}};
  const std::shared_ptr<const Constraint>& constraint = *compiled;
  const int64_t num_states = constraint->automaton().num_states();
  json::array samples, accepts;
  for (int64_t i = 0; i < task.at("num_samples").to_number<int64_t>(); ++i) {
    const auto text = RandomAnswer(constraint, task.at("seed").to_number<uint64_t>() + static_cast<uint64_t>(i));
    samples.push_back(text.has_value() ? json::value(json::string(*text)) : json::value());
  }
  for (const json::value& instance : task.at("instances").get_array()) {
    accepts.push_back(AcceptsAnswer(constraint, View(instance.get_string())));
  }
  return json::object{{"num_states", num_states}, {"samples", std::move(samples)}, {"accepts", std::move(accepts)}};
}

}  // namespace
}  // namespace penstock

int main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    const auto task = penstock::ParseJson(line, penstock::Fault::kInput);
    if (!task.ok() || !task->is_object()) return 4;
    std::cout << penstock::json::serialize(penstock::Answer(task->get_object())) << std::endl;
  }
}
