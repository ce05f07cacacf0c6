#pragma once

#include <pagedkv/core/result.hpp>

#include <catch2/catch_tostring.hpp>

#include <string>

/// Lets a failed `CHECK(result)` say which error the result holds; Boost's own printing wants printable values.
template <class T>
struct Catch::StringMaker<pagedkv::result<T>> {
  static std::string convert(const pagedkv::result<T>& outcome) {
    return outcome ? "a value" : outcome.error().message();
  }
};
