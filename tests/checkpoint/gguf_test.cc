// Proves that GGUF headers are read back as written, whatever part of them has arrived. Proves that no bytes crash the
// reader or make it return a tensor outside the file.
#include "penstock/checkpoint/gguf.h"

#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

#include <bit>
#include <cstring>
#include <random>

#include "penstock/base/status.h"
#include "tests/checkpoint/test_files.h"

namespace penstock {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Builds a file's bytes.
class Writer {
 public:
  template <typename T>
  Writer& Number(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return *this;
  }
  Writer& Text(std::string_view text) {
    Number<uint64_t>(text.size());
    bytes_ += text;
    return *this;
  }
  Writer& Key(std::string_view key, GgufType type) { return Text(key).Number(static_cast<uint32_t>(type)); }
  Writer& Array(std::string_view key, GgufType type, uint64_t count) {
    return Key(key, GgufType::kArray).Number(static_cast<uint32_t>(type)).Number(count);
  }
  Writer& Align(size_t alignment) {
    bytes_.resize((bytes_.size() + alignment - 1) / alignment * alignment);
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// Returns a file with a value of every kind, a tensor of floats and one of blocks.
std::string SmallFile() {
  Writer w;
  w.Number<uint32_t>(0x46554747).Number<uint32_t>(3).Number<uint64_t>(2).Number<uint64_t>(9);
  w.Key("small.u8", GgufType::kUint8).Number<uint8_t>(200);
  w.Key("small.i16", GgufType::kInt16).Number<int16_t>(-7);
  w.Key("small.u64", GgufType::kUint64).Number<uint64_t>(1ull << 63);
  w.Key("small.f32", GgufType::kFloat32).Number(0.5f);
  w.Key("small.bool", GgufType::kBool).Number<uint8_t>(1);
  w.Key("small.text", GgufType::kString).Text("t\xc3\xa9xt");
  w.Array("small.texts", GgufType::kString, 3).Text("a").Text("").Text("ccc");
  w.Array("small.ints", GgufType::kInt32, 2).Number<int32_t>(-1).Number<int32_t>(5);
  w.Array("small.floats", GgufType::kFloat32, 2).Number(1.5f).Number(-2.0f);
  w.Text("floats").Number<uint32_t>(2).Number<uint64_t>(3).Number<uint64_t>(2).Number<uint32_t>(0).Number<uint64_t>(0);
  w.Text("blocks").Number<uint32_t>(1).Number<uint64_t>(64).Number<uint32_t>(8).Number<uint64_t>(32);
  w.Align(32);
  for (int i = 0; i < 6; ++i) w.Number(static_cast<float>(i));
  w.Align(32);
  for (int i = 0; i < 68; ++i) w.Number(static_cast<uint8_t>(i));
  return w.bytes();
}

absl::StatusOr<std::optional<Gguf>> OpenBytes(const TempFolder& temp, std::string_view bytes) {
  temp.Write("small.gguf", bytes);
  PENSTOCK_ASSIGN_OR_RETURN(const ModelFolder folder, ModelFolder::Open(temp.path()));
  return OpenGguf(folder);
}

TEST(Gguf, ReadsWhatIsWritten) {
  const TempFolder temp;
  const auto opened = OpenBytes(temp, SmallFile());
  ASSERT_TRUE(opened.ok()) << Message(opened.status());
  const Gguf& gguf = **opened;
  const GgufMetadata& metadata = gguf.metadata;
  EXPECT_EQ(metadata.Integer("small.u8").value(), 200);
  EXPECT_EQ(metadata.Integer("small.i16").value(), -7);
  EXPECT_EQ(metadata.Integer("small.none").value(), std::nullopt);
  EXPECT_EQ(metadata.Number("small.f32").value(), 0.5);
  EXPECT_EQ(metadata.Number("small.i16").value(), -7.0);
  EXPECT_EQ(metadata.Bool("small.bool").value(), true);
  EXPECT_EQ(metadata.String("small.text").value(), "t\xc3\xa9xt");
  EXPECT_THAT(metadata.Strings("small.texts").value(), ElementsAre("a", "", "ccc"));
  EXPECT_THAT(metadata.Integers("small.ints").value(), ElementsAre(-1, 5));
  EXPECT_THAT(metadata.Floats("small.floats").value(), ElementsAre(1.5f, -2.0f));
  ASSERT_EQ(gguf.tensors.size(), 2u);
  const TensorInfo* floats = gguf.Find("floats");
  ASSERT_NE(floats, nullptr);
  EXPECT_THAT(floats->shape, ElementsAre(2, 3));
  EXPECT_THAT(ReadFloats(gguf, *floats, 6).value(), ElementsAre(0, 1, 2, 3, 4, 5));
  const TensorInfo* blocks = gguf.Find("blocks");
  ASSERT_NE(blocks, nullptr);
  EXPECT_EQ(blocks->packed, WeightFormat::kQ8_0);
  EXPECT_EQ(blocks->extent.size_bytes, 68u);
  EXPECT_FALSE(ReadFloats(gguf, *floats, 5).ok());
  EXPECT_FALSE(ReadFloats(gguf, *blocks, 1000).ok());
}

TEST(Gguf, TypesAreChecked) {
  const TempFolder temp;
  const auto opened = OpenBytes(temp, SmallFile());
  ASSERT_TRUE(opened.ok());
  const GgufMetadata& metadata = (*opened)->metadata;
  EXPECT_THAT(Message(metadata.Integer("small.u64").status()), HasSubstr("expected an integer below 2^63, found u64"));
  EXPECT_THAT(Message(metadata.Integer("small.bool").status()), HasSubstr("found bool"));
  EXPECT_THAT(Message(metadata.Integer("small.ints").status()), HasSubstr("found array of i32"));
  EXPECT_THAT(Message(metadata.Bool("small.u8").status()), HasSubstr("expected bool, found u8"));
  EXPECT_THAT(Message(metadata.String("small.texts").status()), HasSubstr("found array of string"));
  EXPECT_THAT(Message(metadata.Strings("small.ints").status()), HasSubstr("key 'small.ints'"));
  EXPECT_THAT(Message(metadata.Floats("small.ints").status()), HasSubstr("expected an array of f32"));
  EXPECT_THAT(Message(metadata.Integers("small.floats").status()), HasSubstr("expected an array of integers"));
}

// While bytes of the header are missing there is no result; with all of them the result is always the same.
TEST(Gguf, EveryBeginningIsUndecided) {
  const std::string file = SmallFile();
  bool was_complete = false;
  for (size_t size = 0; size <= file.size(); ++size) {
    const auto header = ParseGgufHeader(std::string_view(file).substr(0, size), file.size());
    ASSERT_TRUE(header.ok()) << size << " " << Message(header.status());
    EXPECT_TRUE(!was_complete || header->has_value()) << size;
    was_complete = header->has_value();
  }
  EXPECT_TRUE(was_complete);
}

TEST(Gguf, MetadataSurvivesBeingMoved) {
  const TempFolder temp;
  auto opened = OpenBytes(temp, SmallFile());
  ASSERT_TRUE(opened.ok());
  GgufMetadata moved = std::move((*opened)->metadata);
  const GgufMetadata again = std::move(moved);
  EXPECT_EQ(again.String("small.text").value(), "t\xc3\xa9xt");
}

TEST(Gguf, AsksForOneOfSeveral) {
  const TempFolder temp;
  temp.Write("model.safetensors", FileOf({{"a", "F32", {1}}}));
  EXPECT_THAT(Message(OpenBytes(temp, SmallFile()).status()),
              HasSubstr("two formats ('small.gguf' and 'model.safetensors'): keep one"));
  temp.Write("other.gguf", SmallFile());
  EXPECT_THAT(Message(OpenBytes(temp, SmallFile()).status()), HasSubstr("several GGUF models"));
  const auto folder = ModelFolder::Open(temp.path() + "/other.gguf");
  ASSERT_TRUE(folder.ok());
  EXPECT_EQ(folder->path(), temp.path());
  EXPECT_TRUE(OpenGguf(*folder).value().has_value());
  const TempFolder none;
  none.Write("mmproj-model.gguf", SmallFile());
  EXPECT_FALSE(OpenGguf(*ModelFolder::Open(none.path())).value().has_value());
}

RC_GTEST_PROP(Gguf, MutatedHeadersNeverCrash, (uint32_t seed)) {
  std::mt19937 random(seed);
  std::string file = SmallFile();
  for (uint32_t i = 0; i < 1 + seed % 6; ++i) file[random() % file.size()] = static_cast<char>(random());
  const auto header = ParseGgufHeader(file, file.size());
  if (!header.ok() || !header->has_value()) return;
  uint64_t end = (*header)->metadata_bytes;
  for (const TensorInfo& tensor : (*header)->tensors) {
    RC_ASSERT(tensor.extent.offset_bytes >= end);
    RC_ASSERT(tensor.extent.size_bytes <= file.size() - tensor.extent.offset_bytes);
    end = tensor.extent.offset_bytes + tensor.extent.size_bytes;
  }
}

}  // namespace
}  // namespace penstock
