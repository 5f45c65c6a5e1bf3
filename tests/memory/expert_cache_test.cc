// Proves that a lease's weights are the file's bytes whatever was evicted before, that hits and misses are those of an
// LRU cache (checked against a plain model), and that odd offsets and dtype conversions are handled.
#include "penstock/memory/expert_cache.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <fstream>
#include <random>
#include <set>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

namespace penstock {
namespace {

constexpr int kNumLayers = 3;
constexpr int kNumExperts = 7;
constexpr int64_t kCols = 50,
                  kInnerDim = 61;  // of each tensor: a last panel that is not full, a last input without partner
constexpr uint64_t kElements = kCols * kInnerDim;

class ExpertCacheTest : public testing::Test {
 protected:
  // A file of f32 tensors, `odd` bytes off alignment, and the map that finds them.
  void Prepare(uint64_t odd) {
    std::mt19937 random(3);
    const uint64_t num_tensors = kNumLayers * kNumExperts * 3;
    values_.resize(num_tensors * kElements);
    for (float& value : values_) value = static_cast<float>(static_cast<int>(random() % 2001) - 1000) / 256;
    const std::string path = testing::TempDir() + "/expert-cache-" + std::to_string(::getpid());
    {
      std::ofstream file(path, std::ios::binary);
      file << std::string(odd, 'x');
      file.write(reinterpret_cast<const char*>(values_.data()), static_cast<std::streamsize>(values_.size() * 4));
    }
    OpenedFile opened;
    opened.fd = UniqueFd(::open(path.c_str(), O_RDONLY));
    opened.path = path;
    opened.size_bytes = odd + values_.size() * 4;
    files_.push_back(std::move(opened));
    ::unlink(path.c_str());
    tensors_.resize(num_tensors);
    for (uint64_t i = 0; i < num_tensors; ++i) {
      tensors_[i].dtype = Dtype::kF32;
      tensors_[i].shape = {kCols, kInnerDim};
      tensors_[i].extent = {odd + i * kElements * 4, kElements * 4};
    }
    map_.layers.resize(kNumLayers);
    for (int layer = 0; layer < kNumLayers; ++layer) {
      for (int expert = 0; expert < kNumExperts; ++expert) {
        TensorInfo* first = &tensors_[static_cast<size_t>((layer * kNumExperts + expert) * 3)];
        map_.layers[layer].experts.push_back({.gate_proj = first, .up_proj = first + 2, .down_proj = first + 1});
      }
    }
    reader_ = DiskReader::Create(files_, {}).value();
  }

  void CheckTensor(const WeightView& view, const TensorInfo& tensor, ComputeDtype dtype) {
    const float* expected = values_.data() + static_cast<size_t>(&tensor - tensors_.data()) * kElements;
    ASSERT_EQ(view.format, dtype == ComputeDtype::kBF16 ? WeightFormat::kBF16 : WeightFormat::kF32);
    ASSERT_EQ(reinterpret_cast<uintptr_t>(view.data) % 64, 0u);
    std::vector<float> found(kInnerDim);
    for (int64_t col = 0; col < kCols; ++col) {
      UnpackColumn(view.format, view.data, col, kInnerDim, found.data());
      for (int64_t k = 0; k < kInnerDim; ++k) {
        const float value = expected[col * kInnerDim + k];
        ASSERT_EQ(found[static_cast<size_t>(k)], dtype == ComputeDtype::kBF16 ? ToFloat(ToBF16(value)) : value);
      }
    }
  }

  // Fetches random sets of experts and follows hits with a list in the order of use.
  void Exercise(int num_slots, ComputeDtype dtype) {
    auto cache = ExpertCache::Create(map_, dtype, num_slots, *reader_, pool_).value();
    std::deque<int> lru;  // expert keys, least recently used first
    int64_t hits = 0, misses = 0;
    std::mt19937 random(static_cast<unsigned>(num_slots));
    for (int round = 0; round < 300; ++round) {
      const int layer = static_cast<int>(random() % kNumLayers);
      std::vector<int32_t> wanted;
      for (int expert = 0; expert < kNumExperts; ++expert) {
        if (random() % 3 == 0) wanted.push_back(expert);
      }
      for (const int32_t expert : wanted) {
        const bool resident = std::find(lru.begin(), lru.end(), layer * kNumExperts + expert) != lru.end();
        ++(resident ? hits : misses);
      }
      ASSERT_TRUE(cache->Begin(layer, wanted).ok());
      std::set<int64_t> given;
      for (;;) {
        auto leases = cache->NextReady();
        ASSERT_TRUE(leases.ok()) << leases.status();
        if (leases->empty()) break;
        for (const ExpertLease& lease : *leases) {
          ASSERT_TRUE(given.insert(lease.expert_idx()).second);
          const FfnTensors& tensors = map_.layers[layer].experts[lease.expert_idx()];
          CheckTensor(lease.weights().gate_proj, *tensors.gate_proj, dtype);
          CheckTensor(lease.weights().up_proj, *tensors.up_proj, dtype);
          CheckTensor(lease.weights().down_proj, *tensors.down_proj, dtype);
          const int key = layer * kNumExperts + static_cast<int>(lease.expert_idx());
          std::erase(lru, key);
          lru.push_back(key);
        }
      }
      ASSERT_EQ(given.size(), wanted.size());
      while (static_cast<int>(lru.size()) > num_slots) lru.pop_front();
      // With several experts of one fetch under way the order among them is that of arrival: compare only what is
      // decided.
      if (num_slots >= kNumLayers * kNumExperts) {
        ASSERT_EQ(cache->hits(), hits);
        ASSERT_EQ(cache->misses(), misses);
      }
      ASSERT_EQ(cache->hits() + cache->misses(), hits + misses);
    }
  }

