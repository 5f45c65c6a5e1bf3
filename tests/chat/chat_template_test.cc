// Proves that a chat template cannot do harm: errors name the template's line, limits on steps, depth and sizes hold, a
// template reaches only its arguments, and text of messages never counts as text of the template.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "penstock/base/json.h"
#include "penstock/base/status.h"
#include "penstock/chat/chat_template.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<std::vector<TextSegment>> RenderSegments(std::string_view source, const json::object& trusted,
                                                        const json::object& untrusted,
                                                        const TemplateLimits& limits = {}) {
  PENSTOCK_ASSIGN_OR_RETURN(const ChatTemplate chat_template, ChatTemplate::Parse(source));
  return chat_template.Render(trusted, untrusted, limits);
}

std::string Concatenated(const std::vector<TextSegment>& segments) {
  std::string text;
  for (const TextSegment& segment : segments) text += segment.text;
  return text;
}

// Renders, with message text in brackets.
std::string Marked(std::string_view source, const json::object& untrusted) {
  const auto segments = RenderSegments(source, {{"bos_token", "<s>"}}, untrusted);
  if (!segments.ok()) return Message(segments.status());
  std::string text;
  for (const TextSegment& segment : *segments) {
    text += segment.origin == Origin::kMessage ? "[" + segment.text + "]" : segment.text;
  }
  return text;
}

absl::Status Failure(std::string_view source, const json::object& untrusted = {}) {
  return RenderSegments(source, {}, untrusted).status();
}

json::object OneMessage(std::string_view role, std::string_view content) {
  return {{"messages", json::array{json::object{{"role", json::string_view(role.data(), role.size())},
                                                {"content", json::string_view(content.data(), content.size())}}}}};
}

TEST(ChatTemplateLiterals, AreTextAndStringsApart) {
  const auto chat_template =
      ChatTemplate::Parse("<|a|>{# <|no|> #}{{ '<|b' '|>' + \"c\" }}\n{% if x == 'd\\n' %}<e{{ 1 }}>{% endif %}");
  ASSERT_TRUE(chat_template.ok()) << chat_template.status();
  EXPECT_EQ(chat_template->Literals(), std::string("<|a|>\0<|b|>\0c\0\n\0d\n\0<e\0>\0", 24));
}

TEST(ChatTemplateErrors, SyntaxErrorIsTheModelsFaultAndNamesTheLine) {
  const absl::Status status = Failure("a\n\n{% if x %}\n{{ 1 + }}\n{% endif %}");
  EXPECT_EQ(FaultOf(status), Fault::kModel);
  EXPECT_THAT(Message(status), HasSubstr("template line 4: expected an expression, found '}}'"));
  EXPECT_EQ(FaultOf(Failure("{% for x in y %}")), Fault::kModel);
  EXPECT_EQ(FaultOf(Failure("{{ 'a' | no_such_filter }}")), Fault::kModel);
  EXPECT_EQ(FaultOf(Failure("\xff{{ 1 }}")), Fault::kModel);
  EXPECT_EQ(FaultOf(Failure(std::string(kMaxTemplateBytes + 1, 'a'))), Fault::kModel);
}

TEST(ChatTemplateErrors, UndefinedIsEmptyButHasNoAttributes) {
  EXPECT_EQ(Marked("<{{ nothing }}>", {}), "<>");
  const absl::Status status = Failure("\n{{ nothing.at_all }}");
  EXPECT_EQ(FaultOf(status), Fault::kInput);
  EXPECT_THAT(Message(status), HasSubstr("template line 2: 'nothing' is undefined"));
}

TEST(ChatTemplateErrors, RaiseExceptionIsTheInputsFaultWithItsText) {
  const absl::Status status = Failure("a\n{{ raise_exception('roles must alternate') }}");
  EXPECT_EQ(FaultOf(status), Fault::kInput);
  EXPECT_THAT(Message(status), HasSubstr("template line 2: roles must alternate"));
}

TEST(ChatTemplateErrors, ErrorAfterAMacroCallNamesTheCallersLine) {
  EXPECT_THAT(Message(Failure("{% macro m() %}\n\n\nx{% endmacro %}\n{{ m() + 1 }}")), HasSubstr("template line 5"));
}

