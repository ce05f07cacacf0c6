#pragma once

#include "engine.hpp"

#include <vector>

namespace llama {

class model;

/// The logits behind each token of a text that is not empty, `[token][vocabulary]`, from one pass in which attention
/// reads K and V as they are stored. Throws what the cache throws.
[[nodiscard]] std::vector<float> logits_of(model& with, std::vector<pagedkv::token> text, stored_as stored);

}  // namespace llama
