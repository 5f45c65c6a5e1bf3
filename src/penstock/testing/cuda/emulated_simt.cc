#include "penstock/kernels/cuda/simt.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include <boost/context/fiber.hpp>
#include <boost/context/pooled_fixedsize_stack.hpp>

namespace penstock::cuda::emulated {
namespace {

using boost::context::fiber;

constexpr size_t kStackBytes = 128 * 1024;
constexpr int kWarp = 32;

// A barrier at which threads wait for each other.
struct Barrier {
  int num_members = 0;  // members that have not ended
  int num_waiting = 0;
  uint64_t num_passed = 0;  // times that all members arrived

  void LetPass() {
    if (num_waiting == 0 || num_waiting < num_members) return;
    num_waiting = 0;
    ++num_passed;
  }
};

// Lanes exchange values in two buffers by turns. All lanes have read a buffer before the barrier of the next exchange
// lets them pass, so a lane that writes the same buffer again disturbs nobody.
struct WarpState {
  Barrier barrier;
  std::array<std::array<uint64_t, kWarp>, 2> values = {};
  std::array<WarpWords, 2> words = {};
};

struct Copy {
  std::byte* to;
  const std::byte* from;
};

struct Thread {
  ThreadState state;
  std::vector<Copy> copies;
  std::vector<size_t> group_ends;  // in `copies`; the group behind the last end is still open
  WarpState* warp = nullptr;
  fiber body;
  const Barrier* waits_at = nullptr;
  uint64_t num_passed = 0;  // of `waits_at` when the thread came there
  bool has_ended = false;

  bool is_waiting() const { return waits_at != nullptr && waits_at->num_passed == num_passed; }
};

struct Block {
  Barrier barrier;
  std::vector<WarpState> warps;
  std::vector<Thread> threads;
  std::vector<std::byte> shared_memory;
};

thread_local Block* current_block = nullptr;
thread_local Thread* current_thread = nullptr;
thread_local fiber scheduler;
thread_local uint64_t num_steps = 0;  // progress: barriers passed and threads ended

void WaitAt(Barrier& barrier) {
  Thread& thread = *current_thread;
  thread.waits_at = &barrier;
  thread.num_passed = barrier.num_passed;
  ++barrier.num_waiting;
  barrier.LetPass();
  if (!thread.is_waiting()) ++num_steps;
  while (thread.is_waiting()) scheduler = std::move(scheduler).resume();
}

void Leave(Barrier& barrier) {
  --barrier.num_members;
  barrier.LetPass();
}

// Threads run in another order each time, which exposes missing barriers sooner.
void RunBlock(Block& block) {
  std::vector<Thread*> order;
  for (Thread& thread : block.threads) order.push_back(&thread);
  std::minstd_rand random(block.threads[0].state.block_idx.x + 1);
  std::shuffle(order.begin(), order.end(), random);
  while (!order.empty()) {
    const uint64_t steps = num_steps;
    for (Thread* thread : order) {
      if (thread->is_waiting()) continue;
      current_thread = thread;
      thread->body = std::move(thread->body).resume();
    }
    const size_t num_left = order.size();
    std::erase_if(order, [](const Thread* thread) { return thread->has_ended; });
    if (order.size() == num_left && steps == num_steps) {
      std::fprintf(stderr, "emulated block (%u, %u): %zu threads wait at barriers that others never reach\n",
                   order[0]->state.block_idx.x, order[0]->state.block_idx.y, num_left);
      std::abort();
    }
  }
}

}  // namespace

const ThreadState& CurrentThread() { return current_thread->state; }

void BlockBarrier() { WaitAt(current_block->barrier); }
void WarpBarrier() { WaitAt(current_thread->warp->barrier); }

uint64_t Shuffle(uint64_t value, int lane) {
  WarpState& warp = *current_thread->warp;
  auto& values = warp.values[warp.barrier.num_passed % 2];
  values[LaneOfThread()] = value;
  WaitAt(warp.barrier);
  return values[lane];
}

const WarpWords& ShareWords(const std::array<uint32_t, 6>& words) {
  WarpState& warp = *current_thread->warp;
  WarpWords& all = warp.words[warp.barrier.num_passed % 2];
  all[LaneOfThread()] = words;
  WaitAt(warp.barrier);
  return all;
}

// Replaces memcpy() and memset(), which the sanitizer intercepts: only code compiled without its checks may touch
// device memory.
void CopyBytes(void* to, const void* from, size_t size) {
  auto* const target = static_cast<volatile unsigned char*>(to);
  const auto* const source = static_cast<const volatile unsigned char*>(from);
  size_t i = 0;
  if (reinterpret_cast<uintptr_t>(to) % 8 == 0 && reinterpret_cast<uintptr_t>(from) % 8 == 0) {
    for (; i + 8 <= size; i += 8) {
      *reinterpret_cast<volatile uint64_t*>(target + i) = *reinterpret_cast<const volatile uint64_t*>(source + i);
    }
  }
  for (; i < size; ++i) target[i] = source[i];
}
void FillBytes(void* data, int value, size_t size) {
  auto* const target = static_cast<volatile unsigned char*>(data);
  for (size_t i = 0; i < size; ++i) target[i] = static_cast<unsigned char>(value);
}

void AddCopy(std::byte* to, const std::byte* from) { current_thread->copies.push_back({to, from}); }
void EndCopies() { current_thread->group_ends.push_back(current_thread->copies.size()); }
void DoCopies(int max) {
  std::vector<Copy>& copies = current_thread->copies;
  std::vector<size_t>& ends = current_thread->group_ends;
  const int64_t num_done = std::ssize(ends) - max;
  if (num_done <= 0) return;
  const auto end = static_cast<int64_t>(ends[num_done - 1]);
  for (int64_t i = 0; i < end; ++i) std::memcpy(copies[i].to, copies[i].from, 16);
  copies.erase(copies.begin(), copies.begin() + end);
  ends.erase(ends.begin(), ends.begin() + num_done);
  for (size_t& later : ends) later -= static_cast<size_t>(end);
}

void RunGrid(const LaunchShape& shape, const std::function<void()>& thread) {
  static thread_local boost::context::pooled_fixedsize_stack stacks(kStackBytes);
  const size_t num_threads = shape.block.x;
  constexpr uint32_t kMaxGrid = 65535;  // along y and z
  constexpr size_t kMaxShared = size_t{227} << 10;
  if (shape.grid.y > kMaxGrid || shape.grid.z > kMaxGrid || shape.shared_bytes > kMaxShared) {
    std::fprintf(stderr, "emulated CUDA: no GPU runs a grid of %u x %u x %u with %zu bytes of shared memory\n",
                 shape.grid.x, shape.grid.y, shape.grid.z, shape.shared_bytes);
    std::abort();
  }
  for (uint32_t z = 0; z < shape.grid.z; ++z) {
    for (uint32_t y = 0; y < shape.grid.y; ++y) {
      for (uint32_t x = 0; x < shape.grid.x; ++x) {
        Block block;
        // Not zeros: an unwritten word reads as NaN or as a large number.
        block.shared_memory.assign(shape.shared_bytes + 16, std::byte{0xFF});
        std::byte* shared = block.shared_memory.data();
        shared += (16 - reinterpret_cast<uintptr_t>(shared) % 16) % 16;
        block.warps.resize((num_threads + kWarp - 1) / kWarp);
        block.threads.resize(num_threads);
        block.barrier.num_members = static_cast<int>(num_threads);
        for (size_t i = 0; i < num_threads; ++i) {
          Thread& t = block.threads[i];
          t.state = {dim3(static_cast<uint32_t>(i)), dim3(x, y, z), shape.block, shape.grid, shared};
          t.warp = &block.warps[i / kWarp];
          ++t.warp->barrier.num_members;
          t.body = fiber(std::allocator_arg, stacks, [&t, &thread](fiber&& from) {
            scheduler = std::move(from);
            thread();
            t.has_ended = true;
            ++num_steps;
            Leave(t.warp->barrier);
            Leave(current_block->barrier);
            return std::move(scheduler);
          });
        }
        current_block = &block;
        RunBlock(block);
      }
    }
  }
}

}  // namespace penstock::cuda::emulated

