#pragma once

#include "engine.hpp"

#include <pagedkv/attention/attention.hpp>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <system_error>

namespace llama {

/// A check of an option. The library's own take `nan` for a number of any range.
[[nodiscard]] inline CLI::Validator finite_number(bool may_be_zero) {
  const auto check = [may_be_zero](const std::string& text) {
    auto number = 0.0F;
    const auto* const end = text.data() + text.size();
    const auto read = std::from_chars(text.data(), end, number);
    const bool is_number = read.ec == std::errc{} && read.ptr == end && std::isfinite(number);
    const auto* const wanted = may_be_zero ? " is not a number from 0 on" : " is not a number above 0";
    return is_number && (number > 0 || (may_be_zero && number == 0)) ? std::string{} : text + wanted;
  };
  return CLI::Validator(check, "NUMBER");
}

/// The options of an engine's sizes.
inline void add_sizes_to(CLI::App& app, engine_sizes& sizes) {
  constexpr auto most = std::numeric_limits<std::int32_t>::max();
  app.add_option("--block-size", sizes.block_size, "tokens in a block")
      ->check(CLI::Range(1, most))
      ->capture_default_str();
  app.add_option("--blocks", sizes.num_blocks, "in the pool")->check(CLI::Range(1, most))->capture_default_str();
  auto* const drafts = app.add_option("--drafts", sizes.num_drafts, "tokens guessed in each step")
                           ->check(CLI::Range(std::int64_t{0}, sizes.token_budget - 1))
                           ->capture_default_str();
  app.add_option("--branches", sizes.num_branches, "guesses at once, as a tree")
      ->check(CLI::Range(1, pagedkv::largest_attention_tree - 1))
      ->capture_default_str()
      ->needs(drafts);
  app.add_flag("--overlap", sizes.overlaps, "two steps in flight")->excludes(drafts);
}

/// Options of every program that answers with an engine.
struct engine_options {
  std::string directory;
  engine_sizes sizes{.num_blocks = 2048};
  tier_sizes tiers;
  stored_as stored = stored_as::float32;

  void add_to(CLI::App& app) {
    app.add_option("--model", directory, "folder with config.json, *.safetensors and tokenizer.json")->required();
    add_sizes_to(app, sizes);
    const auto names = std::map<std::string, stored_as>{{"f32", stored_as::float32},
                                                        {"f16", stored_as::float16},
                                                        {"bf16", stored_as::bfloat16},
                                                        {"int8", stored_as::int8},
                                                        {"fp8", stored_as::float8}};
    app.add_option("--kv", stored, "how K and V are stored; otherwise f32")
        ->transform(CLI::CheckedTransformer(names).description("f32, f16, bf16, int8 or fp8"));
    app.add_option("--host-blocks", tiers.host_blocks, "kept in host memory behind the pool")
        ->check(CLI::NonNegativeNumber);
    auto* const file =
        app.add_option("--file", tiers.file, "keeps blocks for the next start; goes with --host-blocks");
    app.add_option(
        "--remote", tiers.remote,
        "URL of a store of Valkey or Redis that processes share, redis://host:6379; goes with --host-blocks");
    app.add_option("--file-size", tiers.file_bytes, "of the file")
        ->transform(CLI::AsSizeValue(false))
        ->capture_default_str()
        ->needs(file);
  }

  [[nodiscard]] std::unique_ptr<engine> make(model& loaded) const {
    auto named = tiers;
    named.model = name_of_files();
    return make_engine(loaded, sizes, stored, named);
  }

 private:
  /// Other files have other K/V: the name tells the folder, and when one of the model's files was last written.
  [[nodiscard]] std::string name_of_files() const {
    auto newest = std::filesystem::file_time_type::min();
    for (const auto& file : std::filesystem::directory_iterator(directory)) {
      const auto type = file.path().extension();
      if (type == ".json" || type == ".safetensors") {  // sessions and blocks may lie beside them
        newest = std::max(newest, file.last_write_time());
      }
    }
    return std::filesystem::canonical(directory).string() + ' ' + std::to_string(newest.time_since_epoch().count());
  }
};

}  // namespace llama
