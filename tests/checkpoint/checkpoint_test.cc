// Proves that a folder's shards become one catalogue only when all headers agree with their files, each other and the
// index. Proves that every other state of a folder gets an error that says what to do, and that fingerprints of
// different models differ.
#include "penstock/checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <filesystem>
#include <sstream>
#include <string>
#include <utility>

#include "penstock/base/status.h"
#include "test_files.h"

namespace penstock {
namespace {

using testing::HasSubstr;
using testing::Not;

absl::StatusOr<Checkpoint> OpenPath(const std::string& path) {
  PENSTOCK_ASSIGN_OR_RETURN(const ModelFolder folder, ModelFolder::Open(path));
  return Checkpoint::Open(folder);
}

std::string ErrorOf(const TempFolder& temp, Fault fault = Fault::kModel) {
  const auto checkpoint = OpenPath(temp.path());
  if (checkpoint.ok()) return "opened";
  EXPECT_EQ(FaultOf(checkpoint.status()), fault) << Message(checkpoint.status());
  return Message(checkpoint.status());
}

// Collects log output during its lifetime.
class LogCapture {
 public:
  LogCapture() : previous_(spdlog::default_logger()) {
    auto logger = std::make_shared<spdlog::logger>("capture", std::make_shared<spdlog::sinks::ostream_sink_mt>(text_));
    logger->set_pattern("%l: %v");
    spdlog::set_default_logger(std::move(logger));
  }
  ~LogCapture() { spdlog::set_default_logger(previous_); }
  std::string text() const { return text_.str(); }

