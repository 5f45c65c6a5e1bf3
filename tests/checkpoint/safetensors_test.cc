// Proves that valid headers are read exactly, and that every malformed one is refused with a message that names the
// tensor and the reason. Proves that hostile sizes cost neither time nor memory, and that no mutation of a valid header
// ever yields an extent outside the file.
#include "penstock/checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <charconv>
#include <ctime>
#include <set>
#include <string>
#include <vector>

#include "penstock/base/limits.h"
#include "penstock/base/status.h"
#include "test_files.h"

namespace penstock {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string Prefix(uint64_t header_bytes) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(header_bytes >> (8 * i) & 0xFF));
  return bytes;
}

// Parses `header` as the header of a file with `data_bytes` bytes of tensors.
absl::StatusOr<std::vector<TensorInfo>> Parse(std::string_view header, uint64_t data_bytes) {
  return ParseSafetensorsHeader(header, 8 + header.size() + data_bytes);
}

std::string ErrorOf(std::string_view header, uint64_t data_bytes) {
  const auto tensors = Parse(header, data_bytes);
  if (tensors.ok()) return "parsed";
  EXPECT_EQ(FaultOf(tensors.status()), Fault::kModel);
  return Message(tensors.status());
}

TEST(SafetensorsHeaderBytes, ReadsLittleEndian) {
  EXPECT_EQ(*SafetensorsHeaderBytes(Prefix(2), 10), 2u);
  EXPECT_EQ(*SafetensorsHeaderBytes(Prefix(0x010203), 1 << 20), 0x010203u);
  EXPECT_EQ(*SafetensorsHeaderBytes(Prefix(100'000'000), 100'000'008), 100'000'000u);
}

TEST(SafetensorsHeaderBytes, RefusesImpossibleLengths) {
  const struct {
    std::string first_bytes;
    uint64_t file_bytes;
    std::string expected;
  } cases[] = {
      {"", 0, "the file has 0 bytes, too few"},
      {"1234567", 7, "the file has 7 bytes, too few"},
      {Prefix(0), 8, "the header has 0 bytes, too few"},
      {Prefix(1), 9, "the header has 1 bytes, too few"},
      {Prefix(3), 10, "the header has 3 bytes, but the file has only 2 after its first 8: download it again"},
      {Prefix(100'000'001), ~0ull, "more than the format's limit of 100000000"},
      {Prefix(1ull << 63), ~0ull, "9223372036854775808 bytes, more than the format's limit"},
      {Prefix(~0ull), ~0ull, "18446744073709551615 bytes, more than the format's limit"},
      {"version https://git-lfs", 130, "a Git LFS pointer, not the weights: run git lfs pull"},
      {std::string("GGUF\3\0\0\0", 8), 1000, "a GGUF file"},
      {std::string("PK\3\4\0\0\0\0", 8), 1000, "a zip archive"},
      {"<!DOCTYPE html>", 1000, "a web page"},
  };
  for (const auto& [first_bytes, file_bytes, expected] : cases) {
    const auto header_bytes = SafetensorsHeaderBytes(first_bytes, file_bytes);
    ASSERT_FALSE(header_bytes.ok()) << expected;
    EXPECT_THAT(Message(header_bytes.status()), HasSubstr(expected));
    EXPECT_EQ(FaultOf(header_bytes.status()), Fault::kModel);
  }
}

TEST(ParseSafetensorsHeader, ReadsTensorsInTheOrderOfTheirOffsets) {
  const std::string header =
      "{\"b\":{\"data_offsets\":[24,36],\"shape\":[2,3],\"dtype\":\"BF16\"},\"__metadata__\":{\"format\":"
      "\"pt\"},"
      "\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
      "\"s\\u0063\":{\"dtype\":\"F16\",\"shape\":[],\"data_offsets\":[36,38]}}   ";
  const auto tensors = Parse(header, 38);
  ASSERT_TRUE(tensors.ok()) << Message(tensors.status());
  ASSERT_EQ(tensors->size(), 3u);
  const uint64_t data = 8 + header.size();
  const TensorInfo& a = (*tensors)[0];
  EXPECT_EQ(a.name, "a");
  EXPECT_EQ(a.dtype, Dtype::kF32);
  EXPECT_THAT(a.shape, ElementsAre(2, 3));
  EXPECT_EQ(a.extent.offset_bytes, data);
  EXPECT_EQ(a.extent.size_bytes, 24u);
  const TensorInfo& b = (*tensors)[1];
  EXPECT_EQ(b.name, "b");
  EXPECT_EQ(b.dtype, Dtype::kBF16);
  EXPECT_EQ(b.extent.offset_bytes, data + 24);
  EXPECT_EQ((*tensors)[2].name, "sc");
  EXPECT_EQ((*tensors)[2].dtype, Dtype::kF16);
  EXPECT_TRUE((*tensors)[2].shape.empty());
}

