// A library that is loaded before all others (LD_PRELOAD) and makes system calls fail as FAULT_SHIM says:
// "eio=0.01,short=0.2,transient=0.2,thread=3,seed=1". A number below 1 is the probability that a call fails.
//
//   eio        a read of a file (pread, io_uring) ends with EIO
//   short      such a read gives only a part of its bytes
//   transient  io_uring_submit and waiting for io_uring end with EINTR, EAGAIN or EBUSY; a read with EINTR or EAGAIN
//   thread     the threads from this number on cannot be started (EAGAIN)
#include <dlfcn.h>
#include <liburing.h>
#include <pthread.h>
#include <sys/types.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace {

struct Faults {
  double eio = 0, is_short = 0, transient = 0;
  long thread = 0;
  uint64_t seed = 0;
};

const Faults& FaultsAsked() {
  static const Faults faults = [] {
    Faults asked;
    const char* text = std::getenv("FAULT_SHIM");
    const auto number = [&](const char* name) {
      const char* found = text == nullptr ? nullptr : std::strstr(text, name);
      return found == nullptr ? 0.0 : std::strtod(found + std::strlen(name), nullptr);
    };
    asked.eio = number("eio=");
    asked.is_short = number("short=");
    asked.transient = number("transient=");
    asked.thread = static_cast<long>(number("thread="));
    asked.seed = static_cast<uint64_t>(number("seed="));
    return asked;
  }();
  return faults;
}

// Returns true with the given probability; the sequence depends on the seed.
bool Happens(double probability) {
  static std::atomic<uint64_t> counter{0};
  if (probability <= 0) return false;
  uint64_t x = (FaultsAsked().seed << 32) + counter.fetch_add(1) * 0x9E3779B97F4A7C15;
  x ^= x >> 31;
  x *= 0xBF58476D1CE4E5B9;
  x ^= x >> 29;
  return static_cast<double>(x >> 11) * 0x1p-53 < probability;
}

int AnyTransient() {
  constexpr int kErrors[] = {EINTR, EAGAIN, EBUSY};
  return kErrors[Happens(0.5) ? 0 : Happens(0.5) ? 1 : 2];
}

template <typename Function>
Function Next(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

ssize_t pread(int fd, void* data, size_t size, off_t offset) {
  static const auto next = Next<ssize_t (*)(int, void*, size_t, off_t)>("pread");
  const Faults& faults = FaultsAsked();
  if (Happens(faults.transient)) return errno = EINTR, -1;
  if (Happens(faults.eio)) return errno = EIO, -1;
  // O_DIRECT wants whole blocks.
  constexpr size_t kBlock = 4096;
  if (size > 2 * kBlock && Happens(faults.is_short)) size = size / 2 / kBlock * kBlock;
  return next(fd, data, size, offset);
}

int io_uring_submit(io_uring* ring) {
  static const auto next = Next<int (*)(io_uring*)>("io_uring_submit");
  return Happens(FaultsAsked().transient) ? -AnyTransient() : next(ring);
}

// io_uring_wait_cqe() calls this.
int __io_uring_get_cqe(io_uring* ring, io_uring_cqe** cqe, unsigned submit, unsigned wait_nr, sigset_t* mask) {
  static const auto next =
      Next<int (*)(io_uring*, io_uring_cqe**, unsigned, unsigned, sigset_t*)>("__io_uring_get_cqe");
  const Faults& faults = FaultsAsked();
  if (Happens(faults.transient)) return -EINTR;
  const int error = next(ring, cqe, submit, wait_nr, mask);
  // Reads of eight bytes wake the reader.
  if (error != 0 || *cqe == nullptr || (*cqe)->res <= 8) return error;
  if (Happens(faults.eio)) {
    (*cqe)->res = -EIO;
  } else if (Happens(faults.transient)) {
    (*cqe)->res = Happens(0.5) ? -EAGAIN : -EINTR;
  } else if ((*cqe)->res > 8192 && Happens(faults.is_short)) {
    (*cqe)->res = (*cqe)->res / 2 / 4096 * 4096;
  }
  return error;
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*), void* argument) {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto next = Next<Create>("pthread_create");
  static std::atomic<long> count{0};
  const long number = ++count;
  if (FaultsAsked().thread > 0 && number >= FaultsAsked().thread) return EAGAIN;
  return next(thread, attributes, run, argument);
}

}  // extern "C"
