// Proves that a lease's weights are the bytes of the file, whatever was evicted before. Each eviction policy keeps its
// promise: LRU, LFU and FIFO are checked against plain models, static against its pinned set. A slot is not written
// before its last use has ended. Failed reads and wrong checksums fail only their own expert and are tried again. Odd
// offsets and dtype conversions work.
#include "penstock/memory/expert_store.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <random>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <unistd.h>
#include <xxhash.h>

#include "penstock/base/status.h"
#include "penstock/runtime/real_runtime.h"

namespace penstock {
namespace {

constexpr int kNumLayers = 3;
constexpr int kNumExperts = 7;
constexpr int64_t kCols = 50,
                  kInnerDim = 61;  // a last panel that is not full, a last input without partner
constexpr uint64_t kElements = kCols * kInnerDim;

class ExpertStoreTest : public testing::Test {
 protected:
  // Writes a file of f32 tensors, `odd` bytes off alignment, and the map that finds them.
  void Prepare(uint64_t odd) {
    std::mt19937 random(3);
    const uint64_t num_tensors = kNumLayers * kNumExperts * 3;
    values_.resize(num_tensors * kElements);
    for (float& value : values_) value = static_cast<float>(static_cast<int>(random() % 2001) - 1000) / 256;
    rounded_ = values_;
    for (float& value : rounded_) value = ToFloat(ToBF16(value));
    const std::string path = testing::TempDir() + "/expert-store-" + std::to_string(::getpid());
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
        TensorInfo* first = &tensors_[(layer * kNumExperts + expert) * 3];
        map_.layers[layer].experts.push_back({{.gate_proj = first, .up_proj = first + 2, .down_proj = first + 1}});
      }
    }
  }

  std::unique_ptr<ExpertStore> MakeStore(ComputeDtype dtype, int64_t num_slots, Eviction eviction,
                                         ExpertSet pinned = {}) {
    layouts_.emplace(map_, files_, dtype);
    runtime_ = std::make_unique<RealRuntime>();
    compute_lane_ = runtime_->AddIssuerLane("compute");
    const LaneIdx disk_lane = runtime_->AddDiskLane("disk", DiskReader::Create(files_, {}).value());
    return ExpertStore::Create({.layouts = *layouts_,
                                .runtime = *runtime_,
                                .source = std::make_unique<DiskSource>(*layouts_, *runtime_, disk_lane),
                                .memory = &HostMemory(),
                                .num_slots = num_slots,
                                .eviction = eviction,
                                .pinned = std::move(pinned),
                                .num_workers = 2})
        .value();
  }

  // Issues a task that finishes an expert and compares its weights with the file.
  Event Check(ExpertStore& store, const ExpertLease& lease, ComputeDtype dtype) {
    return runtime_->Issue(
        {.lane = compute_lane_, .after = {lease.arrived()}, .body = [&, dtype, place = lease.place()] {
           PENSTOCK_RETURN_IF_ERROR(store.Finish({&place, 1}, pool_)[0]);
           const FfnTensors& tensors =
               map_.layers[layouts_->layer_of(place.key)].experts[layouts_->expert_idx_of(place.key)];
           const FfnWeights weights = store.Weights(place);
           CheckTensor(weights.gate_proj, *tensors.gate_proj, dtype);
           CheckTensor(weights.up_proj, *tensors.up_proj, dtype);
           CheckTensor(weights.down_proj, *tensors.down_proj, dtype);
           return absl::OkStatus();
         }});
  }

  // Returns whether the expert had to be read.
  bool Use(ExpertStore& store, int64_t idx) {
    const int64_t misses = store.counters().misses;
    auto lease = store.Acquire(ExpertKey{idx}, FetchReason::kWanted);
    EXPECT_TRUE(lease.has_value());
    const Event done = Check(store, *lease, ComputeDtype::kF32);
    EXPECT_TRUE(runtime_->Wait(done).ok());
    lease->Release(done);
    return store.counters().misses > misses;
  }