// Each of these would go on for hours; ctest ends what hangs.
TEST(ChatTemplateLimits, WorkIsBounded) {
  const std::string_view kSources[] = {
      "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
      "{% set ns = namespace(s='a') %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
      "{% set ns = namespace(s=[1]) %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
      "{% set ns = namespace(s=[]) %}{% for i in range(100) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}",
      "{% set ns = namespace(s=[]) %}{% for i in range(50) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s|tojson "
      "}}",
      "{% set ns = namespace(s=[]) %}{% for i in range(50) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s == ns.s "
      "}}",
      "{% set ns = namespace(d={}) %}{% for i in range(50) %}{% set ns.d = {1: ns.d, 2: ns.d} %}{% endfor %}{{ ns.d }}",
      "{% set ns = namespace(t=()) %}{% for i in range(50) %}{% set ns.t = (ns.t, ns.t) %}{% endfor %}{{ {ns.t: 1} }}",
      "{{ 'a' * 1000000000 }}",
      "{{ [0] * 1000000000 }}",
      "{{ range(1000000000) }}",
      "{{ ('a' * 1000000) | replace('a', 'b' * 1000000) }}",
      "{{ 'x'.ljust(1000000000) }}{{ 'x' | center(1000000000) }}",
      "{{ ('\\n' * 100000) | indent(100000, blank=true) }}",
      "{{ '%1000000000d' % 5 }}",
      "{{ '{:>1000000000}'.format(5) }}",
      "{{ ('a,' * 1000000).split(',') | join('b' * 10000) }}",
      "{% for i in range(100000) %}{{ 'a' * 100 }}{% endfor %}",
      "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
      "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
      "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}",
      "{% for i in [1, 2] recursive %}{{ loop([1, 2]) }}{{ loop([1, 2]) }}{% endfor %}",
      "{% set ns = namespace(l=[1]) %}{% for i in range(100) %}{% set ns.l = [ns.l | map('list'), ns.l | reverse] %}{% "
      "endfor %}",
      "{% set ns = namespace(l=range(100000)) %}{% for i in range(1000) %}{% set ns.l = ns.l | map('string') %}{% "
      "endfor %}",
      "{{ range(100000) | slice(100001) | list }}",
      "{% macro m(n) %}{% call m(n) %}{{ caller() }}{% endcall %}{% endmacro %}{{ m(1) }}",
      "{{ 9223372036854775807 + 1 }}",
      "{{ -9223372036854775807 - 2 }}",
      "{{ 9223372036854775807 * 9223372036854775807 }}",
      "{{ 10 ** 1000000000 }}",
      "{{ (-9223372036854775807 - 1) // -1 }}",
      "{{ (-9223372036854775807 - 1) | abs }}",
  };
  // A tenth of the steps: each of them takes long under sanitizers.
  const TemplateLimits limits{.max_steps = kMaxTemplateSteps / 10};
  for (std::string_view source : kSources) {
    const absl::Status status = RenderSegments(source, {}, {}, limits).status();
    EXPECT_FALSE(status.ok()) << source;
    EXPECT_EQ(FaultOf(status), Fault::kInput) << source;
    EXPECT_THAT(Message(status), HasSubstr("template line 1")) << source;
  }
}

TEST(ChatTemplateLimits, ALimitThatWasHitLeavesTheTemplateUsable) {
  absl::StatusOr<ChatTemplate> chat_template = ChatTemplate::Parse("{% for i in range(n) %}x{% endfor %}");
  ASSERT_TRUE(chat_template.ok());
  const TemplateLimits limits{.max_steps = 1000, .max_output_bytes = 100, .max_depth = 100};
  EXPECT_FALSE(chat_template->Render({}, {{"n", 100000}}, limits).ok());
  EXPECT_FALSE(chat_template->Render({}, {{"n", 101}}, limits).ok());
  const auto segments = chat_template->Render({}, {{"n", 3}}, limits);
  ASSERT_TRUE(segments.ok());
  EXPECT_EQ(Concatenated(*segments), "xxx");
}

