#pragma once

#include "../tier/temporary_folder.hpp"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>

namespace pagedkv::test {

/// The contents of all files in a folder, by name.
[[nodiscard]] inline std::map<std::string, std::string> files_in(const testing::temporary_folder& folder) {
  auto contents = std::map<std::string, std::string>{};
  for (const auto& entry : std::filesystem::directory_iterator{folder.file("")}) {
    auto file = std::ifstream{entry.path(), std::ios::binary};
    contents[entry.path().filename()] = {std::istreambuf_iterator<char>{file}, {}};
  }
  return contents;
}

}  // namespace pagedkv::test
