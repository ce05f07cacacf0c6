#include "../../examples/llama/engine.hpp"
#include "../../examples/llama/files.hpp"
#include "../../examples/llama/model.hpp"
#include "../tier/fake_store.hpp"
#include "small_models.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators_range.hpp>
#include <catch2/matchers/catch_matchers.hpp>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <ranges>
#include <string>
#include <vector>

using namespace llama;
using namespace llama::test;
using pagedkv::token;

namespace {

/// The models of reference.json, loaded once.
model& loaded(const std::string& name) {
  static auto models = std::map<std::string, model>{};
  const auto found = models.find(name);
  if (found != models.end()) {
    return found->second;
  }
  const auto folder = model_folder(reference_of(name));
  return models.emplace(std::piecewise_construct, std::tuple(name), std::tuple(folder.path())).first->second;
}

generation_options exactly(std::size_t count) {
  auto options = generation_options{};
  options.max_tokens = count;
  options.ignores_end = true;
  return options;
}

/// Nothing is in use when all requests have ended.
void check_end(engine& on) {
  CHECK(on.cache_statistics().blocks.in_use == 0);
  CHECK(on.check_invariants() == std::vector<std::string>{});
}

/// A text of the trained model's, which repeats itself from token 185 to token 195.
std::vector<token> repeating_text(model& trained) {
  const auto engine = make_engine(trained, {.num_blocks = 64});
  const auto* const made = engine->submit(trained_reference().at("cases").at(1).at("prompt"), exactly(200)).value();
  engine->run();
  return made->tokens;
}

/// Submits every case of a model at once, and compares the tokens.
void check_tokens(engine& on, const reference& model) {
  auto samples = std::vector<const sample*>{};
  for (const auto& each : model.cases) {
    samples.push_back(on.submit(each.prompt, exactly(each.tokens.size())).value());
  }
  on.run();
  for (auto i = std::size_t{0}; i < samples.size(); ++i) {
    CAPTURE(i);
    CHECK(std::vector(samples[i]->answer().begin(), samples[i]->answer().end()) == model.cases[i].tokens);
  }
  check_end(on);
}

}  // namespace

TEST_CASE("an engine generates the tokens of transformers, without and with hits", "[llama]") {
  const auto& model = GENERATE(from_range(references()));
  const auto block_size = GENERATE(4, 16, 64);
  const auto budget = GENERATE(512, 23);
  CAPTURE(model.name, block_size, budget);
  const auto engine = make_engine(loaded(model.name),
                                  {.block_size = block_size, .num_blocks = 2048 / block_size, .token_budget = budget});
  check_tokens(*engine, model);
  CHECK(engine->statistics().cached_tokens == 0);
  check_tokens(*engine, model);
  CHECK(engine->statistics().cached_tokens > 0);
}

TEST_CASE("preempted requests generate the same tokens when they are resumed", "[llama]") {
  const auto& model = GENERATE(from_range(references()));
  CAPTURE(model.name);
  auto sizes = engine_sizes{.block_size = 8, .token_budget = 64};
  sizes.num_blocks = 40;
  auto preemptions = std::int64_t{0};
  for (; preemptions == 0 && sizes.num_blocks > 12; --sizes.num_blocks) {
    const auto engine = make_engine(loaded(model.name), sizes);
    check_tokens(*engine, model);
    preemptions = engine->statistics().preemptions;
  }
  CHECK(preemptions > 0);
}

TEST_CASE("drafts that repeat the text change no token", "[llama]") {
  const auto& model = GENERATE(from_range(references()));
  CAPTURE(model.name);
  const auto branches = GENERATE(1, 4);
  const auto engine = make_engine(
      loaded(model.name),
      {.block_size = 4, .num_blocks = 400, .num_drafts = 3, .num_branches = static_cast<std::size_t>(branches)});
  check_tokens(*engine, model);
  CHECK((engine->statistics().drafts > 0) == (model.name != "bamba"));
}

