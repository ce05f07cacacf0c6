#pragma once

#include "comparison.hpp"

#include <iosfwd>

namespace pagedkv::replay {

/// A policy in each row, a capacity in each column; the best of a column is marked. Below, the oracle and the bound.
void print_table(const comparison& made, const options& chosen);

void write_json(std::ostream& stream, const comparison& made, const options& chosen);

}  // namespace pagedkv::replay