  std::vector<float> values_;
  std::vector<OpenedFile> files_;
  std::vector<TensorInfo> tensors_;
  WeightMap map_;
  std::unique_ptr<DiskReader> reader_;
  ThreadPool pool_{2};
};

TEST_F(ExpertCacheTest, OneSlot) {
  Prepare(0);
  Exercise(1, ComputeDtype::kF32);
}

TEST_F(ExpertCacheTest, FewSlotsAtOddOffsets) {
  Prepare(3);
  Exercise(4, ComputeDtype::kF32);
}

TEST_F(ExpertCacheTest, RoundedToBf16AtOddOffsets) {
  Prepare(1);
  Exercise(5, ComputeDtype::kBF16);
}

// Matrices of different types and shapes beside each other at any offset: panels that are larger or smaller than what
// was stored must not reach what is still to be packed.
TEST_F(ExpertCacheTest, MixedTypesAtAnyOffset) {
  constexpr int64_t kFfn = 45, kModel = 33;
  for (uint64_t odd = 0; odd < 4; ++odd) {
    for (const ComputeDtype dtype : {ComputeDtype::kF32, ComputeDtype::kBF16}) {
      const std::string path = testing::TempDir() + "/expert-cache-mixed-" + std::to_string(::getpid());
      std::vector<std::byte> bytes(odd + kFfn * kModel * (2 + 4 + 4));
      for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 37 % 61);
      std::ofstream(path, std::ios::binary)
          .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
      std::vector<OpenedFile> files(1);
      files[0].fd = UniqueFd(::open(path.c_str(), O_RDONLY));
      files[0].path = path;
      files[0].size_bytes = bytes.size();
      ::unlink(path.c_str());
      std::vector<TensorInfo> tensors(3);
      const Dtype dtypes[] = {Dtype::kBF16, Dtype::kF32, Dtype::kF32};
      uint64_t offset = odd;
      for (size_t i = 0; i < 3; ++i) {
        tensors[i].dtype = dtypes[i];
        tensors[i].shape = i < 2 ? std::vector<int64_t>{kFfn, kModel} : std::vector<int64_t>{kModel, kFfn};
        tensors[i].extent = {offset, kFfn * kModel * SizeOf(dtypes[i])};
        offset += tensors[i].extent.size_bytes;
      }
      WeightMap map;
      map.layers.resize(1);
      map.layers[0].experts.push_back({.gate_proj = &tensors[0], .up_proj = &tensors[1], .down_proj = &tensors[2]});
      const auto reader = DiskReader::Create(files, {}).value();
      auto cache = ExpertCache::Create(map, dtype, 1, *reader, pool_).value();
      const int32_t wanted[] = {0};
      ASSERT_TRUE(cache->Begin(0, wanted).ok());
      const std::vector<ExpertLease> leases = cache->NextReady().value();
      ASSERT_EQ(leases.size(), 1u);
      const WeightView views[] = {leases[0].weights().gate_proj, leases[0].weights().up_proj,
                                  leases[0].weights().down_proj};
      for (size_t i = 0; i < 3; ++i) {
        const int64_t num_cols = tensors[i].shape[0], inner_dim = tensors[i].shape[1];
        std::vector<float> expected(static_cast<size_t>(num_cols * inner_dim)), found(static_cast<size_t>(inner_dim));
        ToFloats(dtypes[i], bytes.data() + tensors[i].extent.offset_bytes, expected);
        for (int64_t col = 0; col < num_cols; ++col) {
          UnpackColumn(views[i].format, views[i].data, col, inner_dim, found.data());
          for (int64_t k = 0; k < inner_dim; ++k) {
            const float value = expected[static_cast<size_t>(col * inner_dim + k)];
            ASSERT_EQ(found[static_cast<size_t>(k)], dtype == ComputeDtype::kBF16 ? ToFloat(ToBF16(value)) : value)
                << "tensor " << i << " at odd offset " << odd;
          }
        }
      }
    }
  }
}

TEST_F(ExpertCacheTest, AllFit) {
  Prepare(8);
  Exercise(kNumLayers * kNumExperts, ComputeDtype::kF32);
}

TEST_F(ExpertCacheTest, TheLeastRecentlyUsedGoesFirst) {
  Prepare(0);
  auto cache = ExpertCache::Create(map_, ComputeDtype::kF32, 2, *reader_, pool_).value();
  const auto fetch = [&](int32_t expert) {
    const int64_t misses = cache->misses();
    const int32_t wanted[] = {expert};
    EXPECT_TRUE(cache->Begin(0, wanted).ok());
    while (!cache->NextReady().value().empty()) {
    }
    return cache->misses() > misses;
  };
  EXPECT_TRUE(fetch(0));
  EXPECT_TRUE(fetch(1));
  EXPECT_FALSE(fetch(0));  // 1 is now the oldest
  EXPECT_TRUE(fetch(2));   // takes the slot of 1
  EXPECT_FALSE(fetch(0));
  EXPECT_TRUE(fetch(1));
}

TEST_F(ExpertCacheTest, PreloadFillsTheSlots) {
  Prepare(0);
  auto cache = ExpertCache::Create(map_, ComputeDtype::kF32, 10, *reader_, pool_).value();
  ASSERT_TRUE(cache->Preload().ok());
  cache->ResetCounters();
  const int32_t wanted[] = {0, 3, 6};
  ASSERT_TRUE(cache->Begin(0, wanted).ok());
  while (!cache->NextReady().value().empty()) {
  }
  EXPECT_EQ(cache->hits(), 3);
  EXPECT_EQ(cache->misses(), 0);
}

}  // namespace
}  // namespace penstock
