// Serves a model over HTTP with OpenAI's interface, metrics for Prometheus at /metrics and a page that shows the pool
// at /. `--help` lists the options. SIGINT and SIGTERM end it; its status is 0 if no block is in use then. So does an
// engine that throws, with status 1 and its message.

#include "../model.hpp"
#include "../options.hpp"
#include "../tokenizer.hpp"
#include "http.hpp"
#include "service.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <semaphore.h>
#include <signal.h>
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <future>
#include <string>

namespace {

struct settings {
  llama::engine_options engine;
  std::string name;
  std::string host = "127.0.0.1";
  int port = 8000;
  std::size_t num_connections = 256;
};

sem_t ends;

/// Any thread may get the signal, those of a BLAS among them, which began before `main`.
void catch_signals() {
  sem_init(&ends, 0, 0);
  struct sigaction action {};
  action.sa_handler = [](int /*number*/) { sem_post(&ends); };
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  signal(SIGPIPE, SIG_IGN);
}

void wait_for_end() {
  while (sem_wait(&ends) != 0) {  // a signal interrupts it
  }
}

int serve(const settings& chosen) {
  auto loaded = llama::model(chosen.engine.directory);
  const auto words = llama::tokenizer(chosen.engine.directory);
  catch_signals();
  auto answers = llama::service(chosen.engine.make(loaded), [] { sem_post(&ends); });
  const auto served = llama::served_model{chosen.name, loaded.config(), words};
  auto server = llama::http_server(served, answers, chosen.num_connections);
  const auto port = server.bind(chosen.host, chosen.port);
  if (port < 0) {
    fmt::print(stderr, "{} port {} cannot be had\n", chosen.host, chosen.port);
    return 2;
  }
  const bool is_ipv6 = chosen.host.find(':') != std::string::npos;
  fmt::print("{} at http://{}:{}\n", chosen.name, is_ipv6 ? '[' + chosen.host + ']' : chosen.host, port);
  std::fflush(stdout);
  auto listener = std::async(std::launch::async, [&] {
    try {
      server.listen();
    } catch (...) {
      sem_post(&ends);
      throw;
    }
  });
  wait_for_end();
  const auto faults = answers.stop();
  server.stop();
  std::ranges::for_each(faults, [](const std::string& fault) { fmt::print(stderr, "{}\n", fault); });
  const auto status = faults.empty() ? 0 : 1;
  if (listener.wait_for(std::chrono::seconds(10)) != std::future_status::ready) {
    std::_Exit(status);  // a client that sends or takes a byte now and then would hold the process
  }
  listener.get();
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  auto chosen = settings{};
  auto app = CLI::App{
      "Serves a model of Llama's, Mistral's, Phi-3's, Qwen 3's, Gemma 3's or Bamba's kind with OpenAI's interface."};
  chosen.engine.add_to(app);
  app.add_option("--name", chosen.name, "of the model, for clients; otherwise that of the folder");
  app.add_option("--host", chosen.host, "address to listen at")->capture_default_str();
  app.add_option("--port", chosen.port, "0: a free one")->check(CLI::Range(0, 65535))->capture_default_str();
  app.add_option("--connections", chosen.num_connections, "served at once; others wait")
      ->check(CLI::Range(1, 65'535))
      ->capture_default_str();
  app.add_option("--rows", chosen.engine.sizes.max_rows, "answers in a step")
      ->check(CLI::Range(1, 65'535))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  if (chosen.name.empty()) {
    chosen.name = std::filesystem::weakly_canonical(chosen.engine.directory).filename();
  }
  try {
    return serve(chosen);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
}
