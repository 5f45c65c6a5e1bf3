// Proves that ParseJson accepts all that RFC 8259 allows within our limits, refuses the rest with a place, and never
// throws.
#include "penstock/base/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace penstock {
namespace {

using testing::HasSubstr;

std::string ErrorOf(std::string_view text) {
  const auto value = ParseJson(text, Fault::kInput);
  if (value.ok()) return "parsed";
  EXPECT_EQ(FaultOf(value.status()), Fault::kInput);
  return Message(value.status());
}

TEST(ParseJson, TakesEveryKind) {
  const auto value =
      ParseJson(" {\"a\": [1, -2, 18446744073709551615, 2.5, true, false, null, \"x\"], \"b\": {}} \n", Fault::kModel);
  ASSERT_TRUE(value.ok());
  const json::array& array = value->at("a").as_array();
  ASSERT_EQ(array.size(), 8u);
  EXPECT_EQ(array[0].as_int64(), 1);
  EXPECT_EQ(array[1].as_int64(), -2);
  EXPECT_EQ(array[2].as_uint64(), 18446744073709551615ull);
  EXPECT_EQ(array[3].as_double(), 2.5);
  EXPECT_EQ(array[7].as_string(), "x");
  EXPECT_TRUE(value->at("b").as_object().empty());
  for (const std::string scalar : {"1", "\"x\"", "null", "true", "[]", "-0", "1e2"}) {
    EXPECT_EQ(ErrorOf(scalar), "parsed") << scalar;
  }
}

TEST(ParseJson, RefusesWithThePlace) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "line 1, column 1: expected a JSON value, found nothing"},
      {"   ", "line 1, column 4: not valid JSON"},
      {"{\n  \"a\": 1,\n  \"b\" 2\n}", "line 3, column 7: not valid JSON"},
      {"{'a': 1}", "line 1, column 2: not valid JSON"},
      {"[1, 2,]", "line 1, column 7: not valid JSON"},
      {"[1, // x\n2]", "line 1, column 5: not valid JSON"},
      {"[1] [2]", "line 1, column 5: not valid JSON"},
      {"\xef\xbb\xbf{}", "line 1, column 1: not valid JSON"},
      {"[NaN]", "line 1, column 2: not valid JSON"},
      {"[Infinity]", "line 1, column 2: not valid JSON"},
      {"[-Infinity]", "line 1, column 3: not valid JSON"},
      {"[1e400]", "not valid JSON"},
      {"[-1e400]", "not valid JSON"},
      {"[01]", "not valid JSON"},
      {"[+1]", "not valid JSON"},
      {"[.5]", "not valid JSON"},
      {"[5.]", "not valid JSON"},
      {"[0x10]", "not valid JSON"},
      {"{\"a\": ", "not valid JSON"},
      {"[\"a\nb\"]", "not valid JSON"},
      {"[\"\\x\"]", "not valid JSON"},
      {"[\"\\ud800\"]", "not valid JSON"},
      {"[\"\\udc00\"]", "not valid JSON"},
      {"[\"\\ud800\\u0041\"]", "not valid JSON"},
      {"[\"\xff\"]", "not valid JSON"},
      {"[\"\xc0\xaf\"]", "not valid JSON"},
      {"[\"\xed\xa0\x80\"]", "not valid JSON"},
      {"{\"\xff\": 1}", "not valid JSON"},
      {std::string("[1]\0", 4), "line 1, column 4: not valid JSON"},
  };
  for (const auto& [text, expected] : cases) EXPECT_THAT(ErrorOf(text), HasSubstr(expected)) << text;
}

// Words become strings. Errors keep their places, and words are taken only where a value stands.
TEST(ParseJson, TakesPythonsWordsWhereAsked) {
  const auto value =
      ParseJson(R"({"a": [0.0, Infinity], "b":-Infinity,"c": NaN, "d": "a NaN, \"Infinity\", \\", "e": [NaN,NaN]})",
                Fault::kModel, kPythonJson);
  ASSERT_TRUE(value.ok()) << Message(value.status());
  EXPECT_EQ(json::serialize(*value),
            R"({"a":[0E0,"Infinity"],"b":"-Infinity","c":"NaN","d":"a NaN, \"Infinity\", \\","e":["NaN","NaN"]})");
  const std::vector<std::pair<std::string, std::string>> refused = {
      {"[NaN, Infinity,\n NaN 7]", "line 2, column 6: not valid JSON"},
      {"[NaN, Infinity, x]", "line 1, column 17: not valid JSON"},
      {"{NaN: 1}", "line 1, column 2: not valid JSON"},
      {"{Infinity \n: 1}", "line 1, column 2: not valid JSON"},
      {"[NaNs]", "line 1, column 5: not valid JSON"},
      {"[xNaN]", "line 1, column 2: not valid JSON"},
      {"[1NaN]", "line 1, column 3: not valid JSON"},
      {"[- Infinity]", "line 1, column 3: not valid JSON"},
      {"[+Infinity]", "line 1, column 2: not valid JSON"},
      {"[-NaN]", "line 1, column 3: not valid JSON"},
      {"[nan]", "line 1, column 2: not valid JSON"},
      {"[Infinit]", "line 1, column 2: not valid JSON"},
      {"[\"NaN", "line 1, column 6: not valid JSON"},
      {"[\"\\", "line 1, column 4: not valid JSON"},
      {"[1e400]", "not valid JSON"},
      {R"({"a": NaN, "a": 1})", "key 'a' appears twice"},
  };
  for (const auto& [text, expected] : refused) {
    const auto failed = ParseJson(text, Fault::kModel, kPythonJson);
    ASSERT_FALSE(failed.ok()) << text;
    EXPECT_THAT(Message(failed.status()), HasSubstr(expected)) << text;
  }
}

