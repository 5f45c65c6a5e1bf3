// A golden model: a tiny random model, and what Hugging Face transformers computed with it (tools/golden/README.md).
#pragma once

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "penstock/base/file.h"
#include "penstock/base/json.h"
#include "penstock/checkpoint/safetensors.h"
#include "penstock/engine.h"

namespace penstock {

struct GoldenTensor {
  std::vector<int64_t> shape;
  std::vector<float> values;
};

// Returns a golden model's name as the name of a test.
inline std::string GoldenName(const testing::TestParamInfo<std::string>& param) {
  std::string name = param.param;
  std::ranges::replace(name, '-', '_');
  return name;
}

class Golden {
 public:
  explicit Golden(const std::string& variant) : dir_(Folder() + "/" + variant) {
    const auto text = ReadFile(dir_ + "/expected.json", 1 << 24);
    expected_ = ParseJson(text.value(), Fault::kInput).value();
    tensors_file_ = ReadFile(dir_ + "/expected.safetensors", 1 << 26).value();
    const std::string_view file(tensors_file_);
    const uint64_t header_bytes = SafetensorsHeaderBytes(file.substr(0, 8), file.size()).value();
    infos_ = ParseSafetensorsHeader(file.substr(8, header_bytes), file.size()).value();
  }

  // The environment may name the folder, because a test may run on another machine than it was built on.
  static std::string Folder() {
    const char* folder = std::getenv("PENSTOCK_TEST_GOLDEN_DIR");
    return folder == nullptr ? PENSTOCK_GOLDEN_DIR : folder;
  }
  const std::string& dir() const { return dir_; }
  bool is_long() const { return dir_.ends_with("-long"); }
  bool is_bf16() const { return expected_.at("dtype").get_string() == "bfloat16"; }
  int num_prompts() const { return static_cast<int>(expected_.at("prompts").get_array().size()); }
  std::vector<TokenId> prompt(int i) const { return Ids("prompts", i); }
  std::vector<TokenId> greedy(int i) const { return Ids("greedy", i); }

  // In an encoder-decoder model, the encoder reads the prompts; text() adds what the decoder reads, up to the last
  // token of which there are logits.
  bool has_encoder() const { return expected_.get_object().contains("num_dropped"); }
  int64_t num_encoded(int i) const { return has_encoder() ? std::ssize(prompt(i)) : 0; }
  std::vector<TokenId> text(int i) const {
    std::vector<TokenId> ids = prompt(i);
    if (!has_encoder()) return ids;
    const std::vector<TokenId> answer = greedy(i);
    ids.push_back(decoder_start());
    ids.insert(ids.end(), answer.begin(), answer.end() - 1);
    return ids;
  }

  bool has_tensor(const std::string& name) const {
    return std::any_of(infos_.begin(), infos_.end(), [&](const TensorInfo& info) { return info.name == name; });
  }
  GoldenTensor tensor(const std::string& name) const {
    for (const TensorInfo& info : infos_) {
      if (info.name != name) continue;
      GoldenTensor tensor{info.shape, std::vector<float>(info.extent.size_bytes / SizeOf(info.dtype))};
      ToFloats(info.dtype, reinterpret_cast<const std::byte*>(tensors_file_.data()) + info.extent.offset_bytes,
               tensor.values);
      return tensor;
    }
    ADD_FAILURE() << "no tensor " << name << " in " << dir_;
    return {};
  }

  static std::vector<std::string> DecoderOnlyVariants() {
    std::vector<std::string> names = Variants();
    std::erase_if(names, [](const std::string& name) { return Golden(name).has_encoder(); });
    return names;
  }
  // Models whose prompts are longer than the contexts of most tests. They keep the logits of a prompt's last rows.
  static std::vector<std::string> LongVariants() {
    std::vector<std::string> names = AllVariants();
    std::erase_if(names, [](const std::string& name) { return !name.ends_with("-long"); });
    return names;
  }
  static std::vector<std::string> Variants() {
    std::vector<std::string> names = AllVariants();
    std::erase_if(names, [](const std::string& name) { return name.ends_with("-long"); });
    return names;
  }

 private:
  static std::vector<std::string> AllVariants() {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(Folder())) {
      if (entry.is_directory()) names.push_back(entry.path().filename());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  TokenId decoder_start() const {
    const auto text = ReadFile(dir_ + "/config.json", 1 << 16);
    const json::value config = ParseJson(text.value(), Fault::kInput).value();
    return static_cast<TokenId>(config.at("decoder_start_token_id").get_int64());
  }

  std::vector<TokenId> Ids(const char* key, int i) const {
    std::vector<TokenId> ids;
    for (const json::value& id : expected_.at(key).at(static_cast<size_t>(i)).get_array()) {
      ids.push_back(static_cast<TokenId>(id.get_int64()));
    }
    return ids;
  }

  std::string dir_;
  json::value expected_;
  std::string tensors_file_;
  std::vector<TensorInfo> infos_;
};

}  // namespace penstock