TEST_CASE("answers part behind the prompt's last token, with drafts, too", "[llama]") {
  static auto trained = model(trained_model());
  const auto text = repeating_text(trained);
  for (const auto size : {186, 187, 188}) {
    CAPTURE(size);
    // A step of its own computes the last token.
    const auto engine =
        make_engine(trained, {.block_size = 4, .num_blocks = 256, .token_budget = size - 1, .num_drafts = 3});
    auto options = exactly(8);
    options.num_samples = 2;
    engine->submit({text.begin(), text.begin() + size}, options).value();
    engine->run();
    for (const auto* each : engine->samples()) {
      CHECK((each->failure ? each->failure->message() : "") == "");
      CHECK(each->tokens == std::vector(text.begin(), text.begin() + size + 8));
    }
    CHECK(engine->statistics().accepted_drafts > 0);
    check_end(*engine);
  }
}

TEST_CASE("a session ends with its answer, however many drafts are right", "[llama]") {
  static auto trained = model(trained_model());
  const auto text = repeating_text(trained);
  auto config = read_json(trained_model() / "config.json");
  config["eos_token_id"] = text[187];
  const auto folder = test_folder({{"config.json", config.dump()}});
  std::filesystem::create_symlink(trained_model() / "model.safetensors", folder.path() / "model.safetensors");
  auto ending = model(folder.path());
  const auto engine = make_engine(ending, {.block_size = 4, .num_blocks = 256, .num_drafts = 3});
  auto options = generation_options{};
  options.save_to = folder.path() / "session";
  const auto* const made = engine->submit({text.begin(), text.begin() + 186}, options).value();
  engine->run();
  CHECK(made->state == generation_state::ended);
  CHECK(made->tokens == std::vector(text.begin(), text.begin() + 188));
  CHECK(engine->statistics().drafts > 0);
  CHECK(engine->restore(options.save_to).value() == std::vector(text.begin(), text.begin() + 187));
  check_end(*engine);
}

TEST_CASE("a tree of drafts is right more often than its first chain", "[llama]") {
  static auto trained = model(trained_model());
  auto texts = std::vector<std::vector<token>>{};
  auto right = std::vector<std::int64_t>{};
  for (const auto branches : {std::size_t{1}, std::size_t{4}}) {
    const auto engine =
        make_engine(trained, {.block_size = 4, .num_blocks = 256, .num_drafts = 4, .num_branches = branches});
    for (const auto& each : trained_reference().at("cases")) {
      const auto* const made = engine->submit(each.at("prompt"), exactly(300)).value();
      engine->run();
      texts.push_back(made->tokens);
    }
    right.push_back(engine->statistics().accepted_drafts);
    check_end(*engine);
  }
  CHECK(std::equal(texts.begin(), texts.begin() + std::ssize(texts) / 2, texts.begin() + std::ssize(texts) / 2));
  CHECK(right[1] > right[0]);
}

TEST_CASE("prefixes of a request that gives way before it is computed are not found", "[llama]") {
  const auto& cases = reference_of("llama").cases;
  const auto& long_prompt = cases.back().prompt;
  const auto& long_answer = cases.back().tokens;
  const auto engine = make_engine(loaded("llama"), {.block_size = 8, .num_blocks = 24});
  auto options = exactly(4);
  options.priority = 10;
  const auto* const low = engine->submit(long_prompt, options).value();
  options.priority = 90;
  auto other = long_prompt;
  other.front() += 1;
  static_cast<void>(engine->submit(other, options).value());
  engine->run();
  CHECK(std::equal(low->answer().begin(), low->answer().end(), long_answer.begin()));
  check_end(*engine);
}

TEST_CASE("answers by forks are those of the prompt alone", "[llama]") {
  const auto& model = GENERATE(from_range(references()));
  const auto& prompt = model.cases.back().prompt;
  const auto& tokens = model.cases.back().tokens;
  const auto engine = make_engine(loaded(model.name), {.num_blocks = 200});
  auto options = exactly(tokens.size());
  options.num_samples = 3;
  static_cast<void>(engine->submit(prompt, options).value());
  engine->run();
  auto count = std::size_t{0};
  for (const auto* each : engine->samples()) {
    CHECK(std::vector(each->answer().begin(), each->answer().end()) == tokens);
    ++count;
  }
  CHECK(count == 3);
  check_end(*engine);
}

TEST_CASE("answers by forks keep to the rows of a step", "[llama]") {
  const auto& prompt = reference_of("llama").cases[1].prompt;
  const auto& tokens = reference_of("llama").cases[1].tokens;
  const auto engine = make_engine(loaded("llama"), {.num_blocks = 200, .max_rows = 4});
  auto options = exactly(tokens.size());
  options.num_samples = 3;
  for (auto i = 0; i < 3; ++i) {
    static_cast<void>(engine->submit(prompt, options).value());
  }
  engine->run();
  auto count = std::size_t{0};
  for (const auto* each : engine->samples()) {
    CHECK(std::vector(each->answer().begin(), each->answer().end()) == tokens);
    ++count;
  }
  CHECK(count == 9);
  options.num_samples = 5;
  CHECK_FALSE(engine->submit(prompt, options));
  check_end(*engine);
}

