#include "penstock/tokenizer/formats/tiktoken.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <utility>

#include "absl/strings/escaping.h"
#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/tokenizer/normalizer.h"

namespace penstock {
namespace {

constexpr size_t kMaxRankTokenBytes = 1024;  // the work for a token grows with the square of its length

constexpr std::string_view kCl100k =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++\z|\s*[\r\n]|\s+(?!\S)|\s)";
constexpr std::string_view kLlama3Split =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kO200kSplit =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kR50k = R"('(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s)";
constexpr std::string_view kKimiSplit =
    R"([\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct KnownFormat {
  TiktokenFormat format;
  std::vector<std::string_view> files;
  std::vector<std::string_view> classes;
  std::vector<size_t> num_ranks;
};

const std::vector<KnownFormat>& KnownFormats() {
  static const std::vector<KnownFormat> kFormats = {
      {{.name = "cl100k_base", .pattern = kCl100k}, {"cl100k_base.tiktoken"}, {}, {100256}},
      {{.name = "o200k_base", .pattern = kO200kSplit},
       {"o200k_base.tiktoken", "o200k_harmony.tiktoken", "harmony.tiktoken"},
       {},
       {199998}},
      {{.name = "r50k_base", .pattern = kR50k}, {"r50k_base.tiktoken", "p50k_base.tiktoken"}, {}, {50256, 50280}},
      {{.name = "Llama-3", .pattern = kLlama3Split}, {}, {"ChatGLM4Tokenizer"}, {128000, 151329}},
      {{.name = "Qwen", .pattern = kQwen, .nfc = true},
       {"qwen.tiktoken", "hy.tiktoken"},
       {"QWenTokenizer", "HYTokenizer", "HunYuanTokenizer"},
       {151643, 127957}},
      {{.name = "Kimi", .pattern = kKimiSplit, .num_reserved = 258, .reserved = "<|reserved_token_{}|>"},
       {},
       {"TikTokenTokenizer"},
       {163584}},
  };
  return kFormats;
}

std::string_view TakeLine(std::string_view& text) {
  const size_t end = text.find('\n');
  std::string_view line = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

struct RankLine {
  std::string token;
  int64_t rank = -1;
};

// Returns false if the line is not base64, a space and a number.
bool ParseRankLine(std::string_view line, RankLine& out) {
  const size_t space = line.find(' ');
  if (space == std::string_view::npos) return false;
  const char* end = line.data() + line.size();
  const auto [stop, error] = std::from_chars(line.data() + space + 1, end, out.rank);
  if (error != std::errc() || stop != end) return false;
  const std::string_view base64 = line.substr(0, space);
  return absl::Base64Unescape(absl::string_view(base64.data(), base64.size()), &out.token) && !out.token.empty();
}

std::string InByteAlphabet(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) text += ByteAlphabet()[static_cast<uint8_t>(byte)];
  return text;
}

void AddMergesInto(TokenId id, TokenizerParts& parts) {
  const std::string token(parts.vocabulary.Text(id));
  for (size_t pos = 1; pos < token.size(); ++pos) {
    if ((static_cast<uint8_t>(token[pos]) & 0xC0) == 0x80) continue;
    const TokenId left = parts.vocabulary.Find(std::string_view(token).substr(0, pos));
    if (left < 0) continue;
    const TokenId right = parts.vocabulary.Find(std::string_view(token).substr(pos));
    if (right >= 0) parts.merges.Add(left, right, static_cast<uint32_t>(id), id);
  }
}

void AddReservedTokens(const TiktokenFormat& format, TokenizerParts& parts) {
  absl::flat_hash_set<TokenId> known;
  for (const AddedToken& token : parts.added_tokens) known.insert(token.id);
  const auto begin = static_cast<TokenId>(parts.vocabulary.size());
  for (TokenId id = begin; id < begin + format.num_reserved; ++id) {
    if (known.contains(id)) continue;
    AddedToken token{.content = fmt::format(fmt::runtime(format.reserved), id), .id = id};
    token.special = true;
    token.normalized = false;
    parts.added_tokens.push_back(std::move(token));
  }
}

}  // namespace

