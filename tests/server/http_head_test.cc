// Proves that the parts of a request's head are found and decoded.
#include <gtest/gtest.h>

#include "penstock/server/http/exchange.h"

namespace penstock::server {
namespace {

TEST(HttpHead, HeadersAreFoundWhateverTheirCase) {
  const HttpHead head{.headers = {{"Content-Type", "a"}, {"content-type", "b"}, {"X", ""}}};
  EXPECT_EQ(head.Header("CONTENT-TYPE"), "a");
  EXPECT_EQ(head.Header("Content"), "");
  EXPECT_EQ(head.Header("x"), "");
}

TEST(HttpHead, ParametersAreDecoded) {
  const HttpHead head{.query = "limit=3&after=a%2Fb%3D&empty=&&flag&limit=4"};
  EXPECT_EQ(head.Parameter("limit"), "3");
  EXPECT_EQ(head.Parameter("after"), "a/b=");
  EXPECT_EQ(head.Parameter("empty"), "");
  EXPECT_EQ(head.Parameter("flag"), "");
  EXPECT_EQ(head.Parameter("none"), "");
}

TEST(HttpHead, SegmentsArePartsOfThePath) {
  const HttpHead head{.path = "/v1/files/file-1/content"};
  EXPECT_EQ(head.Segment(0), "v1");
  EXPECT_EQ(head.Segment(2), "file-1");
  EXPECT_EQ(head.Segment(3), "content");
  EXPECT_EQ(head.Segment(4), "");
}

TEST(HttpHead, InvalidPercentEncodingStays) {
  EXPECT_EQ(DecodePercent("a%41%2"), "aA%2");
  EXPECT_EQ(DecodePercent("%zz%"), "%zz%");
  EXPECT_EQ(DecodePercent("%e4%BD%a0"), "\xe4\xbd\xa0");
}

}  // namespace
}  // namespace penstock::server