TEST_CASE("answers by forks wait for room", "[llama]") {
  const auto& model = GENERATE(from_range(references()));
  const auto& [prompt, tokens, logits] = model.cases[1];
  auto sizes = engine_sizes{.block_size = 8, .num_blocks = 8};
  auto engine = make_engine(loaded(model.name), sizes);
  while (!engine->fits(prompt.size(), tokens.size(), 3)) {
    ++sizes.num_blocks;
    engine = make_engine(loaded(model.name), sizes);
  }
  CAPTURE(model.name, sizes.num_blocks);
  auto options = exactly(tokens.size());
  options.num_samples = 3;
  for (auto i = 0; i < 4; ++i) {
    static_cast<void>(engine->submit(prompt, options).value());
  }
  engine->run();
  for (const auto* each : engine->samples()) {
    CHECK((each->failure ? each->failure->message() : "") == "");
    CHECK(std::vector(each->answer().begin(), each->answer().end()) == tokens);
  }
  check_end(*engine);
}

TEST_CASE("a listener hears of every end once", "[llama]") {
  const auto& model = reference_of("llama");
  const auto engine = make_engine(loaded("llama"), {.num_blocks = 8});
  auto ends = std::map<const sample*, std::size_t>{};
  const auto listen = [&](const sample& of, std::optional<token> next) {
    ends[&of] += static_cast<std::size_t>(!of.is_open());
    CHECK(next.has_value() == (of.is_open() || of.state == generation_state::cut));
  };
  const auto* const whole = engine->submit(model.cases[0].prompt, exactly(10), listen).value();
  const auto* const dropped = engine->submit(model.cases[1].prompt, exactly(10), listen).value();
  const auto* const large = engine->submit(model.cases.back().prompt, exactly(10), listen).value();
  engine->step();
  engine->cancel(*dropped);
  engine->run();
  CHECK(ends == std::map<const sample*, std::size_t>{{whole, 1}, {dropped, 1}, {large, 1}});
  check_end(*engine);
}

TEST_CASE("an engine tells whether its pool holds a request", "[llama]") {
  for (const auto& each : references()) {
    CAPTURE(each.name);
    const auto engine = make_engine(loaded(each.name), {.num_blocks = 40});
    const auto& prompt = each.cases[2].prompt;
    auto most = std::size_t{1};
    while (most < 400 && engine->fits(prompt.size(), most + 1, 2)) {  // where all layers have a window, any length fits
      ++most;
    }
    CHECK_FALSE(engine->fits(prompt.size(), std::numeric_limits<std::size_t>::max(), 1));
    auto options = exactly(most);
    options.num_samples = 2;
    const auto* const made = engine->submit(prompt, options).value();
    engine->run();
    CHECK(made->state == generation_state::cut);
    check_end(*engine);
  }
}

TEST_CASE("a pool that holds a request is enough for it", "[llama]") {
  const auto& model = GENERATE(from_range(references()));
  auto sizes = engine_sizes{.block_size = 8, .max_rows = 3};
  sizes.token_budget = GENERATE(512, 16);
  sizes.num_drafts = static_cast<std::size_t>(GENERATE(0, 3));
  const auto num_samples = static_cast<std::size_t>(GENERATE(1, 3));
  for (const auto& [prompt, tokens, logits] : model.cases) {
    const auto is_too_small = [&](std::int32_t num_blocks) {
      auto tried = sizes;
      tried.num_blocks = num_blocks;
      return !make_engine(loaded(model.name), tried)->fits(prompt.size(), tokens.size(), num_samples);
    };
    const auto counts = std::views::iota(8, 512);
    const auto fewest = std::ranges::partition_point(counts, is_too_small);
    REQUIRE(fewest != counts.end());
    sizes.num_blocks = *fewest;
    const auto engine = make_engine(loaded(model.name), sizes);
    CAPTURE(model.name, sizes.token_budget, prompt.size(), sizes.num_blocks);
    auto options = exactly(tokens.size());
    options.num_samples = num_samples;
    const auto* const made = engine->submit(prompt, options).value();
    engine->run();
    CHECK((made->failure ? made->failure->message() : "") == "");
    CHECK(std::vector(made->answer().begin(), made->answer().end()) == tokens);
    check_end(*engine);
  }
}

