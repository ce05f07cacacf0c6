// How far a model's logits are from those with K and V in float32 where they are stored in fewer bits: behind each
// token of a prompt and the answer to it. `--help` lists the options.

#include "divergence.hpp"
#include "files.hpp"

#include "../../examples/llama/engine.hpp"
#include "../../examples/llama/logits.hpp"
#include "../../examples/llama/model.hpp"
#include "../../examples/llama/tokenizer.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdio>
#include <exception>
#include <string>
#include <utility>
#include <vector>

namespace {

using json = nlohmann::json;

struct settings {
  std::string model = LLAMA_MODEL;
  std::string prompt = "<|user|>What is a hacker?<|end|><|answer|>";
  std::size_t num_tokens = 400;
  std::string json_file;
};

/// The prompt and its most likely answer.
std::vector<pagedkv::token> text_of(llama::model& loaded, const settings& chosen) {
  const auto sizes = llama::engine_sizes{.num_blocks = 2048};
  const auto engine = llama::make_engine(loaded, sizes);
  auto options = llama::generation_options{};
  options.max_tokens = chosen.num_tokens;
  options.ignores_end = true;
  const auto* const made = engine->submit(llama::tokenizer(chosen.model).encode(chosen.prompt), options).value();
  engine->run();
  return made->tokens;
}

void run(const settings& chosen) {
  using llama::stored_as;
  auto loaded = llama::model(chosen.model);
  const auto text = text_of(loaded, chosen);
  const auto exact = llama::logits_of(loaded, text, stored_as::float32);
  const auto width = static_cast<std::size_t>(loaded.config().vocabulary);
  auto rows = json::array();
  fmt::print("{} tokens\n{:>10} {:>18} {:>24} {:>16}\n", text.size(), "K and V", "largest difference",
             "relative entropy, nats", "same best token");
  for (const auto& [name, stored] :
       {std::pair("float16", stored_as::float16), std::pair("bfloat16", stored_as::bfloat16),
        std::pair("int8", stored_as::int8), std::pair("float8", stored_as::float8)}) {
    const auto found = llama::bench::compare(exact, llama::logits_of(loaded, text, stored), width);
    fmt::print("{:>10} {:>18.2e} {:>24.2e} {:>14.1f} %\n", name, found.largest, found.relative_entropy,
               100 * found.same_best);
    rows.push_back({{"stored_as", name},
                    {"largest", found.largest},
                    {"relative_entropy", found.relative_entropy},
                    {"same_best", found.same_best}});
  }
  if (!chosen.json_file.empty()) {
    llama::bench::write_file(chosen.json_file, rows.dump(2) + "\n");
  }
}

}  // namespace

int main(int argc, char** argv) {
  auto chosen = settings{};
  auto app = CLI::App{
      "The largest difference of a logit (in shares of the largest logit) and of the next token's distribution from "
      "those "
      "with K and V in float32."};
  app.add_option("--model", chosen.model, "folder with config.json, *.safetensors and tokenizer.json")
      ->capture_default_str();
  app.add_option("--prompt", chosen.prompt, "of the text")->capture_default_str();
  app.add_option("--tokens", chosen.num_tokens, "of the answer")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--json", chosen.json_file, "file for all figures");
  CLI11_PARSE(app, argc, argv);
  try {
    run(chosen);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
}