  void CheckTensor(const WeightView& view, const TensorInfo& tensor, ComputeDtype dtype) {
    const float* expected = (dtype == ComputeDtype::kBF16 ? rounded_ : values_).data() +
                            static_cast<size_t>(&tensor - tensors_.data()) * kElements;
    ASSERT_EQ(view.format, dtype == ComputeDtype::kBF16 ? WeightFormat::kBF16 : WeightFormat::kF32);
    ASSERT_EQ(reinterpret_cast<uintptr_t>(view.data) % 64, 0u);
    std::vector<float> found(kElements);
    for (int64_t col = 0; col < kCols; ++col) {
      UnpackColumn(view.format, view.data, col, kInnerDim, found.data() + col * kInnerDim);
    }
    ASSERT_EQ(std::memcmp(found.data(), expected, kElements * sizeof(float)), 0);
  }

  // Leases random experts, several at a time, and issues their checks long before they run.
  void Exercise(int64_t num_slots, ComputeDtype dtype, Eviction eviction) {
    auto store = MakeStore(dtype, num_slots, eviction, PinEvenly(ExpertLayouts(map_, files_, dtype), num_slots / 2));
    std::mt19937 random(static_cast<unsigned>(num_slots));
    std::vector<ExpertLease> held;
    std::vector<Event> checks;
    int num_refused = 0;
    for (int round = 0; round < 1000; ++round) {
      const auto reason = random() % 4 == 0 ? FetchReason::kPredicted : FetchReason::kWanted;
      auto lease = store->Acquire(ExpertKey{static_cast<int64_t>(random() % (kNumLayers * kNumExperts))}, reason);
      if (lease.has_value()) {
        held.push_back(std::move(*lease));
      } else {
        ++num_refused;
      }
      while (!held.empty() && (!lease.has_value() || random() % 2 == 0)) {
        const size_t i = random() % held.size();
        std::swap(held[i], held.back());
        if (random() % 8 > 0) {
          checks.push_back(Check(*store, held.back(), dtype));
          held.back().Release(checks.back());
        }
        held.pop_back();  // or without a use
      }
      if (random() % 30 == 0 && !checks.empty()) {
        EXPECT_TRUE(runtime_->Wait(checks[random() % checks.size()]).ok());
      }
    }
    held.clear();
    EXPECT_TRUE(runtime_->WaitAll(checks).ok());
    EXPECT_EQ(num_refused > 0, num_slots < kNumLayers * kNumExperts) << num_refused;
    const ExpertCounters& counters = store->counters();
    EXPECT_GT(counters.hits, 0);
    EXPECT_EQ(counters.bytes_read, static_cast<uint64_t>(counters.misses + counters.prefetched) * 3 * kElements * 4);
    EXPECT_LE(counters.prefetch_used, counters.prefetched);
  }

  std::vector<float> values_, rounded_;  // rounded_: as the store holds them as bf16
  std::vector<OpenedFile> files_;
  std::vector<TensorInfo> tensors_;
  WeightMap map_;
  ThreadPool pool_{2};
  std::optional<ExpertLayouts> layouts_;
  std::unique_ptr<RealRuntime> runtime_;
  LaneIdx compute_lane_ = 0;
};

TEST_F(ExpertStoreTest, OneSlot) {
  Prepare(0);
  Exercise(1, ComputeDtype::kF32, Eviction::kLru);
}

TEST_F(ExpertStoreTest, FewSlotsAtOddOffsets) {
  Prepare(3);
  for (const EvictionTraits& eviction : Evictions()) Exercise(4, ComputeDtype::kF32, eviction.value);
}

TEST_F(ExpertStoreTest, RoundedToBf16AtOddOffsets) {
  Prepare(1);
  for (const EvictionTraits& eviction : Evictions()) Exercise(7, ComputeDtype::kBF16, eviction.value);
}

TEST_F(ExpertStoreTest, AllFit) {
  Prepare(8);
  Exercise(kNumLayers * kNumExperts, ComputeDtype::kF32, Eviction::kLru);
}

