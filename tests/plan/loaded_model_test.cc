// Proves that a model's fingerprint changes with every file that affects its texts. A packed store has the tokenizer
// and the templates of its model folder.
#include "penstock/plan/loaded_model.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>

#include "penstock/pack.h"
#include "tests/engine/golden.h"
#include "tests/tokenizer/small_ranks.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;
using testing_tokenizers::SmallRanks;

// A model with 257 tokens, tiktoken's ranks for them, and two templates.
class LoadedModelTest : public testing::Test {
 protected:
  LoadedModelTest() : folder_(testing::TempDir() + "/loaded-model-" + std::to_string(::getpid())) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    fs::copy(Golden("mixtral-odd").dir(), folder_ + "/model");
    fs::create_directory(folder_ + "/model/additional_chat_templates");
    Write("cl100k_base.tiktoken", SmallRanks({"ab"}));
    Write("tokenizer_config.json", R"({"chat_template": "general: {{ messages[0].content }}"})");
    Write("special_tokens_map.json", "{}");
    Write("generation_config.json", "{}");
    Write("additional_chat_templates/tool_use.jinja", "tools: {{ messages[0].content }}");
  }
  ~LoadedModelTest() override { fs::remove_all(folder_); }

  std::string dir() const { return folder_ + "/model"; }
  void Write(const std::string& name, const std::string& bytes) {
    std::ofstream(dir() + "/" + name, std::ios::binary) << bytes;
  }
  std::string Fingerprint() const {
    const auto model = LoadModel(dir());
    EXPECT_TRUE(model.ok()) << model.status();
    return model.ok() ? (*model)->fingerprint : "";
  }

  std::string folder_;
};

TEST_F(LoadedModelTest, EveryFileThatDecidesTextsChangesTheFingerprint) {
  std::string before = Fingerprint();
  EXPECT_EQ(Fingerprint(), before);
  const auto expect_change = [&](const std::string& name, const std::string& bytes) {
    Write(name, bytes);
    const std::string after = Fingerprint();
    EXPECT_NE(after, before) << name;
    before = after;
  };
  expect_change("cl100k_base.tiktoken", SmallRanks({"cd"}));
  expect_change("tokenizer_config.json", R"({"chat_template": "other: {{ messages[0].content }}"})");
  expect_change("special_tokens_map.json", R"({"unk_token": "a"})");
  expect_change("generation_config.json", R"({"eos_token_id": 3})");
  expect_change("additional_chat_templates/tool_use.jinja", "other tools");
  expect_change("chat_template.jinja", "{{ messages[0].content }}");
  Write("notes.txt", "of no matter");
  EXPECT_EQ(Fingerprint(), before);
}

TEST_F(LoadedModelTest, AStoreHasTheTokenizerAndTheTemplates) {
  const std::atomic<bool> stop{false};
  const std::string store = folder_ + "/store";
  ASSERT_TRUE(PackModel({.model_dir = dir(), .output_dir = store, .quantize = "int8"}, nullptr, stop).ok());
  const auto packed = LoadModel(store).value(), model = LoadModel(dir()).value();
  ASSERT_NE(packed->tokenizer, nullptr);
  EXPECT_EQ(packed->tokenizer->Encode("xab", Origin::kMessage, AddSpecial::kNo),
            model->tokenizer->Encode("xab", Origin::kMessage, AddSpecial::kNo));
  const auto expected = FindChatTemplates(ModelFolder::Open(dir()).value()).value();
  const auto found = FindChatTemplates(ModelFolder::Open(store).value()).value();
  EXPECT_EQ(found.general, expected.general);
  EXPECT_EQ(found.tool_use, expected.tool_use);
  EXPECT_EQ(found.tool_use, "tools: {{ messages[0].content }}");
}

TEST_F(LoadedModelTest, AStoreHasTheTemplateThatCounts) {
  const std::atomic<bool> stop{false};
  const auto pack = [&](const std::string& store) {
    return PackModel({.model_dir = dir(), .output_dir = store, .quantize = "int8"}, nullptr, stop);
  };
  Write("chat_template.jinja", "hidden");
  Write("additional_chat_templates/default.jinja", "counts");
  ASSERT_TRUE(pack(folder_ + "/store").ok());
  EXPECT_EQ(FindChatTemplates(ModelFolder::Open(folder_ + "/store").value())->general, "counts");
  // Templates of other names are not read, and no template is required.
  for (const char* name : {"tokenizer_config.json", "chat_template.jinja", "additional_chat_templates/default.jinja",
                           "additional_chat_templates/tool_use.jinja"}) {
    fs::remove(dir() + "/" + name);
  }
  fs::create_directory(dir() + "/additional_chat_templates/rag.jinja");
  EXPECT_TRUE(pack(folder_ + "/other").ok());
}

}  // namespace
}  // namespace penstock
