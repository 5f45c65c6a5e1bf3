// Splits any answer in the format of any family. The parts must be UTF-8, and the arguments of calls valid JSON where
// they are written in another notation. Cut into pieces, the answer must have the same parts. Input: a byte that
// chooses the family, a byte for where the answer begins, then tokens: bytes, and 0xF8 to 0xFF for the family's special
// tokens.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "penstock/base/check.h"
#include "penstock/base/text.h"
#include "penstock/chat/answer/answer_stream.h"
#include "penstock/chat/chat_parts.h"
#include "tests/chat/answer_families.h"

namespace {

using namespace penstock;

struct Model {
  std::unique_ptr<Tokenizer> tokenizer;
  AnswerFormat format;
};

const Model& ModelAt(size_t idx) {
  static auto* const models = [] {
    auto* const all = new std::vector<Model>();
    for (const testing_answers::Family& family : testing_answers::Families()) {
      Model& model = all->emplace_back();
      model.tokenizer = testing_answers::NewTokenizer(family.special);
      model.format = FindAnswerFormat(family.literals, *model.tokenizer);
    }
    return all;
  }();
  return (*models)[idx % models->size()];
}

Chat NewChat() {
  ChatParts parts;
  parts.tools = *ParseJson(testing_answers::kTools, Fault::kInput);
  return Chat(std::move(parts));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const Model& model = ModelAt(data[0]);
  const auto start = static_cast<AnswerStart>(data[1] % 3);
  std::vector<TokenId> ids;
  for (size_t i = 2; i < size; ++i) {
    ids.push_back(data[i] < 0xF8 ? data[i] : testing_answers::kFirstMark + data[i] - 0xF8);
  }
  static const Chat* const chat = new Chat(NewChat());
  const std::string text = ReplaceInvalidUtf8(model.tokenizer->Decode(ids, SkipSpecial::kYes));
  const ChatAnswer whole = ReadAnswer(*NewAnswerStream(model.format, start, *chat, {}, *model.tokenizer), ids, text);
  PENSTOCK_CHECK(IsUtf8(whole.content) && IsUtf8(whole.reasoning));
  PENSTOCK_CHECK(testing_answers::HasGoodArguments(model.format, whole));

  const auto stream = NewAnswerStream(model.format, start, *chat, {}, *model.tokenizer);
  const ChatAnswer joined = testing_answers::ReadTokenByToken(*stream, ids, *model.tokenizer);
  PENSTOCK_CHECK(joined.content == whole.content && joined.reasoning == whole.reasoning);
  PENSTOCK_CHECK(joined.tool_calls.size() == whole.tool_calls.size());
  for (size_t i = 0; i < whole.tool_calls.size(); ++i) {
    PENSTOCK_CHECK(joined.tool_calls[i].name == whole.tool_calls[i].name);
    PENSTOCK_CHECK(joined.tool_calls[i].arguments == whole.tool_calls[i].arguments);
  }
  return 0;
}