 private:
  std::ostringstream text_;
  std::shared_ptr<spdlog::logger> previous_;
};

constexpr char kIndex[] = "model.safetensors.index.json";
constexpr char kShard1[] = "model-00001-of-00002.safetensors";
constexpr char kShard2[] = "model-00002-of-00002.safetensors";

// Two shards and their index: a, b in the first, c in the second.
void WriteTwoShards(const TempFolder& temp) {
  temp.Write(kShard1, FileOf({{"a", "F32", {2, 3}}, {"b", "BF16", {4}}}));
  temp.Write(kShard2, FileOf({{"c", "F16", {5}}}));
  temp.Write(kIndex, fmt::format("{{\"metadata\": {{\"total_size\": 42}}, \"weight_map\": "
                                 "{{\"a\": \"{}\", \"b\": \"{}\", \"c\": \"{}\"}}}}",
                                 kShard1, kShard1, kShard2));
}

TEST(Checkpoint, OpensASingleFile) {
  const TempFolder temp;
  temp.Write("model.safetensors", FileOf({{"b", "F32", {2}}, {"a", "BF16", {3}}}));
  const auto checkpoint = OpenPath(temp.path());
  ASSERT_TRUE(checkpoint.ok()) << Message(checkpoint.status());
  EXPECT_EQ(checkpoint->tensors().size(), 2u);
  EXPECT_EQ(checkpoint->files().size(), 1u);
  EXPECT_EQ(checkpoint->total_bytes(), 14u);
  ASSERT_NE(checkpoint->Find("a"), nullptr);
  EXPECT_EQ(checkpoint->Find("a")->dtype, Dtype::kBF16);
  EXPECT_EQ(checkpoint->Find("b")->extent.size_bytes, 8u);
  for (const char* name : {"", "c", "aa", "A", "b "}) EXPECT_EQ(checkpoint->Find(name), nullptr) << name;
}

TEST(Checkpoint, OpensShardsAndSurvivesBeingMoved) {
  const TempFolder temp;
  WriteTwoShards(temp);
  const LogCapture log;
  auto opened = OpenPath(temp.path());
  ASSERT_TRUE(opened.ok()) << Message(opened.status());
  const Checkpoint checkpoint = *std::move(opened);
  ASSERT_EQ(checkpoint.files().size(), 2u);
  EXPECT_EQ(checkpoint.files()[1].path, temp.path() + "/" + kShard2);
  EXPECT_EQ(checkpoint.files()[1].size_bytes, std::filesystem::file_size(temp.path() + "/" + kShard2));
  const TensorInfo* c = checkpoint.Find("c");
  ASSERT_NE(c, nullptr);
  EXPECT_EQ(c->file_idx, 1);
  // The data of FileOf counts up from the first byte of the data section.
  std::string bytes(2, '\0');
  ASSERT_TRUE(
      PreadFully(checkpoint.files()[1].fd.get(), std::as_writable_bytes(std::span(bytes)), c->extent.offset_bytes, "c")
          .ok());
  EXPECT_EQ(bytes, std::string("\0\1", 2));
  EXPECT_EQ(log.text(), "");
}

TEST(Checkpoint, OpensHuggingFaceSnapshots) {
  const TempFolder temp;
  temp.Write("models--o--n/blobs/0a", FileOf({{"a", "F32", {1}}}));
  temp.Link("models--o--n/snapshots/r/model.safetensors", "../../blobs/0a");
  EXPECT_TRUE(OpenPath(temp.path() + "/models--o--n/snapshots/r").ok());
  const auto repository = OpenPath(temp.path() + "/models--o--n");
  EXPECT_THAT(Message(repository.status()), HasSubstr("use one of the folders in its 'snapshots'"));
}

TEST(Checkpoint, SaysWhatAFolderWithoutWeightsHas) {
  const std::pair<std::string, std::string> cases[] = {
      {"config.json", "no weights: expected model.safetensors or model.safetensors.index.json"},
      {"pytorch_model.bin", "found 'pytorch_model.bin', but pickle is not read, as it can run code; convert it"},
      {"consolidated.00.pth", "pickle is not read"},
      {"model.safetensors.incomplete", "the download did not finish"},
      {"model-00001-of-00002.safetensors", "no index that says what it holds: download model.safetensors.index.json"},
  };
  for (const auto& [name, expected] : cases) {
    const TempFolder temp;
    temp.Write(name, "x");
    EXPECT_THAT(ErrorOf(temp), HasSubstr(expected)) << name;
    EXPECT_THAT(ErrorOf(temp), HasSubstr(temp.path()));
  }
}

TEST(Checkpoint, NamesTheFileThatIsNoWeights) {
  const std::string whole = FileOf({{"a", "F32", {100}}});
  const std::pair<std::string, std::string> cases[] = {
      {"", "/model.safetensors: the file has 0 bytes, too few"},
      {"1234567", "/model.safetensors: the file has 7 bytes, too few"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 400\n",
       "/model.safetensors: this is a Git LFS pointer, not the weights: run git lfs pull"},
      {whole.substr(0, 20), "/model.safetensors: the header has "},
      {whole.substr(0, whole.size() - 150), "/model.safetensors: the file is 150 bytes short (tensor 'a' is the first"},
      {whole + "xyz", "/model.safetensors: 3 bytes at the end of the file belong to no tensor"},
      {std::string(1000, '\0'), "/model.safetensors: the header has 0 bytes"},
      {WithLength("{\"a\": 1}"), "/model.safetensors: header: byte 7: tensor 'a': expected an object"},
  };
  for (const auto& [content, expected] : cases) {
    const TempFolder temp;
    temp.Write("model.safetensors", content);
    EXPECT_THAT(ErrorOf(temp), HasSubstr(expected));
  }
}

TEST(Checkpoint, AHugeClaimCostsNothing) {
  const TempFolder temp;
  const std::string path = temp.Write("model.safetensors", "\xff\xff\xff\xff\xff\xff\xff\x7f{}");
  std::filesystem::resize_file(path, 1ull << 42);  // sparse
  EXPECT_THAT(ErrorOf(temp), HasSubstr("more than the format's limit"));
}

TEST(Checkpoint, RefusesShardsThatDisagreeWithTheIndex) {
  {
    const TempFolder temp;
    WriteTwoShards(temp);
    std::filesystem::remove(temp.path() + "/" + kShard2);
    EXPECT_THAT(ErrorOf(temp), HasSubstr("shard 'model-00002-of-00002.safetensors' is listed in "
                                         "model.safetensors.index.json but missing: download it"));
    temp.Write(std::string(kShard2) + ".incomplete", "");
    EXPECT_THAT(ErrorOf(temp), HasSubstr("its download did not finish, resume it"));
  }
  {
    const TempFolder temp;
    WriteTwoShards(temp);
    temp.Write(kShard2, FileOf({{"d", "F16", {5}}}));
    EXPECT_THAT(ErrorOf(temp), HasSubstr("model-00002-of-00002.safetensors: tensor 'c' is missing, though "
                                         "model.safetensors.index.json lists it here (1 tensor(s) wrong)"));
  }
  {
    const TempFolder temp;
    WriteTwoShards(temp);
    temp.Write(kIndex, fmt::format("{{\"weight_map\": {{\"a\": \"{}\", \"b\": \"{}\", \"c\": \"{}\"}}}}", kShard2,
                                   kShard1, kShard1));
    EXPECT_THAT(ErrorOf(temp), HasSubstr("tensor 'a' is missing, though model.safetensors.index.json lists it here; it "
                                         "is in " +
                                         temp.path() + "/" + kShard1 + " (2 tensor(s) wrong)"));
  }
  {
    const TempFolder temp;
    WriteTwoShards(temp);
    temp.Write(kShard2, FileOf({{"c", "F16", {5}}, {"a", "F32", {2, 3}}}));
    EXPECT_THAT(ErrorOf(temp),
                HasSubstr(std::string(kShard2) + ": tensor 'a' is also in " + temp.path() + "/" + kShard1));
  }
  {
    const TempFolder temp;
    WriteTwoShards(temp);
    temp.Write(kShard2, FileOf({{"c", "F64", {5}}}) + std::string(30, '\0'));
    EXPECT_THAT(ErrorOf(temp), HasSubstr(std::string(kShard2) + ": header: byte "));
    EXPECT_THAT(
        ErrorOf(temp),
        HasSubstr("tensor 'c': dtype 'F64' is not supported: expected F32, F16, BF16, F8_E4M3, U8, I32 or I64"));
  }
}

TEST(Checkpoint, RefusesBadIndexes) {
  const std::pair<std::string, std::string> cases[] = {
      {"{", "/model.safetensors.index.json: line 1, column 2: not valid JSON"},
      {"{\"weight_map\": {\"a\": \"../x.safetensors\"}}", "unsafe shard name '../x.safetensors' for tensor 'a'"},
      {"version https://git-lfs.github.com/spec/v1\n", "this is a Git LFS pointer, not the index: run git lfs pull"},
  };
  for (const auto& [content, expected] : cases) {
    const TempFolder temp;
    WriteTwoShards(temp);
    temp.Write(kIndex, content);
    EXPECT_THAT(ErrorOf(temp), HasSubstr(expected));
  }
  const TempFolder temp;
  WriteTwoShards(temp);
  std::filesystem::remove(temp.path() + "/" + kShard1);
  temp.Link(kShard1, "/etc/passwd");
  EXPECT_THAT(ErrorOf(temp), HasSubstr("leads out of the model folder"));
}

TEST(Checkpoint, WarnsOfWhatIsNotListed) {
  const TempFolder temp;
  WriteTwoShards(temp);
  temp.Write("model-00003-of-00002.safetensors", "not looked at");
  temp.Write("consolidated.safetensors", "another format's file, which is no reason to warn");
  temp.Write(kShard2, FileOf({{"c", "F16", {5}}, {"extra", "F32", {1}}}));
  const LogCapture log;
  const auto checkpoint = OpenPath(temp.path());
  ASSERT_TRUE(checkpoint.ok()) << Message(checkpoint.status());
  EXPECT_NE(checkpoint->Find("extra"), nullptr);
  EXPECT_THAT(log.text(), HasSubstr("warning: "));
  EXPECT_THAT(log.text(),
              HasSubstr("1 shard(s) are not part of the model and are ignored, first 'model-00003-of-00002"));
  EXPECT_THAT(log.text(), HasSubstr("1 tensor(s) in the shards are not listed in model.safetensors.index.json"));
  EXPECT_THAT(log.text(), Not(HasSubstr("consolidated")));
}

TEST(Checkpoint, ASingleFileGoesBeforeAnIndex) {
  const TempFolder temp;
  WriteTwoShards(temp);
  temp.Write("model.safetensors", FileOf({{"only", "F32", {1}}}));
  const LogCapture log;
  const auto checkpoint = OpenPath(temp.path());
  ASSERT_TRUE(checkpoint.ok()) << Message(checkpoint.status());
  EXPECT_EQ(checkpoint->tensors().size(), 1u);
  EXPECT_THAT(log.text(), HasSubstr("2 shard(s) are not part of the model and are ignored"));
}

TEST(Checkpoint, FingerprintTellsModelsApart) {
  const auto fingerprint = [](const std::vector<TestTensor>& tensors, int change = 0) {
    const TempFolder temp;
    std::string file = FileOf(tensors);
    file.back() = static_cast<char>(file.back() + change);
    temp.Write("model.safetensors", file);
    return OpenPath(temp.path())->Fingerprint().value();
  };
  const std::string base = fingerprint({{"a", "F16", {2, 3}}, {"b", "F32", {4}}});
  EXPECT_EQ(base.size(), 32u);
  EXPECT_EQ(base.find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_EQ(fingerprint({{"a", "F16", {2, 3}}, {"b", "F32", {4}}}), base);
  EXPECT_NE(fingerprint({{"a", "F16", {2, 3}}, {"b", "F32", {4}}}, 1), base);  // other weights
  EXPECT_NE(fingerprint({{"a", "F16", {3, 2}}, {"b", "F32", {4}}}), base);
  EXPECT_NE(fingerprint({{"a", "BF16", {2, 3}}, {"b", "F32", {4}}}), base);
  EXPECT_NE(fingerprint({{"c", "F16", {2, 3}}, {"b", "F32", {4}}}), base);
  EXPECT_NE(fingerprint({{"b", "F32", {4}}, {"a", "F16", {2, 3}}}), base);
  EXPECT_NE(fingerprint({{"a", "F16", {2, 3}}}), base);
}

TEST(Checkpoint, TheCatalogueIsCompact) {
  // 48 layers of 512 experts of 3 tensors, as in the largest published models.
  std::vector<TestTensor> tensors;
  for (int layer = 0; layer < 48; ++layer) {
    for (int expert = 0; expert < 512; ++expert) {
      for (const char* part : {"gate_proj", "up_proj", "down_proj"}) {
        tensors.push_back(
            {fmt::format("model.layers.{}.mlp.experts.{}.{}.weight", layer, expert, part), "BF16", {1, 1}});
      }
    }
  }
  const TempFolder temp;
  temp.Write("model.safetensors", FileOf(tensors));
  const auto checkpoint = OpenPath(temp.path());
  ASSERT_TRUE(checkpoint.ok()) << Message(checkpoint.status());
  EXPECT_EQ(checkpoint->tensors().size(), 73'728u);
  const uint64_t bytes_per_tensor = checkpoint->memory_bytes() / tensors.size();
  EXPECT_GE(bytes_per_tensor, sizeof(TensorInfo));
  EXPECT_LE(bytes_per_tensor, 264u);
  for (size_t i = 0; i < tensors.size(); i += 97) {
    ASSERT_NE(checkpoint->Find(tensors[i].name), nullptr);
    EXPECT_EQ(checkpoint->Find(tensors[i].name)->name, tensors[i].name);
  }
}

RC_GTEST_PROP(Checkpoint, MutatedFilesNeverCrash, ()) {
  static const TempFolder temp;
  std::string file = FileOf({{"first", "F32", {2, 2}}, {"second", "BF16", {3}}});
  const size_t at = *rc::gen::inRange<size_t>(0, file.size());
  if (*rc::gen::arbitrary<bool>()) {
    file.resize(at);
  } else {
    file[at] = *rc::gen::arbitrary<char>();
  }
  temp.Write("model.safetensors", file);
  const auto checkpoint = OpenPath(temp.path());
  if (!checkpoint.ok()) {
    RC_ASSERT(FaultOf(checkpoint.status()) == Fault::kModel);
    RC_ASSERT(Message(checkpoint.status()).find("model.safetensors: ") != std::string::npos);
    return;
  }
  for (const TensorInfo& tensor : checkpoint->tensors()) {
    RC_ASSERT(tensor.extent.offset_bytes + tensor.extent.size_bytes <= file.size());
  }
}

}  // namespace
}  // namespace penstock