TEST(ChatTemplateLimits, DeepSourcesAreRefused) {
  const auto nested = [](std::string_view open, std::string_view inner, std::string_view close) {
    std::string source;
    for (int i = 0; i < 50000; ++i) source += open;
    source += inner;
    for (int i = 0; i < 50000; ++i) source += close;
    return source;
  };
  const std::string sources[] = {
      "{{ " + nested("(", "1", ")") + " }}",
      "{{ " + nested("[", "1", "]") + " }}",
      "{{ " + nested("{1: ", "1", "}") + " }}",
      "{{ " + nested("not ", "1", "") + " }}",
      "{{ " + nested("-", "1", "") + " }}",
      "{{ " + nested("1 + ", "1", "") + " }}",
      "{{ " + nested("1 if ", "1", "") + " }}",
      "{{ " + nested("1 if 1 else ", "1", "") + " }}",
      "{{ x" + nested("", "", ".a") + " }}",
      "{{ x" + nested("", "", "|upper") + " }}",
      "{{ x" + nested("", "", "()") + " }}",
      "{{ x" + nested("[", "1", "]") + " }}",
      "{{ " + nested("f(", "1", ")") + " }}",
      "{{ x is " + nested("eq (", "1", ")") + " }}",
      "{{ x is in [" + nested("x is in [", "1", "]") + "] }}",
      "{% set " + nested("(", "a", ",)") + " = 1 %}",
      nested("{% if 1 %}", "", "{% endif %}"),
      nested("{% for i in [1] %}", "", "{% endfor %}"),
      nested("{% macro m() %}", "", "{% endmacro %}"),
      nested("{% filter upper %}", "", "{% endfilter %}"),
      "{{ 1" + nested("", "", " and 1") + " }}",
      "{{ 1" + nested("", "", " ** 1") + " }}",
  };
  for (const std::string& source : sources) {
    const absl::Status status = Failure(source);
    EXPECT_EQ(FaultOf(status), Fault::kModel) << source.substr(0, 40) << Message(status);
  }
}

TEST(ChatTemplateLimits, DeepArgumentsAreRefused) {
  json::value deep = 1;
  for (int i = 0; i < 1000; ++i) deep = json::array{std::move(deep)};
  const auto segments = RenderSegments("x", {}, {{"messages", std::move(deep)}});
  EXPECT_EQ(FaultOf(segments.status()), Fault::kInput);
}

TEST(ChatTemplateSandbox, NothingButArgumentsIsReachable) {
  for (std::string_view source :
       {"{{ ''.__class__ }}", "{{ ''['__class__'] }}", "{{ [].__class__ }}", "{{ {}.__init__ }}",
        "{{ messages.__len__ }}{{ messages[0].__init__ }}{{ messages[0].content.__doc__ }}",
        "{{ ''|attr('__class__') }}", "{{ range.__globals__ }}", "{{ self }}", "{{ joiner.__init__ }}", "{{ open }}",
        "{{ config }}", "{{ os }}", "{{ lipsum }}", "{{ [].append }}"}) {
    EXPECT_EQ(Marked(source, OneMessage("user", "x")), "") << source;
  }
  for (std::string_view source :
       {"{{ ''.__class__.__mro__ }}", "{{ [].append(1) }}", "{{ {}.update(a=1) }}", "{{ open('/etc/passwd') }}",
        "{{ ''.__class__() }}", "{% set ns = namespace(__class__=1) %}", "{{ namespace().__init__() }}",
        "{% include 'secret' %}", "{% import 'os' as os %}", "{% extends 'base' %}"}) {
    EXPECT_FALSE(Failure(source).ok()) << source;
  }
}

TEST(ChatTemplateSandbox, UntrustedVariablesDoNotReplaceTrustedOnes) {
  EXPECT_EQ(Marked("{{ bos_token }}", {{"bos_token", "<evil>"}}), "<s>");
}

TEST(ChatTemplateSandbox, TimeIsAnArgument) {
  const auto at = [](const json::object& trusted) {
    const auto segments = RenderSegments("{{ strftime_now('%d %b %Y') }}", trusted, {});
    return segments.ok() ? Concatenated(*segments) : Message(segments.status());
  };
  EXPECT_EQ(at({}), "26 Jul 2024");
  EXPECT_EQ(at({{"current_time", "2026-11-21"}}), "21 Nov 2026");
  EXPECT_THAT(at({{"current_time", "yesterday"}}), HasSubstr("current_time must be"));
}

