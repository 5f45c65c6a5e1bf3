#include <malloc.h>

#include <utility>
#include <vector>

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

using Kind = OutputFormat::Kind;

absl::Status CheckText(std::string_view text, uint64_t max_bytes) {
  if (text.size() > max_bytes) return InputError("it has {} bytes, more than the limit of {}", text.size(), max_bytes);
  return IsUtf8(text) ? absl::OkStatus() : InputError("it is not UTF-8");
}

absl::StatusOr<Dfa> RegexDfa(std::string_view pattern, Work& work) {
  Grammar grammar;
  PENSTOCK_ASSIGN_OR_RETURN(const ExprId expr, ParseRegex(pattern, RegexMatch::kWhole, Spelling::kUtf8, grammar, work));
  return CodePointDfa(grammar, expr, work);
}

// Returns an automaton of the texts that contain `part`.
absl::StatusOr<Dfa> ContainingDfa(std::string_view part, Work& work) {
  Grammar grammar;
  const ExprId any = grammar.Repeat(grammar.Set(CodeSet::All(), Spelling::kUtf8), 0, kUnbounded);
  return CodePointDfa(grammar, grammar.Sequence({any, grammar.Text(part), any}), work);
}

// Translates a format and its parts into one grammar.
class FormatCompiler {
 public:
  explicit FormatCompiler(Work& work) : work_(work) {}

  absl::StatusOr<Grammar> Run(const OutputFormat& format) {
    PENSTOCK_ASSIGN_OR_RETURN(const ExprId expr, Add(format));
    const RuleId root = grammar_.AddRule("root");
    grammar_.Define(root, expr);
    grammar_.SetRoot(root);
    return std::move(grammar_);
  }

 private:
  absl::StatusOr<ExprId> Add(const OutputFormat& format) {
    const bool is_schema =
        format.kind == Kind::kJsonSchema || format.kind == Kind::kTaggedJson || format.kind == Kind::kString;
    if (format.kind != Kind::kText) {
      PENSTOCK_RETURN_IF_ERROR(CheckText(format.text, is_schema ? kMaxSchemaBytes : kMaxGrammarBytes));
    }
    switch (format.kind) {
      case Kind::kJson: return grammar_.Include(JsonGrammar());
      case Kind::kJsonSchema: return Include(ParseSchema(format.text, Spelling::kJson, work_));
      case Kind::kTaggedJson: return Include(ParseSchema(format.text, Spelling::kTaggedJson, work_));
      case Kind::kGrammar: return Include(ParseGbnf(format.text));
      case Kind::kRegex: return ParseRegex(format.text, RegexMatch::kWhole, Spelling::kUtf8, grammar_, work_);
      case Kind::kText: return grammar_.Text(format.text);
      case Kind::kString: return AddString(format);
      case Kind::kSequence:
      case Kind::kChoice:
      case Kind::kRepeat: break;
    }
    std::vector<ExprId> parts;
    for (const OutputFormat& part : format.parts) {
      PENSTOCK_ASSIGN_OR_RETURN(parts.emplace_back(), Add(part));
    }
    if (format.kind == Kind::kRepeat) return grammar_.Repeat(parts[0], 0, kUnbounded);
    return format.kind == Kind::kChoice ? grammar_.Choice(std::move(parts)) : grammar_.Sequence(std::move(parts));
  }

  absl::StatusOr<ExprId> Include(const absl::StatusOr<Grammar>& grammar) {
    PENSTOCK_RETURN_IF_ERROR(grammar.status());
    return grammar_.Include(*grammar);
  }

  absl::StatusOr<ExprId> AddString(const OutputFormat& format) {
    Dfa allowed;
    allowed.states.push_back({.edges = {{0, kMaxCodePoint, 0}}, .calls = {}, .accepts = true});
    for (const OutputFormat& part : format.parts) {
      const bool is_regex = part.kind == Kind::kRegex;
      PENSTOCK_ASSIGN_OR_RETURN(const Dfa dfa, is_regex ? RegexDfa(part.text, work_) : ContainingDfa(part.text, work_));
      PENSTOCK_ASSIGN_OR_RETURN(allowed, Intersect(allowed, Complement(dfa), kMaxPatternStates, work_));
    }
    if (format.text.empty()) return grammar_.Accepted(std::move(allowed), Spelling::kUtf8);
    return Include(ParseSchemaOfText(format.text, allowed, work_));
  }

  Work& work_;
  Grammar grammar_;
};

}  // namespace

absl::StatusOr<Automaton> CompileFormat(const OutputFormat& format) {
  Work work;
  absl::StatusOr<Automaton> automaton = [&]() -> absl::StatusOr<Automaton> {
    PENSTOCK_ASSIGN_OR_RETURN(const Grammar grammar, FormatCompiler(work).Run(format));
    return Compile(grammar, work);
  }();
  // glibc would keep the memory of a large compilation, for each thread that compiles.
  constexpr int64_t kLarge = 8 << 20;
  if (work.peak_bytes() > kLarge) ::malloc_trim(0);
  return automaton;
}

}  // namespace penstock::grammar
