// Proves that formats are found in real chat templates, and that a call of the shape that a format gives is read as
// this call.
#include "penstock/chat/answer/answer_format.h"

#include <gtest/gtest.h>

#include "penstock/base/file.h"
#include "penstock/chat/chat_prompt.h"
#include "tests/chat/answer_testing.h"

namespace penstock {
namespace {

using testing_answers::CallsOf;
using testing_answers::Families;
using testing_answers::Family;
using testing_answers::kTools;
using testing_answers::ModelOf;

AnswerFormat FormatOf(std::string_view file, const std::vector<std::string>& special = {}) {
  const std::string path = fmt::format("{}/tests/data/chat_templates/{}", PENSTOCK_SOURCE_DIR, file);
  const auto source = ReadFile(path, kMaxTemplateBytes);
  EXPECT_TRUE(source.ok()) << source.status();
  const auto prompts = ChatPrompts::Create({.general = *source, .tool_use = {}}, {});
  EXPECT_TRUE(prompts.ok()) << prompts.status();
  return FindAnswerFormat(prompts->Literals(), *testing_answers::NewTokenizer(special));
}

TEST(AnswerFormat, OfRealTemplates) {
  struct Expected {
    std::string file;
    CallForm form;
    std::string open;
  };
  const std::vector<Expected> all = {
      {"Qwen3-30B-A3B.jinja", CallForm::kJson, "<think>"},
      {"Qwen2.jinja", CallForm::kNone, ""},
      {"Qwen-Qwen2.5-7B-Instruct.jinja", CallForm::kJson, ""},
      {"DeepSeek-V3.1.jinja", CallForm::kDeepSeek, "<think>"},
      {"llama-cpp-deepseek-r1.jinja", CallForm::kDeepSeek, "<think>"},
      {"GLM-4.6.jinja", CallForm::kPairs, "<think>"},
      {"MiniMax-M2.jinja", CallForm::kInvoke, "<think>"},
      {"moonshotai-Kimi-K2.jinja", CallForm::kKimi, ""},
      {"google-gemma-4-31B-it.jinja", CallForm::kGemma, "<|channel>thought"},
      {"Qwen3.5-4B.jinja", CallForm::kFunction, "<think>"},
      {"meta-llama-Llama-3.3-70B-Instruct.jinja", CallForm::kBareJson, ""},
      {"deepseek-ai-DeepSeek-V3.2.jinja", CallForm::kDsml, "<think>"},
      {"GLM-4.7-Flash.jinja", CallForm::kPairs, "<think>"},
      {"LFM2.5-8B-A1B.jinja", CallForm::kPython, "<think>"},
      {"NVIDIA-Nemotron-3-Nano-30B-A3B-BF16.jinja", CallForm::kFunction, "<think>"},
      {"ibm-granite-granite-4.0.jinja", CallForm::kJson, ""},
      {"ERNIE-4.5.jinja", CallForm::kNone, ""},
      {"microsoft-Phi-3.5-mini-instruct.jinja", CallForm::kNone, ""},
      {"mistral-common-v1.jinja", CallForm::kNone, ""},
      {"mistral-common-v3.jinja", CallForm::kMistral, ""},
      {"mistral-common-v13.jinja", CallForm::kMistral, ""},
      {"mistral-common-v13_think.jinja", CallForm::kMistral, "[THINK]"},
  };
  for (const Expected& expected : all) {
    const AnswerFormat format = FormatOf(expected.file);
    EXPECT_EQ(format.form, expected.form) << expected.file;
    EXPECT_EQ(format.open, expected.open) << expected.file;
  }
  EXPECT_TRUE(FormatOf("mistral-common-v3.jinja").lists_calls);
  EXPECT_FALSE(FormatOf("mistral-common-v13.jinja").lists_calls);
  EXPECT_TRUE(FormatOf("llama-cpp-deepseek-r1.jinja").names_type);
  EXPECT_FALSE(FormatOf("DeepSeek-V3.1.jinja").names_type);
  EXPECT_TRUE(FormatOf("GLM-4.6.jinja").breaks_lines);
  EXPECT_FALSE(FormatOf("GLM-4.7-Flash.jinja").breaks_lines);
  EXPECT_EQ(FormatOf("LFM2-8B-A1B.jinja").form, CallForm::kNone);
  EXPECT_EQ(FormatOf("LFM2-8B-A1B.jinja", {"<|tool_call_start|>"}).form, CallForm::kPython);
  const AnswerFormat hunyuan =
      FormatOf("tencent-Hy3.jinja", {"<arg_key:opensource>", "<think:opensource>", "</think:opensource>"});
  EXPECT_EQ(hunyuan.form, CallForm::kPairs);
  EXPECT_EQ(hunyuan.open, "<think:opensource>");
  EXPECT_TRUE(hunyuan.lists_calls && hunyuan.breaks_lines);
}

}  // namespace
}  // namespace penstock
