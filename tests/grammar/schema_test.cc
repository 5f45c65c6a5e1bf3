// Proves that schemas accept valid texts and refuse others, and that keywords which cannot be honoured are named.
#include <gtest/gtest.h>

#include "penstock/base/status.h"
#include "tests/grammar/compiled.h"

namespace penstock {
namespace {

struct Case {
  const char* schema;
  std::vector<const char*> accepted;
  std::vector<const char*> refused;
};

std::string SchemaFault(const std::string& schema) {
  return Message(grammar::CompileFormat({OutputFormat::Kind::kJsonSchema, schema}).status());
}

void Check(const Case& test) {
  const auto constraint = Compiled({OutputFormat::Kind::kJsonSchema, test.schema});
  for (const char* text : test.accepted) EXPECT_TRUE(AcceptsAnswer(constraint, text)) << test.schema << " " << text;
  for (const char* text : test.refused) EXPECT_FALSE(AcceptsAnswer(constraint, text)) << test.schema << " " << text;
}

TEST(SchemaTest, Objects) {
  Check(
      {R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {}, "c": {"const": 1}}, "required": ["b"]})",
       {R"({"b":null})", R"({"a":1,"b":[]})", "{\n  \"a\": 1, \"b\": {}, \"c\": 1 }", R"({"b":"x","c":1})"},
       {"{}", R"({"a":1})", R"({"b":1,"a":1})", R"({"b":1,"d":1})", R"({"b":1,})", R"({,"b":1})", R"({"b":1,"c":2})",
        "{  \"b\":1}", R"({"b" :1})"}});
  Check({R"({"properties": {"a": {}}, "additionalProperties": {"type": "null"}, "maxProperties": 2, "type": "object"})",
         {R"({"a":1,"b":null})", "{}", R"({"aa":null,"b":null})"},
         {R"({"b":1})", R"({"b":null,"a":1})", R"({"a":1,"b":null,"c":null})"}});
  Check({R"({"type": "object", "patternProperties": {"^n_": {"type": "integer"}, "_s$": {"type": "string"}},
             "additionalProperties": false})",
         {R"({"n_a":1,"a_s":"x"})", "{}"},
         {R"({"n_a":"x"})", R"({"n_s":1})", R"({"other":1})"}});
  Check({R"({"type": "object", "propertyNames": {"pattern": "^[a-z]+$", "maxLength": 3}, "minProperties": 0})",
         {R"({"abc":1})"},
         {R"({"abcd":1})", R"({"A":1})"}});
  Check({R"({"type": "object", "additionalProperties": {"type": "null"}, "minProperties": 1})",
         {R"({"a":null})"},
         {"{}"}});
  Check({R"({"type": "object", "properties": {"a": {}, "b": {}}, "required": ["a"], "additionalProperties": {},
             "minProperties": 2})",
         {R"({"a":1,"b":1})", R"({"a":1,"c":1})"},
         {"{}", R"({"a":1})", R"({"b":1,"c":1})"}});
  EXPECT_EQ(SchemaFault(R"({"type": "object", "minProperties": 2})"),
            "#/minProperties: without additionalProperties: false it may be one more than the required ones");
  Check({R"({"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "minProperties": 2, "maxProperties": 2,
             "additionalProperties": false})",
         {R"({"a":1,"b":1})", R"({"a":1,"c":1})", R"({"b":1,"c":1})"},
         {"{}", R"({"a":1})", R"({"a":1,"b":1,"c":1})"}});
}

TEST(SchemaTest, Arrays) {
  Check({R"({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "null"}], "items": {"type": "boolean"},
             "minItems": 1, "maxItems": 4})",
         {"[1]", "[1,null]", "[1, null, true, false]", "[ 1,null,true ]"},
         {"[]", "[null]", "[1,true]", "[1,null,true,true,true]", "[1,]"}});
  Check(
      {R"({"type": "array", "items": {"type": "integer"}, "minItems": 3, "maxItems": 2000})", {"[1,2,3]"}, {"[1,2]"}});
  Check({R"({"type": "array", "items": false})", {"[]"}, {"[1]"}});
}