TEST(ChatTemplateOrigin, FollowsEveryCharacter) {
  const json::object message = OneMessage("user", "Hi <s>");
  const std::pair<std::string_view, std::string_view> kCases[] = {
      {"{{ bos_token + messages[0].content }}!", "<s>[Hi <s>]!"},
      {"{{ 'a' ~ messages[0].content ~ 'b' }}", "a[Hi <s>]b"},
      {"{{ ('a' + messages[0].content + 'b')[1:-1] }}", "[Hi <s>]"},
      {"{{ ('a' + messages[0].content + 'b')[::-1] }}", "b[>s< iH]a"},
      {"{{ (' ' + messages[0].content + ' ').strip() }}", "[Hi <s>]"},
      {"{{ ('a' + messages[0].content) | upper }}", "A[HI <S>]"},
      {"{{ ('x' + messages[0].content).replace('<s>', '</s>') }}", "x[Hi ]</s>"},
      {"{{ 'a-b'.replace('-', messages[0].content) }}", "a[Hi <s>]b"},
      {"{{ [bos_token, messages[0].content] | join('|') }}", "<s>|[Hi <s>]"},
      {"{{ messages[0].content.split(' ') | join(bos_token) }}", "[Hi]<s>[<s>]"},
      {"{{ '%s=%s' % ('k', messages[0].content) }}", "k=[Hi <s>]"},
      {"{{ '{}={}'.format('k', messages[0].content) }}", "k=[Hi <s>]"},
      {"{% set x %}a{{ messages[0].content }}{% endset %}{{ x }}", "a[Hi <s>]"},
      {"{% macro m(c) %}<{{ c }}>{% endmacro %}{{ m(messages[0].content) }}", "<[Hi <s>]>"},
      {"{% filter lower %}A{{ messages[0].content }}{% endfilter %}", "a[hi <s>]"},
      {"{{ ('a\\n' + messages[0].content) | indent(2) }}", "a\n  [Hi <s>]"},
      {"{{ messages[0].content | tojson }}", "[\"Hi <s>\"]"},
      {"{{ messages | map(attribute='content') | first }}", "[Hi <s>]"},
      {"{{ messages[0].content | list | join }}", "[Hi <s>]"},
      {"{{ messages | groupby('content') | map('first') | join('|') }}", "[Hi <s>]"},
      {"{{ messages[0].content | slice(2) | map('join') | join('|') }}", "[Hi ]|[<s>]"},
      {"{% for m in messages recursive %}<{{ loop(['a']) if m.content else m }}{{ m.content }}>{% endfor %}",
       "<<a>[Hi <s>]>"},
      {"{{ messages[0].values() | list | last | upper }}", "[HI <S>]"},
      {"{{ messages[0].content | length }}", "6"},
      {"{% if messages[0].content == 'Hi <s>' %}same{% endif %}", "same"},
  };
  for (const auto& [source, expected] : kCases) EXPECT_EQ(Marked(source, message), expected) << source;
}

TEST(ChatTemplateOrigin, ShapeAndNumbersOfMessagesAreTheirs) {
  const json::object data = {{"tools", json::array{json::object{{"<k>", 5}}, json::array{}, nullptr, true}}};
  EXPECT_EQ(Marked("{{ tools }}", data), "[[{'<k>': 5}, [], None, True]]");
  EXPECT_EQ(Marked("{{ tools | tojson }}", data), "[[{\"<k>\": 5}, [], null, true]]");
  EXPECT_EQ(Marked("{{ tools | tojson(separators=('<s>', '</s>')) }}", data), "[[{\"<k>\"</s>5}<s>[]<s>null<s>true]]");
  EXPECT_EQ(Marked("{{ tools[0]['<k>'] + 1 }}{{ tools[0]['<k>'] | string }}", data), "[65]");
  EXPECT_EQ(Marked("{% for k in tools[0] %}{{ k }}{% endfor %}", data), "[<k>]");
  EXPECT_EQ(Marked("{{ tools | select | tojson }}", data), "[[{\"<k>\": 5}, true]]");
  EXPECT_EQ(Marked("{{ tools[0].items() }}{{ tools[:1] | groupby('<k>') | list }}", data),
            "[dict_items([('<k>', 5)])[(5, [{'<k>': 5}])]]");
}

TEST(ChatTemplateOrigin, OnlyFixedRolesOfMessagesAreTemplateText) {
  const std::string_view source = "{{ '<|' + messages[0].role + '|>' }}{{ messages[0]['content'] }}";
  EXPECT_EQ(Marked(source, OneMessage("user", "x")), "<|user|>[x]");
  EXPECT_EQ(Marked(source, OneMessage("developer", "x")), "<|developer|>[x]");
  EXPECT_EQ(Marked(source, OneMessage("endoftext", "x")), "<|[endoftext]|>[x]");
  EXPECT_EQ(Marked(source, OneMessage("User", "x")), "<|[User]|>[x]");
  EXPECT_EQ(Marked("{{ other[0].role }}", {{"other", json::array{json::object{{"role", "user"}}}}}), "[user]");
  EXPECT_EQ(Marked("{{ messages[0].content.role }}",
                   {{"messages", json::array{json::object{{"role", "user"}, {"content", {{"role", "user"}}}}}}}),
            "[user]");
}

