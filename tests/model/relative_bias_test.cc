// Proves that distances fall into the buckets into which transformers puts them (_relative_position_bucket of T5).
#include "penstock/model/relative_bias.h"

#include <gmock/gmock.h>

namespace penstock {
namespace {

using testing::ElementsAre;

std::vector<int64_t> BucketsOf(std::initializer_list<int64_t> distances, bool is_of_encoder, const Encoder& encoder) {
  std::vector<int64_t> buckets;
  for (const int64_t distance : distances) buckets.push_back(RelativeBucket(distance, is_of_encoder, encoder));
  return buckets;
}

TEST(RelativeBias, HasTheBucketsOfTransformers) {
  const Encoder usual = {.num_layers = 1, .num_buckets = 32, .max_distance = 128};
  EXPECT_THAT(
      BucketsOf({-1000, -128, -64, -9, -8, -7, -1, 0, 1, 7, 8, 11, 12, 16, 23, 31, 91, 127, 128, 1000}, true, usual),
      ElementsAre(15, 15, 14, 8, 8, 7, 1, 0, 17, 23, 24, 24, 25, 26, 27, 27, 31, 31, 31, 31));
  EXPECT_THAT(BucketsOf({-1000, -128, -113, -112, -64, -20, -19, -18, -17, -16, -15, -1, 0, 1, 50}, false, usual),
              ElementsAre(31, 31, 31, 30, 26, 17, 17, 16, 16, 16, 15, 1, 0, 0, 0));
  const Encoder small = {.num_layers = 1, .num_buckets = 12, .max_distance = 20};
  EXPECT_THAT(BucketsOf({-30, -20, -11, -10, -6, -5, -3, -2, 0, 2, 3, 5, 6, 11, 30}, true, small),
              ElementsAre(5, 5, 5, 4, 4, 3, 3, 2, 0, 8, 9, 9, 10, 11, 11));
  const Encoder odd = {.num_layers = 1, .num_buckets = 7, .max_distance = 9};
  EXPECT_THAT(BucketsOf({-30, -3, -2, -1, 0, 1, 2, 3, 30}, true, odd), ElementsAre(2, 2, 1, 1, 0, 4, 4, 5, 5));
  EXPECT_THAT(BucketsOf({-30, -9, -6, -5, -4, -3, -2, -1, 0, 1}, false, odd),
              ElementsAre(6, 6, 5, 4, 4, 3, 2, 1, 0, 0));
}

TEST(RelativeBias, IsSpreadOverDistances) {
  ModelConfig config;
  config.num_heads = 2;
  config.encoder = {.num_layers = 1, .num_buckets = 4, .max_distance = 3};
  const std::vector<float> table = {0, 10, 1, 11, 2, 12, 3, 13};  // [num_buckets, num_heads]
  EXPECT_THAT(BiasOfDistances(table, /*is_of_encoder=*/false, config),
              ElementsAre(3, 2, 1, 0, 0, 0, 0, 13, 12, 11, 10, 10, 10, 10));
}

}  // namespace
}  // namespace penstock
