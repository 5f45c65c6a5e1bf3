// Proves that an index is read as its weight_map says, whatever other fields it has, and that unsafe or malformed
// indices are refused.
#include "penstock/checkpoint/shard_index.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "penstock/base/limits.h"
#include "penstock/base/status.h"

namespace penstock {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string ErrorOf(std::string_view text) {
  const auto index = ParseShardIndex(text);
  if (index.ok()) return "parsed";
  EXPECT_EQ(FaultOf(index.status()), Fault::kModel);
  return Message(index.status());
}

TEST(ParseShardIndex, SortsShardsAndTensors) {
  const auto index = ParseShardIndex(
      "{\"metadata\": {\"total_size\": 12, \"weight_map\": {\"x\": 1}, \"list\": [[], {\"a\": null}]},\n"
      " \"weight_map\": {\"c\": \"2.safetensors\", \"a\": \"1.safetensors\", \"b\": \"2.safetensors\"}, "
      "\"more\": \"x\"}");
  ASSERT_TRUE(index.ok()) << Message(index.status());
  EXPECT_THAT(index->shards, ElementsAre("1.safetensors", "2.safetensors"));
  ASSERT_EQ(index->entries.size(), 3u);
  EXPECT_EQ(index->entries[0].tensor, "a");
  EXPECT_EQ(index->entries[0].shard_idx, 0);
  EXPECT_EQ(index->entries[1].tensor, "b");
  EXPECT_EQ(index->entries[1].shard_idx, 1);
  EXPECT_EQ(index->entries[2].tensor, "c");
  EXPECT_EQ(index->entries[2].shard_idx, 1);
}

TEST(ParseShardIndex, RefusesMalformedOnes) {
  const std::pair<std::string, std::string> cases[] = {
      {"", "not valid JSON"},
      {"[]", "expected an object, found an array"},
      {"\"x\"", "expected an object, found a string"},
      {"null", "expected an object, found true, false or null"},
      {"{}", "the field 'weight_map', which is missing"},
      {"{\"metadata\": {\"weight_map\": {\"a\": \"1.safetensors\"}}}", "the field 'weight_map', which is missing"},
      {"{\"weight_map\": {}}", "weight_map lists no tensor"},
      {"{\"weight_map\": []}", "weight_map must be an object, found an array"},
      {"{\"weight_map\": 1}", "weight_map must be an object, found a number"},
      {"{\"weight_map\": \"x\"}", "weight_map must be an object, found a string"},
      {"{\"weight_map\": {\"a\": 1}}", "line 1, column 23: the shard of tensor 'a' must be a string, found a number"},
      {"{\"weight_map\": {\"a\": null}}", "must be a string, found true, false or null"},
      {"{\"weight_map\": {\"a\": [\"1.safetensors\"]}}", "must be a string, found an array"},
      {"{\"weight_map\": {\"a\": {}}}", "must be a string, found an object"},
      {"{\"weight_map\": {\"a\": \"1.safetensors\", \"a\": \"1.safetensors\"}}", "weight_map lists tensor 'a' twice"},
      {"{\"weight_map\": {\"a\": \"1.safetensors\"}, \"weight_map\": {\"b\": \"1.safetensors\"}}",
       "key 'weight_map' appears twice"},
      {"{\"weight_map\": {\"a\": \"model.bin\"}}", "shard 'model.bin' of tensor 'a' is not a .safetensors file"},
      {"{\"weight_map\":\n{\"a\": x}}", "line 2, column 7: not valid JSON"},
  };
  for (const auto& [text, expected] : cases) EXPECT_THAT(ErrorOf(text), HasSubstr(expected)) << text;
}

TEST(ParseShardIndex, RefusesUnsafeShardNames) {
  for (const std::string name : {"", "..", "../x.safetensors", "/etc/passwd", "a/../../b.safetensors",
                                 "C:\\\\x.safetensors", "a\\u0000.safetensors", "sub/x.safetensors"}) {
    EXPECT_THAT(ErrorOf("{\"weight_map\": {\"t\": \"" + name + "\"}}"), HasSubstr("unsafe shard name")) << name;
    EXPECT_THAT(ErrorOf("{\"weight_map\": {\"t\": \"" + name + "\"}}"), HasSubstr("for tensor 't'")) << name;
  }
}

TEST(ParseShardIndex, BoundsTheNumberOfShards) {
  const auto with_shards = [](int num_shards) {
    std::string text = "{\"weight_map\": {";
    for (int i = 0; i < num_shards; ++i) text += fmt::format("{}\"t{}\": \"{}.safetensors\"", i == 0 ? "" : ",", i, i);
    return text + "}}";
  };
  EXPECT_EQ(ErrorOf(with_shards(kMaxShards)), "parsed");
  EXPECT_THAT(ErrorOf(with_shards(kMaxShards + 1)), HasSubstr("more than 4096 shards"));
}

TEST(ParseShardIndex, BoundsTheDepth) {
  EXPECT_THAT(ErrorOf("{\"metadata\": " + std::string(1'000'000, '[')), HasSubstr("too deep"));
}

}  // namespace
}  // namespace penstock
