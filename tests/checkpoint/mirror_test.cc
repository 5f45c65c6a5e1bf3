// Proves that a mirror is opened only when it is a copy of the model, whole or in part, and that an index of extents
// with any wrong byte is refused.
#include "penstock/checkpoint/mirror.h"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <unistd.h>

#include "penstock/base/status.h"
#include "penstock/checkpoint/checkpoint.h"
#include "tests/checkpoint/test_files.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class MirrorTest : public testing::Test {
 protected:
  MirrorTest() : root_(testing::TempDir() + "/mirror-" + std::to_string(::getpid())) {
    fs::remove_all(root_);
    fs::create_directories(root_ + "/model");
    fs::create_directories(root_ + "/copy");
    Write("model", kContent);
  }
  ~MirrorTest() override { fs::remove_all(root_); }

  void Write(const std::string& folder, const std::string& content) {
    std::ofstream(root_ + "/" + folder + "/model.safetensors", std::ios::binary) << content;
  }
  void WriteIndex(const std::string& text) { std::ofstream(root_ + "/copy/" + std::string(kMirrorIndexFile)) << text; }
  absl::Status Add(const std::string& folder = "copy", int times = 1) {
    const ModelFolder model = ModelFolder::Open(root_ + "/model").value();
    checkpoint_ = Checkpoint::Open(model).value();
    absl::Status status;
    for (int i = 0; i < times; ++i) status.Update(checkpoint_.AddMirror(root_ + "/" + folder, model));
    return status;
  }
  void ExpectRefused(Fault fault, const std::string& text, const std::string& folder = "copy", int times = 1) {
    const absl::Status status = Add(folder, times);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(FaultOf(status), fault) << status;
    EXPECT_THAT(Message(status), HasSubstr(text));
    EXPECT_EQ(Message(status).find('\n'), std::string::npos);
  }

  inline static const std::string kContent = FileOf({{"a", "F32", {64, 64}}, {"b", "F32", {64, 64}}});
  std::string root_;
  Checkpoint checkpoint_;
};

TEST_F(MirrorTest, AWholeCopyIsOpened) {
  Write("copy", kContent);
  ASSERT_TRUE(Add().ok()) << Add();
  const std::vector<FileCopy>& copies = checkpoint_.files()[0].copies;
  ASSERT_EQ(copies.size(), 1u);
  EXPECT_TRUE(copies[0].Holds({0, kContent.size()}));
  EXPECT_FALSE(copies[0].Holds({0, kContent.size() + 1}));
}

TEST_F(MirrorTest, OtherCopiesAreRefused) {
  ExpectRefused(Fault::kModel, "has no file of the model");
  ExpectRefused(Fault::kModel, "cannot open", "missing");
  ExpectRefused(Fault::kUsage, "the model's own file", "model");
  Write("copy", kContent.substr(0, kContent.size() - 1));
  ExpectRefused(Fault::kModel, "no copy of it, or not whole");
  std::string other = kContent;
  other[12] ^= 1;
  Write("copy", other);
  ExpectRefused(Fault::kModel, "header differs");
  other = kContent;
  for (size_t i = kContent.size() - 16384; i < kContent.size(); ++i) other[i] ^= 1;
  Write("copy", other);
  ExpectRefused(Fault::kModel, "other bytes than the model's");
  Write("copy", kContent);
  ExpectRefused(Fault::kUsage, "given twice", "copy", 2);
}

TEST_F(MirrorTest, AnIndexSaysWhatIsHeld) {
  std::string content = kContent;
  std::fill(content.begin() + 8192, content.end(), '\0');
  Write("copy", content);
  WriteIndex(SerializeMirrorIndex({{"model.safetensors", {{0, 8192}}}}));
  ASSERT_TRUE(Add().ok()) << Add();
  const FileCopy& copy = checkpoint_.files()[0].copies[0];
  EXPECT_TRUE(copy.Holds({4096, 4096}));
  EXPECT_FALSE(copy.Holds({4096, 4097}));
  WriteIndex(SerializeMirrorIndex({{"model.safetensors", {{4096, 4096}, {12288, 1 << 20}}}}));
  ExpectRefused(Fault::kModel, "behind its end");
}

TEST_F(MirrorTest, ADamagedIndexIsRefused) {
  Write("copy", kContent);
  const MirrorExtents files = {{"model.safetensors", {{0, 8192}, {16384, 4096}}}, {"other", {}}};
  const std::string index = SerializeMirrorIndex(files);
  const auto parsed = ParseMirrorIndex(index);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(SerializeMirrorIndex(*parsed), index);
  for (size_t i = 0; i + 1 < index.size(); ++i) {
    std::string damaged = index;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    const auto found = ParseMirrorIndex(damaged);
    if (found.ok()) ADD_FAILURE() << "byte " << i << ": " << damaged;
    EXPECT_FALSE(ParseMirrorIndex(index.substr(0, i)).ok());
  }
  WriteIndex(index.substr(0, index.size() / 2));
  ExpectRefused(Fault::kModel, std::string(kMirrorIndexFile));
  for (const char* extents : {"[[1,4096]]", "[[0,0]]", "[[0,-4096]]", "[[8192,4096],[0,4096]]", "[[0,4096],[4096,1]]",
                              "[[0]]", "[0]", "{}", "[[0,1e3]]", "[[0,18446744073709551615]]"}) {
    const auto wrong =
        ParseMirrorIndex(fmt::format(R"({{"penstock_mirror":1,"files":{{"f":{}}},"xxh3":""}})", extents));
    ASSERT_FALSE(wrong.ok());
    EXPECT_THAT(Message(wrong.status()), HasSubstr("whole pages")) << extents;
  }
  EXPECT_FALSE(ParseMirrorIndex(R"({"penstock_mirror":2,"files":{},"xxh3":""})").ok());
}

TEST_F(MirrorTest, RepeatedFaultsLeaveAMirrorOut) {
  Write("copy", kContent);
  ASSERT_TRUE(Add().ok());
  const OpenedFile& file = checkpoint_.files()[0];
  const Mirror& mirror = *file.copies[0].mirror;
  const FileExtent extent{4096, 4096};
  std::vector<std::byte> right(extent.size_bytes);
  std::memcpy(right.data(), kContent.data() + extent.offset_bytes, right.size());
  for (int i = 0; i < 20; ++i) CountWrongCopies(file, extent, right);
  EXPECT_FALSE(mirror.is_left_out());
  right[17] ^= std::byte{1};
  for (int i = 0; i < 20 && !mirror.is_left_out(); ++i) CountWrongCopies(file, extent, right);
  EXPECT_TRUE(mirror.is_left_out());
}

}  // namespace
}  // namespace penstock