// Packs matrices of different types and shapes side by side at any offset. Panels larger or smaller than their stored
// rows must not reach rows that are still to be packed.
TEST_F(ExpertStoreTest, MixedTypesAtAnyOffset) {
  constexpr int64_t kFfn = 45, kModel = 33;
  for (uint64_t odd = 0; odd < 4; ++odd) {
    for (const ComputeDtype dtype : {ComputeDtype::kF32, ComputeDtype::kBF16}) {
      const std::string path = testing::TempDir() + "/expert-store-mixed-" + std::to_string(::getpid());
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
      map.layers[0].experts.push_back({{.gate_proj = &tensors[0], .up_proj = &tensors[1], .down_proj = &tensors[2]}});
      const ExpertLayouts layouts(map, files, dtype);
      RealRuntime runtime;
      const LaneIdx disk_lane = runtime.AddDiskLane("disk", DiskReader::Create(files, {}).value());
      const auto store = ExpertStore::Create({.layouts = layouts,
                                              .runtime = runtime,
                                              .source = std::make_unique<DiskSource>(layouts, runtime, disk_lane),
                                              .memory = &HostMemory(),
                                              .num_slots = 1})
                             .value();
      const auto lease = store->Acquire(ExpertKey{0}, FetchReason::kWanted);
      ASSERT_TRUE(runtime.Wait(lease->arrived()).ok());
      ThreadPool one_thread(1);
      ASSERT_TRUE(store->Finish({&lease->place(), 1}, one_thread)[0].ok());
      const FfnWeights weights = store->Weights(lease->place());
      const WeightView views[] = {weights.gate_proj, weights.up_proj, weights.down_proj};
      for (size_t i = 0; i < 3; ++i) {
        const int64_t num_cols = tensors[i].shape[0], inner_dim = tensors[i].shape[1];
        std::vector<float> expected(num_cols * inner_dim), found(static_cast<size_t>(inner_dim));
        ToFloats(dtypes[i], bytes.data() + tensors[i].extent.offset_bytes, expected);
        for (int64_t col = 0; col < num_cols; ++col) {
          UnpackColumn(views[i].format, views[i].data, col, inner_dim, found.data());
          for (int64_t k = 0; k < inner_dim; ++k) {
            const float value = expected[col * inner_dim + k];
            ASSERT_EQ(found[k], dtype == ComputeDtype::kBF16 ? ToFloat(ToBF16(value)) : value)
                << "tensor " << i << " at odd offset " << odd;
          }
        }
      }
    }
  }
}

TEST_F(ExpertStoreTest, LruLetsTheLeastRecentlyUsedGo) {
  Prepare(0);
  auto store = MakeStore(ComputeDtype::kF32, 2, Eviction::kLru);
  EXPECT_TRUE(Use(*store, 0));
  EXPECT_TRUE(Use(*store, 1));
  EXPECT_FALSE(Use(*store, 0));  // 1 is now the oldest
  EXPECT_TRUE(Use(*store, 2));   // takes the slot of 1
  EXPECT_FALSE(Use(*store, 0));
  EXPECT_TRUE(Use(*store, 1));
}

TEST_F(ExpertStoreTest, PinnedExpertsNeverLeave) {
  Prepare(0);
  constexpr int kNumKeys = kNumLayers * kNumExperts;
  const ExpertSet pinned = PinEvenly(ExpertLayouts(map_, files_, ComputeDtype::kF32), 6);
  ASSERT_EQ(std::count(pinned.begin(), pinned.end(), true), 6);
  for (int layer = 0; layer < kNumLayers; ++layer) {
    EXPECT_EQ(std::count(pinned.begin() + layer * kNumExperts, pinned.begin() + (layer + 1) * kNumExperts, true), 2);
  }
  auto store = MakeStore(ComputeDtype::kF32, 8, Eviction::kStatic, pinned);
  EXPECT_EQ(store->num_streaming_slots(), 2);
  // A cyclic scan, in which an LRU cache of 8 slots would hit nothing.
  for (int round = 0; round < 4; ++round) {
    for (int key = 0; key < kNumKeys; ++key) {
      EXPECT_EQ(Use(*store, key), round == 0 || !pinned[ExpertKey{key}]) << key;
    }
  }
}

TEST_F(ExpertStoreTest, WholeLayersArePinnedFromTheFirstOn) {
  Prepare(0);
  const ExpertLayouts layouts(map_, files_, ComputeDtype::kF32);
  const ExpertSet first = PinFirst(layouts, kNumExperts + 1), next = PinFirst(layouts, 2, first);
  for (int key = 0; key < kNumLayers * kNumExperts; ++key) {
    EXPECT_EQ(first[ExpertKey{key}], key <= kNumExperts) << key;
    EXPECT_EQ(next[ExpertKey{key}], key == kNumExperts + 1 || key == kNumExperts + 2) << key;
  }
}

