#pragma once

// Instrumented, the loops of tests over every number would take most of their time.
#ifdef __CUDACC__
  #define PAGEDKV_UNINSTRUMENTED
#else
  #define PAGEDKV_UNINSTRUMENTED __attribute__((no_sanitize("address", "undefined")))
#endif
