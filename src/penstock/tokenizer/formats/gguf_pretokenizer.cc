// Looks up the names in tokenizer.ggml.pre. Patterns split as llama.cpp does, even where a model's own tokenizer splits
// slightly differently: gpt-4o and tekken distinguish upper and lower case in ASCII only, kimi-k2 does not at all.
#include "penstock/base/status.h"
#include "penstock/tokenizer/formats/gguf_tokenizer.h"

namespace penstock {
namespace {

#define CONTRACTIONS R"((?i:'s|'t|'re|'ve|'m|'ll|'d))"
#define LINES_OR_SPACES R"(\s*[\r\n]+|\s+(?!\S)|\s+)"
#define SPACES R"(\s+(?!\S)|\s+)"
#define WORD R"([^\r\n\p{L}\p{N}]?\p{L}+)"
#define PUNCTUATION R"( ?[^\s\p{L}\p{N}]+[\r\n]*)"
#define UPPER_LOWER R"([^\r\n\p{L}\p{N}]?[\p{L}&&[^a-z]]*[\p{L}&&[^A-Z]]+)"
#define UPPER R"([^\r\n\p{L}\p{N}]?[\p{L}&&[^a-z]]+[\p{L}&&[^A-Z]]*)"
#define CASED_LOWER R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
#define CASED_UPPER R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
#define PUNCTUATION_SLASH R"( ?[^\s\p{L}\p{N}]+[\r\n/]*)"
#define ASCII_WORD R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"

constexpr std::string_view kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3 = CONTRACTIONS "|" WORD R"(|\p{N}{1,3}|)" PUNCTUATION "|" LINES_OR_SPACES;
constexpr std::string_view kQwen2 = CONTRACTIONS "|" WORD R"(|\p{N}|)" PUNCTUATION "|" LINES_OR_SPACES;
constexpr std::string_view kQwen35 =
    CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|)" LINES_OR_SPACES;
constexpr std::string_view kMiniCpm5 = CONTRACTIONS "|" WORD R"(|\p{N}+|)" PUNCTUATION "|" LINES_OR_SPACES;
constexpr std::string_view kUfakzeka = WORD R"(|\p{N}|)" PUNCTUATION "|" LINES_OR_SPACES;
constexpr std::string_view kSeedCoder = CONTRACTIONS "|" WORD R"(|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|)" LINES_OR_SPACES;
constexpr std::string_view kBailing = R"('(?i:[sdmt]|ll|ve|re)|)" WORD R"(|\p{N}|)" PUNCTUATION R"(|\s*[\r\n]|)" SPACES;
constexpr std::string_view kExaoneMoe = CONTRACTIONS
    R"(|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|)" SPACES;
constexpr std::string_view kGpt4o =
    UPPER_LOWER CONTRACTIONS "?|" UPPER CONTRACTIONS R"(?|\p{N}{1,3}|)" PUNCTUATION_SLASH "|" LINES_OR_SPACES;
constexpr std::string_view kTekken = UPPER_LOWER "|" UPPER R"(|\p{N}|)" PUNCTUATION_SLASH "|" LINES_OR_SPACES;
constexpr std::string_view kGraniteEmbedding =
    R"([^\r\n\p{L}\p{N}]?[[\p{L}\p{M}]&&[^a-z]]*[[\p{L}\p{M}]&&[^A-Z]]+)" CONTRACTIONS
    R"(?|[^\r\n\p{L}\p{N}]?[[\p{L}\p{M}]&&[^a-z]]+[[\p{L}\p{M}]&&[^A-Z]]*)" CONTRACTIONS
    R"(?|\p{N}{1,3}|)" PUNCTUATION_SLASH "|" LINES_OR_SPACES;
constexpr std::string_view kO200k =
    CASED_LOWER CONTRACTIONS "?|" CASED_UPPER CONTRACTIONS R"(?|\p{N}{1,3}|)" PUNCTUATION_SLASH "|" LINES_OR_SPACES;
constexpr std::string_view kYoutuMain =
    CASED_LOWER CONTRACTIONS "?|" CASED_UPPER CONTRACTIONS R"(?|\p{N}|)" PUNCTUATION_SLASH "|" LINES_OR_SPACES;
constexpr std::string_view kYoutuAsian =
    R"([가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+)";
constexpr std::string_view kDeepSeekMain = ASCII_WORD R"(| ?[\p{P}\p{S}]+[\r\n]*|)" LINES_OR_SPACES;
constexpr std::string_view kSpark = ASCII_WORD R"(| ?[\p{P}\p{S}]+|[\r\n]|)" SPACES;
constexpr std::string_view kCjk = R"([一-龥぀-ゟ゠-ヿ]+)";
constexpr std::string_view kCjkOrHangul = R"([一-龥ࠀ-一가-퟿]+)";
constexpr std::string_view kCased =
    R"(\s?[)"
    R"(A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}\x{295}-\x{2AF})"
    R"(\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1})"
    R"(\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5})"
    R"(\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77})"
    R"(\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D})"
    R"(\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE})"
    R"(\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC})"
    R"(\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124})"
    R"(\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E})"
    R"(\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D})"
    R"(\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF})"
    R"(\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F})"
    R"(\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF})"
    R"(\x{1E900}-\x{1E943})"
    R"(]+)";
constexpr std::string_view kFalconPunctuation = R"([\p{P}\$\+<=>\^~\|`]+)";
constexpr std::string_view kDefaultPunctuation = R"([\p{P}\$\+<=>\^~\|]+)";
constexpr std::string_view kBloom = R"( ?[^(\s|.,!?…。，、।۔،)]+)";
// Groups digits by three from the right; the first group includes the text in front of it.
constexpr std::string_view kDigitsFromRight = R"(\P{N}*\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N})))";
constexpr std::string_view kAfmoeAsian =
    R"([一-鿿㐀-䶿\x{F900}-\x{FAFF}぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+)";
#define HAN \
  R"(\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{20000}-\x{2A6DF}\x{2A700}-\x{2EBEF}\x{30000}-\x{323AF}\x{F900}-\x{FAFF}\x{2F800}-\x{2FA1F})"
constexpr std::string_view kKimi = "[" HAN R"(]+|[^\r\n\p{L}\p{N}]?[\p{L}&&[^)" HAN "]]+" CONTRACTIONS
                                   R"(?|\p{N}{1,3}|)" PUNCTUATION "|" LINES_OR_SPACES;
constexpr std::string_view kJais2 = CONTRACTIONS
    "|" WORD R"(|\p{N}{1,3}|)" PUNCTUATION
    R"(|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s)";

#undef CONTRACTIONS
#undef LINES_OR_SPACES
#undef SPACES
#undef WORD
#undef PUNCTUATION
#undef UPPER_LOWER
#undef UPPER
#undef CASED_LOWER
#undef CASED_UPPER
#undef PUNCTUATION_SLASH
#undef ASCII_WORD
#undef HAN

const std::vector<GgufPreTokenizer>& PreTokenizers() {
  static const std::vector<GgufPreTokenizer> kAll = {
      {{"", "default"}, {kDefaultPunctuation, kGpt2, R"(\p{N}+)", "[0-9][0-9][0-9]"}},
      {{"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"},
       {kLlama3},
       /*ignore_merges=*/true,
       /*add_bos=*/true},
      {{"dbrx", "smaug-bpe", "chatglm-bpe"}, {kLlama3}},
      {{"glm4", "glm5"}, {kLlama3}, /*ignore_merges=*/true},
      {{"minicpm5"}, {R"(\p{N}{1,3})", kMiniCpm5}, /*ignore_merges=*/true},
      {{"jais-2"}, {kJais2}},
      {{"gpt-2", "phi-2", "jina-es", "jina-de", "jina-v1-en", "jina-v2-es", "jina-v2-de", "jina-v2-code", "roberta-bpe",
        "gigachat", "a.x-4.0", "mellum", "modern-bert", "exaone4", "mpt", "olmo", "jais", "trillion",
        "granite-docling"},
       {kGpt2}},
      {{"starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"},
       {R"(\p{N})", kGpt2}},
      {{"falcon"}, {kFalconPunctuation, kGpt2, "[0-9][0-9][0-9]"}},
      {{"qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "stablelm2", "megrez", "hunyuan", "solar-open", "grok-2"},
       {kQwen2}},
      {{"qwen35"}, {kQwen35}},
      {{"ufakzeka"}, {kUfakzeka}},
      {{"laguna"}, {R"([^\n]+|[\n]+)", kQwen2}},
      {{"deepseek-llm"},
       {R"([\r\n])", kCased, R"(\s?[!-/:-~！-／：-～‘-‟　-。]+)", R"(\s+$)", kCjkOrHangul, R"(\p{N}+)"}},
      {{"deepseek-coder"}, {R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)", kCjkOrHangul, R"(\p{N})"}},
      {{"deepseek-v3", "hunyuan-dense", "hy_v4", "joyai-llm"}, {R"(\p{N}{1,3})", kCjk, kDeepSeekMain}},
      {{"spark2_5"}, {R"(\p{N}{1,3})", kCjk, kSpark, R"(\p{N})"}},
      {{"youtu"}, {kYoutuAsian, kYoutuMain}, /*ignore_merges=*/true},
      {{"bloom", "poro-chat", "gpt3-finnish"}, {kBloom}},
      {{"viking"}, {kBloom, R"(\p{N})"}},
      {{"tekken"}, {kTekken}, /*ignore_merges=*/true, /*add_bos=*/true},
      {{"chameleon"},
       {"<sentinel:[0-9]+>", "IMGIMG[A-I]{1,4}Z", R"([\t\n]|    |  )", R"(\p{N})", R"([\p{P}!-/:-@\[-`{-~])", kGpt2},
       /*ignore_merges=*/false,
       /*add_bos=*/true},
      {{"gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"}, {kGpt4o}},
      {{"granite-embed-multi-97m"}, {kGraniteEmbedding}, /*ignore_merges=*/true},
      {{"tiny_aya", "cohere2moe"}, {kDigitsFromRight, kO200k}},
      {{"superbpe"}, {R"(\p{N}+)", R"((?=(?:\d{3})+(?!\d)))"}},
      {{"bailingmoe", "bailingmoe2", "llada-moe"}, {kBailing}},
      {{"seed-coder"}, {kSeedCoder}},
      {{"kimi-k2"}, {kKimi}},
      {{"afmoe"}, {kDigitsFromRight, kAfmoeAsian, kDeepSeekMain}},
      {{"exaone-moe"}, {kExaoneMoe}},
      {{"sarvam-moe"}, {R"([^\n]+|[\n]+)"}, /*ignore_merges=*/false, /*add_bos=*/false, /*raw=*/true},
      {{"gemma4", "granite-embed-multi-311m"},
       {R"([^\n]+|[\n]+)"},
       /*ignore_merges=*/false,
       /*add_bos=*/true,
       /*raw=*/true,
       /*always_bos=*/true},
  };
  return kAll;
}

}  // namespace

absl::StatusOr<const GgufPreTokenizer*> FindGgufPreTokenizer(std::string_view name) {
  for (const GgufPreTokenizer& one : PreTokenizers()) {
    for (const std::string_view known : one.names) {
      if (known == name) return &one;
    }
  }
  return ModelError("tokenizer.ggml.pre: '{}' is not implemented; the model cannot be tokenized", name);
}

}  // namespace penstock
