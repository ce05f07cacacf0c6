// Answers questions in the terminal: a transformer whose K/V lies in a paged cache. Each turn's prompt is the whole
// conversation, of which only the new tokens are computed. `--help` lists the options.

#include "conversation.hpp"
#include "model.hpp"
#include "options.hpp"
#include "tokenizer.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <signal.h>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <iostream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace {

using clock_type = std::chrono::steady_clock;

struct settings {
  llama::engine_options engine;
  std::vector<std::string> questions;
  std::size_t max_tokens = 200;
  llama::sampling_options sampling;
  std::string session;
};

double seconds_since(clock_type::time_point begin) {
  return std::chrono::duration<double>(clock_type::now() - begin).count();
}

volatile std::sig_atomic_t is_interrupted = 0;

/// Has the next SIGINT end the wait for a question, or the answer behind it. A second one ends the program.
void catch_interrupt() {
  is_interrupted = 0;
  struct sigaction action {};
  action.sa_handler = [](int /*number*/) { is_interrupted = 1; };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
}

/// Answers one question. Returns false, and leaves the conversation without it, if that fails. A conversation that
/// would become longer than the texts that the model was trained on starts anew.
bool answer(llama::engine& engine, llama::conversation& talk, const llama::tokenizer& words, const settings& chosen,
            const std::string& question, std::int32_t context) {
  const auto most = static_cast<std::size_t>(context);
  const auto ask = [&](llama::conversation& of) {
    const auto size = of.ask(question).size();
    return size <= most && chosen.max_tokens <= most - size;
  };
  auto longer = talk;
  if (!ask(longer)) {
    longer = llama::conversation(words);
    if (!ask(longer)) {
      fmt::print(stderr, "a question of {} tokens with {} of its answer is longer than the model's context of {}\n",
                 longer.tokens().size(), chosen.max_tokens, context);
      return false;
    }
  }
  const auto& prompt = longer.tokens();
  const auto began = clock_type::now();
  auto first = 0.0;
  const auto print = [&](const llama::sample& of, std::optional<pagedkv::token> next) {
    if (!next) {
      return;
    }
    first = of.answer().size() == 1 ? seconds_since(began) : first;
    const auto bytes = words.bytes_of(*next);
    std::fwrite(bytes.data(), 1, bytes.size(), stdout);
    std::fflush(stdout);
  };
  auto options = llama::generation_options{.max_tokens = chosen.max_tokens, .sampling = chosen.sampling};
  const auto submitted = engine.submit(prompt, options, print);
  if (!submitted) {
    fmt::print(stderr, "{}\n", submitted.error().message());
    return false;
  }
  const auto& made = **submitted;
  while (engine.step()) {
    if (is_interrupted != 0 && made.is_open()) {
      engine.cancel(made);
    }
  }
  if (made.failure) {
    if (!made.answer().empty()) {
      fmt::print("\n");
      std::fflush(stdout);
    }
    fmt::print(stderr, "{}\n", made.failure->message());
    engine.forget(made);
    return false;
  }
  const auto all = seconds_since(began);
  const auto blocks = engine.cache_statistics().blocks;
  fmt::print(
      "\n[{} tokens, {:.0f} a second; first after {:.1f} ms; {} of {} prompt tokens were cached; {} blocks hold K/V]\n",
      made.answer().size(), static_cast<double>(made.answer().size()) / all, first * 1e3, made.num_cached_tokens,
      made.num_prompt_tokens, blocks.in_use + blocks.evictable);
  longer.hear(made.answer());
  engine.forget(made);
  talk = std::move(longer);
  return true;
}

/// Takes up a conversation where an earlier run left it, with its K/V; without a file, one begins.
bool restore(llama::engine& engine, llama::conversation& talk, const std::string& session) {
  if (!std::filesystem::exists(session)) {
    return true;
  }
  auto tokens = engine.restore(session);
  if (!tokens) {
    fmt::print(stderr, "{}: {}\n", session, tokens.error().message());
    return false;
  }
  talk.resume(*std::move(tokens));
  return true;
}

/// Computes what is not cached of the conversation, and saves it.
bool save(llama::engine& engine, const llama::conversation& talk, const std::string& session) {
  auto options = llama::generation_options{};
  options.max_tokens = 1;
  options.save_to = session;
  const auto whole = engine.submit(talk.tokens(), options);
  engine.run();
  const auto failure = whole ? (*whole)->failure : whole.error();
  if (failure) {
    fmt::print(stderr, "{}: {}\n", session, failure->message());
  }
  return !failure;
}

/// The next line of the terminal that is not blank, without the blanks around it; none at the end or behind `exit`.
std::optional<std::string> read_question() {
  constexpr auto blanks = " \t\r\v\f";
  for (auto line = std::string{};;) {
    catch_interrupt();
    fmt::print("> ");
    std::fflush(stdout);
    if (!std::getline(std::cin, line)) {
      fmt::print("\n");
      return {};
    }
    const auto begin = line.find_first_not_of(blanks);
    if (begin == line.npos) {
      continue;
    }
    line = line.substr(begin, line.find_last_not_of(blanks) + 1 - begin);
    return line == "exit" ? std::nullopt : std::optional(std::move(line));
  }
}

/// Answers what was asked on the command line, or in the terminal. Returns whether all of it was.
bool answer_all(llama::engine& engine, llama::conversation& talk, const llama::tokenizer& words, const settings& chosen,
                std::int32_t context) {
  auto succeeds = true;
  for (const auto& question : chosen.questions) {
    fmt::print("> {}\n", question);
    succeeds &= answer(engine, talk, words, chosen, question, context);
  }
  if (chosen.questions.empty()) {
    while (const auto question = read_question()) {
      succeeds &= answer(engine, talk, words, chosen, *question, context);
    }
  }
  return succeeds;
}

int chat(llama::model& loaded, const llama::tokenizer& words, const settings& chosen) {
  const auto engine = chosen.engine.make(loaded);
  auto talk = llama::conversation(words);
  const bool saves = !chosen.session.empty();
  if (saves && !restore(*engine, talk, chosen.session)) {
    return 1;
  }
  auto succeeds = answer_all(*engine, talk, words, chosen, loaded.config().context);
  succeeds &= !saves || save(*engine, talk, chosen.session);
  return succeeds && engine->cache_statistics().blocks.in_use == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  auto chosen = settings{};
  auto app = CLI::App{
      "Answers questions with a model of Llama's, Mistral's, Phi-3's, Qwen 3's, Gemma 3's or Bamba's kind."};
  chosen.engine.add_to(app);
  app.add_option("question", chosen.questions,
                 "questions, one after the other; none: read from the terminal, until exit");
  app.add_option("--max-tokens", chosen.max_tokens, "of each answer")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--temperature", chosen.sampling.temperature, "0: always the most likely token")
      ->check(llama::finite_number(true));
  app.add_option("--seed", chosen.sampling.seed, "of the random numbers");
  app.add_option("--session", chosen.session,
                 "file of the conversation, which goes on with it, and is saved at the end");
  CLI11_PARSE(app, argc, argv);
  try {
    auto loaded = llama::model(chosen.engine.directory);
    const auto words = llama::tokenizer(chosen.engine.directory);
    return chat(loaded, words, chosen);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
}
