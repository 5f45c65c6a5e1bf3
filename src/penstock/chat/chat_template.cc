#include "penstock/chat/chat_template.h"

#include "penstock/base/text.h"
#include "penstock/chat/jinja/interp.h"
#include "penstock/chat/jinja/lexer.h"
#include "penstock/chat/jinja/parser.h"

namespace penstock {

struct ChatTemplate::Program {
  jinja::Body body;
  std::string literals;
};

namespace {

absl::StatusOr<std::string> FindLiterals(std::string_view source) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<jinja::Token> tokens, jinja::Tokenize(source));
  std::string literals;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const jinja::TokenKind kind = tokens[i].kind;
    if (kind != jinja::TokenKind::kData && kind != jinja::TokenKind::kString) continue;
    literals += tokens[i].text;
    // Neighbouring string constants are one string.
    const bool goes_on = kind == jinja::TokenKind::kString && tokens[i + 1].kind == kind;
    if (!goes_on) literals += '\0';
  }
  return literals;
}

}  // namespace

ChatTemplate::ChatTemplate(std::unique_ptr<Program> program) : program_(std::move(program)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

absl::StatusOr<ChatTemplate> ChatTemplate::Parse(std::string_view source) {
  if (source.size() > kMaxTemplateBytes) {
    return ModelError("the chat template has {} bytes, more than the limit of {}", source.size(), kMaxTemplateBytes);
  }
  const size_t invalid = FindInvalidUtf8(source);
  if (invalid != std::string_view::npos) {
    return ModelError("the chat template is not UTF-8: invalid byte at offset {}", invalid);
  }
  auto program = std::make_unique<Program>();
  PENSTOCK_ASSIGN_OR_RETURN(program->body, jinja::ParseTemplate(source));
  PENSTOCK_ASSIGN_OR_RETURN(program->literals, FindLiterals(source));
  return ChatTemplate(std::move(program));
}

const std::string& ChatTemplate::Literals() const { return program_->literals; }

absl::StatusOr<std::vector<TextSegment>> ChatTemplate::Render(const json::object& trusted,
                                                              const json::object& untrusted,
                                                              const TemplateLimits& limits) const {
  jinja::Interp interp(limits);
  PENSTOCK_ASSIGN_OR_RETURN(const jinja::Text text, interp.Render(program_->body, trusted, untrusted));
  std::vector<TextSegment> segments;
  size_t begin = 0;
  for (const jinja::Text::Run& run : text.runs()) {
    segments.push_back({text.bytes().substr(begin, run.end - begin), run.origin});
    begin = run.end;
  }
  return segments;
}

}  // namespace penstock
