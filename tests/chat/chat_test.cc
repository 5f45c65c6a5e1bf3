// Proves that a chat from JSON holds what templates get, that its faults are refused by name, and that a chat of plain
// messages is the same value as its JSON.
#include "penstock/chat.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "penstock/base/status.h"
#include "penstock/chat/chat_parts.h"

namespace penstock {
namespace {

std::string ErrorOf(std::string_view messages, std::string_view tools = {}, std::string_view variables = {}) {
  const absl::StatusOr<Chat> chat = Chat::FromJson(messages, tools, variables);
  if (chat.ok()) return "ok";
  EXPECT_EQ(FaultOf(chat.status()), Fault::kInput);
  return Message(chat.status());
}

TEST(ChatTest, PartsOfJson) {
  const auto chat = Chat::FromJson(R"([{"role": "assistant", "content": null, "reasoning": "r"}])", R"([{"a": 1}])",
                                   R"({"documents": [{"text": "d"}], "x": 1.5})");
  ASSERT_TRUE(chat.ok()) << chat.status();
  EXPECT_EQ(json::serialize(chat->parts().messages),
            R"([{"role":"assistant","reasoning":"r","thinking":"r","reasoning_content":"r"}])");
  EXPECT_EQ(json::serialize(chat->parts().tools), R"([{"a":1}])");
  EXPECT_EQ(chat->parts().variables.at("x"), 1.5);
  const Chat copy = *chat;
  EXPECT_EQ(&copy.parts(), &chat->parts());
}

TEST(ChatTest, NoToolsAreNull) {
  const std::string user = R"([{"role": "user", "content": "x"}])";
  EXPECT_TRUE(Chat::FromJson(user)->parts().tools.is_null());
  EXPECT_TRUE(Chat::FromJson(user, "[]")->parts().tools.is_null());
}

TEST(ChatTest, FaultsAreRefusedByName) {
  const std::string user = R"([{"role": "user", "content": "x"}])";
  EXPECT_EQ(ErrorOf("[}"), Message(ParseJson("[}", Fault::kInput).status()));
  EXPECT_EQ(ErrorOf("{}"), "messages: expected a list of at least one message");
  EXPECT_EQ(ErrorOf("[]"), "messages: expected a list of at least one message");
  EXPECT_EQ(ErrorOf("[1]"), "messages[0]: expected an object, found integer");
  EXPECT_EQ(ErrorOf(R"([{"content": "x"}])"), "messages[0]: expected a \"role\" such as \"user\"");
  EXPECT_EQ(ErrorOf(R"([{"role": "user"}])"), "messages[0]: \"content\" is missing");
  EXPECT_EQ(ErrorOf(user, "{}"), "tools: expected a list, found object");
  EXPECT_EQ(ErrorOf(user, "[1]"), "tools: expected a list of objects, found integer in it");
  EXPECT_EQ(ErrorOf(user, "", "[]"), "variables: expected an object, found array");
  EXPECT_EQ(ErrorOf(user, "", R"({"documents": ["d"]})"), "documents: expected a list of objects");
  EXPECT_EQ(ErrorOf(user, "", R"({"documents": null})"), "ok");
}

TEST(ChatTest, PlainMessagesEqualTheirJson) {
  const std::vector<ChatMessage> messages = {{"system", "s"}, {"user", "\"u\"\n"}};
  const auto chat = Chat::FromJson(R"([{"role": "system", "content": "s"}, {"role": "user", "content": "\"u\"\n"}])");
  EXPECT_EQ(Chat(messages).parts().messages, chat->parts().messages);
}

TEST(ChatTest, JsonBytesAreThoseOfTheText) {
  for (const size_t size : {0, 1, 4096, 100'000}) {
    const json::array messages = {json::object{{"role", "user"}, {"content", std::string(size, '\n')}}};
    EXPECT_EQ(JsonBytes(messages), json::serialize(messages).size()) << size;
  }
}

}  // namespace
}  // namespace penstock