TEST(ParseSafetensorsHeader, ReturnsTheMetadataOnRequest) {
  const std::string header = R"({"__metadata__":{"format":"pt","a \u0062":"1"}})";
  SafetensorsMetadata metadata;
  ASSERT_TRUE(ParseSafetensorsHeader(header, 8 + header.size(), &metadata).ok());
  EXPECT_THAT(metadata, ElementsAre(testing::Pair("format", "pt"), testing::Pair("a b", "1")));
}

TEST(ParseSafetensorsHeader, TakesWhatTheFormatAllows) {
  EXPECT_EQ(ErrorOf("{}", 0), "parsed");
  EXPECT_EQ(ErrorOf("{\"__metadata__\":{}}", 0), "parsed");
  EXPECT_EQ(ErrorOf("{}        ", 0), "parsed");  // padding
  // An empty tensor begins where the next one begins.
  EXPECT_EQ(ErrorOf("{\"x\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]},"
                    "\"y\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                    "\"z\":{\"dtype\":\"F32\",\"shape\":[3,0],\"data_offsets\":[4,4]}}",
                    4),
            "parsed");
  // An odd offset: two bytes before a float.
  EXPECT_EQ(ErrorOf(HeaderOf({{"h", "F16", {1}}, {"f", "F32", {1}}}), 6), "parsed");
  EXPECT_EQ(ErrorOf(HeaderOf({{"r8", "F32", {1, 1, 1, 1, 1, 1, 1, 1}}}), 4), "parsed");
}

TEST(ParseSafetensorsHeader, RefusesBadDocuments) {
  const std::pair<std::string, std::string> cases[] = {
      {"", "must begin with '{'"},
      {"[]", "must begin with '{'"},
      {" {}", "must begin with '{'"},
      {"\xef\xbb\xbf{}", "must begin with '{'"},
      {"{", "header: byte 1: not valid JSON"},
      {"{} x", "header: byte 3: not valid JSON"},
      {std::string("{}\0", 3), "header: byte 2: not valid JSON"},
      {"{\"a\xff\":1}", "not valid JSON"},
      {"{\"__metadata__\":1}", "__metadata__ must be an object, found a number"},
      {"{\"__metadata__\":[]}", "__metadata__ must be an object, found an array"},
      {"{\"__metadata__\":{\"k\":1}}", "the value of 'k' must be a string, found a number"},
      {"{\"__metadata__\":{\"k\":null}}", "the value of 'k' must be a string, found true, false or null"},
      {"{\"__metadata__\":{\"k\":{}}}", "the value of 'k' must be a string, found an object"},
      {"{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", "__metadata__: key 'k' appears twice"},
      {"{\"__metadata__\":{},\"__metadata__\":{}}", "key '__metadata__' appears twice"},
      {"{\"t\":1}", "tensor 't': expected an object, found a number"},
      {"{\"t\":\"x\"}", "tensor 't': expected an object, found a string"},
      {"{\"t\":[]}", "tensor 't': expected an object, found an array"},
      {"{\"t\":null}", "tensor 't': expected an object, found true, false or null"},
      {"{\"t\":{}}", "tensor 't': the field 'dtype' is missing"},
      {"{\"t\":{\"dtype\":\"F32\"}}", "the field 'shape' is missing"},
      {"{\"t\":{\"dtype\":\"F32\",\"shape\":[1]}}", "the field 'data_offsets' is missing"},
      {"{\"t\":{\"dtype\":\"F32\",\"dtype\":\"F32\"}}", "field 'dtype' appears twice"},
      {"{\"t\":{\"offset\":1}}", "unknown field 'offset'"},
      {"{\"t\":{\"dtype\":1}}", "dtype must be a string, found a number"},
      {"{\"t\":{\"dtype\":\"F32\",\"shape\":{}}}", "the shape must be an array, found an object"},
      {"{\"t\":{\"dtype\":\"F32\",\"shape\":\"1\"}}", "the shape must be an array, found a string"},
      {"{\"t\":{\"dtype\":\"F32\",\"shape\":[[1]]}}", "tensor 't'"},
      {"{\"t\":{\"dtype\":\"F32\",\"shape\":[\"1\"]}}", "the shape must hold integers, found a string"},
      {"{\"t\":{\"dtype\":\"F32\",\"shape\":[null]}}", "the shape must hold integers"},
  };
  for (const auto& [header, expected] : cases) EXPECT_THAT(ErrorOf(header, 100), HasSubstr(expected)) << header;
}

