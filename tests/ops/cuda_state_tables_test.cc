// Proves that the tables of recurrent states name each row's state once, and each copy behind its row, however few of
// them fit into one upload.
#include "penstock/ops/cuda_state_tables.h"

#include <deque>
#include <tuple>

#include <gtest/gtest.h>

#include "penstock/ops/cuda_workspace.h"

namespace penstock {
namespace {

constexpr int64_t kParts = 7;

// Tables that stay in the host's memory.
class HostTables : public DeviceTables {
 public:
  explicit HostTables(size_t max_bytes) : max_bytes_(max_bytes) {}
  size_t max_bytes() const override { return max_bytes_; }
  const std::byte* Upload(std::span<const std::byte> bytes) override {
    EXPECT_LE(bytes.size(), max_bytes_);
    return uploads_.emplace_back(bytes.begin(), bytes.end()).data();
  }
  void Download(void*, const void*, size_t) override {}
  int64_t num_uploads() const { return std::ssize(uploads_); }

 private:
  size_t max_bytes_;
  std::deque<std::vector<std::byte>> uploads_;
};

// A row that advances a state, or (with the row behind which it is made) a copy of it; and where one of the state's
// parts lies.
using Step = std::tuple<int64_t, bool, int64_t, float*>;

// Takes a kernel's steps through the parts of the runs.
void Take(const cuda::StateRuns& runs, std::vector<Step>& steps) {
  ASSERT_EQ(runs.num_parts, kParts);
  for (int64_t run = 0; run < runs.num_runs; ++run) {
    for (int64_t row = runs.begins[run]; row < runs.begins[run + 1]; ++row) {
      for (int64_t part = 0; part < kParts; ++part) {
        steps.emplace_back(row, false, part, runs.parts[run * kParts + part]);
      }
      for (int64_t i = 0; i < runs.num_copies; ++i) {
        for (int64_t part = 0; runs.copy_rows[i] == row && part < kParts; ++part) {
          steps.emplace_back(row, true, part, runs.copy_parts[i * kParts + part]);
        }
      }
    }
  }
}

// Sequences of several lengths. Some rows have one copy or two, among them the first and the last of their sequence.
struct Rows {
  Rows() {
    const int64_t lengths[] = {1, 9, 1, 4, 17, 2};
    for (const int64_t length : lengths) {
      auto& pages = all_pages.emplace_back(1, &bytes.emplace_back());
      for (int64_t pos = 0; pos < length; ++pos) {
        batch.AddRow(0, pos, pages, static_cast<uint32_t>(all_pages.size()), {}, 0, pages);
      }
    }
    for (const int64_t row : {0, 3, 3, 9, 9, 15, 16, 20, 31, 31, 33}) {
      batch.state_copies.push_back({.row = row, .pages = {&bytes.emplace_back()}});
    }
  }

  std::deque<std::byte> bytes;
  std::deque<std::vector<std::byte*>> all_pages;
  RowBatch batch;
};

TEST(CudaStateTables, NameEachRowAndCopyOnce) {
  const Rows all;
  const std::vector<float> others = {1, 2, 3};
  const auto part_of = [](std::span<std::byte* const> pages, int64_t part) {
    return reinterpret_cast<float*>(reinterpret_cast<uintptr_t>(pages[0]) * 64 + static_cast<uintptr_t>(part));
  };
  for (const RowRange rows : {RowRange{0, all.batch.num_rows()}, RowRange{4, 20}}) {
    std::vector<Step> expected;
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      const auto add = [&](bool is_copy, std::span<std::byte* const> pages) {
        for (int64_t part = 0; part < kParts; ++part) expected.emplace_back(row, is_copy, part, part_of(pages, part));
      };
      add(false, all.batch.state_pages[static_cast<size_t>(row)]);
      for (const StateCopy& copy : all.batch.state_copies) {
        if (copy.row == row) add(true, copy.pages);
      }
    }
    const size_t least = StateTableBytes(kParts, 1, 2) + others.size() * sizeof(float);
    int64_t last_uploads = all.batch.num_rows() + 1;
    for (const size_t max_bytes : {least, least + 100, least + 300, 10 * least}) {
      HostTables tables(max_bytes);
      std::vector<Step> steps;
      ForEachStateTable(all.batch, rows, {.num_parts = kParts, .part_of = part_of, .others = others}, tables,
                        [&](const cuda::StateRuns& runs, const float* uploaded) {
                          EXPECT_EQ(std::vector(uploaded, uploaded + others.size()), others);
                          Take(runs, steps);
                        });
      EXPECT_EQ(steps, expected) << max_bytes;
      EXPECT_LE(tables.num_uploads(), last_uploads);
      last_uploads = tables.num_uploads();
    }
    EXPECT_EQ(last_uploads, 1);
  }
}

}  // namespace
}  // namespace penstock