TEST(SchemaTest, Sets) {
  Check({R"({"type": "array", "items": {"$ref": "#/$defs/c"}, "uniqueItems": true, "minItems": 1, "maxItems": 2,
             "$defs": {"c": {"type": ["string", "integer"], "enum": ["r", "g", 1, 1.0, null, "b"]}}})",
         {R"(["r"])", R"(["r", "b"])", R"(["g",1])"},
         {"[]", R"(["r","r"])", "[1,1]", R"(["b","r"])", R"(["r","g","b"])", "[null]"}});
  Check({R"({"type": "array", "uniqueItems": true, "maxItems": 1})", {"[]", "[5]"}, {"[5,6]"}});
  Check({R"({"type": "array", "items": {"const": "a"}, "uniqueItems": true})", {"[]", R"(["a"])"}, {R"(["a","a"])"}});
  Check({R"({"type": "null", "uniqueItems": true})", {"null"}, {"[]"}});
}

TEST(SchemaTest, Strings) {
  Check({R"({"type": "string", "minLength": 2, "maxLength": 3})",
         {R"("ab")", R"("a\n\u00e9")", R"("\ud83d\ude00é")", R"("\"\\")"},
         {R"("a")", R"("abcd")", R"("\ud83d\ude00")", R"("\ude00a")", "\"a\nb\""}});
  Check({R"({"type": "string", "pattern": "^[a-z]+(-[a-z]+)*$", "maxLength": 6})",
         {R"("ab-cd")", R"("abcdef")"},
         {R"("ab-")", R"("abcdefg")", R"("")"}});
  Check({R"({"type": "string", "pattern": "\"x|\\d$"})", {R"("a\"xb")", R"("a1")"}, {R"("1a")"}});
  Check({R"({"type": "string", "format": "date"})", {R"("2024-02-28")"}, {R"("2024-02-30")", R"("2024-13-01")"}});
  Check({R"({"type": "string", "maxLength": 100000})", {R"("")", R"("abc")"}, {"1"}});
  Check({R"({"type": "string", "format": "uri", "minLength": 1, "maxLength": 2083})",
         {R"("https://a.example/b?c=d")"},
         {R"("")", R"("a b")"}});
  Check({R"({"type": "string", "format": "byte"})", {R"("")", R"("aGk=")"}, {R"("aGk")"}});
  Check({R"({"type": "string", "format": "password", "minLength": 2})", {R"("a\n")"}, {R"("a")"}});
  Check({R"({"type": "string", "format": "iri"})", {R"("https://a.b/c?d")"}, {R"("a b")"}});
}

TEST(SchemaTest, Numbers) {
  Check({R"({"type": "integer", "minimum": -12, "exclusiveMaximum": 105})",
         {"-12", "-1", "0", "9", "10", "99", "104"},
         {"-13", "105", "1000", "01", "1.0", "-120"}});
  Check({R"({"type": "number", "exclusiveMinimum": 0.5, "maximum": 2.25})",
         {"0.50001", "0.51", "1", "1.999", "2.25", "2.250", "2"},
         {"0.5", "0.50", "2.26", "2.250001", "0", "-1", "3"}});
  Check({R"({"type": "number", "minimum": -1.5, "maximum": -0.25})",
         {"-1.5", "-1", "-0.25", "-0.3"},
         {"-0.2", "-1.6", "0"}});
  Check({R"({"type": "integer", "multipleOf": 7, "minimum": 0})", {"0", "7", "14", "7000"}, {"8", "-7", "07"}});
  Check({R"({"type": "number"})", {"-1.5e-3", "0", "12", "1E5"}, {"1.", ".5", "1e999", "+1", "NaN"}});
  EXPECT_EQ(SchemaFault(R"({"type": "integer", "minimum": 9007199254740993, "maximum": -5})"), "no text matches it");
}

TEST(SchemaTest, Combinations) {
  Check({R"({"allOf": [{"type": ["integer", "string"]}, {"minimum": 3}, {"maxLength": 1}], "maximum": 4})",
         {"3", "4", R"("a")"},
         {"2", "5", R"("ab")", "3.5"}});
  Check(
      {R"({"oneOf": [{"type": "object", "properties": {"k": {"const": "a"}, "x": {"type": "null"}}, "required": ["k"]},
                       {"type": "object", "properties": {"k": {"const": "b"}, "y": {"type": "null"}}, "required": ["k"]}]})",
       {R"({"k":"a","x":null})", R"({"k":"b","y":null})"},
       {R"({"k":"a","y":null})", R"({"k":"c"})"}});
  Check({R"({"enum": [1, "a", null, {"x": [1.5]}, true], "type": ["integer", "string", "object"]})",
         {"1", R"("a")", R"({"x":[1.5]})"},
         {"null", "true", "2"}});
  // An alternative that is the schema itself allows nothing more.
  Check({R"({"anyOf": [{"type": "string"}, {"$ref": "#"}]})", {R"("a")"}, {"1"}});
}

TEST(SchemaTest, OneOfThatOverlap) {
  Check({R"({"oneOf": [{"type": "string"}, {"maxLength": 3}], "type": ["string", "null"]})",
         {R"("abcd")", "null"},
         {R"("abc")"}});
  Check({R"({"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}},
             "oneOf": [{"required": ["a"]}, {"$ref": "#/$defs/b"}], "$defs": {"b": {"required": ["b"]}}})",
         {R"({"a":null})", R"({"b":null})"},
         {"{}", R"({"a":null,"b":null})"}});
  Check({R"({"oneOf": [{"type": "integer", "minimum": 5}, {"type": "integer", "maximum": 9}, {"const": 7}]})",
         {"4", "10"},
         {"5", "7", "9"}});
  Check({R"({"oneOf": [{"type": "string", "pattern": "^https?:"}, {"type": "string", "pattern": "x$"}]})",
         {R"("http:a")", R"("ax")"},
         {R"("http:x")", R"("a")"}});
  // Only the kinds tell these apart. Nothing is known of the opposite of a date.
  Check(
      {R"({"oneOf": [{"type": "object", "properties": {"kind": {"const": "a"}, "day": {"type": "string", "format": "date"}}},
                       {"type": "object", "properties": {"kind": {"const": "b"}}, "additionalProperties": false}]})",
       {R"({"kind":"a","day":"2024-02-28"})", R"({"kind":"b"})"},
       {R"({"day":"2024-02-28"})", "{}"}});
  Check({R"({"oneOf": [{"type": "null"}, {"type": "null"}, {"type": "boolean"}]})", {"true"}, {"null"}});
}

