#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

#include "cuda_runtime_api.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

namespace penstock::cuda::emulated {
// Access to device memory, which is poisoned here (emulated_simt.cc).
void CopyBytes(void* to, const void* from, size_t size);
void FillBytes(void* data, int value, size_t size);
}  // namespace penstock::cuda::emulated

namespace {

using Lock = std::unique_lock<std::mutex>;
using SteadyClock = std::chrono::steady_clock;

constexpr size_t kAlignment = 256;

struct State {
  std::mutex mutex;
  std::condition_variable changed;            // notified when an event completes or a stream gets work
  std::map<const std::byte*, size_t> device;  // allocations
  std::map<const std::byte*, size_t> locked;
  penstock::cuda::emulated::Machine machine;
  cudaError_t sticky = cudaSuccess;  // the first error on the device
};
State& TheState() {
  static State state;
  return state;
}

thread_local cudaError_t last_error = cudaSuccess;

cudaError_t Return(cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
  return error;
}
cudaError_t StickyOr(cudaError_t error) {
  State& state = TheState();
  const Lock lock(state.mutex);
  return Return(state.sticky != cudaSuccess ? state.sticky : error);
}

// REQUIRES: the caller holds the mutex.
bool IsIn(const std::map<const std::byte*, size_t>& ranges, const void* data, size_t size) {
  const auto* const begin = static_cast<const std::byte*>(data);
  auto range = ranges.upper_bound(begin);
  if (range == ranges.begin()) return false;
  --range;
  return begin + size <= range->first + range->second;
}

void Poison([[maybe_unused]] void* data, [[maybe_unused]] size_t size) {
#ifdef __SANITIZE_ADDRESS__
  ASAN_POISON_MEMORY_REGION(data, size);
#endif
}
void Unpoison([[maybe_unused]] void* data, [[maybe_unused]] size_t size) {
#ifdef __SANITIZE_ADDRESS__
  ASAN_UNPOISON_MEMORY_REGION(data, size);
#endif
}

}  // namespace

// One recording of an event; an event may be recorded again.
struct Record {
  bool has_happened = false;
  SteadyClock::time_point at;
};
struct CUevent_st {
  std::shared_ptr<Record> record = std::make_shared<Record>(Record{.has_happened = true, .at = {}});
};

struct CUstream_st {
  std::deque<std::function<void()>> queue;  // guarded by the state's mutex, like all members
  bool is_working = false;
  bool stop = false;
  std::thread thread{[this] { Work(); }};

  void Work() {
    State& state = TheState();
    Lock lock(state.mutex);
    for (;;) {
      state.changed.wait(lock, [&] { return stop || !queue.empty(); });
      if (queue.empty()) return;
      const std::function<void()> work = std::move(queue.front());
      queue.pop_front();
      is_working = true;
      lock.unlock();
      work();
      lock.lock();
      is_working = false;
      state.changed.notify_all();
    }
  }
};

