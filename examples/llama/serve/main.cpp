// Serves a model over HTTP with OpenAI's interface, metrics for Prometheus at /metrics and a page that shows the pool
// at /. `--help` lists the options. SIGINT and SIGTERM end it; its status is 0 if no block is in use then.

#include "../tokenizer.hpp"
#include "http.hpp"
#include "service.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <signal.h>
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <thread>

namespace {

struct settings {
  std::string directory;
  std::string name;
  std::string host = "127.0.0.1";
  int port = 8000;
  std::size_t num_connections = 256;
  llama::engine_sizes sizes{.num_blocks = 2048};
};

/// Of all threads to come: one waits for them.
sigset_t block_signals() {
  auto ends = sigset_t{};
  sigemptyset(&ends);
  sigaddset(&ends, SIGINT);
  sigaddset(&ends, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);
  signal(SIGPIPE, SIG_IGN);
  return ends;
}

int serve(const settings& chosen) {
  auto loaded = llama::model(chosen.directory);
  const auto words = llama::tokenizer(chosen.directory);
  const auto ends = block_signals();
  auto answers = llama::service(loaded, chosen.sizes);
  const auto served = llama::served_model{chosen.name, loaded.config(), words};
  auto server = llama::http_server(served, answers, chosen.num_connections);
  const auto port = server.bind(chosen.host, chosen.port);
  if (port < 0) {
    fmt::print(stderr, "{} port {} cannot be had\n", chosen.host, chosen.port);
    return 2;
  }
  auto listener = std::thread([&] { server.listen(); });
  fmt::print("{} at http://{}:{}\n", chosen.name, chosen.host, port);
  std::fflush(stdout);
  auto received = 0;
  sigwait(&ends, &received);
  const auto faults = answers.stop();
  server.stop();
  listener.join();
  std::ranges::for_each(faults, [](const std::string& fault) { fmt::print(stderr, "{}\n", fault); });
  return faults.empty() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  auto chosen = settings{};
  auto app = CLI::App{"Serves a model of Llama's, Qwen 3's, Gemma 3's or Bamba's kind with OpenAI's interface."};
  app.add_option("--model", chosen.directory, "folder with config.json, *.safetensors and tokenizer.json")->required();
  app.add_option("--name", chosen.name, "of the model, for clients; otherwise that of the folder");
  app.add_option("--host", chosen.host, "address to listen at")->capture_default_str();
  app.add_option("--port", chosen.port, "0: a free one")->check(CLI::Range(0, 65535))->capture_default_str();
  app.add_option("--connections", chosen.num_connections, "served at once; others wait")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--block-size", chosen.sizes.block_size, "tokens in a block")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--blocks", chosen.sizes.num_blocks, "in the pool")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--rows", chosen.sizes.max_rows, "answers in a step")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--drafts", chosen.sizes.num_drafts, "tokens guessed in each step")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  if (chosen.name.empty()) {
    chosen.name = std::filesystem::weakly_canonical(chosen.directory).filename();
  }
  try {
    return serve(chosen);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
}