TEST(SchemaTest, Opposites) {
  Check({R"({"type": "string", "not": {"enum": ["a", "b\"", 1]}})",
         {R"("c")", R"("aa")", R"("")"},
         {R"("a")", R"("b\"")"}});
  Check({R"({"not": {"const": true}, "type": ["boolean", "null"]})", {"false", "null"}, {"true"}});
  Check({R"({"enum": [1, 2, "x", [1]], "not": {"enum": [2, "x"]}})", {"1"}, {"2", R"("x")"}});
  Check({R"({"type": "integer", "not": {"enum": [3, 7.0]}, "minimum": 2, "maximum": 8})",
         {"2", "4", "8"},
         {"3", "7", "9"}});
  Check({R"({"not": {"type": ["integer", "object", "array"]}})", {R"("a")", "null", "true"}, {"1", "1.5", "{}", "[]"}});
  Check({R"({"not": {"not": {"type": "null"}}})", {"null"}, {"1"}});
  Check({R"({"type": "object", "properties": {"a": {}, "b": {}}, "not": {"required": ["a", "b"]}})",
         {"{}", R"({"a":1})", R"({"b":1})"},
         {R"({"a":1,"b":1})"}});
  Check(
      {R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {}}, "not": {"properties": {"a": {"minimum": 5}}}})",
       {R"({"a":4})", R"({"a":-4,"b":null})"},
       {"{}", R"({"a":5})"}});
  Check({R"({"not": {"anyOf": [{"type": "string", "maxLength": 2}, {"type": ["null", "number", "object", "array"]}]}})",
         {R"("abc")", "true"},
         {R"("ab")", "null"}});
  Check({R"({"not": {"minItems": 2}, "items": {"type": "null"}})", {"[]", "[null]"}, {"[null,null]", "1"}});
  EXPECT_EQ(SchemaFault(R"({"not": {}})"), "no text matches it");
  Check({R"({"not": {"type": "string", "pattern": "a$|^b"}})", {R"("ab")", "1"}, {R"("ba")", R"("bc")", R"("a\n")"}});
  EXPECT_EQ(SchemaFault(R"({"not": {"type": "string", "format": "date"}})"),
            "#/not/format: the keyword is not supported in not or if");
  EXPECT_EQ(SchemaFault(R"({"not": {"items": {"uniqueItems": true}}})"),
            "#/not/items: the keyword is not supported in not or if");
}

