// Renders chat templates, for tools/conformance/chat_templates.py.
//
//   template_tool < cases > results
//
// Each line of the input is {"template": source, "trusted": {...}, "untrusted": {...}}, each line of the output
// {"text": rendered} or {"error": message}.

#include <iostream>
#include <string>
#include <vector>

#include "penstock/base/json.h"
#include "penstock/base/status.h"
#include "penstock/chat/chat_template.h"

namespace penstock {
namespace {

const json::object* FindObject(const json::object& entry, std::string_view key) {
  const json::value* value = entry.if_contains(key);
  return value == nullptr ? nullptr : value->if_object();
}

absl::StatusOr<std::string> RenderLine(const std::string& line) {
  PENSTOCK_ASSIGN_OR_RETURN(const json::value value, ParseJson(line, Fault::kInput));
  const json::object* entry = value.if_object();
  const json::value* source = entry == nullptr ? nullptr : entry->if_contains("template");
  if (source == nullptr || !source->is_string()) return InputError("a case needs a template");
  const json::object* trusted = FindObject(*entry, "trusted");
  const json::object* untrusted = FindObject(*entry, "untrusted");
  if (trusted == nullptr || untrusted == nullptr) return InputError("a case needs trusted and untrusted variables");
  PENSTOCK_ASSIGN_OR_RETURN(
      const ChatTemplate chat_template,
      ChatTemplate::Parse(std::string_view(source->get_string().data(), source->get_string().size())));
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<TextSegment> segments, chat_template.Render(*trusted, *untrusted));
  std::string text;
  for (const TextSegment& segment : segments) text += segment.text;
  return text;
}

int Run() {
  std::string line;
  while (std::getline(std::cin, line)) {
    const absl::StatusOr<std::string> text = RenderLine(line);
    json::object out;
    if (text.ok()) {
      out["text"] = *text;
    } else {
      out["error"] = Message(text.status());
    }
    std::cout << json::serialize(out) << "\n";
  }
  return 0;
}

}  // namespace
}  // namespace penstock

int main() { return penstock::Run(); }
