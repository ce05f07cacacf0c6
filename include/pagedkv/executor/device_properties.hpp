#pragma once

#include <cstddef>
#include <string>

namespace pagedkv::runtime {

struct device_properties {
  std::string name;
  std::size_t memory_bytes = 0;
  int wave_size = 0;
  int num_processors = 0;  // each runs workgroups of its own
  std::size_t shared_bytes_per_workgroup = 0;
  int max_workgroup_size = 0;
};

}  // namespace pagedkv::runtime