TEST(ParseSafetensorsHeader, RefusesBadTensors) {
  const auto tensor = [](std::string_view dtype, std::string_view shape, std::string_view offsets) {
    return fmt::format("{{\"model.t\":{{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":{}}}}}", dtype, shape, offsets);
  };
  const struct {
    std::string header;
    uint64_t data_bytes;
    std::string expected;
  } cases[] = {
      {tensor("F64", "[1]", "[0,8]"), 8,
       "dtype 'F64' is not supported: expected F32, F16, BF16, F8_E4M3, U8, I32 or I64"},
      {tensor("F4", "[1]", "[0,8]"), 8, "dtype 'F4' is not supported"},
      {tensor("F8_E8M0", "[1]", "[0,1]"), 1, "dtype 'F8_E8M0' is not supported"},
      {tensor("f32", "[1]", "[0,4]"), 4, "dtype 'f32' is not supported"},
      {tensor("F32", "[1]", "[4,0]"), 4, "data_offsets are reversed: begin 4, end 0"},
      {tensor("F32", "[1]", "[-1,3]"), 4, "data_offsets are not integers in [0, 2^64)"},
      {tensor("F32", "[1]", "[0,4.0]"), 4, "data_offsets are not integers"},
      {tensor("F32", "[1]", "[0,4e0]"), 4, "data_offsets are not integers"},
      {tensor("F32", "[1]", "[0,18446744073709551616]"), 4, "data_offsets are not integers"},
      {tensor("F32", "[1]", "[\"0\",4]"), 4, "data_offsets must be integers, found a string"},
      {tensor("F32", "[1]", "[0]"), 4, "expected 2 data_offsets, found 1"},
      {tensor("F32", "[1]", "[0,4,8]"), 4, "expected 2 data_offsets, found 3"},
      {tensor("F32", "[1]", "[]"), 4, "expected 2 data_offsets, found 0"},
      {tensor("F32", "[1]", "4"), 4, "data_offsets must be an array, found a number"},
      {tensor("F32", "[2]", "[0,4]"), 4, "shape [2] of f32 takes 8 bytes, but data_offsets [0, 4] hold 4"},
      {tensor("F32", "[]", "[0,0]"), 0, "shape [] of f32 takes 4 bytes"},
      {tensor("F32", "[-1]", "[0,4]"), 4, "dimension 0 of the shape is not an integer in [0, 2^63)"},
      {tensor("F32", "[1,1.5]", "[0,4]"), 4, "dimension 1 of the shape is not an integer"},
      {tensor("F32", "[9223372036854775808]", "[0,4]"), 4, "dimension 0 of the shape is not an integer"},
      {tensor("F32", "[4611686018427387904,4]", "[0,0]"), 0, "the size of shape [4611686018427387904, 4] overflows"},
      {tensor("F16", "[4294967296,4294967296]", "[0,0]"), 0, "overflows 64 bits"},
      {tensor("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4, "the shape has more than 8 dimensions"},
      {tensor("F32", "[1]", "[4,8]"), 8, "begins at 4, which leaves a hole of 4 bytes after the header"},
      {tensor("F32", "[1]", "[18446744073709551611,18446744073709551615]"), 4, "tensor 'model.t' begins at"},
      {tensor("F32", "[4611686018427387903]", "[0,18446744073709551612]"), 4,
       "the file is 18446744073709551608 bytes short (tensor 'model.t' is the first that is cut): download "
       "it again"},
      {tensor("F32", "[1]", "[0,4]"), 0, "the file is 4 bytes short"},
      {tensor("F32", "[1]", "[0,4]"), 5, "1 bytes at the end of the file belong to no tensor"},
      {"{}", 3, "3 bytes at the end of the file belong to no tensor"},
  };
  for (const auto& [header, data_bytes, expected] : cases) {
    const std::string error = ErrorOf(header, data_bytes);
    EXPECT_THAT(error, HasSubstr(expected)) << header;
    if (header != "{}" && data_bytes != 5) {
      EXPECT_THAT(error, HasSubstr("model.t")) << header;
    }
  }
}

TEST(ParseSafetensorsHeader, RefusesOverlapsHolesAndTwins) {
  const auto two = [](std::string_view a, std::string_view b, std::string_view offsets_a, std::string_view offsets_b) {
    static constexpr char kFormat[] = "\"{}\":{{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[{}]}}";
    return "{" + fmt::format(kFormat, a, offsets_a) + "," + fmt::format(kFormat, b, offsets_b) + "}";
  };
  EXPECT_EQ(ErrorOf(two("a", "b", "0,8", "8,16"), 16), "parsed");
  EXPECT_EQ(ErrorOf(two("a", "b", "0,8", "4,12"), 16), "tensor 'b' begins at 4, inside tensor 'a', which ends at 8");
  EXPECT_THAT(ErrorOf(two("a", "b", "0,8", "0,8"), 16), HasSubstr("tensor 'b' begins at 0, inside tensor 'a'"));
  EXPECT_EQ(ErrorOf(two("a", "b", "0,8", "12,20"), 20),
            "tensor 'b' begins at 12, which leaves a hole of 4 bytes after tensor 'a'");
  EXPECT_EQ(ErrorOf(two("a", "a", "0,8", "8,16"), 16), "tensor 'a' appears twice in the header");
  EXPECT_EQ(ErrorOf(two("a", "\\u0061", "0,8", "8,16"), 16), "tensor 'a' appears twice in the header");
  EXPECT_THAT(ErrorOf(two("a", "b", "0,8", "8,16"), 10),
              HasSubstr("the file is 6 bytes short (tensor 'b' is the first that is cut): download it again"));
}

TEST(ParseSafetensorsHeader, BoundsNames) {
  EXPECT_EQ(ErrorOf(HeaderOf({{std::string(kMaxTensorNameBytes, 'n'), "F32", {1}}}), 4), "parsed");
  EXPECT_THAT(ErrorOf(HeaderOf({{std::string(kMaxTensorNameBytes + 1, 'n'), "F32", {1}}}), 4),
              HasSubstr("a key has more than 4096 bytes"));
  EXPECT_THAT(ErrorOf(HeaderOf({{std::string(1 << 20, 'n'), "F32", {1}}}), 4), HasSubstr("more than 4096 bytes"));
}

TEST(ParseSafetensorsHeader, LongNamesDoNotHideTheReason) {
  const std::string error = ErrorOf(HeaderOf({{std::string(kMaxTensorNameBytes, 'n'), "F64", {1}}}), 2);
  EXPECT_THAT(error, HasSubstr("nnn...': dtype 'F64' is not supported"));
}

TEST(ParseSafetensorsHeader, RefusesAHeaderLongerThanTheFile) {
  EXPECT_FALSE(ParseSafetensorsHeader("{}", 9).ok());
  EXPECT_TRUE(ParseSafetensorsHeader("{}", 10).ok());
}

// Returns a header of about `size_bytes`, with the shortest possible entries.
std::string HeaderOfShortEntries(uint64_t size_bytes) {
  std::string header;
  header.reserve(size_bytes + 64);
  char name[16];
  for (uint64_t i = 0; header.size() + 64 < size_bytes; ++i) {
    header += i == 0 ? "{\"" : ",\"";
    header.append(name, std::to_chars(std::begin(name), std::end(name), i, 16).ptr);
    header += "\":{\"dtype\":\"F16\",\"shape\":[0],\"data_offsets\":[0,0]}";
  }
  return header += "}";
}

TEST(ParseSafetensorsHeader, MillionsOfTensorsTakeBoundedTime) {
  const auto cpu_seconds = [](uint64_t size_bytes, size_t min_tensors) {
    const std::string header = HeaderOfShortEntries(size_bytes);
    const std::clock_t start = std::clock();  // CPU time, as machines are shared
    const auto tensors = Parse(header, 0);
    const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    EXPECT_TRUE(tensors.ok()) << Message(tensors.status());
    EXPECT_GT(tensors->size(), min_tensors);
    return seconds;
  };
#ifdef __SANITIZE_ADDRESS__
  constexpr uint64_t kBytes = kMaxSafetensorsHeaderBytes / 4;
#else
  constexpr uint64_t kBytes = kMaxSafetensorsHeaderBytes;  // as long as the format allows
#endif
  const double part_s = cpu_seconds(kBytes / 16, kBytes / 1000);
  const double whole_s = cpu_seconds(kBytes, kBytes / 70);
  EXPECT_LT(whole_s / part_s, 64);  // 16 if time is proportional to length, 256 if it is quadratic
}

TEST(ParseSafetensorsHeader, RefusesMoreMetadataThanTheLimit) {
  std::string header = "{\"__metadata__\":{";
  for (uint64_t i = 0; i <= kMaxTensors; ++i) header += fmt::format("{}\"{:x}\":\"\"", i == 0 ? "" : ",", i);
  header += "}}";
  EXPECT_THAT(ErrorOf(header, 0), HasSubstr("__metadata__ has more than 2000000 keys"));
}

TEST(ParseSafetensorsHeader, DeepNestingIsRefusedAtOnce) {
  EXPECT_THAT(ErrorOf("{\"t\":" + std::string(10'000'000, '['), 0), HasSubstr("tensor 't': expected an object"));
  std::string objects = "{";
  for (int i = 0; i < 1'000'000; ++i) objects += "\"t\":{";
  EXPECT_THAT(ErrorOf(objects, 0), HasSubstr("tensor 't': unknown field 't'"));
}

// Generates lists of tensors with distinct names.
rc::Gen<std::vector<TestTensor>> Tensors() {
  const auto name = rc::gen::nonEmpty(rc::gen::container<std::string>(rc::gen::elementOf(std::string("abc._/01"))));
  const auto shape = rc::gen::mapcat(rc::gen::inRange(0, kMaxTensorRank + 1), [](int rank) {
    return rc::gen::container<std::vector<int64_t>>(rank, rc::gen::inRange<int64_t>(0, 4));
  });
  const auto tensor =
      rc::gen::build<TestTensor>(rc::gen::set(&TestTensor::name, name),
                                 rc::gen::set(&TestTensor::dtype, rc::gen::element<std::string>("F32", "F16", "BF16")),
                                 rc::gen::set(&TestTensor::shape, shape));
  return rc::gen::uniqueBy<std::vector<TestTensor>>(tensor, [](const TestTensor& t) { return t.name; });
}

RC_GTEST_PROP(ParseSafetensorsHeader, ValidHeadersRoundTrip, ()) {
  const auto tensors = *Tensors();
  const std::string header = HeaderOf(tensors);
  uint64_t data_bytes = 0;
  for (const TestTensor& tensor : tensors) data_bytes += BytesOf(tensor);
  const auto parsed = Parse(header, data_bytes);
  RC_ASSERT(parsed.ok());
  RC_ASSERT(parsed->size() == tensors.size());
  uint64_t end = 8 + header.size();
  for (const TensorInfo& info : *parsed) {
    RC_ASSERT(info.extent.offset_bytes == end);
    end += info.extent.size_bytes;
    const auto same_name = [&](const TestTensor& t) { return t.name == info.name; };
    const auto source = std::find_if(tensors.begin(), tensors.end(), same_name);
    RC_ASSERT(source != tensors.end());
    RC_ASSERT(info.shape == source->shape);
    RC_ASSERT(info.extent.size_bytes == BytesOf(*source));
    RC_ASSERT(info.dtype == (source->dtype == "F32"   ? Dtype::kF32
                             : source->dtype == "F16" ? Dtype::kF16
                                                      : Dtype::kBF16));
  }
  RC_ASSERT(end == 8 + header.size() + data_bytes);
}

RC_GTEST_PROP(ParseSafetensorsHeader, MutationsNeverLeadOutsideTheFile, ()) {
  std::string file = FileOf(*Tensors());
  const int num_edits = *rc::gen::inRange(1, 6);
  for (int i = 0; i < num_edits && !file.empty(); ++i) {
    const size_t at = *rc::gen::inRange<size_t>(0, file.size());
    switch (*rc::gen::inRange(0, 4)) {
      case 0: file[at] = *rc::gen::arbitrary<char>(); break;
      case 1: file[at] = *rc::gen::elementOf(std::string("0123456789,[]{}\":-")); break;
      case 2: file.erase(at, *rc::gen::inRange<size_t>(1, 20)); break;
      default: file.insert(at, 1, *rc::gen::elementOf(std::string("0123456789,[]{}\":-"))); break;
    }
  }
  const auto header_bytes = SafetensorsHeaderBytes(std::string_view(file).substr(0, 8), file.size());
  if (!header_bytes.ok()) return;
  RC_ASSERT(*header_bytes <= file.size() - 8);
  const auto parsed = ParseSafetensorsHeader(std::string_view(file).substr(8, *header_bytes), file.size());
  if (!parsed.ok()) return;
  std::set<std::string> names;
  uint64_t end = 8 + *header_bytes;
  for (const TensorInfo& info : *parsed) {
    RC_ASSERT(names.insert(info.name).second);
    RC_ASSERT(info.extent.offset_bytes == end);
    RC_ASSERT(info.extent.size_bytes <= file.size() - end);
    end += info.extent.size_bytes;
  }
  RC_ASSERT(end == file.size());
}

}  // namespace
}  // namespace penstock