TEST_CASE("prompts of one step share what they have in common", "[llama]") {
  const auto& prompt = reference_of("llama").cases.back().prompt;
  const auto& tokens = reference_of("llama").cases.back().tokens;
  const auto engine = make_engine(loaded("llama"), {.num_blocks = 200});
  for (auto i = 0; i < 4; ++i) {
    static_cast<void>(engine->submit(prompt, exactly(tokens.size())).value());
  }
  engine->step();
  CHECK(engine->statistics().cached_tokens == 3 * 144);
  engine->run();
  for (const auto* each : engine->samples()) {
    CHECK(std::vector(each->answer().begin(), each->answer().end()) == tokens);
  }
  check_end(*engine);
}

TEST_CASE("a request that the pool cannot hold fails alone", "[llama]") {
  const auto& model = reference_of("llama");
  const auto engine = make_engine(loaded("llama"), {.num_blocks = 8});
  const auto* const large = engine->submit(model.cases.back().prompt, exactly(10)).value();
  const auto* const small = engine->submit(model.cases[1].prompt, exactly(10)).value();
  engine->run();
  CHECK(large->state == generation_state::failed);
  CHECK(large->failure.has_value());
  CHECK(small->state == generation_state::cut);
  check_end(*engine);
}

TEST_CASE("an answer that outgrows the pool fails, and what it wrote stays cached", "[llama]") {
  const auto& model = reference_of("llama");
  const auto engine = make_engine(loaded("llama"), {.num_blocks = 8});
  const auto* const endless = engine->submit(model.cases[1].prompt, exactly(1000)).value();
  engine->run();
  CHECK(endless->state == generation_state::failed);
  CHECK(endless->tokens.size() == 8 * 16 + 1);
  check_end(*engine);
}

TEST_CASE("a cancelled request leaves nothing behind", "[llama]") {
  const auto& model = reference_of("gemma3");
  const auto engine = make_engine(loaded("gemma3"), {.num_blocks = 200, .token_budget = 16});
  const auto* const first = engine->submit(model.cases[3].prompt, exactly(10)).value();
  const auto* const second = engine->submit(model.cases[3].prompt, exactly(10)).value();
  engine->step();
  engine->cancel(*first);
  engine->cancel(*second);
  CHECK_FALSE(engine->step());
  check_end(*engine);
  CHECK_FALSE(engine->submit({}, {}));
  CHECK_FALSE(engine->submit({model.config.at("vocab_size").get<token>()}, {}));
}

TEST_CASE("the trained model gives the answers that transformers gives", "[llama]") {
  static auto trained = model(trained_model());
  const auto engine = make_engine(trained, {.num_blocks = 64});
  for (const auto& each : trained_reference().at("cases")) {
    const auto expected = each.at("tokens").get<std::vector<token>>();
    const auto* const made = engine->submit(each.at("prompt"), exactly(expected.size())).value();
    engine->run();
    CHECK(std::vector(made->answer().begin(), made->answer().end()) == expected);
  }
  check_end(*engine);
}

TEST_CASE("what the pool evicts comes back from host memory", "[llama]") {
  const auto& model = GENERATE(from_range(references()));
  CAPTURE(model.name);
  const auto sizes = engine_sizes{.block_size = 8, .num_blocks = 40, .token_budget = 64};
  const auto engine = make_engine(loaded(model.name), sizes, stored_as::float32, {.host_blocks = 400});
  check_tokens(*engine, model);
  const auto cached = engine->statistics().cached_tokens;
  check_tokens(*engine, model);
  auto length = std::size_t{0};
  for (const auto& each : model.cases) {
    length += each.prompt.size();
  }
  CHECK(engine->cache_statistics().evictions > 0);
  CHECK(engine->statistics().cached_tokens - cached >= static_cast<std::int64_t>(length) * 3 / 4);
}