TEST(SchemaTest, Conditions) {
  Check({R"({"type": "object", "properties": {"kind": {"enum": ["card", "cash"]}, "number": {"type": "integer"}},
             "required": ["kind"], "if": {"properties": {"kind": {"const": "card"}}}, "then": {"required": ["number"]},
             "else": {"properties": {"number": false}}})",
         {R"({"kind":"card","number":1})", R"({"kind":"cash"})"},
         {R"({"kind":"card"})", R"({"kind":"cash","number":1})", "{}"}});
  Check(
      {R"({"type": "integer", "if": {"minimum": 10}, "then": {"multipleOf": 5, "maximum": 100}, "else": {"minimum": 0}})",
       {"10", "15", "9", "0"},
       {"11", "-1"}});
  Check({R"({"type": "null", "if": {"type": "string", "pattern": "a"}})", {"null"}, {"1"}});
  Check({R"({"type": "null", "then": false, "else": false})", {"null"}, {"1"}});
  Check({R"({"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "dependentRequired": {"a": ["b", "c"]}})",
         {"{}", R"({"b":1})", R"({"a":1,"b":1,"c":1})"},
         {R"({"a":1})", R"({"a":1,"b":1})"}});
  Check(
      {R"({"type": "object", "properties": {"a": {}, "b": {}}, "dependentSchemas": {"a": {"properties": {"b": {"type": "null"}}}}})",
       {"{}", R"({"b":1})", R"({"a":1,"b":null})"},
       {R"({"a":1,"b":1})"}});
  // It recurs through a condition.
  Check({R"({"type": ["array", "null"], "maxItems": 1, "if": {"type": "array"}, "then": {"items": {"$ref": "#"}}})",
         {"null", "[]", "[[[null]]]"},
         {"[1]", "[null,null]"}});
}

TEST(SchemaTest, ListsThatContain) {
  Check({R"({"type": "array", "items": {"type": ["integer", "null"]}, "contains": {"const": 7}})",
         {"[7]", "[1,7,null]", "[7,7]"},
         {"[]", "[1]", R"(["a",7])"}});
  Check(
      {R"({"type": "array", "items": {"type": "integer"}, "contains": {"minimum": 5}, "minContains": 2, "minItems": 2})",
       {"[5,6]", "[1,5,1,9,2]"},
       {"[5]", "[1,5,1]"}});
  Check({R"({"type": "array", "items": {"type": "null"}, "contains": {"type": "string"}, "minContains": 0})",
         {"[]"},
         {"[1]"}});
  EXPECT_EQ(SchemaFault(R"({"type": "array", "contains": {}, "maxContains": 2})"),
            "#/contains: the keyword is not supported beside maxContains, maxItems, prefixItems or a larger minItems");
}