TEST_F(ExpertStoreTest, PreloadFillsTheSlots) {
  Prepare(0);
  auto store = MakeStore(ComputeDtype::kF32, 10, Eviction::kLru);
  ASSERT_TRUE(store->Preload(&pool_).ok());
  store->ResetCounters();
  for (const int64_t key : {0, 3, 6, 9}) EXPECT_FALSE(Use(*store, key));
  EXPECT_EQ(store->counters().hits, 4);
}

TEST_F(ExpertStoreTest, AFailedReadIsTheExpertsAloneAndTriedAgain) {
  Prepare(0);
  const uint64_t full_bytes = files_[0].size_bytes;
  files_[0].fd = UniqueFd(::open(("/proc/self/fd/" + std::to_string(files_[0].fd.get())).c_str(), O_RDWR));
  auto store = MakeStore(ComputeDtype::kF32, 4, Eviction::kLru);
  ASSERT_EQ(::ftruncate(files_[0].fd.get(), static_cast<off_t>(full_bytes - 4096)), 0);
  constexpr int64_t kLast = kNumLayers * kNumExperts - 1;
  {
    const auto lease = store->Acquire(ExpertKey{kLast}, FetchReason::kWanted);
    EXPECT_EQ(FaultOf(runtime_->Wait(lease->arrived())), Fault::kIo);
  }
  EXPECT_TRUE(Use(*store, 0));
  // Makes the file whole again.
  ASSERT_EQ(::pwrite(files_[0].fd.get(), reinterpret_cast<const char*>(values_.data()) + (full_bytes - 4096), 4096,
                     static_cast<off_t>(full_bytes - 4096)),
            4096);
  EXPECT_TRUE(Use(*store, kLast));
  EXPECT_FALSE(Use(*store, kLast));
}

TEST_F(ExpertStoreTest, AWrongChecksumIsReadAgainOnce) {
  Prepare(0);
  // Only packed stores have checksums; their tensors are panels.
  for (TensorInfo& tensor : tensors_) {
    tensor.packed = WeightFormat::kF32;
    tensor.shape = {32, 95};
    tensor.extent.size_bytes = PackedBytes(WeightFormat::kF32, 32, 95);
    tensor.xxh3 = XXH3_64bits(reinterpret_cast<const char*>(values_.data()) + tensor.extent.offset_bytes,
                              tensor.extent.size_bytes);
  }
  auto store = MakeStore(ComputeDtype::kF32, 4, Eviction::kLru);
  auto lease = store->Acquire(ExpertKey{5}, FetchReason::kWanted);
  ASSERT_TRUE(runtime_->Wait(lease->arrived()).ok());
  // A bit flips on the way, so the second read is right.
  const_cast<std::byte*>(store->Weights(lease->place()).up_proj.data)[100] ^= std::byte{4};
  EXPECT_TRUE(store->Finish({&lease->place(), 1}, pool_)[0].ok());
  lease->Release({});
  // The checksum itself is wrong, so the second read fails, too. Other experts are not harmed.
  *tensors_[6 * 3].xxh3 ^= 1;
  ExpertLease bad = *store->Acquire(ExpertKey{6}, FetchReason::kWanted),
              good = *store->Acquire(ExpertKey{7}, FetchReason::kWanted);
  ASSERT_TRUE(runtime_->Wait(bad.arrived()).ok() && runtime_->Wait(good.arrived()).ok());
  const ExpertPlace places[] = {bad.place(), good.place()};
  const std::vector<absl::Status> statuses = store->Finish(places, pool_);
  EXPECT_EQ(FaultOf(statuses[0]), Fault::kModel);
  EXPECT_TRUE(statuses[1].ok());
  bad.Release({});
  // The expert does not count as resident.
  const int64_t misses = store->counters().misses;
  bad = *store->Acquire(ExpertKey{6}, FetchReason::kWanted);
  EXPECT_EQ(store->counters().misses, misses + 1);
  *tensors_[6 * 3].xxh3 ^= 1;
  ASSERT_TRUE(runtime_->Wait(bad.arrived()).ok());
  EXPECT_TRUE(store->Finish({&bad.place(), 1}, pool_)[0].ok());
}

}  // namespace
}  // namespace penstock
