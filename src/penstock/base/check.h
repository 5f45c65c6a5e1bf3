// Checks of our own invariants. They are always on and end the process with file and line. Mistakes in files or in user
// input are statuses (status.h) instead.
#pragma once

#include <cstdio>
#include <cstdlib>

#define PENSTOCK_CHECK(cond)                                                                 \
  do {                                                                                       \
    if (!(cond)) [[unlikely]] {                                                              \
      std::fprintf(stderr, "%s:%d: internal check failed: %s\n", __FILE__, __LINE__, #cond); \
      std::abort();                                                                          \
    }                                                                                        \
  } while (false)

#ifndef NDEBUG
#define PENSTOCK_DCHECK(cond) PENSTOCK_CHECK(cond)
#else
#define PENSTOCK_DCHECK(cond) \
  do {                        \
    (void)sizeof(cond);       \
  } while (false)
#endif
