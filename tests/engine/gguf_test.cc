// Proves that GGUF files of a model give the bits of its Hugging Face folder (tools/golden/make_gguf.py). Covers every
// family, split files, and the layouts of older converters.
#include <unistd.h>

#include <filesystem>

#include <gmock/gmock.h>

#include "penstock/base/file.h"
#include "penstock/base/status.h"
#include "penstock/pack.h"
#include "penstock/plan/loaded_model.h"
#include "tests/choices.h"
#include "tests/engine/golden.h"

namespace penstock {
namespace {

std::vector<std::string> VariantsWithGguf() {
  std::vector<std::string> names;
  for (const std::string& name : Golden::Variants()) {
    if (std::filesystem::exists(Golden::Folder() + "/" + name + "/gguf")) names.push_back(name);
  }
  return names;
}

class GgufModelTest : public testing::TestWithParam<std::string> {
 protected:
  static std::unique_ptr<Engine> Open(const std::string& dir, const std::string& dtype) {
    auto engine = Engine::Open({.model_dir = dir,
                                .memory_bytes = 64 << 20,
                                .dtype = DtypeCalled(dtype),
                                .activations = ActivationFormat::kF32,
                                .threads = 2});
    EXPECT_TRUE(engine.ok()) << engine.status();
    return engine.ok() ? *std::move(engine) : nullptr;
  }
};

// Files of models with states hold rates of decay in place of their logarithms. Those of Qwen3.5 have heads in another
// order, so o_proj sums its inputs in another order. In those of Granite 4 and Nemotron, q and k have pairs of dims
// side by side, though nothing rotates; the rows are put back, so that keeps the bits.
TEST_P(GgufModelTest, GivesTheBitsOfTheFolder) {
  const Golden golden(GetParam());
  const Recurrent recurrent = LoadModel(golden.dir()).value()->config.recurrent;
  const bool has_rates = recurrent.is_on() && recurrent.has_matrix();
  const float tolerance = LoadModel(golden.dir() + "/gguf").value()->config.recurrent.heads_alternate ? 2e-4f : 1e-4f;
  for (const std::string dtype : {"f32", "bf16"}) {
    const auto folder = Open(golden.dir(), dtype), gguf = Open(golden.dir() + "/gguf", dtype);
    ASSERT_NE(folder, nullptr);
    ASSERT_NE(gguf, nullptr);
    for (int i = 0; i < golden.num_prompts(); ++i) {
      const auto expected = folder->Logits(golden.prompt(i)), found = gguf->Logits(golden.prompt(i));
      ASSERT_TRUE(expected.ok()) << expected.status();
      ASSERT_TRUE(found.ok()) << found.status();
      if (!has_rates) {
        EXPECT_EQ(*found, *expected) << dtype << ", prompt " << i;
      } else if (dtype == "f32") {
        EXPECT_THAT(*found, testing::Pointwise(testing::FloatNear(tolerance), *expected)) << "prompt " << i;
      }
    }
  }
}

// The store has the codes of the file, and its tokenizer, templates and sampling.
TEST_P(GgufModelTest, PackedGivesTheSameBits) {
  const Golden golden(GetParam());
  const std::string file = golden.dir() + "/gguf";
  const std::string folder = fmt::format("{}/gguf-{}-{}", testing::TempDir(), GetParam(), ::getpid());
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  const std::string store = folder + "/store";
  const absl::Status status = PackModel({.model_dir = file, .output_dir = store, .threads = 2}, nullptr, {});
  ASSERT_TRUE(status.ok()) << status;
  const auto from_file = LoadModel(file).value(), from_store = LoadModel(store).value();
  EXPECT_EQ(from_store->config.eos_ids, from_file->config.eos_ids);
  EXPECT_EQ(from_store->generation.temperature, from_file->generation.temperature);
  EXPECT_EQ(from_store->chat_prompts.has_value(), from_file->chat_prompts.has_value());
  ASSERT_EQ(from_store->tokenizer == nullptr, from_file->tokenizer == nullptr);
  if (from_file->tokenizer != nullptr) {
    EXPECT_EQ(from_store->Tokenize("A mill-race."), from_file->Tokenize("A mill-race."));
  }
  const auto expected = Open(file, "f32"), packed = Open(store, "f32");
  ASSERT_NE(expected, nullptr);
  ASSERT_NE(packed, nullptr);
  for (int i = 0; i < golden.num_prompts(); ++i) {
    EXPECT_EQ(packed->Logits(golden.prompt(i)).value(), expected->Logits(golden.prompt(i)).value()) << i;
  }
  std::filesystem::remove_all(folder);
}

// A file of Gemma 4 that lacks something, or has other factors of RoPE, is refused by name.
TEST(BadGgufModelTest, Gemma4IsRefusedByName) {
  const std::string good = ReadFile(Golden("gemma4-tiny").dir() + "/gguf/gemma4-tiny.gguf", 1 << 24).value();
  const std::string path = fmt::format("{}/bad-{}.gguf", testing::TempDir(), ::getpid());
  const auto message = [&](std::string_view from, std::string_view to) {
    std::string bad = good;
    EXPECT_EQ(from.size(), to.size());
    const size_t place = bad.find(from);
    EXPECT_NE(place, std::string::npos) << from;
    EXPECT_TRUE(WriteFile(path, bad.replace(place, from.size(), to)).ok());
    return Message(LoadModel(path).status());
  };
  EXPECT_THAT(message("rope_freqs.weight", "rope_freqz.weight"),
              testing::HasSubstr("tensor 'rope_freqs.weight' is missing"));
  EXPECT_THAT(message("attention.key_length_swa", "attention.key_length_swx"),
              testing::HasSubstr("key 'gemma4.attention.key_length_swa' is missing"));
  EXPECT_THAT(message("attention.sliding_window_pattern", "attention.sliding_window_patterx"),
              testing::HasSubstr("key 'gemma4.attention.sliding_window_pattern' is missing"));
  EXPECT_THAT(message("gemma4.expert_count", "gemma4.expert_cound"), testing::HasSubstr("gemma4.expert_count"));
  const float slow = 1e30f, other = 2;
  const std::string_view as_bytes(reinterpret_cast<const char*>(&slow), 4),
      changed(reinterpret_cast<const char*>(&other), 4);
  EXPECT_THAT(message(as_bytes, changed), testing::HasSubstr("tensor 'rope_freqs.weight': expected ones"));
  std::filesystem::remove(path);
}

INSTANTIATE_TEST_SUITE_P(Variants, GgufModelTest, testing::ValuesIn(VariantsWithGguf()), GoldenName);

}  // namespace
}  // namespace penstock