absl::StatusOr<TiktokenFormat> FindTiktokenFormat(std::string_view file_name, std::string_view tokenizer_class,
                                                  size_t num_ranks) {
  const auto find = [](const auto& has) -> const KnownFormat* {
    const auto found = std::find_if(KnownFormats().begin(), KnownFormats().end(), has);
    return found == KnownFormats().end() ? nullptr : &*found;
  };
  const auto contains = [](const auto& list, const auto& value) {
    return std::find(list.begin(), list.end(), value) != list.end();
  };
  const KnownFormat* known = find([&](const KnownFormat& one) { return contains(one.files, file_name); });
  if (known == nullptr) known = find([&](const KnownFormat& one) { return contains(one.classes, tokenizer_class); });
  if (known == nullptr) known = find([&](const KnownFormat& one) { return contains(one.num_ranks, num_ranks); });
  if (known == nullptr && file_name == "tiktoken.model") {
    known = find([](const KnownFormat& one) { return one.format.name == "Kimi"; });
  }
  if (known != nullptr) return known->format;
  return ModelError(
      "{}: cannot tell which pattern splits the text: neither the file's name nor tokenizer_class '{}' nor the number "
      "of ranks ({}) is known; save the model with a tokenizer.json",
      file_name, tokenizer_class, num_ranks);
}

bool LooksLikeTiktoken(std::string_view bytes) {
  RankLine line;
  return ParseRankLine(TakeLine(bytes), line);
}

absl::Status ReadTiktokenRanks(std::string_view ranks, std::string_view file_name, TokenizerParts& parts) {
  const auto num_lines = static_cast<size_t>(std::count(ranks.begin(), ranks.end(), '\n')) + 1;
  if (num_lines > static_cast<size_t>(kMaxVocabSize)) {
    return ModelError("{}: {} lines, the limit is {}", file_name, num_lines, kMaxVocabSize);
  }
  parts.vocabulary.Reserve(num_lines, ranks.size());
  for (size_t line_number = 1; !ranks.empty(); ++line_number) {
    const std::string_view line = TakeLine(ranks);
    if (line.empty()) continue;
    const std::string where = fmt::format("{}: line {}", file_name, line_number);
    RankLine entry;
    if (!ParseRankLine(line, entry)) {
      return ModelError("{}: expected a token in base64, a space and its rank, found '{}'", where, Excerpt(line, 80));
    }
    if (entry.token.size() > kMaxRankTokenBytes) {
      return ModelError("{}: a token of {} bytes, the limit is {}", where, entry.token.size(), kMaxRankTokenBytes);
    }
    PENSTOCK_RETURN_IF_ERROR(parts.vocabulary.Add(InByteAlphabet(entry.token), entry.rank, where));
  }
  if (parts.vocabulary.num_tokens() == 0) return ModelError("{}: there are no tokens", file_name);
  for (int byte = 0; byte < 256; ++byte) {
    if (parts.vocabulary.Find(ByteAlphabet()[byte]) < 0) {
      return ModelError("{}: there is no token for byte 0x{:02X}", file_name, byte);
    }
  }
  for (TokenId id = 0; id < parts.vocabulary.size(); ++id) {
    if (parts.vocabulary.Has(id)) AddMergesInto(id, parts);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromTiktoken(std::string_view ranks, std::string_view file_name,
                                                                   std::string_view tokenizer_config) {
  PENSTOCK_ASSIGN_OR_RETURN(const TokenizerConfig config, TokenizerConfig::Parse(tokenizer_config));
  TokenizerParts parts;
  PENSTOCK_RETURN_IF_ERROR(ReadTiktokenRanks(ranks, file_name, parts));
  PENSTOCK_ASSIGN_OR_RETURN(
      const TiktokenFormat format,
      FindTiktokenFormat(file_name, config.tokenizer_class, static_cast<size_t>(parts.vocabulary.num_tokens())));
  parts.bpe.ignore_merges = true;  // a word that is itself a token stays whole
  if (format.nfc) parts.normalizer.Add({.kind = NormalizerStep::Kind::kUnicode});
  PreTokenizerStep split{.kind = PreTokenizerStep::Kind::kSplit};
  PENSTOCK_ASSIGN_OR_RETURN(split.pattern, SplitPattern::FromRegex(format.pattern, file_name));
  parts.pretokenizer.Add(std::move(split));
  parts.pretokenizer.AddByteLevel(/*prefix_space=*/false, /*use_regex=*/false);
  parts.decoder.Add({.kind = DecoderStep::Kind::kByteLevel});
  parts.added_tokens = config.added_tokens;
  AddReservedTokens(format, parts);
  PENSTOCK_RETURN_IF_ERROR(ApplyConfig(config, parts));
  if (config.add_bos_token.value_or(false) && parts.bos_id >= 0) parts.prefix = {parts.bos_id};
  if (config.add_eos_token.value_or(false) && parts.eos_id >= 0) parts.suffix = {parts.eos_id};
  return PipelineTokenizer::Create(std::move(parts));
}

}  // namespace penstock
