// Proves that the golden models are what their recipes say: the files made here have the hashes that Python wrote down,
// and a recipe whose weights, order or header is another is refused.
#include "penstock/testing/golden/golden_models.h"

#include <xxhash.h>

#include <filesystem>

#include <gmock/gmock.h>

#include "penstock/base/file.h"
#include "penstock/base/status.h"
#include "penstock/checkpoint/safetensors.h"

namespace penstock::golden {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kRecipes[] = PENSTOCK_SOURCE_DIR "/tests/golden";

Recipe RecipeOf(const std::string& variant) {
  const auto text = ReadFile(fmt::format("{}/{}/weights.json", kRecipes, variant), 1 << 20);
  return ParseRecipe(text.value()).value();
}

TEST(GoldenModelsTest, EveryFileHasTheHashOfItsRecipe) {
  int num_models = 0, num_gguf = 0;
  for (const auto& entry : fs::directory_iterator(kRecipes)) {
    if (!fs::exists(entry.path() / "weights.json")) continue;
    const std::string variant = entry.path().filename();
    ++num_models;
    for (const RecipeFile& file : RecipeOf(variant).files) {
      const auto bytes = ReadFile(fmt::format("{}/{}/{}", PENSTOCK_GOLDEN_DIR, variant, file.name), 1 << 28);
      ASSERT_TRUE(bytes.ok()) << bytes.status();
      EXPECT_EQ(XXH3_64bits(bytes->data(), bytes->size()), file.xxh3) << variant << ", " << file.name;
      if (!file.header.empty()) ++num_gguf;
    }
  }
  EXPECT_GE(num_models, 53);
  EXPECT_GE(num_gguf, 40);
}

TEST(GoldenModelsTest, RefusesFilesWithAnotherHash) {
  const std::string folder = fmt::format("{}/mixtral-tiny", kRecipes);
  const Recipe recipe = RecipeOf("mixtral-tiny");
  ASSERT_EQ(recipe.files.size(), 4u);
  for (const RecipeFile& file : recipe.files) EXPECT_TRUE(MakeFile(recipe, file, folder).ok());
  const auto refused = [&](const Recipe& changed, const RecipeFile& file) {
    return Message(MakeFile(changed, file, folder).status());
  };
  Recipe changed = recipe;
  ++changed.seed;
  for (const RecipeFile& file : changed.files) EXPECT_THAT(refused(changed, file), HasSubstr("expected XXH3"));
  changed = recipe;
  changed.files[0].tensors[0].name += "x";
  EXPECT_THAT(refused(changed, changed.files[0]), HasSubstr("expected XXH3"));
  changed = recipe;
  std::swap(changed.files[0].tensors[0], changed.files[0].tensors[1]);
  EXPECT_THAT(refused(changed, changed.files[0]), HasSubstr("expected XXH3"));
  changed = recipe;
  std::swap(changed.files[2].header, changed.files[3].header);
  EXPECT_THAT(refused(changed, changed.files[2]), HasSubstr("expected XXH3"));
  changed = recipe;
  changed.files[1].taken[0].sources = {"absent"};
  EXPECT_THAT(refused(changed, changed.files[1]), HasSubstr("'absent': no safetensors file"));
  changed = recipe;
  changed.files[1].taken[0].takes = {{.first = 0, .loops = {{.count = 2, .step = 1 << 20}}}};
  EXPECT_THAT(refused(changed, changed.files[1]), HasSubstr("an element that it does not have"));
}

TEST(GoldenModelsTest, WritesSafetensorsThatTheEngineReads) {
  for (const char* name : {"mixtral-tiny/model.safetensors", "mixtral-bf16/model-00002-of-00003.safetensors"}) {
    const std::string bytes = ReadFile(fmt::format("{}/{}", PENSTOCK_GOLDEN_DIR, name), 1 << 28).value();
    const auto header_bytes = SafetensorsHeaderBytes(bytes.substr(0, 8), bytes.size());
    ASSERT_TRUE(header_bytes.ok()) << header_bytes.status();
    EXPECT_TRUE(ParseSafetensorsHeader(bytes.substr(8, *header_bytes), bytes.size()).ok());
  }
}

TEST(GoldenModelsTest, AModelHasTheFilesOfItsFolderAndOfItsRecipe) {
  const std::string folder = testing::TempDir() + "/penstock-golden-models";
  const std::string target = folder + "/mixtral-tiny";
  fs::create_directories(target);
  ASSERT_TRUE(WriteFile(target + "/left.safetensors", "from before").ok());
  ASSERT_TRUE(MakeModel(fmt::format("{}/mixtral-tiny", kRecipes), target).ok());
  std::vector<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(target)) {
    if (entry.is_regular_file()) names.push_back(entry.path().lexically_relative(target));
  }
  std::sort(names.begin(), names.end());
  EXPECT_THAT(names, ElementsAre("config.json", "expected.json", "expected.safetensors", "generation_config.json",
                                 "gguf/mixtral-tiny-00001-of-00003.gguf", "gguf/mixtral-tiny-00002-of-00003.gguf",
                                 "gguf/mixtral-tiny-00003-of-00003.gguf", "model.safetensors"));
  fs::remove_all(folder);
}

