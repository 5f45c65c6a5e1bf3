// Times the masks of output formats with a model's vocabulary, along given answers.
//
//   mask_bench TOKENIZER [CONFIG]
//
// TOKENIZER is a tokenizer.json, a rank file (*.tiktoken), or a folder with vocab.json and merges.txt. Prints for each
// format how long compiling takes, and the median, the 99th percentile and the maximum of a mask: when the format is
// new, and when another answer has had it before.
#include <algorithm>
#include <ctime>
#include <iostream>
#include <string>
#include <vector>

#include "penstock/base/file.h"
#include "penstock/base/status.h"
#include "penstock/grammar/constraint.h"

namespace penstock {
namespace {

// Returns the time of this thread on a processor: other programs on the machine do not change it.
double Micros() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return 1e6 * static_cast<double>(time.tv_sec) + 1e-3 * static_cast<double>(time.tv_nsec);
}

struct Case {
  const char* name;
  OutputFormat format;
  const char* answer;
};

const Case kCases[] = {
    {"JSON object",
     {OutputFormat::Kind::kJson, ""},
     R"({"city": "Zürich", "districts": [{"name": "Altstadt", "area": 1.8, "quarters": ["Rathaus", "Hochschulen"]},
 {"name": "Wollishofen", "area": 5.7, "quarters": []}], "note": "The \"old town\" lies on both banks of the Limmat.", "ok": true})"},
    {"schema of a tool call",
     {OutputFormat::Kind::kJsonSchema,
      R"({"type": "object", "properties": {"query": {"type": "string", "maxLength": 2000}, "filters": {"type": "array",
          "items": {"type": "object", "properties": {"field": {"enum": ["author", "title", "year", "language"]},
          "operator": {"enum": ["equals", "contains", "before", "after"]}, "value": {"anyOf": [{"type": "string"},
          {"type": "integer"}]}}, "required": ["field", "operator", "value"], "additionalProperties": false},
          "maxItems": 16}, "limit": {"type": "integer", "minimum": 1, "maximum": 500}, "sort": {"type": ["string", "null"],
          "enum": ["relevance", "date", null]}}, "required": ["query", "limit"], "additionalProperties": false})"},
     R"({"query": "books about hydroelectric power stations in the Alps, written for engineers", "filters": [{"field": "language",
 "operator": "equals", "value": "German"}, {"field": "year", "operator": "after", "value": 1998}], "limit": 25, "sort": "relevance"})"},
    {"schema that recurs",
     {OutputFormat::Kind::kJsonSchema,
      R"({"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "properties": {"label": {"type": "string"},
          "children": {"type": "array", "items": {"$ref": "#/$defs/node"}}}, "required": ["label", "children"],
          "additionalProperties": false}}})"},
     R"({"label": "root", "children": [{"label": "left", "children": [{"label": "a leaf of the tree", "children": []}]},
 {"label": "right", "children": [{"label": "another leaf", "children": []}]}]})"},
    {"regular expression",
     {OutputFormat::Kind::kRegex, R"((?:[A-Z][a-z]+ ){1,5}\([0-9]{4}\): [^\n]{1,500}\.)"},
     "Johann Wolfgang Goethe (1749): he wrote about colours, plants and a doctor who makes a deal with the devil."},
    {"GBNF: arithmetic",
     {OutputFormat::Kind::kGrammar,
      "root ::= (expr \"=\" ws term \"\\n\")+\nexpr ::= term ([-+*/] term)*\nterm ::= ident | num | \"(\" ws expr "
      "\")\" ws\n"
      "ident ::= [a-z] [a-z0-9_]* ws\nnum ::= [0-9]+ ws\nws ::= [ \\t\\n]*\n"},
     "(total_1 +37) *(count -12 /rate)= 815\nx*x= (y +2)\n"}};

void Report(const char* name, std::vector<double> micros) {
  std::ranges::sort(micros);
  std::cout << fmt::format("  {:8} p50 {:8.1f} us   p99 {:8.1f} us   max {:8.1f} us   ({} masks)\n", name,
                           micros[micros.size() / 2], micros[micros.size() * 99 / 100], micros.back(), micros.size());
}

absl::Status Measure(const Tokenizer& tokenizer, const Case& test,
                     const std::shared_ptr<const grammar::FormatVocabulary>& vocabulary) {
  const double start = Micros();
  PENSTOCK_ASSIGN_OR_RETURN(const auto constraint, Constraint::Compile(test.format, vocabulary));
  std::cout << fmt::format("{}: compiled in {:.2f} ms, {} states, {} bytes\n", test.name, (Micros() - start) / 1000,
                           constraint->automaton().num_states(), constraint->memory_bytes());
  const std::vector<TokenId> ids = tokenizer.Encode(test.answer, Origin::kMessage, AddSpecial::kNo);
  for (const char* round : {"new", "again"}) {
    std::vector<double> micros;
    ConstraintState state(constraint, false);
    for (const TokenId id : ids) {
      grammar::TokenMask mask(grammar::MaskWords(vocabulary->trie().vocab_size()), 0);
      const double begin = Micros();
      PENSTOCK_RETURN_IF_ERROR(state.AllowedTokens(mask));
      micros.push_back(Micros() - begin);
      if (!state.Accept(id)) return InputError("{}: the token {} is not allowed", test.name, tokenizer.TokenText(id));
    }
    Report(round, std::move(micros));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const std::string& path, const std::string& config_path) {
  constexpr uint64_t kMaxBytes = 1ull << 28;
  std::string config;
  if (!config_path.empty()) {
    PENSTOCK_ASSIGN_OR_RETURN(config, ReadFile(config_path, kMaxBytes));
  }
  if (path.ends_with(".json") || path.ends_with(".tiktoken")) {
    PENSTOCK_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxBytes));
    if (path.ends_with(".json")) return Tokenizer::FromTokenizerJson(text, config);
    return Tokenizer::FromTiktoken(text, path.substr(path.rfind('/') + 1), config);
  }
  PENSTOCK_ASSIGN_OR_RETURN(const std::string vocab, ReadFile(path + "/vocab.json", kMaxBytes));
  PENSTOCK_ASSIGN_OR_RETURN(const std::string merges, ReadFile(path + "/merges.txt", kMaxBytes));
  return Tokenizer::FromVocabAndMerges(vocab, merges, config);
}

absl::Status Run(const std::vector<std::string>& paths) {
  PENSTOCK_ASSIGN_OR_RETURN(const auto tokenizer, Load(paths[0], paths.size() > 1 ? paths[1] : ""));
  const double start = Micros();
  PENSTOCK_ASSIGN_OR_RETURN(const auto vocabulary,
                            grammar::FormatVocabulary::Create(*tokenizer, tokenizer->vocab_size()));
  std::cout << fmt::format("vocabulary: {} tokens, {} nodes, {:.1f} MiB, built in {:.0f} ms\n",
                           vocabulary->trie().vocab_size(), vocabulary->trie().nodes().size(),
                           static_cast<double>(vocabulary->trie().memory_bytes()) / (1 << 20),
                           (Micros() - start) / 1000);
  for (const Case& test : kCases) PENSTOCK_RETURN_IF_ERROR(Measure(*tokenizer, test, vocabulary));
  return absl::OkStatus();
}

}  // namespace
}  // namespace penstock

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: mask_bench TOKENIZER [CONFIG]\n";
    return 2;
  }
  const absl::Status status = penstock::Run({argv + 1, argv + argc});
  if (!status.ok()) std::cerr << penstock::Message(status) << "\n";
  return status.ok() ? 0 : penstock::ExitCode(status);
}