TEST(SchemaTest, WhatIsNotEvaluated) {
  const char* const kRefusal = ": only false is supported, beside properties, items, allOf, anyOf and $ref";
  Check({R"({"type": "object", "properties": {"a": {"type": "null"}}, "allOf": [{"$ref": "#/$defs/b"}],
             "unevaluatedProperties": false, "$defs": {"b": {"properties": {"b": {"type": "null"}}}}})",
         {"{}", R"({"a":null,"b":null})"},
         {R"({"c":1})"}});
  Check({R"({"type": "object", "required": ["a"], "properties": {"a": {}, "b": {}}, "unevaluatedProperties": false,
             "anyOf": [{"properties": {"c": {"const": 1}}, "required": ["c"]}, {"required": ["b"]}]})",
         {R"({"a":1,"c":1})", R"({"a":1,"b":1})"},
         {R"({"a":1})", R"({"a":1,"c":2})"}});
  Check({R"({"type": "object", "unevaluatedProperties": false})", {"{}"}, {R"({"a":1})"}});
  EXPECT_EQ(SchemaFault(R"({"type": "object", "required": ["a"], "unevaluatedProperties": false})"),
            "no text matches it");
  Check({R"({"type": "array", "prefixItems": [{"type": "null"}], "unevaluatedItems": false})",
         {"[]", "[null]"},
         {"[null,1]"}});
  EXPECT_EQ(SchemaFault(R"({"allOf": [{"properties": {"a": {}}}, {"unevaluatedProperties": false}]})"),
            fmt::format("#/allOf/1/unevaluatedProperties{}", kRefusal));
  EXPECT_EQ(SchemaFault(R"({"type": "array", "contains": {"type": "string"}, "unevaluatedItems": false})"),
            fmt::format("#/unevaluatedItems{}", kRefusal));
  EXPECT_EQ(SchemaFault(R"({"properties": {"a": {}}, "unevaluatedProperties": {"type": "null"}})"),
            fmt::format("#/unevaluatedProperties{}", kRefusal));
  EXPECT_EQ(
      SchemaFault(R"({"if": {"required": ["a"]}, "then": {"properties": {"a": {}}}, "unevaluatedProperties": false})"),
      fmt::format("#/unevaluatedProperties{}", kRefusal));
}

