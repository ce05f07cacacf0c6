#pragma once

#include "comparison.hpp"

#include <stdexcept>
#include <string>

namespace pagedkv::replay {

/// The reason why there is no plot; the comparison itself is not affected.
class plot_error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Hit ratio against capacity, a line for each policy and one for the optimum, drawn by gnuplot from PREFIX.gnuplot to
/// PREFIX.svg and PREFIX.png. Throws `plot_error`.
void draw_plot(const comparison& made, const std::string& trace_name, const std::string& prefix);

}  // namespace pagedkv::replay
