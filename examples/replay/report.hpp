#pragma once

#include "replay.hpp"

#include <iosfwd>

namespace pagedkv::replay {

void print_table(const outcome& found, const workload& work, const options& chosen);

void write_json(std::ostream& stream, const outcome& found, const workload& work, const options& chosen);

}  // namespace pagedkv::replay