TEST_CASE("a restart finds in a file what was cached, and generates the same tokens", "[llama]") {
  const auto& model = GENERATE(from_range(references()));
  CAPTURE(model.name);
  const auto folder = model_folder(model);
  const auto tiers = tier_sizes{.host_blocks = 64,
                                .file = folder.path() / "blocks",
                                .file_bytes = 1 << 24,
                                .model = "the model of reference.json"};
  const auto sizes = engine_sizes{.block_size = 8, .num_blocks = 200, .token_budget = 64};
  {
    const auto engine = make_engine(loaded(model.name), sizes, stored_as::float32, tiers);
    check_tokens(*engine, model);
  }
  const auto engine = make_engine(loaded(model.name), sizes, stored_as::float32, tiers);
  check_tokens(*engine, model);
  auto in_blocks = std::int64_t{0};
  for (const auto& each : model.cases) {
    in_blocks += static_cast<std::int64_t>((each.prompt.size() - 1) / 8 * 8);
  }
  // Where all layers have a window, records wait until the tokens before them were computed again.
  const bool finds_at_once = loaded(model.name).config().has(layer_kind::full);
  if (!finds_at_once) {
    check_tokens(*engine, model);
  }
  CHECK(engine->statistics().cached_tokens >= in_blocks * 95 / 100);
  for (const auto* each : engine->samples()) {
    CHECK(each->num_cached_tokens <= static_cast<std::int64_t>(each->num_prompt_tokens));
  }
  auto other = tiers;
  other.model = "another one";
  CHECK_THROWS(make_engine(loaded(model.name), sizes, stored_as::float32, other));
}

TEST_CASE("an engine finds in a store what another one computed", "[llama]") {
  const auto& model = reference_of("llama");
  auto values = std::map<std::string, std::string>{};
  const auto store = pagedkv::testing::fake_store(pagedkv::testing::fake_store::greeting([&](const auto& command) {
    if (command[0] == "SET") {
      values[command[1]] = command[2];
      return std::string("+OK\r\n");
    }
    const auto found = values.find(command[1]);
    return found == values.end() ? "$-1\r\n"
                                 : '$' + std::to_string(found->second.size()) + "\r\n" + found->second + "\r\n";
  }));
  const auto folder = model_folder(model);
  const auto with_file = GENERATE(false, true);
  auto tiers = tier_sizes{.host_blocks = 128, .file_bytes = 1 << 20, .remote = store.url(), .model = "m"};
  const auto sizes = engine_sizes{.block_size = 8, .num_blocks = 200};
  {
    const auto engine = make_engine(loaded("llama"), sizes, stored_as::float32, tiers);
    check_tokens(*engine, model);
  }
  tiers.file = with_file ? folder.path() / "blocks" : "";
  const auto engine = make_engine(loaded("llama"), sizes, stored_as::float32, tiers);
  check_tokens(*engine, model);
  CHECK(engine->statistics().cached_tokens > 0);
}

TEST_CASE("a session goes on in another engine with the same tokens", "[llama]") {
  const auto& model = GENERATE(from_range(references()));
  CAPTURE(model.name);
  const auto& prompt = model.cases.back().prompt;
  const auto& tokens = model.cases.back().tokens;
  const auto folder = model_folder(model);
  const auto file = folder.path() / "session";
  const auto half = tokens.size() / 2;
  {
    const auto engine = make_engine(loaded(model.name), {.block_size = 8, .num_blocks = 200});
    auto options = exactly(half);
    options.save_to = file;
    CHECK_FALSE(engine->submit(prompt, options).value()->failure);
    engine->run();
    check_end(*engine);
  }
  const auto engine = make_engine(loaded(model.name), {.block_size = 8, .num_blocks = 100});
  auto talk = engine->restore(file).value();
  CHECK(talk.size() == prompt.size() + half - 1);
  talk.push_back(tokens[half - 1]);
  const auto* const made = engine->submit(talk, exactly(tokens.size() - half)).value();
  engine->run();
  CHECK(std::equal(made->answer().begin(), made->answer().end(), tokens.begin() + static_cast<std::ptrdiff_t>(half)));
  // All whole blocks are found; a state only where one was saved, at the last block's end before that of the prompt.
  const auto num_saved = model.name == "bamba" ? prompt.size() : talk.size();
  CHECK(made->num_cached_tokens == static_cast<std::int64_t>((num_saved - 1) / 8 * 8));
  check_end(*engine);

  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 1);
  CHECK_FALSE(engine->restore(file));
  CHECK_FALSE(engine->restore(folder.path() / "nothing"));
  check_end(*engine);
}