namespace penstock::cuda {
namespace {

constexpr size_t kRowWords = 8;  // words of inputs in a row of the left matrix, or in a column of the right one

using RowWords = std::array<uint32_t, kRowWords>;

// Multiplies the operands of all lanes. `product` adds the products of a row and a column to a sum.
template <typename Product, typename Sum>
void Multiply(Sum (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const Product& product) {
  const emulated::WarpWords& all = emulated::ShareWords({a[0], a[1], a[2], a[3], b[0], b[1]});
  const auto g = static_cast<size_t>(Lane() / 4), t = static_cast<size_t>(Lane() % 4);
  // The words of inputs in increasing order: those of the four lanes of a row, first the lower halves.
  RowWords rows[2], columns[2];
  for (size_t word = 0; word < kRowWords; ++word) {
    const size_t half = word / 4;
    for (size_t i = 0; i < 2; ++i) {
      rows[i][word] = all[4 * g + word % 4][2 * half + i];
      columns[i][word] = all[4 * (2 * t + i) + word % 4][4 + half];
    }
  }
  for (size_t i = 0; i < 4; ++i) d[i] = product(d[i], rows[i / 2], columns[i % 2]);
}

}  // namespace

void MultiplyCodes(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  Multiply(d, a, b, [](int32_t sum, const RowWords& row, const RowWords& column) {
    const auto x = std::bit_cast<std::array<uint8_t, 4 * kRowWords>>(row);
    const auto y = std::bit_cast<std::array<int8_t, 4 * kRowWords>>(column);
    for (size_t i = 0; i < x.size(); ++i) sum += x[i] * y[i];
    return sum;
  });
}

// Computes in f32 with one rounding for each product; the hardware's order is not documented.
void MultiplyBf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  Multiply(d, a, b, [](float sum, const RowWords& row, const RowWords& column) {
    for (size_t i = 0; i < kRowWords; ++i) {
      sum = std::fma(__uint_as_float(row[i] << 16), __uint_as_float(column[i] << 16), sum);
      sum = std::fma(__uint_as_float(row[i] & 0xFFFF0000u), __uint_as_float(column[i] & 0xFFFF0000u), sum);
    }
    return sum;
  });
}

}  // namespace penstock::cuda
