// Models for tests of answers, and ways to read an answer in one go or in pieces.
#pragma once

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "penstock/base/check.h"
#include "penstock/base/text.h"
#include "penstock/chat/answer/answer_stream.h"
#include "penstock/chat/chat_parts.h"
#include "tests/chat/answer_families.h"

namespace penstock::testing_answers {

inline Chat ChatWith(std::string_view tools) {
  ChatParts parts;
  if (!tools.empty()) parts.tools = *ParseJson(tools, Fault::kInput);
  return Chat(std::move(parts));
}

// A model with a template that contains `literals`, and a tokenizer.
class Model {
 public:
  Model(std::string_view literals, const std::vector<std::string>& special)
      : tokenizer_(NewTokenizer(special)), format_(FindAnswerFormat(literals, *tokenizer_)) {}

  const AnswerFormat& format() const { return format_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  std::vector<TokenId> Encode(std::string_view text) const {
    return tokenizer_->Encode(text, Origin::kTemplate, AddSpecial::kNo);
  }
  std::unique_ptr<AnswerStream> NewStream(std::string_view tools, AnswerStart start,
                                          const AnswerRule& rule = {}) const {
    return NewAnswerStream(format_, start, ChatWith(tools), rule, *tokenizer_);
  }
  // Reads an answer as a whole.
  ChatAnswer Read(std::string_view text, std::string_view tools = kTools,
                  AnswerStart start = AnswerStart::kUnknown) const {
    return ReadIds(Encode(text), tools, start);
  }
  ChatAnswer ReadIds(const std::vector<TokenId>& ids, std::string_view tools, AnswerStart start,
                     const AnswerRule& rule = {}) const {
    const auto stream = NewStream(tools, start, rule);
    return ReadAnswer(*stream, ids, ReplaceInvalidUtf8(tokenizer_->Decode(ids, SkipSpecial::kYes)));
  }
  // Reads it in random pieces. Text arrives with its tokens or some tokens later.
  ChatAnswer ReadInPieces(const std::vector<TokenId>& ids, std::string_view tools, AnswerStart start,
                          std::mt19937& random, const AnswerRule& rule = {}) const {
    const auto stream = NewStream(tools, start, rule);
    StreamDecoder decoder(*tokenizer_);
    ChatAnswer answer;
    std::string late;
    const auto push = [&](std::span<const TokenId> next, std::string_view text) {
      for (AnswerDelta& delta : stream->Push(next, text)) {
        EXPECT_TRUE(IsUtf8(delta.text)) << delta.text;
        EXPECT_FALSE(delta.text.empty());
        const bool begins_call = delta.kind == AnswerDelta::Kind::kCallBegin;
        EXPECT_TRUE(!begins_call || delta.call_idx == std::ssize(answer.tool_calls));
        AddDelta(std::move(delta), answer);
      }
    };
    for (size_t begin = 0; begin < ids.size();) {
      const size_t end = std::min(ids.size(), begin + 1 + random() % 4);
      for (size_t i = begin; i < end; ++i) late += decoder.Push(ids[i]);
      const bool waits = random() % 3 == 0;
      push(std::span(ids).subspan(begin, end - begin), waits ? "" : late);
      if (!waits) late.clear();
      begin = end;
    }
    push({}, late + decoder.Finish());
    for (AnswerDelta& delta : stream->Finish()) AddDelta(std::move(delta), answer);
    answer.num_reasoning_tokens = stream->num_reasoning_tokens();
    return answer;
  }

 private:
  std::unique_ptr<Tokenizer> tokenizer_;
  AnswerFormat format_;
};

// Returns the calls as "name(arguments) name(arguments)".
inline std::string CallsOf(const ChatAnswer& answer) {
  std::string text;
  for (const ToolCall& call : answer.tool_calls) {
    text += (text.empty() ? "" : " ") + call.name + "(" + call.arguments + ")";
  }
  return text;
}

inline const Model& ModelOf(std::string_view name) {
  static auto* const models = new std::vector<std::pair<std::string, std::unique_ptr<Model>>>();
  for (const auto& [known, model] : *models) {
    if (known == name) return *model;
  }
  const auto family = std::ranges::find_if(Families(), [&](const Family& f) { return f.name == name; });
  PENSTOCK_CHECK(family != Families().end());
  models->emplace_back(name, std::make_unique<Model>(family->literals, family->special));
  return *models->back().second;
}

}  // namespace penstock::testing_answers
