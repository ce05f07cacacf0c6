/* The version of these headers, in C and in C++: docs/versions.md says what may change from one to the next. The build files
 * read it here. */
#pragma once

/* The three numbers of MAJOR.MINOR.PATCH. */
#define PAGEDKV_VERSION_MAJOR 1
#define PAGEDKV_VERSION_MINOR 0
#define PAGEDKV_VERSION_PATCH 0

/* The version as one number, to compare: 10203 is 1.2.3. */
#define PAGEDKV_VERSION (PAGEDKV_VERSION_MAJOR * 10000 + PAGEDKV_VERSION_MINOR * 100 + PAGEDKV_VERSION_PATCH)
