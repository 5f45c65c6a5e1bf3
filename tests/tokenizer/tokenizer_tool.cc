// Encodes texts with a tokenizer's files, for tools/conformance/tokenizers.py.
//
//   tokenizer_tool TOKENIZER [CONFIG] [--message] [--no-special] < texts > ids
//
// TOKENIZER is a tokenizer.json, a SentencePiece model, a rank file (*.tiktoken or tiktoken.model), a vocabulary of a
// GGUF file as JSON (*.gguf.json), or a folder with vocab.json and merges.txt. Each line of the input is a JSON string,
// each line of the output {"ids": [...], "text": decoded, "plain": decoded without special tokens}.

#include <chrono>
#include <cstring>
#include <iostream>
#include <string>
#include <vector>

#include "penstock/base/file.h"
#include "penstock/base/json.h"
#include "penstock/base/text.h"
#include "penstock/tokenizer/tokenizer.h"
#include "tests/tokenizer/gguf_json.h"

namespace penstock {
namespace {

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadFiles(const std::string& path, const std::string& config_path) {
  constexpr uint64_t kMaxBytes = 1ull << 28;
  std::string config;
  if (!config_path.empty()) {
    PENSTOCK_ASSIGN_OR_RETURN(config, ReadFile(config_path, kMaxBytes));
  }
  if (path.ends_with(".gguf.json")) {
    PENSTOCK_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxBytes));
    PENSTOCK_ASSIGN_OR_RETURN(const GgufVocabulary vocabulary, testing_tokenizers::GgufFromJson(text));
    return Tokenizer::FromGguf(vocabulary);
  }
  const std::string name = path.substr(path.rfind('/') + 1);
  if (name == "tiktoken.model" || name.ends_with(".tiktoken")) {
    PENSTOCK_ASSIGN_OR_RETURN(const std::string ranks, ReadFile(path, kMaxBytes));
    return Tokenizer::FromTiktoken(ranks, name, config);
  }
  if (path.ends_with(".json")) {
    PENSTOCK_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxBytes));
    return Tokenizer::FromTokenizerJson(text, config);
  }
  if (path.find(".model") != std::string::npos) {
    PENSTOCK_ASSIGN_OR_RETURN(const std::string proto, ReadFile(path, kMaxBytes));
    return Tokenizer::FromSentencePiece(proto, config);
  }
  PENSTOCK_ASSIGN_OR_RETURN(const std::string vocab, ReadFile(path + "/vocab.json", kMaxBytes));
  PENSTOCK_ASSIGN_OR_RETURN(const std::string merges, ReadFile(path + "/merges.txt", kMaxBytes));
  return Tokenizer::FromVocabAndMerges(vocab, merges, config);
}

int Run(const std::vector<std::string>& args) {
  Origin origin = Origin::kTemplate;
  AddSpecial add_special = AddSpecial::kYes;
  std::vector<std::string> paths;
  for (const std::string& arg : args) {
    if (arg == "--message") {
      origin = Origin::kMessage;
    } else if (arg == "--no-special") {
      add_special = AddSpecial::kNo;
    } else {
      paths.push_back(arg);
    }
  }
  if (paths.empty()) return 2;
  const auto start = std::chrono::steady_clock::now();
  const auto tokenizer = LoadFiles(paths[0], paths.size() > 1 ? paths[1] : "");
  if (!tokenizer.ok()) {
    std::cerr << Message(tokenizer.status()) << "\n";
    return ExitCode(tokenizer.status());
  }
  const auto seconds = [](auto begin) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  std::cerr << fmt::format("load {:.3f} s, tables {} bytes\n", seconds(start), (*tokenizer)->memory_bytes());
  std::string line;
  double encode_s = 0;
  uint64_t num_bytes = 0;
  while (std::getline(std::cin, line)) {
    const auto value = ParseJson(line, Fault::kInput);
    if (!value.ok() || !value->is_string()) return 4;
    const std::string text(value->get_string().data(), value->get_string().size());
    const auto begin = std::chrono::steady_clock::now();
    const std::vector<TokenId> ids = (*tokenizer)->Encode(text, origin, add_special);
    encode_s += seconds(begin);
    num_bytes += text.size();
    json::object out;
    out["ids"] = json::array(ids.begin(), ids.end());
    out["text"] = ReplaceInvalidUtf8((*tokenizer)->Decode(ids, SkipSpecial::kNo));
    out["plain"] = ReplaceInvalidUtf8((*tokenizer)->Decode(ids, SkipSpecial::kYes));
    std::cout << json::serialize(out) << "\n";
  }
  std::cerr << fmt::format("encoded {} bytes in {:.3f} s\n", num_bytes, encode_s);
  return 0;
}

}  // namespace
}  // namespace penstock

int main(int argc, char** argv) { return penstock::Run(std::vector<std::string>(argv + 1, argv + argc)); }