TEST(ParseJson, RefusesDuplicateKeysAtEveryLevel) {
  EXPECT_THAT(ErrorOf("{\"a\": 1, \"a\": 2}"), HasSubstr("key 'a' appears twice in one object"));
  EXPECT_THAT(ErrorOf("{\"x\": [{\"b\": 1, \"\\u0062\": 2}]}"), HasSubstr("key 'b' appears twice"));
  EXPECT_THAT(ErrorOf("{\"\": 1, \"\": 2}"), HasSubstr("key '' appears twice"));
  EXPECT_THAT(ErrorOf("{\n\"a\": 1,\n\"a\": 2}"), HasSubstr("line 3, column 3"));
  EXPECT_EQ(ErrorOf("{\"a\": {\"a\": 1}, \"b\": {\"a\": 2}}"), "parsed");
}

TEST(ParseJson, BoundsTheDepth) {
  const auto nested = [](int depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_EQ(ErrorOf(nested(64)), "parsed");
  EXPECT_THAT(ErrorOf(nested(65)), HasSubstr("too deep"));
  EXPECT_THAT(ErrorOf(std::string(1'000'000, '[')), HasSubstr("too deep"));
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  EXPECT_THAT(ErrorOf(objects), HasSubstr("too deep"));
  const auto two = ParseJson(nested(3), Fault::kInput, {.max_depth = 2});
  EXPECT_FALSE(two.ok());
}

TEST(ParseJson, NumbersAreExact) {
  const std::vector<std::pair<std::string, double>> cases = {
      {"0.1", 0.1},
      {"0.7", 0.7},
      {"1e-5", 1e-5},
      {"1e-06", 1e-06},
      {"123456789.123456789", 123456789.123456789},
      {"2.2250738585072014e-308", 2.2250738585072014e-308},
      {"1.7976931348623157e308", 1.7976931348623157e308},
      {"9007199254740993.0", 9007199254740992.0},
      {"179769313486231570000000000000000000000", 179769313486231570000000000000000000000.0},
      {"1E+2", 100.0},
      {"-2.5e-1", -0.25},
      {"1e-400", 0.0},
      {"5e-324", 5e-324},
  };
  for (const auto& [text, expected] : cases) {
    const auto value = ParseJson(text, Fault::kInput);
    ASSERT_TRUE(value.ok()) << text;
    EXPECT_EQ(value->as_double(), expected) << text;
  }
}

TEST(ParseJson, LongStringsAndKeysArriveWhole) {
  // Escapes and length make Boost pass strings in parts.
  std::string text;
  for (int i = 0; i < 5000; ++i) text += "\\u00e9x";
  const auto value = ParseJson("{\"" + text + "\": \"" + text + "\"}", Fault::kInput);
  ASSERT_TRUE(value.ok());
  const json::object& object = value->as_object();
  ASSERT_EQ(object.size(), 1u);
  EXPECT_EQ(object.begin()->key().size(), 15'000u);
  EXPECT_EQ(object.begin()->value().as_string().size(), 15'000u);
  EXPECT_THAT(ErrorOf("{\"" + text + "\": 1, \"" + text + "\": 2}"), HasSubstr("appears twice"));
}

TEST(ParseJson, TakesSurrogatePairs) {
  EXPECT_EQ(ParseJson("\"\\ud83d\\ude00\"", Fault::kInput)->as_string(), "\xf0\x9f\x98\x80");
}

TEST(JsonPlace, CountsLinesAndColumns) {
  EXPECT_EQ(JsonPlace("ab\ncd", 0), "line 1, column 1");
  EXPECT_EQ(JsonPlace("ab\ncd", 4), "line 2, column 2");
  EXPECT_EQ(JsonPlace("ab\n", 3), "line 2, column 1");
}

TEST(JsonTypeName, NamesEveryKind) {
  const auto name = [](std::string_view text) { return JsonTypeName(*ParseJson(text, Fault::kInput)); };
  EXPECT_EQ(name("null"), "null");
  EXPECT_EQ(name("true"), "boolean");
  EXPECT_EQ(name("-1"), "integer");
  EXPECT_EQ(name("18446744073709551615"), "integer");
  EXPECT_EQ(name("1.5"), "number");
  EXPECT_EQ(name("\"\""), "string");
  EXPECT_EQ(name("[]"), "array");
  EXPECT_EQ(name("{}"), "object");
}

RC_GTEST_PROP(ParseJson, NeverThrowsAndRoundTrips, ()) {
  static const std::string kAlphabet = "{}[]:,\"\\ue0123456789.-+aAdDtrfalsnN \n\t\xc3\xa9\xff";
  const auto bytes = *rc::gen::container<std::string>(rc::gen::elementOf(kAlphabet));
  const auto value = ParseJson(bytes, Fault::kInput);
  if (!value.ok()) return;
  const auto again = ParseJson(json::serialize(*value), Fault::kInput);
  RC_ASSERT(again.ok());
  RC_ASSERT(*again == *value);
}

}  // namespace
}  // namespace penstock
