#include <malloc.h>

#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/grammar/constraint.h"
#include "penstock/grammar/gbnf.h"
#include "penstock/grammar/json_parts.h"
#include "penstock/grammar/regex.h"
#include "penstock/grammar/schema/schema.h"

namespace penstock::grammar {
namespace {

absl::Status CheckText(std::string_view text, uint64_t max_bytes) {
  if (text.size() > max_bytes) return InputError("it has {} bytes, more than the limit of {}", text.size(), max_bytes);
  return IsUtf8(text) ? absl::OkStatus() : InputError("it is not UTF-8");
}

absl::StatusOr<Grammar> GrammarOf(const OutputFormat& format, Work& work) {
  const bool is_schema = format.kind == OutputFormat::Kind::kJsonSchema;
  PENSTOCK_RETURN_IF_ERROR(CheckText(format.text, is_schema ? kMaxSchemaBytes : kMaxGrammarBytes));
  switch (format.kind) {
    case OutputFormat::Kind::kJson: return JsonGrammar();
    case OutputFormat::Kind::kJsonSchema: return ParseSchema(format.text, work);
    case OutputFormat::Kind::kGrammar: return ParseGbnf(format.text);
    case OutputFormat::Kind::kRegex: break;
  }
  Grammar grammar;
  PENSTOCK_ASSIGN_OR_RETURN(const ExprId expr, ParseRegex(format.text, RegexMatch::kWhole, Spelling::kUtf8, grammar));
  const RuleId root = grammar.AddRule("root");
  grammar.Define(root, expr);
  grammar.SetRoot(root);
  return grammar;
}

}  // namespace

absl::StatusOr<Automaton> CompileFormat(const OutputFormat& format) {
  Work work;
  absl::StatusOr<Automaton> automaton = [&]() -> absl::StatusOr<Automaton> {
    PENSTOCK_ASSIGN_OR_RETURN(const Grammar grammar, GrammarOf(format, work));
    return Compile(grammar, work);
  }();
  // glibc would keep the memory of a large compilation, for each thread that compiles.
  constexpr int64_t kLarge = 8 << 20;
  if (work.peak_bytes() > kLarge) ::malloc_trim(0);
  return automaton;
}

}  // namespace penstock::grammar