namespace penstock::cuda::emulated {

Machine& TheMachine() { return TheState().machine; }

void Reset() {
  State& state = TheState();
  const Lock lock(state.mutex);
  state.machine = Machine();
  state.sticky = cudaSuccess;
}

void Enqueue(cudaStream_t stream, std::function<void()> work) {
  if (stream == nullptr) return work();
  State& state = TheState();
  const Lock lock(state.mutex);
  // After an error on the device, all later work fails.
  stream->queue.push_back([&state, work = std::move(work)] {
    {
      const Lock sticky_lock(state.mutex);
      if (state.sticky != cudaSuccess) return;
    }
    work();
  });
  state.changed.notify_all();
}

}  // namespace penstock::cuda::emulated

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorNoDevice: return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
    case cudaErrorIllegalAddress: return "cudaErrorIllegalAddress";
    default: return "cudaErrorUnknown";
  }
}
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorIllegalAddress: return "an illegal memory access was encountered";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    default: return "emulated error";
  }
}
cudaError_t cudaGetLastError() {
  const cudaError_t error = StickyOr(std::exchange(last_error, cudaSuccess));
  if (error != cudaSuccess) last_error = cudaSuccess;
  return error;
}
cudaError_t cudaPeekAtLastError() { return last_error; }

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) { return Return(device == 0 ? cudaSuccess : cudaErrorInvalidDevice); }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device != 0) return Return(cudaErrorInvalidDevice);
  *properties = {.name = "emulated GPU",
                 .totalGlobalMem = TheState().machine.memory_bytes,
                 .sharedMemPerBlockOptin = TheState().machine.shared_bytes,
                 .multiProcessorCount = 2,
                 .major = 9,
                 .minor = 0};
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 1;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  State& state = TheState();
  const Lock lock(state.mutex);
  *total = state.machine.memory_bytes;
  *free = *total - state.machine.used_bytes;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** data, size_t size) {
  State& state = TheState();
  const Lock lock(state.mutex);
  penstock::cuda::emulated::Machine& machine = state.machine;
  if (size > machine.memory_bytes - machine.used_bytes) return Return(cudaErrorMemoryAllocation);
  machine.used_bytes += size;
  machine.max_used_bytes = std::max(machine.max_used_bytes, machine.used_bytes);
  const size_t rounded = (size + kAlignment - 1) / kAlignment * kAlignment;
  *data = ::operator new (rounded, std::align_val_t{kAlignment});
  std::memset(*data, 0xFF, rounded);  // NaN
  Poison(*data, rounded);
  state.device[static_cast<std::byte*>(*data)] = size;
  return cudaSuccess;
}
cudaError_t cudaFree(void* data) {
  cudaDeviceSynchronize();
  State& state = TheState();
  const Lock lock(state.mutex);
  const auto found = state.device.find(static_cast<std::byte*>(data));
  if (found == state.device.end()) return Return(cudaErrorInvalidValue);
  state.machine.used_bytes -= found->second;
  Unpoison(data, (found->second + kAlignment - 1) / kAlignment * kAlignment);
  state.device.erase(found);
  ::operator delete (data, std::align_val_t{kAlignment});
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void* data, size_t size, unsigned) {
  State& state = TheState();
  const Lock lock(state.mutex);
  if (state.machine.refuses_page_locking) return Return(cudaErrorMemoryAllocation);
  state.locked[static_cast<std::byte*>(data)] = size;
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* data) {
  State& state = TheState();
  const Lock lock(state.mutex);
  return Return(state.locked.erase(static_cast<std::byte*>(data)) == 1 ? cudaSuccess : cudaErrorInvalidValue);
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* data) {
  State& state = TheState();
  const Lock lock(state.mutex);
  attributes->type = IsIn(state.device, data, 1)   ? cudaMemoryTypeDevice
                     : IsIn(state.locked, data, 1) ? cudaMemoryTypeHost
                                                   : cudaMemoryTypeUnregistered;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new CUstream_st;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  {
    const Lock lock(TheState().mutex);
    stream->stop = true;
  }
  TheState().changed.notify_all();
  stream->thread.join();
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  State& state = TheState();
  Lock lock(state.mutex);
  ++state.machine.num_synchronisations;
  if (stream != nullptr) state.changed.wait(lock, [&] { return stream->queue.empty() && !stream->is_working; });
  return Return(state.sticky);
}
// This does not wait for the streams, so kernels that still use freed memory are caught as errors.
cudaError_t cudaDeviceSynchronize() { return StickyOr(cudaSuccess); }
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  State& state = TheState();
  const Lock lock(state.mutex);
  stream->queue.push_back([&state, record = event->record] {
    Lock waiting(state.mutex);
    state.changed.wait(waiting, [&] { return record->has_happened; });
  });
  state.changed.notify_all();
  return Return(state.sticky);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  State& state = TheState();
  const Lock lock(state.mutex);
  event->record = std::make_shared<Record>();
  const auto happen = [&state, record = event->record] {
    const Lock happening(state.mutex);
    record->has_happened = true;
    record->at = SteadyClock::now();
    state.changed.notify_all();
  };
  stream->queue.push_back(happen);
  state.changed.notify_all();
  return Return(state.sticky);
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  State& state = TheState();
  const Lock lock(state.mutex);
  if (state.sticky != cudaSuccess) return Return(state.sticky);
  return event->record->has_happened ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  State& state = TheState();
  Lock lock(state.mutex);
  state.changed.wait(lock, [&] { return event->record->has_happened; });
  return Return(state.sticky);
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  State& state = TheState();
  const Lock lock(state.mutex);
  *milliseconds = std::chrono::duration<float, std::milli>(end->record->at - begin->record->at).count();
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind kind, cudaStream_t stream) {
  State& state = TheState();
  {
    const Lock lock(state.mutex);
    if (state.sticky != cudaSuccess) return Return(state.sticky);
    const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (size > 0 && (IsIn(state.device, to, size) != to_device || IsIn(state.device, from, size) != from_device)) {
      std::fprintf(stderr, "emulated cudaMemcpyAsync: a pointer is not where its kind %d says\n", kind);
      std::abort();
    }
    if (stream != nullptr && !(to_device && from_device) && !IsIn(state.locked, to_device ? from : to, size)) {
      ++state.machine.num_pageable_copies;
    }
    if (++state.machine.num_copies == state.machine.fails_at_copy) {
      // As on a device, an asynchronous call succeeds, and the work that it started fails.
      if (stream == nullptr) return Return(state.sticky = cudaErrorIllegalAddress);
      stream->queue.push_back([&state] {
        const Lock failing(state.mutex);
        state.sticky = cudaErrorIllegalAddress;
      });
      state.changed.notify_all();
      return cudaSuccess;
    }
  }
  penstock::cuda::emulated::Enqueue(stream, [=] { penstock::cuda::emulated::CopyBytes(to, from, size); });
  return cudaSuccess;
}
cudaError_t cudaMemcpyBatchAsync(void* const* to, const void* const* from, const size_t* sizes, size_t count,
                                 cudaMemcpyAttributes* attributes, size_t* firsts, size_t num_attributes,
                                 cudaStream_t stream) {
  if (stream == nullptr || count == 0 || num_attributes != 1 || firsts[0] != 0 ||
      attributes[0].srcAccessOrder == cudaMemcpySrcAccessOrderInvalid) {
    return Return(cudaErrorInvalidValue);
  }
  for (size_t i = 0; i < count; ++i) {
    cudaPointerAttributes target = {};
    (void)cudaPointerGetAttributes(&target, to[i]);
    const cudaMemcpyKind kind = target.type == cudaMemoryTypeDevice ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost;
    if (sizes[i] == 0) return Return(cudaErrorInvalidValue);
    const cudaError_t error = cudaMemcpyAsync(to[i], from[i], sizes[i], kind, stream);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind kind) {
  return cudaMemcpyAsync(to, from, size, kind, nullptr);
}
cudaError_t cudaMemset(void* data, int value, size_t size) {
  penstock::cuda::emulated::FillBytes(data, value, size);
  return cudaSuccess;
}
