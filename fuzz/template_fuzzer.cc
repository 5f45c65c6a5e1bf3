// Renders any template with any message within small limits. Apart from crashes, it checks that the text of the message
// never becomes template text. Input: the template, a NUL byte, the message's content.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "penstock/base/text.h"
#include "penstock/chat/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using penstock::Origin;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(input.find('\0'), input.size());
  const std::string_view source = input.substr(0, end);
  // Only the message contains this marker, unless the template spells it.
  const std::string marker = "\xC2\xA7";
  std::string content = marker + std::string(input.substr(std::min(end + 1, input.size()))) + marker;
  const absl::StatusOr<penstock::ChatTemplate> chat_template = penstock::ChatTemplate::Parse(source);
  if (!chat_template.ok()) return 0;
  const penstock::json::object message = {{"role", "user"}, {"content", content}};
  const penstock::json::object trusted = {
      {"bos_token", "<s>"}, {"eos_token", "</s>"}, {"add_generation_prompt", true}, {"current_time", "2026-11-21"}};
  const penstock::json::object untrusted = {{"messages", penstock::json::array{message, message}},
                                            {"tools", {{"a", 1.5}, {"b", {nullptr, -7, true}}}}};
  const penstock::TemplateLimits limits{.max_steps = 20'000, .max_output_bytes = 10'000, .max_depth = 50};
  const auto segments = chat_template->Render(trusted, untrusted, limits);
  if (!segments.ok()) return 0;
  // Escapes in the template can spell the marker's bytes; only a template without a backslash cannot.
  const bool may_spell = source.find(marker) != source.npos || source.find('\\') != source.npos;
  for (const penstock::TextSegment& segment : *segments) {
    if (segment.text.empty() || !penstock::IsUtf8(segment.text)) std::abort();
    if (!may_spell && segment.origin == Origin::kTemplate && segment.text.find(marker) != std::string::npos) {
      std::abort();
    }
  }
  return 0;
}
