#include "penstock/job/result_logprobs.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "penstock/base/text.h"

namespace penstock {
namespace {

// JSON has no infinities; OpenAI writes -9999 for "impossible".
double FiniteLogprob(double logprob) { return std::isfinite(logprob) ? logprob : -9999.0; }

std::string ChatToken(const TokenLogprob& token, bool begins_text, const TokenText& token_text) {
  const std::string text = token_text(token.token_id, begins_text);
  json::array bytes;
  for (const char c : text) bytes.emplace_back(static_cast<int64_t>(static_cast<uint8_t>(c)));
  return OpenJson(
      {{"token", ReplaceInvalidUtf8(text)}, {"logprob", FiniteLogprob(token.logprob)}, {"bytes", std::move(bytes)}});
}

// Returns a token's text; of a token that is a part of a character, its bytes as OpenAI's older format writes them:
// "bytes:\\xe2\\x80".
std::string CompletionToken(const std::string& bytes) {
  if (IsUtf8(bytes)) return bytes;
  std::string text = "bytes:";
  for (const char c : bytes) text += fmt::format("\\x{:02x}", static_cast<uint8_t>(c));
  return text;
}

// The tokens of a completion's text: with an echo those of the prompt, then those of the answer.
struct ShownToken {
  const TokenLogprobs* token = nullptr;
  bool begins_text = false;
  bool has_logprob = true;
};

std::vector<ShownToken> ShownTokens(const Completion& completion, TextBegins begins, const TokenText& token_text) {
  std::vector<ShownToken> shown;
  bool begins_text = true;  // special tokens show nothing, so the text begins behind them
  for (size_t i = 0; begins == TextBegins::kWithPrompt && i < completion.prompt_logprobs.size(); ++i) {
    shown.push_back({&completion.prompt_logprobs[i], begins_text, i > 0});
    begins_text = begins_text && token_text(completion.prompt_logprobs[i].chosen.token_id, begins_text).empty();
  }
  for (size_t i = 0; i < completion.logprobs.size(); ++i) {
    shown.push_back({&completion.logprobs[i], begins == TextBegins::kWithAnswer && i == 0, true});
  }
  return shown;
}

// Returns the most likely tokens with their log-probabilities, and the chosen one.
json::object TopLogprobs(const ShownToken& shown, int num_top, const TokenText& token_text) {
  json::object others;
  // Two tokens may have the same text; the more likely token comes first and is kept.
  const auto add = [&](const TokenLogprob& token) {
    const std::string text = CompletionToken(token_text(token.token_id, shown.begins_text));
    if (!others.contains(text)) others[text] = FiniteLogprob(token.logprob);
  };
  const std::vector<TokenLogprob>& top = shown.token->top;
  for (size_t i = 0; i < std::min(top.size(), static_cast<size_t>(num_top)); ++i) add(top[i]);
  add(shown.token->chosen);
  return others;
}

}  // namespace

uint64_t KeptLogprobsBytes(int num_top) {
  constexpr uint64_t kBlockBytes = 16;
  return 2 * sizeof(TokenLogprobs) + kBlockBytes + (1 + static_cast<uint64_t>(num_top)) * sizeof(TokenLogprob);
}

uint64_t ListedLogprobsBytes(int num_top) {
  constexpr uint64_t kBytesPerValue = 330;
  return (1 + static_cast<uint64_t>(num_top)) * kBytesPerValue;
}

std::string JsonText(const json::value& value) { return json::serialize(value); }

std::string OpenJson(const json::object& object) {
  std::string text = json::serialize(object);
  text.pop_back();
  return text;
}

void AppendList(size_t count, absl::FunctionRef<std::string(size_t)> item, std::string& out) {
  out += '[';
  for (size_t i = 0; i < count; ++i) {
    if (i > 0) out += ',';
    out += item(i);
  }
  out += ']';
}

void AppendChatLogprobs(std::span<const TokenLogprobs> tokens, bool begins_text, const TokenText& token_text,
                        std::string& out) {
  const auto item = [&](size_t i) {
    const bool begins = begins_text && i == 0;
    std::string text = ChatToken(tokens[i].chosen, begins, token_text) + R"(,"top_logprobs":)";
    const auto other = [&](size_t j) { return ChatToken(tokens[i].top[j], begins, token_text) + "}"; };
    AppendList(tokens[i].top.size(), other, text);
    return text + "}";
  };
  out += R"({"content":)";
  AppendList(tokens.size(), item, out);
  out += R"(,"refusal":null})";
}

void AppendCompletionLogprobs(const Completion& completion, TextBegins begins, int num_top, const TokenText& token_text,
                              int64_t& num_chars, std::string& out) {
  const std::vector<ShownToken> tokens = ShownTokens(completion, begins, token_text);
  const auto bytes_of = [&](size_t i) { return token_text(tokens[i].token->chosen.token_id, tokens[i].begins_text); };
  out += R"({"tokens":)";
  AppendList(
      tokens.size(), [&](size_t i) { return JsonText(json::value(CompletionToken(bytes_of(i)))); }, out);
  out += R"(,"token_logprobs":)";
  const auto logprob = [&](size_t i) {
    return tokens[i].has_logprob ? JsonText(FiniteLogprob(tokens[i].token->chosen.logprob)) : "null";
  };
  AppendList(tokens.size(), logprob, out);
  out += R"(,"top_logprobs":)";
  const auto top = [&](size_t i) {
    return tokens[i].has_logprob ? JsonText(TopLogprobs(tokens[i], num_top, token_text)) : "null";
  };
  if (num_top > 0) {
    AppendList(tokens.size(), top, out);
  } else {
    out += "null";
  }
  out += R"(,"text_offset":)";
  const auto next_offset = [&](size_t i) {
    const std::string bytes = bytes_of(i);
    const int64_t begin = num_chars - (num_chars > 0 && !bytes.empty() && ContinuesCharacter(bytes[0]) ? 1 : 0);
    num_chars += std::ranges::count_if(bytes, [](char byte) { return !ContinuesCharacter(byte); });
    return JsonText(begin);
  };
  AppendList(tokens.size(), next_offset, out);
  out += '}';
}

void AppendPromptLogprobs(const std::vector<TokenLogprobs>& tokens, int num_top, const TokenText& token_text,
                          std::string& out) {
  const auto item = [&](size_t i) -> std::string {
    if (i == 0) return "null";
    json::object others;
    const auto add = [&](const TokenLogprob& token) {
      others[fmt::format("{}", token.token_id)] = {
          {"logprob", FiniteLogprob(token.logprob)},
          {"decoded_token", CompletionToken(token_text(token.token_id, /*begins_text=*/false))}};
    };
    add(tokens[i].chosen);
    for (size_t j = 0; j < std::min(tokens[i].top.size(), static_cast<size_t>(num_top)); ++j) add(tokens[i].top[j]);
    return JsonText(others);
  };
  out += R"(,"prompt_logprobs":)";
  AppendList(tokens.size(), item, out);
}

}  // namespace penstock