TEST_CASE("an answer whose session cannot be written ends with the reason", "[llama]") {
  const auto engine = make_engine(loaded("llama"), {});
  auto options = exactly(2);
  options.save_to = "/nowhere/session";
  const auto* const made = engine->submit({1, 2, 3}, options).value();
  engine->run();
  CHECK(made->state == generation_state::cut);
  CHECK(made->failure.has_value());
  check_end(*engine);
}

TEST_CASE("a request that is cancelled while its blocks load leaves nothing behind", "[llama]") {
  const auto& prompt = reference_of("llama").cases.back().prompt;
  const auto folder = model_folder(reference_of("llama"));
  const auto tiers =
      tier_sizes{.host_blocks = 64, .file = folder.path() / "blocks", .file_bytes = 1 << 20, .model = "m"};
  const auto sizes = engine_sizes{.block_size = 8, .num_blocks = 200};
  {
    const auto engine = make_engine(loaded("llama"), sizes, stored_as::float32, tiers);
    engine->submit(prompt, exactly(1)).value();
    engine->run();
  }
  const auto engine = make_engine(loaded("llama"), sizes, stored_as::float32, tiers);
  const auto* const dropped = engine->submit(prompt, exactly(1)).value();
  engine->step();
  engine->cancel(*dropped);
  CHECK_FALSE(engine->step());
  check_end(*engine);
}

TEST_CASE("tiers are refused where they cannot stand", "[llama]") {
  CHECK_THROWS_AS(make_engine(loaded("llama"), {}, stored_as::float32, {.host_blocks = 1, .remote = "store"}),
                  std::invalid_argument);
  const auto tiers = tier_sizes{.host_blocks = 64};
  CHECK_THROWS_WITH(
      make_engine(loaded("gemma3"), {}, stored_as::float32, {.host_blocks = 64, .remote = "redis://127.0.0.1:1"}),
      "stores stand behind models whose layers all attend to all tokens");
  CHECK_THROWS_WITH(make_engine(loaded("llama"), {}, stored_as::int8, tiers), "tiers of this program hold float32");
  CHECK_THROWS_WITH(make_engine(loaded("llama"), {}, stored_as::float32, {.file = "blocks"}),
                    "files and stores are read and written through host memory, which needs blocks");
}

TEST_CASE("with two steps in flight the tokens are the same", "[llama]") {
  const auto& model = GENERATE(from_range(references()));
  const auto budget = GENERATE(512, 23);
  CAPTURE(model.name, budget);
  auto sizes = engine_sizes{.block_size = 4, .num_blocks = 800, .token_budget = budget, .overlaps = true};
  const auto engine = make_engine(loaded(model.name), sizes);
  check_tokens(*engine, model);
  check_tokens(*engine, model);
  CHECK(engine->statistics().cached_tokens > 0);

  const auto& prompt = model.cases.back().prompt;
  const auto& tokens = model.cases.back().tokens;
  auto options = exactly(tokens.size());
  options.num_samples = 3;
  static_cast<void>(engine->submit(prompt, options).value());
  const auto* const dropped = engine->submit(prompt, options).value();
  for (auto i = 0; i < 12; ++i) {
    engine->step();
  }
  engine->cancel(*dropped);
  engine->forget(*dropped);
  engine->run();
  for (const auto* each : engine->samples()) {
    if (each->options.num_samples == 3 && each->state == generation_state::cut) {
      CHECK(std::vector(each->answer().begin(), each->answer().end()) == tokens);
    }
  }
  check_end(*engine);

  sizes.num_blocks = 80;
  const auto small = make_engine(loaded(model.name), sizes);
  check_tokens(*small, model);
}

TEST_CASE("with two steps in flight an answer ends at its end token", "[llama]") {
  static auto trained = model(trained_model());
  const auto alone = make_engine(trained, {.num_blocks = 64});
  const auto pipelined = make_engine(trained, {.num_blocks = 64, .overlaps = true});
  auto options = generation_options{};
  options.max_tokens = 200;
  for (const auto& each : trained_reference().at("cases")) {
    const auto* const expected = alone->submit(each.at("prompt"), options).value();
    alone->run();
    const auto* const made = pipelined->submit(each.at("prompt"), options).value();
    pipelined->run();
    CHECK(made->tokens == expected->tokens);
    CHECK(made->state == expected->state);
  }
  check_end(*pipelined);
}
