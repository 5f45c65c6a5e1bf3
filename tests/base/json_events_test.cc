// Proves that the event parser reports every event once and whole, stops at the listener's first error with its place,
// and is as strict as ParseJson.
#include "penstock/base/json_events.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <string>

#include "penstock/base/json.h"

namespace penstock {
namespace {

using testing::HasSubstr;

// Records events; returns an error for the key or string "stop".
class Recorder final : public JsonListener {
 public:
  absl::Status OnObjectBegin() override { return Add("{"); }
  absl::Status OnObjectEnd() override { return Add("}"); }
  absl::Status OnArrayBegin() override { return Add("["); }
  absl::Status OnArrayEnd() override { return Add("]"); }
  absl::Status OnKey(std::string_view key) override { return Text("k:", key); }
  absl::Status OnString(std::string_view text) override { return Text("s:", text); }
  absl::Status OnNumber(std::optional<uint64_t> value) override {
    return Add(value.has_value() ? fmt::format("{}", *value) : "?");
  }
  absl::Status OnLiteral() override { return Add("literal"); }

  std::string events;

 private:
  absl::Status Text(std::string_view kind, std::string_view text) {
    if (text == "stop") return InputError("asked to stop");
    return Add(fmt::format("{}{}", kind, text));
  }
  absl::Status Add(std::string_view event) {
    events += fmt::format("{} ", event);
    return absl::OkStatus();
  }
};

TEST(ParseJsonEvents, ReportsEveryEvent) {
  Recorder recorder;
  const std::string text =
      "{\"a\\u0062\": [1, -1, 1.0, 18446744073709551615, 18446744073709551616, true, null], \"c\": "
      "\"d\\ne\", \"f\": {}}";
  ASSERT_TRUE(ParseJsonEvents(text, Fault::kInput, {}, recorder).ok());
  EXPECT_EQ(recorder.events, "{ k:ab [ 1 ? ? 18446744073709551615 ? literal literal ] k:c s:d\ne k:f { } } ");
}

TEST(ParseJsonEvents, JoinsPartsAndForgetsThem) {
  std::string escaped;
  std::string plain;
  for (int i = 0; i < 3000; ++i) {
    escaped += "\\u0041b";
    plain += "Ab";
  }
  Recorder recorder;
  ASSERT_TRUE(
      ParseJsonEvents("[\"" + escaped + "\",\"x\",\"" + escaped + "\",\"\",\"\\u0041\"]", Fault::kInput, {}, recorder)
          .ok());
  EXPECT_EQ(recorder.events, "[ s:" + plain + " s:x s:" + plain + " s: s:A ] ");
}

TEST(ParseJsonEvents, StopsAtARefusalWithItsPlace) {
  Recorder recorder;
  const absl::Status by_line = ParseJsonEvents("{\"a\": 1,\n\"stop\": 2}", Fault::kModel, {}, recorder);
  EXPECT_EQ(FaultOf(by_line), Fault::kInput);  // the listener's fault
  EXPECT_THAT(Message(by_line), HasSubstr("line 2, column "));
  EXPECT_THAT(Message(by_line), HasSubstr("asked to stop"));
  EXPECT_EQ(recorder.events, "{ k:a 1 ");
  const absl::Status by_byte =
      ParseJsonEvents("[1,\nx]", Fault::kModel, {.place = JsonEventOptions::Place::kByte}, recorder);
  EXPECT_EQ(FaultOf(by_byte), Fault::kModel);
  EXPECT_THAT(Message(by_byte), HasSubstr("byte 4: not valid JSON"));
}

TEST(ParseJsonEvents, BoundsKeysAndDepth) {
  Recorder recorder;
  const auto parse = [&](const std::string& text) {
    return ParseJsonEvents(text, Fault::kModel, {.max_depth = 2, .max_key_bytes = 3}, recorder);
  };
  EXPECT_TRUE(parse("{\"abc\": [\"long strings are fine\"]}").ok());
  EXPECT_THAT(Message(parse("{\"abcd\": 1}")), HasSubstr("a key has more than 3 bytes"));
  EXPECT_THAT(Message(parse("{\"" + std::string(1 << 20, 'k') + "\": 1}")), HasSubstr("more than 3 bytes"));
  EXPECT_THAT(Message(parse("[[[]]]")), HasSubstr("too deep"));
  EXPECT_FALSE(parse("").ok());
  EXPECT_FALSE(parse("[1] 2").ok());
}

RC_GTEST_PROP(ParseJsonEvents, AcceptsWhatParseJsonAccepts, ()) {
  static const std::string kAlphabet = "{}[]:,\"\\u01239.-eE true null\xc3\xa9";
  const auto text = *rc::gen::container<std::string>(rc::gen::elementOf(kAlphabet));
  Recorder recorder;
  const absl::Status events = ParseJsonEvents(text, Fault::kInput, {}, recorder);
  const auto value = ParseJson(text, Fault::kInput);
  // The event parser leaves duplicate keys and the range of numbers to its listener.
  if (value.ok()) RC_ASSERT(events.ok());
  if (!events.ok()) RC_ASSERT(!value.ok());
}

}  // namespace
}  // namespace penstock