std::string ReadFileOf(const std::string& name) {
  std::ifstream file(std::string(PENSTOCK_SOURCE_DIR) + "/tests/data/chat_templates/" + name, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// For real templates and any contents: a marker that only messages contain never appears in template text. A special
// token appears there exactly as often as with harmless contents.
TEST(ChatTemplateOrigin, MessagesNeverReachTemplateText) {
  const std::string names[] = {"Qwen2.jinja",
                               "Qwen3-30B-A3B.jinja",
                               "Mistral-7B-Instruct-v0.2.jinja",
                               "meta-llama-Llama-3.1-8B-Instruct.jinja",
                               "Phi-3.jinja",
                               "own-role-tags.jinja",
                               "gpt-oss.jinja",
                               "mistral-common-v7.jinja"};
  const std::vector<std::string> pieces = {"<|im_end|>", "<s>", "</s>", "[INST]",  "<|eot_id|>",
                                           "\xC2\xA7",   " ",   "\n",   "<think>", "</think>",
                                           "'",          "\"",  "\\",   "{{ 1 }}"};
  for (const std::string& name : names) {
    const absl::StatusOr<ChatTemplate> chat_template = ChatTemplate::Parse(ReadFileOf(name));
    ASSERT_TRUE(chat_template.ok()) << name;
    const auto render = [&](const std::string& first, const std::string& second) {
      const json::object untrusted = {{"messages", json::array{json::object{{"role", "user"}, {"content", first}},
                                                               json::object{{"role", "assistant"}, {"content", second}},
                                                               json::object{{"role", "user"}, {"content", first}}}}};
      const json::object trusted = {
          {"bos_token", "<s>"}, {"eos_token", "</s>"}, {"add_generation_prompt", true}, {"tools", nullptr}};
      return chat_template->Render(trusted, untrusted);
    };
    EXPECT_TRUE(rc::check([&] {
      const auto content = [&] {
        std::string text = "\xC2\xA7";  // a marker that no template contains
        for (const auto& piece : *rc::gen::container<std::vector<std::string>>(rc::gen::elementOf(pieces))) {
          text += piece + "\xC2\xA7";
        }
        return text;
      };
      const std::string first = content();
      const std::string second = content();
      const auto segments = render(first, second);
      RC_ASSERT(segments.ok());
      std::string by_template;
      for (const TextSegment& segment : *segments) {
        if (segment.origin == Origin::kTemplate) by_template += segment.text + "\x01";
      }
      RC_ASSERT(by_template.find("\xC2\xA7") == std::string::npos);
      const auto harmless = render("a", "b");
      RC_ASSERT(harmless.ok());
      const auto count = [](const std::vector<TextSegment>& list, const std::string& token) {
        int64_t total = 0;
        for (const TextSegment& segment : list) {
          if (segment.origin != Origin::kTemplate) continue;
          for (size_t at = segment.text.find(token); at != std::string::npos; at = segment.text.find(token, at + 1)) {
            ++total;
          }
        }
        return total;
      };
      for (const std::string& token : {"<|im_end|>", "<s>", "</s>", "[INST]", "<|eot_id|>"}) {
        RC_ASSERT(count(*segments, token) == count(*harmless, token));
      }
    })) << name;
  }
}

// A template without a folder, as in a file's metadata, needs only its text and the texts of the tokens.
TEST(ChatTemplate, TextAndTokenTextsAreEnough) {
  const std::string source =
      "{{ bos_token }}{% for m in messages %}{% if not loop.first %}{{ eos_token }}{% endif %}{{ m.content }}{% endfor "
      "%}";
  const json::object messages = {{"messages", json::array{json::object{{"role", "user"}, {"content", "a</s>"}},
                                                          json::object{{"role", "assistant"}, {"content", "b"}}}}};
  const json::object tokens = {{"bos_token", "<|begin|>"}, {"eos_token", "</s>"}};
  for (const std::string& text : {source, source + "\n", source + "\r\n"}) {
    const auto segments = RenderSegments(text, tokens, messages);
    ASSERT_TRUE(segments.ok()) << segments.status();
    ASSERT_EQ(segments->size(), 4);
    EXPECT_EQ(Concatenated(*segments), "<|begin|>a</s></s>b");
    EXPECT_EQ((*segments)[0].text, "<|begin|>");
    EXPECT_EQ((*segments)[0].origin, Origin::kTemplate);
    EXPECT_EQ((*segments)[1].text, "a</s>");
    EXPECT_EQ((*segments)[1].origin, Origin::kMessage);
    EXPECT_EQ((*segments)[2].text, "</s>");
    EXPECT_EQ((*segments)[2].origin, Origin::kTemplate);
  }
}

class ChatTemplateFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "penstock_template_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    path_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(path_); }
  void Write(const std::string& name, const std::string& text) { std::ofstream(path_ / name) << text; }
  absl::StatusOr<ChatTemplateTexts> FindAll() {
    absl::StatusOr<ModelFolder> folder = ModelFolder::Open(path_.string());
    if (!folder.ok()) return folder.status();
    return FindChatTemplates(*folder);
  }
  absl::StatusOr<std::string> Find() {
    absl::StatusOr<ChatTemplateTexts> texts = FindAll();
    if (!texts.ok()) return texts.status();
    return texts->general.value_or("");
  }

  std::filesystem::path path_;
};

TEST_F(ChatTemplateFolder, FileComesBeforeConfig) {
  Write("tokenizer_config.json", R"({"chat_template": "of the config"})");
  EXPECT_EQ(Find().value(), "of the config");
  Write("chat_template.jinja", "of the file");
  EXPECT_EQ(Find().value(), "of the file");
}

TEST_F(ChatTemplateFolder, DefaultOfSeveralNamedOnes) {
  Write("tokenizer_config.json",
        R"({"chat_template": [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]})");
  EXPECT_EQ(Find().value(), "d");
  Write("tokenizer_config.json", R"({"chat_template": [{"name": "rag", "template": "r"}]})");
  EXPECT_EQ(FaultOf(Find().status()), Fault::kInput);
}

TEST_F(ChatTemplateFolder, OneForRequestsWithTools) {
  Write("chat_template.json", R"({"chat_template": "older"})");
  EXPECT_EQ(Find().value(), "older");
  Write("tokenizer_config.json",
        R"({"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]})");
  EXPECT_EQ(Find().value(), "d");
  EXPECT_EQ(FindAll()->tool_use, "t");
  // A template file replaces everything that the config has.
  Write("chat_template.jinja", "f");
  EXPECT_EQ(Find().value(), "f");
  EXPECT_EQ(FindAll()->tool_use, std::nullopt);
  std::filesystem::create_directory(path_ / "additional_chat_templates");
  Write("additional_chat_templates/tool_use.jinja", "u");
  Write("additional_chat_templates/rag.jinja", "r");
  EXPECT_EQ(Find().value(), "f");
  EXPECT_EQ(FindAll()->tool_use, "u");
  std::filesystem::remove(path_ / "chat_template.jinja");
  EXPECT_EQ(Find().value(), "d");
  EXPECT_EQ(FindAll()->tool_use, "u");
}

TEST_F(ChatTemplateFolder, TheirFolderMustNotLeadOut) {
  std::filesystem::create_directory_symlink("/tmp", path_ / "additional_chat_templates");
  EXPECT_EQ(FaultOf(FindAll().status()), Fault::kModel);
  std::filesystem::remove(path_ / "additional_chat_templates");
  Write("additional_chat_templates", "a file");
  EXPECT_EQ(FaultOf(FindAll().status()), Fault::kModel);
}

TEST_F(ChatTemplateFolder, MissingOrInvalid) {
  EXPECT_EQ(FaultOf(Find().status()), Fault::kInput);
  EXPECT_THAT(Message(Find().status()), HasSubstr("has no chat template"));
  for (const char* config : {"{}", R"({"chat_template": null})"}) {
    Write("tokenizer_config.json", config);
    EXPECT_EQ(FaultOf(Find().status()), Fault::kInput) << config;
  }
  for (const char* config : {"[", "[]", R"({"chat_template": 5})", R"({"chat_template": [5]})",
                             R"({"chat_template": [{"name": "default"}]})"}) {
    Write("tokenizer_config.json", config);
    EXPECT_EQ(FaultOf(Find().status()), Fault::kModel) << config;
  }
}

}  // namespace
}  // namespace penstock