TEST(RecipeTest, ExpandsPatterns) {
  EXPECT_THAT(ExpandPattern("lm_head").value(), ElementsAre("lm_head"));
  EXPECT_THAT(ExpandPattern("a.{0-1}.b.{9-11}").value(),
              ElementsAre("a.0.b.9", "a.0.b.10", "a.0.b.11", "a.1.b.9", "a.1.b.10", "a.1.b.11"));
  for (const char* wrong : {"a.{", "a.{1}", "a.{1-}", "a.{2-1}", "a.{1-2", "a.{0-1000}", "a.{x-2}", "a.{-1-2}"}) {
    EXPECT_FALSE(ExpandPattern(wrong).ok()) << wrong;
  }
}

TEST(RecipeTest, RefusesWhatIsNoRecipe) {
  const auto message = [](std::string_view text) { return Message(ParseRecipe(text).status()); };
  const auto with_tensor = [](std::string_view tensor) {
    return fmt::format(R"({{"generator": 1, "seed": 1, "files": {{"m": {{"xxh3": "0f", "tensors": [{}]}}}}}})", tensor);
  };
  EXPECT_TRUE(ParseRecipe(with_tensor(R"({"name": "a", "dtype": "F32", "shape": [2], "std": 5})")).ok());
  EXPECT_THAT(message("[]"), HasSubstr("expected an object"));
  EXPECT_THAT(message(R"({"generator": 2, "seed": 1, "files": {}})"), HasSubstr("expected version 1"));
  EXPECT_THAT(message(R"({"generator": 1, "files": {}})"), HasSubstr("expected an integer 'seed'"));
  EXPECT_THAT(message(R"({"generator": 1, "seed": 1, "files": {"m": {"xxh3": "0g", "tensors": []}}})"),
              HasSubstr("in hexadecimal"));
  EXPECT_THAT(message(with_tensor("3")), HasSubstr("expected an object"));
  EXPECT_THAT(message(with_tensor(R"({"name": "a", "dtype": "U8", "shape": [2], "std": 5})")), HasSubstr("found 'U8'"));
  EXPECT_THAT(message(with_tensor(R"({"name": "a", "dtype": "F32", "shape": [0], "std": 5})")),
              HasSubstr("dimensions"));
  EXPECT_THAT(message(with_tensor(R"({"name": "a", "dtype": "F32", "shape": [2], "std": 5000000000})")),
              HasSubstr("a standard deviation up to"));
  EXPECT_THAT(message(with_tensor(R"({"name": "a", "dtype": "F32", "shape": [2]})")), HasSubstr("integer 'std'"));
}

}  // namespace
}  // namespace penstock::golden