TEST(SchemaTest, NamesWhatItCannotHonour) {
  EXPECT_EQ(SchemaFault(R"({"items": {"uniqueItems": true}})"),
            "#/items/uniqueItems: the keyword is not supported, unless the items are an enum");
  EXPECT_EQ(SchemaFault(R"({"not": {"uniqueItems": true}})"),
            "#/not/uniqueItems: the keyword is not supported in not or if");
  EXPECT_EQ(SchemaFault(R"({"$dynamicRef": "#a"})"), "#/$dynamicRef: the keyword is not supported");
  EXPECT_EQ(SchemaFault(R"({"not": {"extends": {}}})"), "#/not/extends: the keyword is not supported");
  EXPECT_EQ(SchemaFault(R"({"additonalProperties": false})"),
            "#/additonalProperties: the keyword is unknown; did you mean additionalProperties?");
  EXPECT_EQ(SchemaFault(R"({"max_length": 3})"), "#/max_length: the keyword is unknown; did you mean maxLength?");
  EXPECT_EQ(SchemaFault(R"({"minLenght": 3})"), "#/minLenght: the keyword is unknown; did you mean minLength?");
  EXPECT_EQ(SchemaFault(R"({"type": "int"})"), "#/type: expected the name of a type, or a list of names");
  EXPECT_EQ(SchemaFault(R"({"minLength": "a"})"), "#/minLength: expected a count, found string");
  EXPECT_EQ(SchemaFault(R"({"oneOf": [{"type": "string"}, {"type": "string", "format": "date"}]})"),
            "#/oneOf: schemas 0 and 1 may both be valid, which is not supported; use anyOf");
  EXPECT_EQ(SchemaFault(R"({"oneOf": [{"required": ["a"]}, {"required": ["b"]}], "unevaluatedProperties": false})"),
            "#/oneOf: schemas 0 and 1 may both be valid, which is not supported; use anyOf");
  EXPECT_EQ(
      SchemaFault(R"({"not": {"$ref": "#/$defs/a"}, "$defs": {"a": {"properties": {"x": {"$ref": "#/$defs/a"}}}}})"),
      "#/$defs/a/properties/$ref: the keyword is not supported in not or if");
  EXPECT_EQ(SchemaFault(R"({"$ref": "#/$defs/x"})"), "#/$ref: it refers to nothing");
  EXPECT_EQ(SchemaFault(R"x({"type": "string", "pattern": "(?<=a)"})x"),
            "#/pattern: column 3: look-behind is not supported");
  EXPECT_EQ(SchemaFault("false"), "no text matches it");
  EXPECT_EQ(SchemaFault(R"({"type": "string", "format": "colour"})"), "#/format: the format colour is not supported");
}

TEST(SchemaTest, IgnoresNotes) {
  Check({R"({"id": "http://a/b", "colour": 1, "markdownDescription": "a", "type": "object", "required": ["pet"],
             "properties": {"pet": {"discriminator": {"propertyName": "k", "mapping": {"a": "#/$defs/a"}},
                                    "oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "/$defs/b"}]}},
             "$defs": {"a": {"type": "object", "properties": {"k": {"const": "a"}}, "required": ["k"]},
                       "b": {"type": "object", "properties": {"k": {"const": "b"}}, "required": ["k"]}}})",
         {R"({"pet":{"k":"a"}})", R"({"pet":{"k":"b"}})"},
         {R"({"pet":{"k":"c"}})"}});
  Check({R"({"not": {"type": "null", "colour": 1}, "type": ["null", "boolean"]})", {"true"}, {"null"}});
}

TEST(SchemaTest, KeywordsOfOtherDrafts) {
  Check(
      {R"({"type": "array", "items": [{"type": "integer"}, {"type": "null"}], "additionalItems": {"type": "boolean"}})",
       {"[]", "[1]", "[1,null,true,false]"},
       {"[null]", "[1,true]", "[1,null,1]"}});
  Check({R"({"type": "array", "items": [{"type": "integer"}, {"type": "null"}], "minItems": 2, "maxItems": 2})",
         {"[1,null]"},
         {"[]", "[1]", "[1,null,1]"}});
  Check({R"({"type": "array", "items": {"type": "null"}, "additionalItems": false, "maxItems": 1})",
         {"[null]"},
         {"[1]"}});
  Check({R"({"type": "integer", "minimum": 3, "exclusiveMinimum": true, "maximum": 9, "exclusiveMaximum": false})",
         {"4", "9"},
         {"3", "10"}});
  Check({R"({"type": "integer", "maximum": 9, "exclusiveMaximum": true})", {"8"}, {"9"}});
  Check({R"({"type": "integer", "not": {"minimum": 3, "exclusiveMinimum": true}})", {"3", "-1"}, {"4"}});
  Check({R"({"type": "object", "properties": {"a": {}, "b": {}, "c": {}},
             "dependencies": {"a": ["b"], "c": {"properties": {"b": {"type": "null"}}}}})",
         {"{}", R"({"a":1,"b":1})", R"({"b":null,"c":1})"},
         {R"({"a":1})", R"({"b":1,"c":1})"}});
  // OpenAPI 3.0's keyword is a note: a null would not be valid.
  Check({R"({"type": "string", "nullable": true, "maxLength": 1})", {R"("a")"}, {R"("ab")", "1", "null"}});
  Check({R"({"type": ["string", "null"], "not": {"type": "string", "nullable": true, "maxLength": 0}})",
         {R"("a")", "null"},
         {R"("")"}});
}

TEST(SchemaTest, TakesLargeSchemas) {
  std::string properties;
  for (int i = 0; i < 400; ++i) {
    properties += fmt::format(R"({}"property_{}": {{"type": "string", "maxLength": {}, "description": "a text"}})",
                              i == 0 ? "" : ", ", i, 2000 + i);
  }
  Check(
      {fmt::format(R"({{"type": "object", "properties": {{{}}}, "additionalProperties": false}})", properties).c_str(),
       {"{}", R"({"property_7":"x","property_399":"y"})"},
       {R"({"property_8":"x","property_7":"y"})"}});
  std::string nested = R"({"type": "string"})";
  for (int i = 0; i < 28; ++i) nested = fmt::format(R"({{"type": "array", "items": {}}})", nested);
  EXPECT_EQ(SchemaFault(nested), "");
  // A chain of references does not recurse in the compiler.
  std::string chain = R"({"$ref": "#/$defs/r0", "$defs": {"r900": {"type": "null"})";
  for (int i = 0; i < 900; ++i) {
    chain += fmt::format(R"(, "r{}": {{"type": "array", "items": {{"$ref": "#/$defs/r{}"}}}})", i, i + 1);
  }
  EXPECT_EQ(SchemaFault(chain + "}}"), "");
}

}  // namespace
}  // namespace penstock
