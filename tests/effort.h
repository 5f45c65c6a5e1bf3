// How many alike cases a test tries. Sanitized code takes 3 to 20 times as long, and `make check` also runs every test
// optimised. So tests that try many alike cases try a part of them under sanitizers; memory faults show in few.
#pragma once

namespace penstock {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// Returns how many of `num_cases` a test tries.
constexpr int NumTried(int num_cases) { return kSanitized ? (num_cases + 3) / 4 : num_cases; }

}  // namespace penstock
