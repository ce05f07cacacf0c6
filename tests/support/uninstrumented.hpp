#pragma once

// For loops over every number: with a sanitizer, they would take most of a test's time.
#ifdef __CUDACC__
  #define PAGEDKV_UNINSTRUMENTED
#else
  #define PAGEDKV_UNINSTRUMENTED __attribute__((no_sanitize("address", "undefined")))
#endif
