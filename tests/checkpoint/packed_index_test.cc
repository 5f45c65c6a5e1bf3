// Proves that an index is read back as it was written, and that an error names the field that is wrong.
#include "penstock/checkpoint/packed_index.h"

#include <gmock/gmock.h>

#include "penstock/base/status.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;

PackedIndex Example() {
  PackedIndex index{.quantize = "int8", .source = "0123", .weights_bytes = 100'000, .tensors = {}};
  TensorInfo rows;
  rows.name = "norm";
  rows.dtype = Dtype::kBF16;
  rows.shape = {70};
  rows.extent = {0, 140};
  rows.xxh3 = 0x0123456789ABCDEF;
  TensorInfo panels;
  panels.name = "matrix \"1\"";
  panels.packed = WeightFormat::kHqq3;
  panels.shape = {40, 300};
  panels.extent = {192, PackedBytes(WeightFormat::kHqq3, 40, 300)};
  panels.xxh3 = 7;
  TensorInfo compressed;
  compressed.name = "compressed";
  compressed.packed = WeightFormat::kBF16;
  compressed.is_compressed = true;
  compressed.shape = {64, 100};
  compressed.extent = {20'480, 9'000};
  compressed.xxh3 = 8;
  index.tensors = {rows, panels, compressed};
  index.files = {{"config.json", 0xFEDCBA9876543210}, {"tokenizer.json", 5}};
  return index;
}

std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t pos = text.find(from);
  EXPECT_NE(pos, std::string::npos) << from << " in " << text;
  return text.replace(pos, from.size(), to);
}

TEST(PackedIndexTest, IsReadBack) {
  const PackedIndex written = Example();
  const PackedIndex read = ParsePackedIndex(SerializePackedIndex(written)).value();
  EXPECT_EQ(read.quantize, written.quantize);
  EXPECT_EQ(read.source, written.source);
  EXPECT_EQ(read.weights_bytes, written.weights_bytes);
  EXPECT_EQ(read.files, written.files);
  ASSERT_EQ(read.tensors.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(read.tensors[i].name, written.tensors[i].name);
    EXPECT_EQ(read.tensors[i].is_compressed, written.tensors[i].is_compressed);
    EXPECT_EQ(read.tensors[i].packed, written.tensors[i].packed);
    EXPECT_EQ(read.tensors[i].shape, written.tensors[i].shape);
    EXPECT_EQ(read.tensors[i].extent.offset_bytes, written.tensors[i].extent.offset_bytes);
    EXPECT_EQ(read.tensors[i].extent.size_bytes, written.tensors[i].extent.size_bytes);
    EXPECT_EQ(read.tensors[i].xxh3, written.tensors[i].xxh3);
  }
  EXPECT_EQ(read.tensors[0].dtype, Dtype::kBF16);
}

TEST(PackedIndexTest, WhatIsWrongIsNamed) {
  const std::string good = SerializePackedIndex(Example());
  const struct {
    const char *from, *to, *message;
  } rows[] = {
      {"\"penstock_packed_store\":2", "\"penstock_packed_store\":9", "version 9"},
      {"\"penstock_packed_store\":2", "\"other\":1", "penstock_packed_store"},
      {"\"weights_bytes\":100000", "\"weights_bytes\":-1", "weights_bytes"},
      {"\"weights_bytes\":100000", "\"weights_bytes\":1000", "ends beyond"},
      {"\"hqq3\"", "\"hqq9\"", "hqq9"},
      {"\"hqq3\"", "\"q6_k\"", "an older program stored q6_k in another order: pack the model again"},
      {"\"hqq3\"", "\"iq2_s\"", "an older program stored iq2_s in another order: pack the model again"},
      {"\"panels\"", "\"rows\"", "layout"},
      {"\"bytes\":9000", "\"bytes\":31", "bytes: expected 32 to 12832"},
      {"\"bytes\":9000", "\"bytes\":12833", "bytes: expected 32 to 12832"},
      {"\"bytes\":9000", "\"size\":9000", "bytes"},
      {"[64,100]", "[2,64,100]", "layout 'compressed panels'"},
      {"\"format\":\"bf16\",\"offset\":20480", "\"format\":\"f16\",\"offset\":20480", "layout 'compressed panels'"},
      {"[70]", "[70,0]", "shape"},
      {"[70]", "[]", "shape"},
      {"[70]", "[1,1,1,1]", "shape"},
      {"[70]", "[1025,1,1]", "shape"},
      {"[70]", "[9999999]", "shape"},
      {"[40,300]", "[2000000,2000000]", "ends beyond"},
      {"\"offset\":192", "\"offset\":100", "multiple of 64"},
      {"\"offset\":192", "\"offset\":64", "overlaps"},
      {"\"offset\":192", "\"offset\":18446744073709551552", "ends beyond"},
      {"0123456789abcdef", "0123456789abcde", "xxh3"},
      {"0123456789abcdef", "0123456789abcdeg", "xxh3"},
      {"fedcba9876543210", "fedcba987654321", "config.json: expected 16 hexadecimal digits"},
      {"\"files\":{", "\"files\":7,\"x\":{", "files: expected an object"},
      {"\"tensors\":{", "\"tensors\":[", ""},
      {"\"norm\":{", "\"norm\":3,\"x\":{", "norm"},
  };
  for (const auto& row : rows) {
    const auto index = ParsePackedIndex(Replaced(good, row.from, row.to));
    ASSERT_FALSE(index.ok()) << row.to;
    EXPECT_EQ(FaultOf(index.status()), Fault::kModel);
    EXPECT_THAT(Message(index.status()), HasSubstr(row.message));
  }
}

TEST(PackedIndexTest, ChecksumsAreCompared) {
  const TensorInfo tensor = Example().tensors[1];
  EXPECT_TRUE(CheckSum(tensor, 7).ok());
  EXPECT_EQ(FaultOf(CheckSum(tensor, 8)), Fault::kModel);
  EXPECT_TRUE(CheckSum(TensorInfo{}, 8).ok());
}

}  // namespace
}  // namespace penstock
